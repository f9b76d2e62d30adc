"""A net that doesn't take channels_last: its stages run it in NCHW and say so, whatever else fails fails as before."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pipeline.records.goals import Tolerance
from pipeline.records.request import StageSpec
from pipeline.report.usage import as_it_lies
from pipeline.stages.api import StageError
from pipeline.worker import retries, workload
from pipeline.worker.run_stage import run_stage
from tests.worker.jobs import Recorder, run_of, small

AGAIN = "again in NCHW, as the network doesn't take channels_last"
NEEDED = "NCHW, as the network's own code needs"


class Rows(nn.Module):
    """Two convolutions, the first by a weight that is viewed as rows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        weight = self.first.weight
        largest = weight.view(weight.size(0), -1).abs().amax(1).view(-1, 1, 1, 1)
        logits: Tensor = self.head(nn.functional.conv2d(image, weight / largest, self.first.bias, padding=1).relu())
        return logits


class Thinned(nn.Module):
    """Every second pixel, by steps that hold where channels lie one map after another."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        maps = self.first(image).relu()
        batch, channels, height, width = maps.shape
        steps = (channels * height * width, height * width, 2 * width, 2)
        thin = maps.as_strided((batch, channels, height // 2, width // 2), steps)
        logits: Tensor = nn.functional.interpolate(self.head(thin), scale_factor=2)
        return logits


def stage(name: str, **options: object) -> StageSpec:
    tolerance = Tolerance(3e-2, 5e-3, "of a test")
    return StageSpec(name, f"pipeline.stages.{name}", "", "", ["cpu"], "", False, tolerance, options)


@pytest.fixture(scope="module")
def of_rows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("rows")
    with run_of(Rows, folder):
        yield folder


@pytest.mark.parametrize(
    "spec",
    [
        stage("amp", dtype="bf16", cudnn_benchmark=False),
        stage("half", dtype="bf16", cudnn_benchmark=False, keep_fp32="none"),
        stage("torchscript", method="trace", dtype="fp32"),
        stage("torchscript", method="script", dtype="fp32"),
    ],
    ids=["amp", "half", "traced", "scripted"],
)
def test_a_stage_runs_the_net_in_nchw_where_it_needs_that(of_rows: Path, spec: StageSpec) -> None:
    line = Recorder(1)
    run_stage(small(spec, of_rows), line)
    assert (line.fields["status"], line.fields["reason"]) == ("ok", "")
    assert AGAIN in line.said
    assert NEEDED in line.fields["description"]
    assert line.fields["net_layout"] == "NCHW"
    (warning,) = line.fields["warnings"]
    assert warning.code == "something else ran"
    assert (
        f"{spec.name} runs the network in NCHW, as the network's own code doesn't take channels_last: " in warning.text
    )
    assert "(in Rows.forward, test_layout_retry.py:" in warning.text
    assert line.samples


@pytest.mark.parametrize("keep_fp32", ["none", "auto"])
def test_a_stage_that_answers_wrongly_runs_the_net_in_nchw_where_it_needs_that(keep_fp32: str, tmp_path: Path) -> None:
    line = Recorder(1)
    with run_of(Thinned, tmp_path):
        run_stage(small(stage("half", dtype="bf16", cudnn_benchmark=False, keep_fp32=keep_fp32), tmp_path), line)
    assert (line.fields["status"], line.fields["reason"]) == ("ok", "")
    assert line.fields["net_layout"] == "NCHW"
    assert NEEDED in line.fields["description"]
    (warning,) = line.fields["warnings"]
    assert (
        "runs the network in NCHW, as the network's own code answers differently in channels_last; its" in warning.text
    )
    assert line.phases[:4] == ["start", "build", "verify", "verify"]  # none goes back


def test_a_second_build_that_fails_leaves_what_the_first_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> object:
        raise MemoryError("no memory")

    monkeypatch.setattr(retries, "_built_as_it_lies", fail)
    line = Recorder(1)
    with run_of(Thinned, tmp_path):
        run_stage(small(stage("half", dtype="bf16", cudnn_benchmark=False, keep_fp32="none"), tmp_path), line)
    assert line.fields["status"] == "inaccurate"
    assert "logits differ" in line.fields["reason"]


def test_channels_last_says_that_the_net_doesn_t_take_it(of_rows: Path) -> None:
    with pytest.raises(
        StageError,
        match=r"the network's own code doesn't take channels_last: .*\(in Rows\.forward, test_layout_retry\.py:\d+\)",
    ):
        run_stage(small(stage("channels_last"), of_rows), Recorder(1))


class Plain(nn.Conv2d):
    def __init__(self) -> None:
        super().__init__(3, 2, 1)


UNKNOWN = stage("half", dtype="bf16", cudnn_benchmark=False, keep_fp32=["hed"])
FALLS_BACK = replace(stage("busy", fault="falls_back"), target="tests.fault_stages")


@pytest.mark.parametrize(
    ("net", "spec", "said", "again"),
    [
        (Rows, UNKNOWN, "no module 'hed'", True),
        (Plain, UNKNOWN, "no module 'hed'", False),
        (Rows, FALLS_BACK, "the session landed on CPU", False),
    ],
    ids=["fails in NCHW too", "a net that takes channels_last", "a stage that asked for no layout"],
)
def test_what_the_layout_is_not_to_blame_for_fails_as_before(
    net: type[nn.Module],
    spec: StageSpec,
    said: str,
    again: bool,
    of_rows: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workload, "net_of", lambda _: net().eval())
    line = Recorder(1)
    with pytest.raises(StageError, match=said):
        run_stage(small(spec, of_rows), line)
    assert (AGAIN in line.said) is again


def test_a_net_that_can_t_be_copied_fails_as_before(of_rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Held(Rows):
        def __init__(self) -> None:
            super().__init__()
            self.held = self.first.weight * 2  # which deepcopy refuses

    monkeypatch.setattr(workload, "net_of", lambda _: Held().eval())
    with pytest.raises(RuntimeError, match="Only Tensors created explicitly by the user"):
        run_stage(small(stage("half", dtype="bf16", cudnn_benchmark=False, keep_fp32="none"), of_rows), Recorder(1))


def test_a_layer_kept_in_fp32_leaves_the_layout_on_record(tmp_path: Path) -> None:
    class Overflowing(Rows):
        def __init__(self) -> None:
            super().__init__()
            self.large, self.small = nn.Conv2d(3, 3, 1, bias=False), nn.Conv2d(3, 3, 1, bias=False)
            with torch.no_grad():
                self.large.weight.mul_(1e6)
                self.small.weight.mul_(1e-6)

        def forward(self, image: Tensor) -> Tensor:
            return super().forward(self.small(self.large(image)))

    line = Recorder(1)
    with run_of(Overflowing, tmp_path):
        run_stage(small(stage("half", dtype="fp16", cudnn_benchmark=False, keep_fp32="auto"), tmp_path), line)
    assert line.fields["details"]["kept_in_fp32"]
    assert line.fields["net_layout"] == "NCHW"


def test_the_lines_of_such_a_stage_lay_nothing_out() -> None:
    layout = "memory_format=torch.channels_last"
    code = (
        f"net = net.to({layout})\nnet = net.to(torch.float16, {layout}_3d)\nmasks = net(batch.to({layout})).argmax(1)"
    )
    assert as_it_lies(code) == "net = net.to(torch.float16)\nmasks = net(batch).argmax(1)"
