"""A half-precision stage that fails: where it begins to, and how the module is kept in fp32."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pipeline.compiler.errors import CompileError
from pipeline.compiler.half import Half
from pipeline.orchestrate.trials import as_built
from pipeline.profiling.precision_locator import Side, locate
from pipeline.records.diagnostics import PrecisionFault, fault_text
from pipeline.records.goals import Tolerance
from pipeline.records.request import StageSpec
from pipeline.records.run_record import StageRecord
from pipeline.worker import retries
from pipeline.worker.run_stage import run_stage
from tests.worker.jobs import Recorder, run_of, small

HALF = StageSpec(
    "half", "pipeline.stages.half", "fp16", "", ["cpu"], "", False, Tolerance(3e-2, 5e-3, "of a test"),
    {"dtype": "fp16", "cudnn_benchmark": False, "keep_fp32": "auto"},
)  # fmt: skip
TIMES = 1e6  # by which a layer's weights grow, and the next one's shrink


class Net(nn.Module):
    """Three levels of convolutions; the second's first answers beyond what fp16 holds, and its second divides again."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1))
            for width in (3, 4)
        )
        self.head = nn.Conv2d(4, 2, 1)
        with torch.no_grad():
            for layer, factor in (("encoder.1.0", TIMES), ("encoder.1.3", 1 / TIMES)):
                self.get_parameter(f"{layer}.weight").mul_(factor)
            self.get_parameter("encoder.1.0.bias").mul_(TIMES)

    def forward(self, image: Tensor) -> Tensor:
        for level in self.encoder:
            image = level(image)
        logits: Tensor = self.head(image)
        return logits


@pytest.fixture(scope="module")
def overflowing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("overflowing")
    with run_of(Net, folder):
        yield folder


def test_a_layer_that_overflows_is_named_kept_in_fp32_and_measured(overflowing: Path) -> None:
    """What fp16 can't hold is carried in fp32 to the layer that scales it down, which is kept as well."""
    line = Recorder(1)
    run_stage(small(HALF, overflowing), line)
    faults = line.fields["precision_faults"]
    assert [(each.module, each.level, each.kind, each.kept) for each in faults] == [
        ("encoder.1.0", "encoder 1", "overflow", True),
        ("encoder.1.3", "encoder 1", "overflow", True),
    ]
    assert faults[0].magnitude > 65504
    assert faults[1].input_magnitude > 65504 > faults[1].magnitude
    assert (line.fields["status"], line.fields["reason"]) == ("ok", "")
    blank = StageRecord(HALF, precision_faults=faults)
    assert as_built(blank).spec.options["keep_fp32"] == ["encoder.1.0", "encoder.1.3"]
    assert line.fields["description"].endswith("encoder.1.0, encoder.1.3 in fp32")
    assert line.phases[:5] == ["start", "build", "verify", "verify", "verify"]  # none goes back
    assert line.samples


@pytest.mark.parametrize("says", ["fp16", "fp8"])
def test_so_is_one_of_a_stage_that_is_one_piece(says: str, overflowing: Path) -> None:
    line = Recorder(1)
    spec = replace(HALF, target="tests.worker.whole_stage", options={"says": says, "keep_fp32": "auto"})
    run_stage(small(spec, overflowing), line)
    assert [(each.module, each.kept) for each in line.fields["precision_faults"]] == [
        ("encoder.1.0", True),
        ("encoder.1.3", True),
    ]
    assert (line.fields["status"], line.fields["reason"]) == ("ok", "")


@pytest.mark.parametrize("module", [None, "encoder.1.0"])
def test_a_stage_that_keeps_no_modules_is_not_built_again(
    module: str | None, overflowing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = PrecisionFault(module, "encoder 1", "overflow", "fp16", 1e6, 1.0, None, 1e-3) if module else None
    if fault:
        monkeypatch.setattr(retries, "first_fault", lambda _: fault)
    line = Recorder(1)
    options = {"says": "fp16", "keep_fp32": "auto", "keeps": False}
    run_stage(small(replace(HALF, target="tests.worker.whole_stage", options=options), overflowing), line)
    assert line.fields["status"] == "inaccurate"
    assert not any(each.kept for each in line.fields.get("precision_faults", []))


class Cancelling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.main, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 2, 1)
        self.near, self.difference = nn.Conv2d(3, 2, 1, bias=False), nn.Conv2d(2, 1, 1, bias=False)
        with torch.no_grad():
            self.difference.weight.copy_(torch.tensor([1.0, -1.0]).view(1, 2, 1, 1))
            self.near.weight[1] = self.near.weight[0] * 1.0001

    def forward(self, image: Tensor) -> Tensor:
        logits: Tensor = self.head(self.main(image) + 1e-3 * self.difference(self.near(image)))
        return logits


def test_half_precision_is_not_blamed_for_what_is_wrong_without_it(tmp_path: Path) -> None:
    line, options = Recorder(1), {"says": "fp8", "keep_fp32": "auto", "factor": 1.2}
    with run_of(Cancelling, tmp_path):
        run_stage(small(replace(HALF, target="tests.worker.whole_stage", options=options), tmp_path), line)
    assert line.fields["status"] == "inaccurate"
    assert "precision_faults" not in line.fields
    assert line.phases.count("verify") == 1


def test_a_stage_that_keeps_none_says_where_it_overflows(overflowing: Path) -> None:
    line = Recorder(1)
    run_stage(small(replace(HALF, options={**HALF.options, "keep_fp32": "none"}), overflowing), line)
    assert (line.fields["status"], line.samples) == ("inaccurate", [])
    assert "NaN or infinite" in line.fields["reason"]
    assert "first at encoder.1.0: fp32 reaches" in line.fields["reason"]
    assert "fp16 holds no more than 65504" in line.fields["reason"]
    assert [each.kept for each in line.fields["precision_faults"]] == [False]


def test_an_error_that_jumps_is_found_within_its_level() -> None:
    """Weights that cancel lose what fp16 rounds away; what ran before it is as exact as fp16 is."""
    torch.manual_seed(0)
    near_equal, difference = nn.Conv2d(2, 2, 1, bias=False), nn.Conv2d(2, 1, 1, bias=False)
    exact = nn.Sequential(nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU()), nn.Sequential(near_equal, difference))
    with torch.no_grad():
        difference.weight.copy_(torch.tensor([1.0, -1.0]).view(1, 2, 1, 1))
        near_equal.weight[1] = near_equal.weight[0] * 1.0001
    image = torch.rand(1, 1, 8, 8) + 1
    half = Half(exact, torch.float16)
    found = locate(Side(exact, lambda: exact(image)), Side(half.net, lambda: half(image)), "fp16")
    assert found is not None
    assert (found.module, found.kind) == ("1.1", "error jump")
    assert found.error is not None
    assert found.error > 8 * found.error_before
    assert "its error is" in fault_text(found)


def test_nothing_is_named_where_half_precision_is_right() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1))
    half, image = Half(net, torch.float16), torch.rand(1, 3, 8, 8)
    assert locate(Side(net, lambda: net(image)), Side(half.net, lambda: half(image)), "fp16") is None


def test_a_module_that_the_net_has_not_is_refused_with_the_nearest() -> None:
    with pytest.raises(CompileError, match=r"no module 'hed'; did you mean 'head'\?"):
        Half(Net(), torch.float16, ["hed"])


def test_a_sum_that_overflows_within_is_told_so() -> None:
    fault = PrecisionFault("head", "head", "overflow", "fp16", 3e4, 10.0, None, 1e-3)
    assert fault_text(fault) == "first at head: fp16 overflows within it, where fp32 reaches 3e+04"
