"""TensorRT, and torchao's fp8, with stand-ins: what they are asked for, what is built of their answer, and refused."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from pipeline.compiler.agreement import distance
from pipeline.records.run_record import StageRecord
from pipeline.records.samples import Calibration, ImageSet
from pipeline.report.sections.accuracy import calibrated_on
from pipeline.stages import Skip, StageError, api, tensorrt, torchao_fp8
from pipeline.stages.api import Runner, Workload
from tests.compiler.nets_that_passes_leave import Made
from tests.made_up_request import spec
from tests.stages.test_stages import built

ON_GPU = torch.device("cuda")


class Session:
    def __init__(self) -> None:
        self.opened: list[tuple[Path, str, dict[str, str]]] = []

    def open(self, path: Path, wanted: str, options: dict[str, str], devices: Sequence[object]) -> "Session":
        self.devices = devices
        self.opened.append((path, wanted, options))
        return self

    def get_providers(self) -> list[str]:
        return ["TensorrtExecutionProvider"]


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    """The provider, of which all before and after is real: it answers by the net."""
    found = Session()

    monkeypatch.setattr(tensorrt, "load_tensorrt", list)
    monkeypatch.setattr(tensorrt, "open_session", found.open)
    monkeypatch.setattr(tensorrt, "bound", lambda _, batch, precision: (batch, precision))
    monkeypatch.setattr(tensorrt, "bound_call", lambda batch, precision, stream: small_one())
    monkeypatch.setattr(tensorrt, "assignments", lambda _: {"TensorrtExecutionProvider": {"TRTKernel": 1}})
    monkeypatch.setattr(torch.cuda, "Stream", lambda: SimpleNamespace(cuda_stream=7))
    return found


def small_one() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 1)).eval()


@pytest.fixture
def on_gpu(workload: Workload) -> Workload:
    return replace(workload, model=small_one(), device=ON_GPU, verified=1)


def test_tensorrt_in_fp16_keeps_its_engine_in_the_stages_folder(session: Session, on_gpu: Workload) -> None:
    runner = built("tensorrt", on_gpu)
    ((path, wanted, options),) = session.opened
    assert (path.name, wanted) == ("model.onnx", "tensorrt")
    assert path.exists()
    folder = str(on_gpu.caches / "tensorrt")
    assert (options["trt_engine_cache_path"], options["trt_timing_cache_path"]) == (folder, folder)
    assert options["user_compute_stream"] == "7"
    assert not {"trt_fp16_enable", "trt_bf16_enable", "trt_int8_enable"} & set(options)
    assert (runner.execution.precision, runner.calibration) == ("fp16", None)


class Plugin:
    """ONNX Runtime with a plug-in that offers some devices once it is registered, as the one for RTX is."""

    def __init__(self, offered: int, fault: str = "") -> None:
        self.devices: list[object] = [SimpleNamespace(ep_name="CPUExecutionProvider")]
        self.offered, self.fault = offered, fault

    def register_execution_provider_library(self, name: str, _: str) -> None:
        if self.fault:
            raise RuntimeError(self.fault)
        self.devices += [SimpleNamespace(ep_name=name) for _ in range(self.offered)]

    def get_ep_devices(self) -> list[object]:
        return self.devices


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = SimpleNamespace(get_library_path=lambda: "plugin.so")
    monkeypatch.setattr(tensorrt, "library", lambda module, extra: plugin)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))


def test_tensorrt_for_rtx_runs_on_the_device_that_its_plugin_offers(
    session: Session, on_gpu: Workload, installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorrt, "ort", found := Plugin(2))
    runner = built("tensorrt", on_gpu, backend="rtx")
    assert tensorrt.rtx_devices() == session.devices  # it is registered once
    assert len(found.devices) == 3
    assert session.devices == [found.devices[1]]
    _, wanted, options = session.opened[-1]
    assert (wanted, options["user_compute_stream"]) == ("tensorrt_rtx", "7")
    assert options["nv_runtime_cache_path"] == str(on_gpu.caches / "tensorrt")
    assert runner.description == "TensorRT for RTX by ONNX Runtime, fp16, CUDA graph"


@pytest.mark.parametrize(
    ("plugin", "said"),
    [
        (Plugin(0), "offers no device here: it runs on GPUs of compute capability 8.6, .* and this one has 9.0"),
        (Plugin(1, "libcuda.so.1: cannot open shared object"), "can't be loaded here: libcuda.so.1: cannot open"),
    ],
)
def test_where_tensorrt_for_rtx_offers_no_device_it_is_skipped(
    plugin: Plugin, said: str, on_gpu: Workload, installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorrt, "ort", plugin)
    with pytest.raises(Skip, match=f"^TensorRT for RTX {said}"):
        built("tensorrt", on_gpu, backend="rtx")


@pytest.mark.skipif(bool(find_spec("onnxruntime_ep_nv_tensorrt_rtx")), reason="it is installed")
def test_without_the_plugin_the_extra_is_named(on_gpu: Workload) -> None:
    with pytest.raises(Skip, match=r"onnxruntime_ep_nv_tensorrt_rtx isn't installed; .*\[tensorrt-rtx\]"):
        built("tensorrt", on_gpu, backend="rtx")


@pytest.mark.parametrize("dtype", ["int8", "fp8"])
def test_tensorrt_with_fewer_bits_is_calibrated_and_judged(dtype: Any, session: Session, on_gpu: Workload) -> None:
    import onnx

    runner = built("tensorrt", on_gpu, dtype=dtype, keep_fp16=["2"])
    nodes = list(onnx.load(session.opened[0][0]).graph.node)
    dequantized = {node.output[0] for node in nodes if node.op_type == "DequantizeLinear"}
    first, kept = (node for node in nodes if node.op_type == "Conv")
    assert set(first.input[:2]) <= dequantized
    assert kept.input[1] not in dequantized
    scales = {node.input[1] for node in nodes if node.op_type == "DequantizeLinear"}
    kinds = {part.data_type for part in onnx.load(session.opened[0][0]).graph.initializer if part.name in scales}
    assert kinds == {onnx.TensorProto.FLOAT16 if dtype == "int8" else onnx.TensorProto.FLOAT}
    assert runner.description.startswith(f"TensorRT by ONNX Runtime, {dtype}, the rest in fp")
    assert runner.details["off_fp32"] == {"flips": 0.0, "error": 0.0, "dice": 0.0}
    assert runner.calibration is not None
    with pytest.raises(StageError, match=r"stage\.keep_fp16=9: no such layer"):
        built("tensorrt", on_gpu, dtype=dtype, keep_fp16=["9"])


def test_without_tensorrt_the_refusal_names_the_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    tensorrt.load_tensorrt(lambda name: name)
    monkeypatch.setattr(tensorrt, "WHEEL", "no_such_wheel_of_tensorrt")
    with pytest.raises(Skip, match=r"its wheel tensorrt-cu13 comes from NVIDIA's own package index") as raised:
        tensorrt.load_tensorrt(Mock(side_effect=OSError("libnvinfer.so: cannot open shared object file")))
    assert raised.value.kind == "missing library"


def test_torch_tensorrt_is_asked_for_fp16_alone(on_gpu: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = ModuleNotFoundError("No module named 'torch_tensorrt'", name="torch_tensorrt")
    monkeypatch.setattr(tensorrt, "importlib", SimpleNamespace(import_module=Mock(side_effect=missing)))
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


class Rounded(nn.Parameter):
    qdata: Tensor


class Torchao:
    """torchao.quantization, which rounds weights to e4m3 and drops a bias, but for `skipped` channels."""

    def __init__(self, skipped: int = 0) -> None:
        self.skipped = skipped
        self.asked: dict[str, Any] = {}

    def PerTensor(self) -> str:  # noqa: N802 - torchao's name
        return "per tensor"

    def Float8DynamicActivationFloat8WeightConfig(self, **options: Any) -> str:  # noqa: N802 - torchao's name
        self.asked = options
        return "config"

    def quantize_(self, net: nn.Module, config: str, filter_fn: Callable[[nn.Module, str], bool]) -> None:
        assert config == "config"
        for name, part in net.named_children():  # each again where two modules hold it, as torchao does
            if filter_fn(part, name) and isinstance(part, nn.Conv2d) and part.out_channels != self.skipped:
                assert part.bias is None
                assert not isinstance(part.weight, Rounded)
                weight = part.weight.detach().to(torch.float8_e4m3fn).to(part.weight.dtype)
                part.weight = Rounded(weight, requires_grad=False)
                part.weight.qdata = weight
            else:
                self.quantize_(part, config, filter_fn)


@pytest.fixture
def layers(workload: Workload) -> Workload:
    """A GPU's, its tensors on the CPU; three convolutions, of which torchao takes the second."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 2, 1)).eval()
    return replace(workload, model=net, device=torch.device("cuda"), verified=1)


def with_torchao(monkeypatch: pytest.MonkeyPatch, torchao: Torchao, capability: tuple[int, int] = (10, 0)) -> None:
    """As on a machine with torchao, its kernels, and a GPU for them; nothing is compiled."""
    monkeypatch.setattr(api, "importlib", SimpleNamespace(import_module=lambda _: torchao))
    monkeypatch.setattr(torchao_fp8, "find_spec", lambda _: object())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    monkeypatch.setattr(torchao_fp8, "compiled", lambda net, batch: net)


def off(runner: Runner, work: Workload) -> float:
    with torch.inference_mode():
        return distance(runner.run(work.batches[0]).float(), work.model(work.batches[0]))


def test_what_torchao_takes_is_in_fp8_and_the_rest_is_named(layers: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    with_torchao(monkeypatch, torchao := Torchao())
    runner = built("torchao_fp8", layers, budget=1.0, dice_budget=1.0)
    assert (runner.execution.precision, runner.execution.layer_precision) == ("fp8", {"0": "bf16", "2": "bf16"})
    assert torchao.asked == {"granularity": "per tensor", "set_inductor_config": False}
    assert (runner.details["fp8_layers"], list(runner.details["sensitivity"])) == (1, ["1"])
    assert 0 < off(runner, layers) < 0.05


def test_a_layer_of_two_names_is_in_fp8_under_both(layers: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    with_torchao(monkeypatch, Torchao())
    again = nn.Conv2d(16, 16, 3, padding=1)
    again.bias = nn.Parameter(torch.ones(16))
    parts = nn.Conv2d(3, 16, 1), nn.Sequential(again), again, nn.Conv2d(16, 2, 1)
    net = Made(lambda image, first, body, again, head: head(again(body(first(image)))), *parts)
    work = replace(layers, model=net.eval())
    runner = built("torchao_fp8", work, keep_bf16="none", budget=1.0, dice_budget=1.0)
    assert runner.details["fp8_layers"] == 1
    assert off(runner, work) < 0.05


def test_a_layer_that_torchao_leaves_alone_is_not_called_fp8(layers: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    with_torchao(monkeypatch, Torchao(skipped=16))
    with pytest.raises(StageError, match="torchao left 1 in bf16") as raised:
        built("torchao_fp8", layers)
    assert raised.value.kind == "wrong device"


def test_what_cannot_be_in_fp8_is_refused(layers: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    with_torchao(monkeypatch, Torchao())
    with pytest.raises(StageError, match="no convolution of the network has the form"):
        built("torchao_fp8", replace(layers, model=nn.Conv2d(3, 2, 1).eval()))
    with_torchao(monkeypatch, Torchao())
    with pytest.raises(StageError, match=r"fp8 changes .* of the pixels"):
        built("torchao_fp8", layers, keep_bf16="none", error_budget=1e-9)
    with pytest.raises(StageError, match=r"stage\.keep_bf16=7: no such layer"):
        built("torchao_fp8", layers, keep_bf16=["7"])
    with_torchao(monkeypatch, Torchao(), (9, 0))
    with pytest.raises(Skip, match=r"need compute capability 10\.0 \(this is 9\.0\); stage=fp8 has"):
        built("torchao_fp8", layers)


def test_without_its_kernels_it_is_skipped_for_a_missing_library() -> None:
    torchao_fp8.check_kernels((10, 0), has_kernels=True)
    with pytest.raises(Skip, match="mslk isn't installed") as raised:
        torchao_fp8.check_kernels((10, 0), has_kernels=False)
    assert raised.value.kind == "missing library"


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(16, 24, 3),
        nn.Conv2d(3, 16, 3),
        nn.Conv2d(16, 16, 3, groups=2),
        nn.Conv2d(16, 16, 3, padding="same"),
        nn.Conv2d(16, 16, 3, padding=1, padding_mode="reflect"),
    ],
)
def test_a_form_that_torchao_has_no_kernel_for_stays_in_bf16(layer: nn.Conv2d) -> None:
    assert torchao_fp8.suitable(nn.Sequential(layer, nn.Conv2d(32, 16, 1), nn.ConvTranspose2d(16, 16, 2))) == ["1"]


def test_a_report_says_that_each_call_scales_its_own_values() -> None:
    chosen = Calibration(ImageSet(0, []), ImageSet(6, ["a"]), choice_apart=True, apart=True)
    said = calibrated_on(StageRecord(spec("torchao_fp8"), calibration=chosen))
    assert said.startswith("each call scales its own values, layers chosen on other 6 images of 1 picture")
