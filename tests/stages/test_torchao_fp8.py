"""torchao's fp8: what it is refused for, and, with a stand-in for torchao, what is built of its answer."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipeline.compiler.agreement import distance
from pipeline.records.run_record import StageRecord
from pipeline.records.samples import Calibration, ImageSet
from pipeline.report.sections.accuracy import calibrated_on
from pipeline.stages import Skip, StageError, api, torchao_fp8
from pipeline.stages.api import Runner, Workload
from tests.made_up_request import spec
from tests.stages.test_stages import built


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


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.body = nn.Conv2d(3, 16, 1), nn.Sequential(nn.Conv2d(16, 16, 3, padding=1))
        self.again, self.head = self.body[0], nn.Conv2d(16, 2, 1)
        self.again.bias = nn.Parameter(torch.ones(16))

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.again(self.body(self.first(image))))


@pytest.fixture
def on_gpu(workload: Workload) -> Workload:
    """A GPU's, its tensors on the CPU; three convolutions, of which torchao takes the second."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 2, 1)).eval()
    return replace(workload, model=net, device=torch.device("cuda"), verified=1)


def installed(monkeypatch: pytest.MonkeyPatch, torchao: Torchao, capability: tuple[int, int] = (10, 0)) -> None:
    """As on a machine with torchao, its kernels, and a GPU for them; nothing is compiled."""
    monkeypatch.setattr(api, "importlib", SimpleNamespace(import_module=lambda _: torchao))
    monkeypatch.setattr(torchao_fp8, "find_spec", lambda _: object())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    monkeypatch.setattr(torchao_fp8, "compiled", lambda net, batch: net)


def off(runner: Runner, work: Workload) -> float:
    with torch.inference_mode():
        return distance(runner.run(work.batches[0]).float(), work.model(work.batches[0]))


def test_what_torchao_takes_is_in_fp8_and_the_rest_is_named(on_gpu: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, torchao := Torchao())
    runner = built("torchao_fp8", on_gpu, budget=1.0, dice_budget=1.0)
    assert (runner.execution.precision, runner.execution.layer_precision) == ("fp8", {"0": "bf16", "2": "bf16"})
    assert torchao.asked == {"granularity": "per tensor", "set_inductor_config": False}
    assert (runner.details["fp8_layers"], list(runner.details["sensitivity"])) == (1, ["1"])
    assert 0 < off(runner, on_gpu) < 0.05


def test_a_layer_of_two_names_is_in_fp8_under_both(on_gpu: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, Torchao())
    work = replace(on_gpu, model=Twice().eval())
    runner = built("torchao_fp8", work, keep_bf16="none", budget=1.0, dice_budget=1.0)
    assert runner.details["fp8_layers"] == 1
    assert off(runner, work) < 0.05


def test_a_layer_that_torchao_leaves_alone_is_not_called_fp8(on_gpu: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, Torchao(skipped=16))
    with pytest.raises(StageError, match="torchao left 1 in bf16") as raised:
        built("torchao_fp8", on_gpu)
    assert raised.value.kind == "wrong device"


def test_what_cannot_be_in_fp8_is_refused(on_gpu: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, Torchao())
    with pytest.raises(StageError, match="no convolution of the network has the form"):
        built("torchao_fp8", replace(on_gpu, model=nn.Conv2d(3, 2, 1).eval()))
    installed(monkeypatch, Torchao())
    with pytest.raises(StageError, match=r"fp8 changes .* of the pixels"):
        built("torchao_fp8", on_gpu, keep_bf16="none", error_budget=1e-9)
    with pytest.raises(StageError, match=r"stage\.keep_bf16=7: no such layer"):
        built("torchao_fp8", on_gpu, keep_bf16=["7"])
    installed(monkeypatch, Torchao(), (9, 0))
    with pytest.raises(Skip, match=r"need compute capability 10\.0 \(this is 9\.0\); stage=fp8 has"):
        built("torchao_fp8", on_gpu)


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
