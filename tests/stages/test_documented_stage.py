"""The stage of docs/usage.md declares nothing: what it runs is observed, and bounds and advice follow from that."""

import copy
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from models.unet import UNet
from pipeline.analysis import recommendations as rules
from pipeline.analysis.roofline import reached_peaks, roofline_of
from pipeline.analysis.summary import summarize
from pipeline.compiler.network_calls import allow_tf32
from pipeline.profiling.observed_execution import complete, tf32_allowed
from pipeline.records.diagnostics import Diagnostics, TimeSplit
from pipeline.records.run_record import Execution, RunRecord
from pipeline.stages import Runner, Workload
from tests.made_up_request import changed
from tests.process_state import own_switches
from tests.profiling.traced import event
from tests.report import made_up_run as made_up

PAGE = Path(__file__).resolve().parents[2] / "docs" / "usage.md"
CALLED = [event("user_annotation", "call", 0, 10)]
REPLAYED = [event("cuda_runtime", "cudaGraphLaunch", 0, 2)]


class Mine(nn.Module):
    """A user's net that can be made faster as the page's stage asks."""

    def __init__(self, net: nn.Module, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.net, self.dtype = net.to(dtype), dtype

    def forward(self, image: Tensor) -> Tensor:
        return self.net(image.to(self.dtype))

    def to_something_faster(self, gain: float) -> "Mine":
        return Mine(copy.deepcopy(self.net), torch.bfloat16)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    torch.manual_seed(0)
    net = Mine(UNet(base=8, depth=2).eval()).eval()
    return Workload(net, [torch.randn(2, 3, 32, 32)], torch.device("cpu"), tmp_path_factory.mktemp("mine"))


@pytest.fixture(scope="module")
def shown(work: Workload) -> Runner:
    """What the page's own code builds."""
    (code,) = re.findall(r"```python\n((?:(?!```).)*?def build.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    room: dict[str, Any] = {}
    exec("\n".join(line.removeprefix("   ") for line in code.splitlines()), room)  # it is the repository's own
    room["to_something_faster"] = Mine.to_something_faster
    return room["build"](work)


def test_it_is_observed(shown: Runner, work: Workload) -> None:
    assert shown.execution is None
    found, contradicted = complete(shown, work, CALLED)
    assert (found.precision, found.layout, found.captured, found.own_kernels) == ("bf16", "NCHW", False, 0)
    assert (found.provider, found.fuses) == (None, None)
    assert found.unknown
    assert contradicted == ""
    assert complete(shown, work, REPLAYED)[0].captured is True
    assert complete(shown, work, [])[0].captured is None


def run_of(execution: Execution, **fields: Any) -> RunRecord:
    """A run in which a stage that is called like none of the project's wins."""
    stages = made_up.run().stages
    return made_up.run(stages=[stages[0], changed(stages[4], name="mine", execution=execution, **fields)])


def test_it_has_a_roofline_and_a_bottleneck(shown: Runner, work: Workload) -> None:
    run = run_of(complete(shown, work, CALLED)[0])
    stage = next(stage for stage in summarize(run).stages if stage.name == "mine")
    bounds = roofline_of(run, stage.stage, reached_peaks(run))
    assert bounds.precision == "bf16"
    assert stage.bottleneck.kind != "unknown"


@pytest.mark.parametrize(("events", "recommended"), [(CALLED, True), (REPLAYED, False), ([], False)])
def test_a_graph_is_advised_where_none_is(shown: Runner, work: Workload, events: list[Any], recommended: bool) -> None:
    waits = Diagnostics(split=TimeSplit(1.2e-2, 4e-3, 3e-4, 9e-4, 4e-4, 0.0))
    idle = run_of(complete(shown, work, events)[0], profile=made_up.profile(0.004), diagnostics=waits)
    found = summarize(idle)
    assert found.winner is not None
    assert found.winner.name == "mine"
    assert (rules.capture_a_graph(found, found.winner) is not None) is recommended


@pytest.mark.parametrize("allowed", [False, True])
def test_tf32_is_told_from_fp32(allowed: bool) -> None:
    with own_switches():
        allow_tf32(allowed)
        assert tf32_allowed(for_convolutions=True) is allowed
        assert tf32_allowed(for_convolutions=False) is allowed


def test_layers_of_another_precision_are_named(work: Workload) -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 2, 1)).eval()

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.rest = copy.deepcopy(net[0]), copy.deepcopy(net[1:]).bfloat16()

        def forward(self, image: Tensor) -> Tensor:
            return self.rest(self.first(image).bfloat16())

    stage = Mixed().eval()
    found, _ = complete(Runner(stage, "", module=stage), replace(work, model=net), CALLED)
    assert (found.precision, found.layer_precision) == ("bf16", {"first": "fp32"})


def test_a_stage_that_hides_its_work_says_how_little_was_seen(work: Workload) -> None:
    found, contradicted = complete(Runner(lambda image: image, "hidden"), work, CALLED)
    assert found.precision is None
    assert found.unknown == "only 0 % of the network's FLOPs pass torch's dispatcher"
    assert contradicted == ""
