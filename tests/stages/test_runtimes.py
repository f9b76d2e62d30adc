"""The runtimes in extras: without their library, with a stand-in for it, and, where it is there, with it."""

from collections.abc import Callable
from dataclasses import replace
from operator import getitem
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.utils.dlpack import from_dlpack

from models.build import build_model
from pipeline.devices import host
from pipeline.profiling.observed_execution import complete
from pipeline.stages import Skip, StageError, api, int8, openvino, thunder, xla
from pipeline.stages.api import Runner, Workload, library
from pipeline.stages.common import openvino_plugin
from pipeline.stages.openvino import PIECES, compiled_pieces, left_to_torch
from pipeline.worker.failures import failure_of
from tests.config.test_load import composed
from tests.process_state import own_switches
from tests.stage_files import FOLDER
from tests.stages.conftest import small_net
from tests.stages.test_stages import FILES, built, check_answers, check_net, run_once

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
    def broken(module: str) -> ModuleType:
        raise ModuleNotFoundError("No module named 'jaxlib'", name="jaxlib")

    monkeypatch.setattr(api, "importlib", SimpleNamespace(import_module=broken))
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
    with pytest.raises(
        StageError, match=r"stage.nvfuser=true, and Thunder has torch; nvFuser's wheels must match torch"
    ):
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
    small = replace(workload, model=nn.Conv2d(3, 2, 1).eval())
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
