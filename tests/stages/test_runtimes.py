"""The runtimes in extras: without their library, with a stand-in for it, and, where it is there, with it."""

import shutil
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor, nn
from torch.utils.dlpack import from_dlpack

from models.build import build_model
from pipeline.stages import Skip, StageError, tensorrt, thunder, xla
from pipeline.stages.api import Workload
from pipeline.stages.common import openvino_plugin, optional_library, qdq
from pipeline.stages.common.onnx_export import export
from pipeline.stages.common.optional_library import library
from pipeline.worker.failures import failure_of
from tests.process_state import own_switches
from tests.stages.conftest import small_net
from tests.stages.test_stages import CONF, FILES, built, check_answers, check_net, run_once, settings

EXTRAS = {"openvino": "openvino", "xla": "torchax", "tvm": "tvm", "thunder": "thunder"}
ON_GPU = torch.device("cuda")


@pytest.mark.filterwarnings("ignore:torch.is_autocast_cpu_enabled:DeprecationWarning")  # Thunder's
@pytest.mark.parametrize(("name", "module"), EXTRAS.items())
def test_a_runtime_answers_within_its_tolerance(name: str, module: str, tmp_path: Path) -> None:
    """On real images and a net of one level, which it leaves as it was."""
    pytest.importorskip(module, exc_type=ImportError)
    with own_switches():
        net = build_model("models.unet.UNet", {"base": 8, "depth": 1}, None, seed=10)
        ran = run_once(name, replace(small_net(tmp_path), model=net))
    check_answers(ran)
    check_net(ran)
    assert ran.runner.execution is not None
    assert ran.runner.execution.precision is not None
    assert ran.runner.execution.provider is not None


@pytest.mark.parametrize(("name", "extra"), [*((name, name) for name in EXTRAS), ("inductor_int8", "torchao")])
def test_without_its_library_a_stage_is_skipped_and_names_the_extra(
    name: str, extra: str, workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line, of the kind that the report counts as a missing library."""

    def missing(module: str) -> ModuleType:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module.partition(".")[0])

    monkeypatch.setattr(optional_library, "importlib", SimpleNamespace(import_module=missing))
    monkeypatch.setattr(xla, "prepare_process", lambda *_: None)
    monkeypatch.setenv("TVM_NUM_THREADS", "1")
    with pytest.raises(Skip, match=rf"isn't installed; python -m pip install --editable '\.\[{extra}\]'") as raised:
        built(name, workload)
    assert failure_of(raised.value)[0] == "missing library"


def test_every_extra_that_a_refusal_names_is_one() -> None:
    """pyproject.toml has it."""
    import tomllib

    offered = tomllib.loads((CONF.parents[1] / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {*EXTRAS, "torchao"} <= set(offered)


def test_a_library_that_is_broken_is_a_failure_not_a_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that lacks a library of its own isn't called uninstalled."""

    def broken(module: str) -> ModuleType:
        raise ModuleNotFoundError("No module named 'jaxlib'", name="jaxlib")

    monkeypatch.setattr(optional_library, "importlib", SimpleNamespace(import_module=broken))
    with pytest.raises(StageError, match=r"jax can't be imported \(No module named 'jaxlib'\)"):
        library("jax", "xla")


def test_everything_is_the_ladder_and_all_other_stages() -> None:
    """No stage is forgotten, and what it adds stands in the file."""
    ladder: Any = OmegaConf.load(CONF / "ladder.yaml")
    rungs = settings_of_rungs("everything")
    assert list(rungs)[: len(ladder.rungs)] == list(ladder.rungs)
    assert set(rungs) == set(FILES)
    assert all(rung["adds"] for rung in rungs.values())


def settings_of_rungs(name: str) -> dict[str, Any]:
    found, _ = settings(name)
    return dict(found["rungs"])


class Jax:
    """JAX on a device of some platform."""

    def __init__(self, platform: str) -> None:
        self.platform = platform

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
    """A JAX without its CUDA plugin takes the CPU silently."""
    with pytest.raises(StageError) as raised:
        xla.check_device(Jax(platform), torch.device(device))
    assert str(raised.value).startswith(reason)


def test_xla_takes_the_device_that_is_asked_for(workload: Workload) -> None:
    """And an answer on another one is none."""
    xla.check_device(Jax("gpu"), ON_GPU)
    xla.check_device(Jax("cpu"), torch.device("cpu"))
    xla.check_answer(torch.zeros(1), workload)
    with pytest.raises(StageError, match="the answer came on cpu, not cuda"):
        xla.check_answer(torch.zeros(1), replace(workload, device=ON_GPU))


def test_xla_gets_as_many_threads_as_torch_and_leaves_it_the_memory() -> None:
    """JAX reads it when it is imported."""
    environment: dict[str, str] = {}
    xla.prepare_process(torch.device("cpu"), environment)
    assert environment == {
        "JAX_PLATFORMS": "cpu",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "NPROC": str(torch.get_num_threads()),
    }


def test_xla_hands_over_memory_and_copies_none() -> None:
    """The array that JAX would get reads what torch wrote."""
    jax = SimpleNamespace(dlpack=SimpleNamespace(from_dlpack=from_dlpack))
    image = torch.zeros(1, 3, 8, 8)
    run = xla.Compiled(jax, lambda weights, batch: batch, {})
    assert run(image).data_ptr() == image.data_ptr()


def test_bf16_without_units_for_it_is_skipped() -> None:
    """OpenVINO takes the hint on any CPU, and emulates it."""
    with pytest.raises(Skip, match="no units for bf16"):
        openvino_plugin.chosen("bf16", has_bf16=False)
    assert openvino_plugin.chosen("auto", has_bf16=False) == "fp32"
    assert openvino_plugin.chosen("auto", has_bf16=True) == openvino_plugin.chosen("bf16", has_bf16=True) == "bf16"
    assert openvino_plugin.chosen("int8", has_bf16=True) == "int8"


def test_openvino_declares_what_its_plugin_says() -> None:
    """A layer in another precision is named; where none is in the one that was asked for, the stage fails."""
    layers = {"first": "node_0", "head": "node_1"}
    kernels = [("node_0,node_relu", "Convolution", "i8"), ("node_1", "Convolution", "f32")]
    found = openvino_plugin.observed(kernels, layers, "int8")
    assert (found.precision, found.layer_precision) == ("int8", {"head": "fp32"})
    assert openvino_plugin.counted(kernels) == {"Convolution i8": 1, "Convolution f32": 1}
    with pytest.raises(StageError, match="asked for bf16, OpenVINO runs fp32, int8"):
        openvino_plugin.observed(kernels, layers, "bf16")


def test_thunder_without_nvfuser_fails_where_it_was_asked_for(
    workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its other executors don't run under that name."""
    fake = SimpleNamespace(get_default_executors=lambda: (SimpleNamespace(name="torch"),))
    monkeypatch.setattr(thunder, "library", lambda *_: fake)
    with pytest.raises(
        StageError, match=r"stage.nvfuser=true, and Thunder has torch; nvFuser's wheels must match torch"
    ):
        thunder.build(workload, nvfuser=True)


class Session:
    """A session of ONNX Runtime on TensorRT's provider."""

    def __init__(self) -> None:
        self.opened: list[tuple[Path, str, dict[str, str]]] = []

    def open(self, path: Path, wanted: str, options: dict[str, str]) -> "Session":
        self.opened.append((path, wanted, options))
        return self

    def get_providers(self) -> list[str]:
        return ["TensorrtExecutionProvider"]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small net as torch exports it in fp32, which takes seconds."""
    path: Path = tmp_path_factory.mktemp("exported") / "model.onnx"
    export(small_one(), torch.float32, torch.zeros(1, 3, 96, 96), path)
    return path


@pytest.fixture
def session(exported: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """The provider, of which all before and after is real: it answers by the net."""
    found = Session()

    def copied(_: nn.Module, __: torch.dtype, ___: Tensor, path: Path) -> int:
        path.parent.mkdir(parents=True, exist_ok=True)
        for file in exported.parent.iterdir():
            shutil.copyfile(file, path.parent / file.name)
        shutil.copyfile(exported, path)
        return 20

    monkeypatch.setattr(tensorrt, "export", copied)
    monkeypatch.setattr(qdq, "export", copied)

    def bound(_: Session, batch: Tensor, precision: torch.dtype) -> tuple[Tensor, torch.dtype]:
        return batch, precision

    monkeypatch.setattr(tensorrt, "load_tensorrt", lambda: None)
    monkeypatch.setattr(tensorrt, "open_session", found.open)
    monkeypatch.setattr(tensorrt, "bound", bound)
    monkeypatch.setattr(tensorrt, "on_stream", lambda batch, precision, stream: small_one())
    monkeypatch.setattr(tensorrt, "assignments", lambda _: {"TensorrtExecutionProvider": {"TRTKernel": 1}})
    monkeypatch.setattr(torch.cuda, "Stream", lambda: SimpleNamespace(cuda_stream=7))
    return found


def small_one() -> nn.Module:
    """A net that exports in a second."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 1)).eval()


@pytest.fixture
def on_gpu(workload: Workload) -> Workload:
    """A workload of a GPU, its tensors on the CPU."""
    return replace(workload, model=small_one(), device=ON_GPU, verified=1)


def test_tensorrt_in_fp16_keeps_its_engine_in_the_stages_folder(session: Session, on_gpu: Workload) -> None:
    """On torch's stream, and with the timings of its tactics."""
    runner = built("tensorrt", on_gpu)
    ((path, wanted, options),) = session.opened
    assert (path.name, wanted) == ("model.onnx", "tensorrt")
    assert path.exists()
    folder = str(on_gpu.caches / "tensorrt")
    assert (options["trt_engine_cache_path"], options["trt_timing_cache_path"]) == (folder, folder)
    assert (options["trt_fp16_enable"], options["trt_int8_enable"], options["user_compute_stream"]) == ("1", "0", "7")
    assert runner.execution is not None
    assert (runner.execution.precision, runner.calibration) == ("fp16", None)


@pytest.mark.parametrize("dtype", ["int8", "fp8"])
def test_tensorrt_with_fewer_bits_is_calibrated_and_judged(dtype: Any, session: Session, on_gpu: Workload) -> None:
    """By pairs around the convolutions, the kept one left alone; the gate has seen the answer."""
    import onnx

    runner = built("tensorrt", on_gpu, dtype=dtype, keep_fp16=["2"])
    nodes = list(onnx.load(session.opened[0][0]).graph.node)
    dequantized = {node.output[0] for node in nodes if node.op_type == "DequantizeLinear"}
    first, kept = (node for node in nodes if node.op_type == "Conv")
    assert set(first.input[:2]) <= dequantized
    assert kept.input[1] not in dequantized
    assert session.opened[0][2]["trt_int8_enable"] == str(int(dtype == "int8"))
    assert runner.details["off_fp32"] == {"flips": 0.0, "error": 0.0, "dice": 0.0}
    assert runner.calibration is not None
    with pytest.raises(StageError, match=r"stage\.keep_fp16=9: no such layer"):
        built("tensorrt", on_gpu, dtype=dtype, keep_fp16=["9"])


def test_an_engine_of_an_earlier_build_is_counted(on_gpu: Workload) -> None:
    folder = on_gpu.caches / "tensorrt"
    assert tensorrt.engines(on_gpu.caches) == []
    folder.mkdir(parents=True)
    (folder / "net.engine").touch()
    assert tensorrt.engines(on_gpu.caches) == [folder / "net.engine"]


def test_without_tensorrt_the_refusal_names_the_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """And that PyPI doesn't have it."""

    def absent(name: str) -> object:
        raise OSError(f"{name}: cannot open shared object file")

    tensorrt.load_tensorrt(lambda name: name)
    monkeypatch.setattr(tensorrt, "WHEEL", "no_such_wheel_of_tensorrt")
    with pytest.raises(Skip, match=r"its wheel tensorrt-cu13 comes from NVIDIA's own package index") as raised:
        tensorrt.load_tensorrt(absent)
    assert raised.value.kind == "missing library"


def test_torch_tensorrt_is_asked_for_fp16_alone(on_gpu: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its engines in the stage's folder; without it the stage is skipped."""
    monkeypatch.setattr(tensorrt, "importlib", SimpleNamespace(import_module=missing_torch_tensorrt))
    with pytest.raises(Skip, match="torch_tensorrt isn't installed"):
        built("tensorrt", on_gpu, backend="torch_tensorrt")
    asked: dict[str, Any] = {}

    def compile_net(net: nn.Module, **options: Any) -> nn.Module:
        asked.update(options)
        return net

    fake = SimpleNamespace(compile=compile_net, __version__="2.12.0")
    monkeypatch.setattr(tensorrt, "importlib", SimpleNamespace(import_module=lambda _: fake))
    runner = built("tensorrt", on_gpu, backend="torch_tensorrt")
    assert runner.description.startswith("torch-tensorrt 2.12.0, fp16")
    assert asked["engine_cache_dir"] == str(on_gpu.caches / "tensorrt")
    with pytest.raises(StageError, match="torch_tensorrt runs fp16"):
        built("tensorrt", on_gpu, backend="torch_tensorrt", dtype="int8")


def missing_torch_tensorrt(name: str) -> ModuleType:
    raise ModuleNotFoundError(f"No module named {name!r}", name=name)
