"""The library's call: it compiles, checks what it is given, keeps other shapes, saves and explains."""

import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pipeline.compiler as library
from pipeline.compiler import CompileError, api, artifact, driver, fp8_build
from pipeline.compiler.agreement import distance
from pipeline.compiler.ends import Classes
from tests.compiler.made_up_gpu import images, no_gpu, small_unet, times
from tests.compiler.nets_that_passes_leave import Made
from tests.input_nets import SEVERAL

__all__ = ["no_gpu"]  # a fixture
FIRST, SECOND = images()
IMAGES = torch.randint(0, 256, (2, 16, 16, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
TABLE = (torch.arange(256) / 255 - torch.tensor([[0.5], [0.4], [0.3]])) / 0.2
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "is_cuda", lambda _: True)
    monkeypatch.setattr(api, "_check_gpu", lambda: None)
    for room in (driver, fp8_build):
        monkeypatch.setattr(room, "barred_on", lambda *_: None)
    monkeypatch.setattr(driver, "put_own_norms", lambda *_: {})
    times(monkeypatch, 3.0, 2.0, 1.0)


@pytest.fixture
def make(tmp_path: Path, on_a_gpu: None) -> Callable[..., library.Compiled]:
    def compiled(net: nn.Module, *example: Tensor, **options: Any) -> library.Compiled:
        return library.compile(net, *example, search="never", cache=tmp_path / "tiles", **options)

    return compiled


def test_importing_the_library_imports_nothing_else() -> None:
    code = "import sys, pipeline.compiler; assert not {'torch', 'triton'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
    with pytest.raises(AttributeError, match="has no attribute 'compiled'"):
        library.compiled  # noqa: B018


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"^no CUDA GPU is here, and the kernels need one$"):
        library.compile(small_unet().eval(), FIRST)
    with pytest.raises(RuntimeError, match=r"^no CUDA GPU"):
        library.load(tmp_path, trusted=True)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, nullcontext])
def test_all_answer(mode: Callable[[], AbstractContextManager[object]], make: Callable[..., library.Compiled]) -> None:
    net = small_unet().eval()
    fast = make(net, FIRST)
    assert (fast.properties.precision, fast.properties.instead) == ("fp16", "")
    with mode():
        answer = fast(SECOND)
        again = fast(FIRST)
        assert distance(answer, net(SECOND).detach()) < 1e-2
        assert distance(again, net(FIRST).detach()) < 1e-2
    assert "6 layers by own kernels" in fast.explain()
    assert "3.000 ms  Inductor" in fast.explain()


def test_switches_of_the_process_are_put_back(make: Callable[..., library.Compiled]) -> None:
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.matmul.allow_tf32 = False
    make(small_unet().eval(), FIRST)
    assert not torch.backends.cudnn.benchmark
    assert not torch.backends.cuda.matmul.allow_tf32


def test_few_shapes_stay_compiled_once(make: Callable[..., library.Compiled], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "MOST_SHAPES", 2)
    said: list[str] = []
    net = small_unet().eval()
    fast = make(net, FIRST, progress=said.append)
    sizes = [SECOND[:1], torch.randn(2, 3, 32, 16)]
    with torch.no_grad():
        for given in (*sizes, *sizes):
            assert distance(fast(given), net(given)) < 1e-2
    assert said.count("exporting the network") == 3
    assert len(fast.explain().split("\n\n")) == 2


REFUSED: dict[str, tuple[Callable[[], Tensor], str]] = {
    "type": (FIRST.double, r"the inputs are \[2, 3, 16, 16\] float64 on cpu, and the network was compiled for \[2, 3,"),
    "device": (lambda: FIRST.to("meta"), "float32 on meta, and the network was compiled for"),
    "axes": (lambda: FIRST[0], r"\[3, 16, 16\] float32 on cpu, and"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_inputs_of_another_kind_are_refused_in_one_line(what: str, make: Callable[..., library.Compiled]) -> None:
    fast = make(small_unet().eval(), FIRST)
    given, said = REFUSED[what]
    with pytest.raises(CompileError, match=said):
        fast(given())


def test_what_holds_no_longer_is_refused(make: Callable[..., library.Compiled]) -> None:
    net = small_unet().eval()
    fast = make(net, FIRST, dynamic=False)
    with pytest.raises(CompileError, match=r"the inputs are \[1, 3, 16, 16\] .* compiled for \[2, 3, 16, 16\]"):
        fast(FIRST[:1])
    net.train()
    with pytest.raises(CompileError, match=r"^the network is in training mode; call network.eval\(\)$"):
        fast(FIRST)
    net.eval()
    fast(FIRST)
    with torch.no_grad():
        next(net.parameters()).add_(1.0)
    with pytest.raises(CompileError, match="weights have changed"):
        fast(FIRST)


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "no network": (lambda: library.compile(torch.relu, FIRST), "a builtin_function_or_method, not a torch.nn.Module"),  # type: ignore[arg-type]
    "compiled": (lambda: library.compile(torch.compile(small_unet().eval()), FIRST), "the network is compiled already"),  # type: ignore[arg-type, unused-ignore]
    "a scripted part": (
        lambda: library.compile(nn.Sequential(torch.jit.script(nn.ReLU())).eval(), FIRST),
        "^0 is scripted already; give the module that it was made of$",
    ),
    "no example": (lambda: library.compile(small_unet().eval()), "give an example"),
    "training": (lambda: library.compile(small_unet(), FIRST), "in training mode"),
    "half": (lambda: library.compile(small_unet().eval().half(), FIRST), "the network is in float16"),
    "an input in half": (lambda: library.compile(small_unet().eval(), FIRST.half()), "an input is in float16"),
    "whole numbers": (lambda: library.compile(small_unet().eval(), FIRST.long()), "holds torch.int64; it is to be"),
    "precision": (lambda: library.compile(small_unet().eval(), FIRST, precision="int8"), "precision='int8': choose"),  # type: ignore[arg-type]
    "no calibration": (lambda: library.compile(small_unet().eval(), FIRST, precision="fp8"), "needs calibration="),
    "calibration of fp16": (lambda: library.compile(small_unet().eval(), FIRST, calibration=FIRST), "takes no calib"),
    "images": (lambda: library.compile(small_unet().eval(), FIRST, uint8_in=TABLE), "torch.float32; .* in uint8, chan"),
    "a table": (lambda: library.compile(small_unet().eval(), IMAGES, uint8_in=TABLE.T), r"a table \[256, 3\] in torch"),
    "a failure": (lambda: library.compile(small_unet().eval(), FIRST[:, :2]), "fails with such inputs, or its answer"),
    "no tensor": (lambda: library.compile(nn.LSTM(16, 4).eval(), FIRST[:, 0]), "or its answer isn't one tensor"),
    "a module that isn't there": (
        lambda: library.compile(small_unet().eval(), FIRST, keep_fp32=["encode"]),
        "no module 'encode'; did you mean 'encoder'",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_request_is_one_line(what: str, on_a_gpu: None) -> None:
    call, said = WRONG[what]
    with pytest.raises(CompileError, match=said) as caught:
        call()
    assert "\n" not in str(caught.value)


# The first fails in channels_last, the second answers otherwise.
ACROSS: dict[str, Callable[[Tensor], Tensor]] = {
    "view": lambda x: x.view(64, 1, 16, 16).flip(2).view(2, 32, 16, 16),
    "steps": lambda x: x.as_strided((2, 32, 16, 16), (8192, 256, 1, 16)),
}


@pytest.mark.parametrize("across", ACROSS)
def test_what_needs_nchw_is_compiled_in_it(across: str, make: Callable[..., library.Compiled]) -> None:
    convs = [nn.Conv2d(inner, 32, 3, padding=1) for inner in (3, 32)]
    net = Made(lambda x, a, b: b(ACROSS[across](a(x).relu())), *convs).eval()
    fast = make(net, FIRST)
    assert (fast.properties.own_kernels, fast.properties.instead) == (2, "")
    assert distance(fast(SECOND), net(SECOND).detach()) < 1e-2


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")
def test_a_weight_with_a_gradient_s_history_is_compiled(make: Callable[..., library.Compiled]) -> None:
    net = nn.utils.weight_norm(nn.Conv2d(3, 32, 3, padding=1)).eval()
    assert distance(make(net, FIRST)(SECOND), net(SECOND).detach()) < 1e-2


def test_fp8_is_calibrated_on_images(make: Callable[..., library.Compiled]) -> None:
    net = small_unet().eval()
    options = {"precision": "fp8", "budget": None, "error_budget": 0.2}
    fast = make(net, FIRST, calibration=torch.cat([FIRST, SECOND]), **options)
    assert fast.properties.precision == "fp8"
    with torch.no_grad():
        for given in (SECOND, SECOND[:1]):
            assert 1e-4 < distance(fast(given), net(given)) < 0.2
    assert fast.properties.precision == "fp8"
    with pytest.raises(CompileError, match=r"calibration: a batch is \[1, 3, 16, 16\] .*, and the example \[2, 3"):
        make(net, FIRST, calibration=[FIRST[:1]], **options)
    with pytest.raises(CompileError, match="no batch of 2 images"):
        make(net, FIRST, calibration=FIRST[:1], **options)
    with pytest.raises(CompileError, match="a budget must be 0 or more"):
        make(net, FIRST, calibration=FIRST, precision="fp8", error_budget=-1.0)


BATCH = torch.stack([TABLE[channel][IMAGES[..., channel].int()] for channel in range(3)], 1)
ENDS: list[dict[str, Any]] = [
    {"uint8_in": TABLE, "classes_out": True},
    {"uint8_in": Made(lambda images: images.movedim(-1, 1).float() / 255)},
    {"classes_out": True},
]


@pytest.mark.parametrize(
    "options", [{}, {"precision": "fp8", "budget": None, "error_budget": 0.2}], ids=["fp16", "fp8"]
)
@pytest.mark.parametrize("ends", ENDS, ids="+".join)
def test_with_its_ends_a_network_answers_the_same(
    ends: dict[str, Any], options: dict[str, Any], make: Callable[..., library.Compiled], tmp_path: Path
) -> None:
    net, uint8_in = small_unet().eval(), ends.get("uint8_in")
    given = BATCH if uint8_in is None else IMAGES
    inputs = BATCH if uint8_in is None or uint8_in is TABLE else uint8_in(IMAGES)
    calibrated = [{"calibration": torch.cat([part, part.flip(0)])} if options else {} for part in (given, inputs)]
    fast, plain = make(net, given, **options, **ends, **calibrated[0]), make(net, inputs, **options, **calibrated[1])
    made = Classes() if "classes_out" in ends else nn.Identity()
    for number in (2, 1):
        answer, wanted = fast(given[:number]), made(plain(inputs[:number]))
        assert torch.equal(answer, wanted)
        assert answer.dtype == wanted.dtype
    assert ("uint8 in" in fast.explain(), "classes out" in fast.explain()) == (
        "uint8_in" in ends,
        "classes_out" in ends,
    )
    fast.save(tmp_path / "network.unet")
    assert torch.equal(artifact.load(tmp_path / "network.unet" / "0")(given), fast(given))


def test_the_class_of_a_pixel_tells_of_logits_that_are_no_numbers() -> None:
    logits = torch.randn(2, 3, 4, 5)
    logits[0, 1, 2, 3], logits[1, 0, 0, 0] = float("nan"), float("inf")
    for given in (logits, logits[:, :1], logits.repeat(1, 100, 1, 1)):
        sound = given.isfinite().all(1)
        found = Classes()(given)
        wanted = given.argmax(1) if given.shape[1] > 1 else (given[:, 0] > 0).long()
        assert torch.equal(found[sound].long(), wanted[sound])
        assert set(found[~sound].tolist()) <= {255 if given.shape[1] < 256 else -1}
        assert (~sound).any()


def test_what_runs_instead_is_warned_of(on_a_gpu: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    times(monkeypatch, 1.0, 2.0)
    with pytest.warns(UserWarning, match=r"^compile\(\): all of it by Inductor, in fp16: the fastest of"):
        fast = library.compile(small_unet().eval(), FIRST, search="never", cache=tmp_path)
    assert "instead of what was asked" in fast.explain()


@pytest.mark.parametrize("name", SEVERAL)
def test_what_is_saved_is_loaded_with_consent(
    name: str, make: Callable[..., library.Compiled], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, inputs = SEVERAL[name]
    given = inputs()
    fast = make(made().eval(), *given)
    folder = tmp_path / "network.unet"
    fast.save(folder)
    with pytest.raises(CompileError, match="a saved network is code; pass trusted=True"):
        library.load(folder)
    monkeypatch.setattr(api, "_current_gpu", lambda: given.device)
    monkeypatch.setattr(api, "triton_as_inductor_has_it", lambda _: None)
    again = library.load(folder, trusted=True)
    assert torch.equal(again(*given), fast(*given))
    with pytest.raises(CompileError, match="and the network was compiled for"):
        again(*(part[:1] for part in given))


@pytest.mark.parametrize("content", [None, "[]", '{"format": 9, "networks": [], "reuse_output": false}'])
def test_what_is_no_saved_network_is_refused(content: str | None, tmp_path: Path, on_a_gpu: None) -> None:
    if content is not None:
        (tmp_path / "compiled.json").write_text(content)
    with pytest.raises(CompileError, match=r"no compiled network|format 9, this version reads 1"):
        library.load(tmp_path, trusted=True)
