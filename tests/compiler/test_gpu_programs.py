"""On a GPU a net tuned layer by layer, in fp16 and fp8 and with any activation, answers as its references do."""

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.utils import run_and_get_code

from pipeline import compiler
from pipeline.compiler import custom_ops, post_grad_pass
from pipeline.compiler.agreement import distance
from pipeline.compiler.artifact import load, save
from pipeline.compiler.cuda_graphs import Captured
from pipeline.compiler.ends import ByTable, Classes
from pipeline.compiler.fp8_build import largest
from pipeline.compiler.graph.fp8_values import scales
from pipeline.compiler.graph.lowering import Plan, lower
from pipeline.compiler.inductor import compile_counting_bytes
from pipeline.compiler.post_grad_pass import kernels_in_torch_compile
from pipeline.compiler.tuning.autotune import Tuner
from pipeline.compiler.tuning.choose import choose
from pipeline.compiler.tuning.own_norms import put_own_norms
from pipeline.kernels.common.capability import barred_on, supported
from pipeline.stages.api import silent
from tests.compiler.nets import Diffusion, Nested, Residual, Wide, classic, ending_in, image, lively
from tests.compiler.plain_compile import LAYERS, channels_of, error, half_image, half_net, residual_block
from tests.compiler.rewriting import layers, limit_in_fp8, rewritten_from
from tests.input_nets import SEVERAL
from tests.process_state import own_switches

pytestmark = pytest.mark.gpu

NETS: dict[str, Callable[[], nn.Module]] = {
    "leaky_relu": lambda: ending_in(classic(base=64, depth=1), lambda: nn.LeakyReLU(0.2)),
    "silu": lambda: ending_in(classic(base=64, depth=1), nn.SiLU),
    "bilinear": lambda: classic(base=32, depth=1, upsampling="bilinear"),
    "residual": lambda: lively(Residual()),
    "nested": lambda: lively(Nested()),
    "wide": lambda: lively(Wide()),
    "diffusion": lambda: lively(Diffusion()),
}


@pytest.fixture(autouse=True)
def switches_of_its_own() -> Iterator[None]:
    """Torch names its compiler's cache in the environment at the first launch of a kernel."""
    with own_switches():
        yield
        torch._dynamo.reset()


@pytest.fixture(scope="module")
def tuner(tmp_path_factory: pytest.TempPathFactory) -> Tuner:
    return Tuner(Path(tmp_path_factory.mktemp("tuning")))


@pytest.mark.parametrize("stored", ["fp16", "fp8"])
@pytest.mark.parametrize("name", NETS)
@torch.no_grad()
def test_a_tuned_net_answers_as_its_references(name: str, stored: str, tuner: Tuner) -> None:
    """Compiled or not, twice the same; and a second build finds every choice on disk."""
    dtype = torch.float8_e4m3fn if stored == "fp8" else torch.float16
    if reason := supported(torch.cuda.get_device_capability(), dtype):
        pytest.skip(reason)
    module, batch = NETS[name]().cuda(), image(2, 3, 80, 112).cuda()
    said: list[str] = []
    net = rewritten_from(module, batch, torch.float16)
    known = scales(net, [], largest(net, [batch])) if stored == "fp8" else {}
    plan = choose(net, known, batch, tuner, said.append)
    measured = tuner.measured
    assert choose(net, known, batch, tuner, said.append) == plan
    assert tuner.measured == measured
    assert plan.tiles
    tuned, want = lower(net, plan), lower(net, Plan(known))(batch)
    got = tuned(batch)
    limit = limit_in_fp8(want, module(batch)) if stored == "fp8" else 3e-3
    assert float((got - want).norm() / want.norm()) < limit
    assert torch.equal(tuned(batch), got)
    compiled, moved = compile_counting_bytes(tuned, batch)
    again = compiled(batch)
    assert float((again - want).norm() / want.norm()) < limit
    assert torch.equal(compiled(batch), again)
    assert moved > 0


@pytest.mark.parametrize("name", NETS)
@torch.no_grad()
def test_layers_that_the_library_won_are_saved_and_loaded(name: str, tmp_path: Path) -> None:
    batch = image(2, 3, 80, 112).cuda()
    net = rewritten_from(NETS[name]().cuda(), batch, torch.float16)
    graph = lower(net, Plan({}, by_library=list(layers(net))))
    save(graph, batch, tmp_path)
    assert torch.equal(load(tmp_path).cuda()(batch), graph(batch))


@pytest.mark.parametrize("name", SEVERAL)
@torch.no_grad()
def test_a_tuned_net_of_several_inputs_answers_as_its_references(name: str, tuner: Tuner, tmp_path: Path) -> None:
    """Compiled, captured and called with other inputs than it was tuned on; and saved."""
    if reason := supported(torch.cuda.get_device_capability(), torch.float16):
        pytest.skip(reason)
    make, drawn = SEVERAL[name]
    inputs, other = (drawn(64).mapped(Tensor.cuda) for _ in range(2))
    net = rewritten_from(lively(make()).cuda(), inputs, torch.float16)
    plan = choose(net, {}, inputs, tuner, silent)
    assert plan.tiles
    tuned, want = lower(net, plan), lower(net, Plan())(*other)
    put_own_norms(tuned, inputs, tuner)
    compiled, _ = compile_counting_bytes(tuned, *inputs)
    assert float((Captured(compiled, *inputs)(*other) - want).norm() / want.norm()) < 3e-3
    save(tuned, inputs, tmp_path)
    assert torch.equal(load(tmp_path).cuda()(*other), tuned(*other))


@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore:compile:UserWarning")  # which form is the fastest is up to the GPU
@pytest.mark.parametrize("precision", ["fp16", "fp8"])
def test_with_its_ends_a_network_answers_the_same(precision: str, tmp_path: Path) -> None:
    """Bit for bit, in every mode of torch's gradients; a saved one is compiled anew as a whole."""
    net, table = classic(base=64, depth=1).cuda(), (torch.arange(256) / 255 - 0.5).div(0.2).repeat(3, 1)
    images = torch.randint(0, 256, (2, 96, 80, 3), dtype=torch.uint8).cuda()
    batch = ByTable(table.cuda())(images)
    options: dict[str, Any] = {"precision": precision, "cache": tmp_path / "tiles"}
    given: list[dict[str, Any]] = [
        {"calibration": part.repeat(4, 1, 1, 1)} if precision == "fp8" else {} for part in (images, batch)
    ]
    fast = compiler.compile(net, images, uint8_in=table, classes_out=True, **options, **given[0])
    logits = compiler.compile(net, batch, **options, **given[1])(batch)
    for mode in MODES:
        with mode():
            assert torch.equal(fast(images), Classes()(logits))
    fast.save(tmp_path / "saved")
    again = compiler.load(tmp_path / "saved", trusted=True)(images)
    assert again.dtype == torch.uint8
    assert float((again != fast(images)).float().mean()) < 1e-2


MODES: list[Callable[[], AbstractContextManager[object]]] = [torch.inference_mode, torch.no_grad, nullcontext]


@pytest.mark.timeout(900)  # two shapes are tuned and compiled, and compiled again when loaded
@pytest.mark.filterwarnings("ignore:compile:UserWarning")  # which form is the fastest is up to the GPU
@pytest.mark.parametrize(("precision", "off"), [("fp16", 1e-2), ("fp8", 0.2)])
def test_a_compiled_network_answers_as_the_network(precision: Any, off: float, tmp_path: Path) -> None:
    """In every mode, for another shape, and after it was saved and loaded; an answer outlasts the next call."""
    dtype = torch.float8_e4m3fn if precision == "fp8" else torch.float16
    if reason := barred_on(torch.device("cuda", 0), dtype):
        pytest.skip(reason)
    network = lively(classic(base=32, depth=1)).cuda().eval()
    images = torch.randn(6, 3, 96, 128, device="cuda")
    options: dict[str, Any] = {"precision": precision, "search": "never", "cache": tmp_path / "tiles"}
    if precision == "fp8":
        options |= {"calibration": images, "budget": None, "error_budget": off}
    fast = compiler.compile(network, images[:2], **options)
    with torch.no_grad():
        wanted = [network(part) for part in images.split(2)]
    for mode in MODES:
        with mode():
            answers = [fast(part) for part in images.split(2)]
            assert max(map(distance, answers, wanted)) < off
            assert distance(fast(images[:1]), wanted[0][:1]) < off
    fast.save(tmp_path / "network.unet")
    again = compiler.load(tmp_path / "network.unet", trusted=True)
    for part in (images[:2], images[:1]):
        assert distance(again(part), fast(part)) < 1e-2
    with pytest.raises(compiler.CompileError, match="float16 on cuda:0, and the network was compiled for"):
        fast(images[:2].half())


@pytest.fixture
def switched_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(custom_ops, "Tuner", lambda: Tuner(tmp_path))
    monkeypatch.setattr(post_grad_pass, "SHARE", 1e6)
    config: Any = torch._inductor.config
    with config.patch(post_grad_custom_pre_pass=None):
        torch.backends.cudnn.allow_tf32 = False  # of the net in fp32
        kernels_in_torch_compile()
        yield


def answered(net: nn.Module, batch: Tensor) -> tuple[Tensor, str]:
    torch._dynamo.reset()
    with torch.no_grad():
        answer, programs = run_and_get_code(torch.compile(net), batch)
    return answer, programs[-1]


@pytest.mark.usefixtures("switched_on")
@pytest.mark.parametrize(("name", "layer", "even"), LAYERS)
def test_a_layer_is_its_kernel_s(name: str, layer: nn.Module, even: bool) -> None:
    inner, outer = channels_of(layer)
    net = half_net(copy.deepcopy(layer), nn.BatchNorm2d(outer), nn.SiLU()).cuda()
    x = half_image(2, inner, 33 + even, 47 + even).cuda()
    answer, program = answered(net, x)
    assert program.count(f"torch.ops.unet_ladder.{name}.default(") == 1
    assert error(net, answer, x) < 1e-3


@pytest.mark.usefixtures("switched_on")
def test_a_block_adds_its_shortcut_in_its_last_convolution() -> None:
    net, x = residual_block().cuda(), half_image(2, 32, 34, 46).cuda()
    answer, program = answered(net, x)
    names = ("conv3x3_strided", "conv3x3", "conv1x1_strided")
    assert [program.count(f"torch.ops.unet_ladder.{name}.default(") for name in names] == [1, 1, 1]
    assert error(net, answer, x) < 1e-3
