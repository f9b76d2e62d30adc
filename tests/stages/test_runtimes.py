"""Other runtimes: what they refuse and declare; 8 bits: what is chosen, kept and judged, and that it answers."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from operator import getitem
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import onnx
import pytest
import torch
from torch import Tensor, fx, nn
from torch.utils.dlpack import from_dlpack

from models.build import build_model
from pipeline.compiler.agreement import Budget, Spent, overlap, spent
from pipeline.devices import host
from pipeline.measure import accuracy
from pipeline.profiling.observed_execution import complete
from pipeline.stages import Skip, StageError, api, int8, openvino, thunder, xla
from pipeline.stages.api import Runner, Workload, library
from pipeline.stages.common import openvino_plugin
from pipeline.stages.common.fewer_bits import Judges, judges, layers_to_keep, passed
from pipeline.stages.common.onnx_models import types
from pipeline.stages.openvino import PIECES, compiled_pieces, left_to_torch
from pipeline.worker.failures import failure_of
from tests.config.test_load import composed
from tests.process_state import own_switches
from tests.stage_files import FOLDER
from tests.stages.conftest import small_net
from tests.stages.test_stages import FILES, Ran, built, check_answers, check_net, references, run_once, spec

EXTRAS = ("openvino", "xla", "tvm", "thunder")


@pytest.mark.parametrize(("name", "extra"), [*((name, name) for name in EXTRAS), ("inductor_int8", "torchao")])
def test_a_skip_names_the_extra(name: str, extra: str, workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(module: str) -> ModuleType:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module.partition(".")[0])

    monkeypatch.setattr(api, "importlib", SimpleNamespace(import_module=missing))
    monkeypatch.setattr(xla, "prepare_process", lambda *_: None)
    monkeypatch.setenv("TVM_NUM_THREADS", "1")
    with pytest.raises(Skip, match=rf"isn't installed; python -m pip install --editable '\.\[{extra}\]'") as raised:
        built(name, workload)
    assert failure_of(raised.value)[0] == "missing library"


def test_the_remedy_of_a_wheel_needs_no_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "INSTALLED", True)
    with pytest.raises(Skip, match=r"pip install 'unet-ladder\[xla\]' installs it"):
        api.library("no_such_library", "xla")


def test_every_extra_that_a_refusal_names_is_one() -> None:
    import tomllib

    offered = tomllib.loads((FOLDER.parents[1] / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {*EXTRAS, "torchao"} <= set(offered)


def test_a_library_that_is_broken_is_a_failure_not_a_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = ModuleNotFoundError("No module named 'jaxlib'", name="jaxlib")
    monkeypatch.setattr(api, "importlib", SimpleNamespace(import_module=Mock(side_effect=broken)))
    with pytest.raises(StageError, match=r"jax can't be imported \(No module named 'jaxlib'\)"):
        library("jax", "xla")


def test_everything_is_the_ladder_and_all_other_stages() -> None:
    everything, ladder = (composed(f"stage={name}")["stage"]["rungs"] for name in ("everything", "ladder"))
    assert list(everything)[: len(ladder)] == list(ladder)
    assert set(everything) == set(FILES)
    assert all(rung["adds"] for rung in everything.values())


class Jax(ModuleType):
    def __init__(self, platform: str) -> None:
        super().__init__("jax")
        self.platform = platform

    dlpack = SimpleNamespace(from_dlpack=from_dlpack)

    def devices(self) -> list[SimpleNamespace]:
        if self.platform == "none":
            raise RuntimeError("Unable to initialize backend 'cuda'\nand a page of it")
        return [SimpleNamespace(platform=self.platform)]


@pytest.mark.parametrize(
    ("platform", "device", "reason"),
    [
        ("cpu", "cuda", "asked for cuda, JAX computes on cpu; is its CUDA plugin there?"),
        ("gpu", "cpu", "asked for cpu, JAX computes on gpu"),
        ("none", "cuda", "JAX has no cuda device here: Unable to initialize backend 'cuda'"),
    ],
)
def test_xla_never_computes_on_another_device(platform: str, device: str, reason: str) -> None:
    with pytest.raises(StageError) as raised:
        xla.check_device(Jax(platform), torch.device(device))
    assert str(raised.value).startswith(reason)
    xla.check_device(Jax("gpu" if device == "cuda" else "cpu"), torch.device(device))


def test_xla_gets_as_many_threads_as_torch_and_leaves_it_the_memory() -> None:
    environment: dict[str, str] = {}
    xla.prepare_process(torch.device("cpu"), environment)
    assert environment == {
        "JAX_PLATFORMS": "cpu",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "NPROC": str(torch.get_num_threads()),
    }


def test_xla_hands_over_memory_and_copies_none() -> None:
    unchanged: Any = lambda _, batch: batch  # noqa: E731 - what JAX compiled
    image = torch.zeros(1, 3, 8, 8)
    run = xla.compiled(Jax("cpu"), unchanged, {})
    assert run(image).data_ptr() == image.data_ptr()


def test_bf16_without_units_for_it_is_skipped() -> None:
    why = "this CPU has no units for bf16"
    with pytest.raises(Skip, match=why):
        openvino_plugin.chosen("bf16", why)
    assert openvino_plugin.chosen("auto", why) == "fp32"
    assert openvino_plugin.chosen("auto", "") == openvino_plugin.chosen("bf16", "") == "bf16"


def test_openvino_declares_what_its_plugin_says() -> None:
    layers = {"first": "node_0", "head": "node_1"}
    kernels = [("node_0,node_relu", "Convolution", "i8"), ("node_1", "Convolution", "f32")]
    found = openvino_plugin.observed(kernels, layers, "int8")
    assert (found.precision, found.layer_precision) == ("int8", {"head": "fp32"})
    with pytest.raises(StageError, match="asked for bf16, OpenVINO runs fp32, int8"):
        openvino_plugin.observed(kernels, layers, "bf16")


def test_thunder_without_the_nvfuser_asked_for_fails(workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(get_default_executors=lambda: (SimpleNamespace(name="torch"),))
    monkeypatch.setattr(thunder, "library", lambda *_: fake)
    with pytest.raises(StageError, match=r"stage.nvfuser=true, and Thunder has torch; nvFuser's wheels must match"):
        thunder.build(workload, nvfuser=True)


def spoilt(net: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda image: net(image) / image.std().gt(0)


def by_thunder(workload: Workload, patch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(get_default_executors=tuple, jit=spoilt)
    patch.setattr(thunder, "library", lambda *_: fake)


def by_openvino(workload: Workload, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(openvino, "library", lambda *_: None)
    patch.setattr(openvino, "converted", lambda *_: ())
    patch.setattr(openvino, "stage_of", lambda *_: Runner(spoilt(workload.model), "OpenVINO"))


def by_xla(workload: Workload, patch: pytest.MonkeyPatch) -> None:
    answer = spoilt(workload.model)
    patch.setattr(xla, "library", lambda *_: Jax("cpu"))
    patch.setattr(xla, "prepare_process", lambda *_: None)
    patch.setattr(xla, "functional", lambda *_: lambda weights, batch: answer(from_dlpack(batch)))


def by_int8(workload: Workload, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(int8.ByOnnxRuntime, "stage", lambda *_: Runner(spoilt(workload.model), "int8"))


@pytest.mark.parametrize(
    ("name", "stand_in"),
    [("thunder", by_thunder), ("openvino", by_openvino), ("xla", by_xla), ("onnxruntime_int8", by_int8)],
)
def test_what_was_converted_is_tried_on_a_white_image(
    name: str,
    stand_in: Callable[[Workload, pytest.MonkeyPatch], None],
    workload: Workload,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = nn.Conv2d(3, 2, 1).eval()
    net.get_parameter("bias").data[0] += 9.0  # its masks don't hang on int8's rounding
    small = replace(workload, model=net)
    stand_in(small, monkeypatch)
    with pytest.raises(StageError, match=r"form of the network answers NaN or infinity to zeros") as caught:
        built(name, small)
    assert caught.value.kind == "wrong answer"


class Piece(nn.Module):
    perm_fallback = False


def kept(*models: str) -> Any:
    """What the backend keeps after a call: its compiled models, and the net in pieces."""
    graph = fx.Graph()
    image = graph.placeholder("image")
    first = graph.call_function(getitem, (graph.call_module("fused_0", (image,)), 0))
    graph.output(graph.call_function(torch.relu, (first,)))
    net = fx.GraphModule({"fused_0": Piece()}, graph)
    return SimpleNamespace(compiled_cache=dict(enumerate(models)), partitioned_modules={"net": net})


def test_what_openvino_compiled_is_told_from_what_it_left() -> None:
    pieces = kept("model")
    assert compiled_pieces(pieces) == ["model"]
    assert left_to_torch(pieces) == [str(torch.relu)]
    with pytest.raises(StageError, match="handed the network to Inductor") as raised:
        compiled_pieces(kept())
    assert raised.value.kind == "wrong device"
    pieces = kept("model")
    pieces.partitioned_modules["net"].fused_0.perm_fallback = True
    with pytest.raises(StageError, match="handed a piece of the network to torch"):
        compiled_pieces(pieces)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_it_answers_within_its_tolerance(dtype: str, tmp_path: Path) -> None:
    pytest.importorskip(PIECES, exc_type=ImportError)
    if dtype == "bf16" and host.why_no_bf16():
        pytest.skip("no units for bf16")
    with own_switches():
        net = build_model("models.unet.UNet", {"base": 8, "depth": 1}, None, seed=10)
        workload = replace(small_net(tmp_path), model=net)
        ran = run_once("openvino_compile", workload, dtype=dtype)
        found, contradicted = complete(ran.runner, workload, [])
    check_answers(ran)
    assert (found.precision, contradicted) == (dtype, "")
    check_net(ran)
    assert (ran.runner.details["pieces"], ran.runner.details["operators_left_to_torch"]) == (1, [])


BUDGET = Budget(flips=1e-3, error=5e-2, dice=1e-2)


class RareClass(nn.Module):
    """Two classes, one of them in 4 of 64² pixels; `bias` moves all pixels towards the other."""

    def __init__(self, bias: float = 0.0) -> None:
        super().__init__()
        self.bias = bias

    def forward(self, image: Tensor) -> Tensor:
        return torch.cat([torch.ones_like(image) * 0.5 + self.bias, image], 1)


def rare_images() -> list[Tensor]:
    """Noise under the threshold, and a spot of 2×2 pixels barely above it."""
    torch.manual_seed(0)
    images = torch.rand(2, 1, 64, 64) * 0.4
    images[:, :, 10:12, 20:22] = 0.52
    return list(images.split(1))


def judged_by(net: nn.Module, images: list[Tensor]) -> Judges:
    workload = Workload(net, images, torch.device("cpu"), Path("nowhere"), verified=1)
    return judges(workload, 1, "none", BUDGET)


def test_a_stage_that_loses_the_rare_class_silently_does_not_pass() -> None:
    images, spoilt = rare_images(), RareClass(bias=0.03)
    exact = [RareClass()(image) for image in images]
    tolerance = spec("onnxruntime_int8").tolerance
    found = spent(spoilt, images, exact)
    assert found.flips < tolerance.flipped_share
    assert found.error < tolerance.relative_l2
    assert found.dice == 1.0
    with pytest.raises(StageError, match=r"a class loses 1 of Dice against fp32 \(0.01 allowed\)") as raised:
        passed(spoilt, judged_by(RareClass(), images))
    assert raised.value.kind == "wrong answer"


def test_a_stage_that_keeps_its_masks_passes_and_nan_does_not() -> None:
    off = passed(RareClass(bias=1e-3), judged_by(RareClass(), rare_images()))
    assert (off["flips"], off["dice"]) == (0.0, 0.0)
    assert 0 < off["error"] < 5e-3
    with pytest.raises(StageError, match="off by nan"):
        passed(lambda image: RareClass()(image) * float("nan"), judged_by(RareClass(), rare_images()))


def test_dice_is_pooled_over_the_images_and_the_largest_part_counts() -> None:
    mask, right = torch.tensor([[[0, 1, 1, 0]]]), torch.tensor([[[0, 1, 0, 0]]])
    assert overlap(mask.byte(), right.byte(), 3).tolist() == [[2, 1, 0], [5, 3, 0]]
    logits = torch.zeros(1, 3, 1, 4)
    logits[0, 1, 0, 1] = logits[0, 0, 0, [0, 2, 3]] = 1.0
    given = logits.clone()
    given[0, :, 0, 2] = torch.tensor([0.0, 1.0, 0.0])
    assert spent(lambda _: given, [logits], [logits]).dice == pytest.approx(1 - 2 / 3)
    found = Spent(flips=2e-3, error=1e-2, dice=2e-2)
    assert BUDGET.share(found) == pytest.approx(2.0)
    assert Budget(4e-3, 5e-2).share(found) == pytest.approx(0.5)


HARMFUL, HARMLESS = {"first": 1.5, "middle": 0.2, "head": 0.6}, {"first": 0.5, "middle": 0.125, "head": 0.25}


@pytest.mark.parametrize(
    ("asked", "harm", "kept", "gains"),
    [
        ("auto", HARMFUL, ["first"], HARMFUL),
        ("auto", HARMLESS, [], HARMLESS),
        ("none", HARMFUL, [], {}),
        ("head", HARMFUL, ["head"], {}),
        (["head"], HARMLESS, ["head"], {}),
    ],
)
def test_the_layer_that_saves_most_stays_in_fp32(
    asked: str | list[str], harm: dict[str, float], kept: list[str], gains: dict[str, float]
) -> None:
    found = layers_to_keep(asked, list(harm), lambda kept: sum(harm[name] for name in harm if name not in kept))
    assert found == (kept, pytest.approx(gains))


def test_of_a_net_without_masks_the_values_alone_count(workload: Workload) -> None:
    far = Spent(flips=0.3, error=0.02, dice=0.4)
    for masks, used in ((True, 300.0), (False, 0.4)):
        by = judges(replace(workload, has_masks=masks), 4, "none", BUDGET)
        assert by.budget.share(far) == pytest.approx(used)


def test_no_layer_in_int8_and_a_layer_that_is_not_there_are_told() -> None:
    with pytest.raises(StageError, match="no layer can be int8 within the budget"):
        layers_to_keep("auto", ["only"], lambda kept: 0.0 if kept else 9.0)
    with pytest.raises(StageError, match=r"stage.keep_fp32=haed: no such layer; did you mean 'head'\?"):
        layers_to_keep(["haed"], ["first", "head"], lambda kept: 0.0)


@pytest.mark.parametrize("runtime", list(int8.RUNTIMES))
def test_on_a_gpu_they_have_no_form(runtime: Any, workload: Workload) -> None:
    with pytest.raises(Skip, match=r"stage=tensorrt stage\.dtype=int8 runs int8 on a GPU"):
        int8.build(replace(workload, device=torch.device("cuda")), runtime=runtime)


def test_a_method_that_a_runtime_lacks_is_refused(workload: Workload) -> None:
    with pytest.raises(StageError, match=r"stage.method=Entropy: inductor has MinMax alone"):
        int8.build(workload, runtime="inductor", method="Entropy")


@pytest.mark.parametrize(
    ("kind", "activation"), [("int8", "QUInt8"), ("int8 symmetric", "QInt8"), ("fp8", "QFLOAT8E4M3FN")]
)
def test_each_kind_has_its_types(kind: Any, activation: str) -> None:
    from onnxruntime.quantization import QuantType

    assert types(QuantType, kind)["activation_type"] is QuantType[activation]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    """ONNX Runtime in int8, the first layer kept, on a net of one level, whose random weights decide by a hair."""
    with own_switches():
        net = build_model("models.unet.UNet", {"base": 8, "depth": 1}, None, seed=10)
        workload = replace(small_net(tmp_path_factory.mktemp("int8")), model=net, verified=1)
        options = {"keep_fp32": ["encoder.0.0"], "budget": 1.0, "dice_budget": 1.0}
        yield run_once("onnxruntime_int8", workload, **options)


def test_onnxruntime_in_int8_answers_within_its_tolerance(ran: Ran) -> None:
    tolerance = spec(ran.name).tolerance
    assert accuracy.check(ran.answers, references(ran.workload), None, tolerance, trained=False)[1:] == ("ok", "")
    check_net(ran)


def test_onnxruntime_in_int8_says_what_is_in_int8(ran: Ran) -> None:
    details, execution = ran.runner.details, ran.runner.execution
    assert (details["int8_layers"], details["kept"]) == (6, ["encoder.0.0"])
    assert (execution.precision, execution.layer_precision) == ("int8", {"encoder.0.0": "fp32"})
    assert ran.runner.save is not None
    (path,) = [path for path in ran.runner.save(ran.workload.folder) if path.suffix == ".onnx"]
    assert "QuantizeLinear" in {node.op_type for node in onnx.load(path).graph.node}


def test_int8_is_calibrated_on_other_images_than_the_evaluation_images(ran: Ran) -> None:
    calibration = ran.runner.calibration
    assert calibration.apart
    assert calibration.scales.images > 0
