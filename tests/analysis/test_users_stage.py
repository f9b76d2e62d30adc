"""What is found out of a stage of a user's: by its properties, never by its name."""

from dataclasses import replace
from typing import Any

import pytest

from pipeline.analysis import recommendations as rules
from pipeline.analysis.recommendations import recommendations
from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary
from pipeline.records.run_record import INDUCTOR, Execution, RunRecord
from tests.analysis.test_recommendations import IDLING, bytes_bound, half_wins, layout_bound
from tests.made_up_request import changed
from tests.report import made_up_run as made_up


def users_stage(captured: bool | None) -> RunRecord:
    """A stage of a user's, called as no stage of the project is, whose GPU idles for nearly half of the time."""
    mine = made_up.stage(
        "mine", 10.8, 0.1, 10**9, "", **IDLING,
        execution=Execution("fp16", layout="NHWC", provider="my runtime", captured=captured),
    )  # fmt: skip
    return made_up.run(stages=[made_up.run().stages[0], mine])


@pytest.mark.parametrize(("captured", "told"), [(True, False), (False, True), (None, False)])
def test_a_users_stage_is_told_to_capture_a_graph_only_if_it_captures_none(captured: bool | None, told: bool) -> None:
    summary = made_up.summary(users_stage(captured))
    assert summary.winner is not None
    assert summary.winner.name == "mine"
    assert ("capture a graph" in [each.code for each in recommendations(summary)]) == told


def test_a_users_stage_has_a_roofline_and_a_bottleneck() -> None:
    summary = made_up.summary(users_stage(True))
    stage = summary.stage("mine")
    assert stage is not None
    assert stage.roofline is not None
    assert stage.roofline.precision == "fp16"
    assert stage.bottleneck.kind != "unknown"


def called_mine(run: RunRecord, **ran: Any) -> tuple[RunSummary, StageSummary]:
    """The run with its last stage, which wins, called as no stage of the project is, and run like this."""
    *others, last = run.stages
    assert last.execution is not None
    options = ran.pop("options", last.spec.options)
    mine = changed(last, name="mine", options=options, execution=replace(last.execution, **ran))
    found = made_up.summary(replace(run, stages=[*others, mine], baseline="mine" if not others else run.baseline))
    assert found.winner is not None
    assert found.winner.name == "mine"
    return found, found.winner


@pytest.mark.parametrize(("fuses", "told"), [(True, False), (False, True)])
def test_a_users_stage_is_told_to_fuse_only_if_it_does_not(fuses: bool, told: bool) -> None:
    assert (rules.lower_the_bytes(*called_mine(bytes_bound("fp16"), fuses=fuses)) is not None) == told


@pytest.mark.parametrize(("fuses", "told"), [(True, False), (False, True)])
def test_a_users_stage_is_sent_to_another_layout_only_if_no_compiler_lays_it_out(fuses: bool, told: bool) -> None:
    assert (rules.keep_one_layout(*called_mine(layout_bound(), fuses=fuses)) is not None) == told


@pytest.mark.parametrize(("own_kernels", "told"), [(3, False), (0, True)])
def test_a_users_stage_is_sent_to_own_kernels_only_if_it_has_none(own_kernels: int, told: bool) -> None:
    found = rules.mind_the_first_layer(*called_mine(half_wins(), own_kernels=own_kernels))
    assert (found is not None) == told


@pytest.mark.parametrize(("provider", "told"), [("my compiler", False), (None, False), (INDUCTOR, True)])
def test_an_option_called_mode_is_inductors_only_where_inductor_runs(provider: str | None, told: bool) -> None:
    asked: dict[str, Any] = {"provider": provider, "options": {"mode": "default"}}
    assert (rules.tune_longer(*called_mine(half_wins(), **asked)) is not None) == told
