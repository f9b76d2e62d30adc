"""What is found out of a stage of a user's: by its properties, never by its name."""

import pytest

from pipeline.analysis.recommendations.rules import recommendations
from pipeline.records.run_record import Execution, RunRecord
from tests.analysis.test_recommendations import IDLING
from tests.report import made_up_run as planted


def users_stage(captured: bool | None) -> RunRecord:
    """A stage of a user's, called as no stage of the project is, whose GPU idles for nearly half of the time."""
    mine = planted.stage(
        "mine", 10.8, 0.1, 10**9, "", **IDLING,
        execution=Execution("fp16", layout="NHWC", provider="my runtime", captured=captured),
    )  # fmt: skip
    return planted.run(stages=[planted.run().stages[0], mine])


@pytest.mark.parametrize(("captured", "told"), [(True, False), (False, True), (None, False)])
def test_a_users_stage_is_told_to_capture_a_graph_only_if_it_captures_none(captured: bool | None, told: bool) -> None:
    """By what it does, not by its name; nothing is said where nobody knows."""
    summary = planted.summary(users_stage(captured))
    assert summary.winner is not None
    assert summary.winner.name == "mine"
    assert ("capture a graph" in [each.code for each in recommendations(summary)]) == told


def test_a_users_stage_has_a_roofline_and_a_bottleneck() -> None:
    """Its precision is a field of the record; its description names none."""
    summary = planted.summary(users_stage(True))
    stage = summary.stage("mine")
    assert stage is not None
    assert stage.roofline is not None
    assert stage.roofline.precision == "fp16"
    assert stage.bottleneck.kind != "unknown"
