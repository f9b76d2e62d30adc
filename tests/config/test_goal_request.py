"""Accuracy limits, objective and bounds: read with units; a wrong one is refused in one line."""

from typing import Any

import pytest

from pipeline.config.goal_request import constraint, points_note, read_accuracy, read_goal
from pipeline.config.request_error import RequestError
from pipeline.records.goals import AccuracyLimits
from tests.config.test_load import asked, composed

CHECKPOINT = "model.checkpoint=models/weights/unet_small.safetensors"


@pytest.mark.parametrize(
    ("text", "figure", "sign", "limit"),
    [
        ("memory<8GiB", "memory", "<", 8 * 2**30),
        ("memory <= 500 MB", "memory", "<=", 5e8),
        ("p99<20ms", "p99", "<", 0.02),
        ("host_p50<1.5e3us", "host_p50", "<", 1.5e-3),
        ("throughput>=200images/s", "throughput", ">=", 200.0),
        ("energy<.5J", "energy", "<", 0.5),
        ("cost<12", "cost", "<", 12.0),
    ],
)
def test_a_bound_is_read_with_its_unit(text: str, figure: str, sign: str, limit: float) -> None:
    """Seconds, bytes, joules, images a second, cost."""
    found = constraint(text)
    assert (found.figure, found.sign, found.limit, found.text) == (figure, sign, pytest.approx(limit), text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("memry<8GiB", "did you mean 'memory'?"),
        ("memory<8Gib", "did you mean 'GiB'?"),
        ("p99<20", "p99 needs a unit"),
        ("memory=8GiB", "such as memory<8GiB or p99<20ms"),
        ("memory<-1GiB", "such as memory<8GiB"),
        ("cost<3EUR", "it takes none"),
        ("p99<0ms", "a number above 0"),
        ("p99<1e999s", "a number above 0"),
        ("dice>0.9", "accuracy.max_dice_drop"),
        ("", "such as memory<8GiB"),
    ],
)
def test_what_is_no_bound_is_refused_with_the_nearest(text: str, said: str) -> None:
    with pytest.raises(RequestError) as refused:
        constraint(text)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("asked_for", "said"),
    [
        (("latancy", [], None), "did you mean 'latency'?"),
        (("cost", [], None), "report.gpu_hour_price"),
        (("latency", ["cost<3"], None), "report.gpu_hour_price"),
        (("memory", 20, None), "expected array"),
    ],
)
def test_a_goal_that_cannot_be_is_refused(asked_for: tuple[Any, Any, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        read_goal(*asked_for)


@pytest.mark.parametrize(
    ("value", "labelled", "trained", "said"),
    [
        ({"max_dice_drop": 0.5}, False, True, "use accuracy.min_agreement"),
        ({"min_dice": 0.9}, False, True, "use accuracy.min_agreement"),
        ({"min_agreement": 0.99}, True, False, "model.checkpoint"),
        ({"min_agreement": 99.9}, True, True, "expected float <= 1.0"),
        ({"max_psnr_drop": 0.1}, False, True, "task=segmentation is not judged by it; it takes max_dice_drop"),
        ({"max_dice_drop": -1}, True, True, "expected float >= 0.0"),
        ({"max_dice_drop": float("nan")}, True, True, "expected float >= 0.0"),
        ({"max_dice_drops": 1}, True, True, "did you mean 'max_dice_drop'?"),
        ({"replace_flipped_share": True}, True, True, "set a limit"),
    ],
)
def test_a_limit_that_nothing_can_decide_is_refused(
    value: dict[str, Any], labelled: bool, trained: bool, said: str
) -> None:
    with pytest.raises(RequestError) as refused:
        read_accuracy(value, labelled, trained)
    assert said in str(refused.value)


def test_a_run_takes_them_from_the_command_line() -> None:
    """Without any, the winner is the fastest and the tolerances alone decide."""
    plain = asked(composed("stage=half"))
    assert (plain.accuracy, plain.goal.objective, plain.goal.subject_to) == (AccuracyLimits(), "throughput", [])
    words = ("stage=half", CHECKPOINT, "objective=memory", "subject_to=['p99<20ms']", "accuracy.max_dice_drop=0.5")
    run = asked(composed(*words))
    assert (run.accuracy.max_dice_drop, run.goal.objective, run.goal.subject_to[0].limit) == (0.5, "memory", 0.02)
    assert run.stages[0].tolerance == plain.stages[0].tolerance
    replaced = asked(composed(*words, "accuracy.replace_flipped_share=true")).stages[0].tolerance
    assert (replaced.flipped_share, replaced.relative_l2) == (1.0, plain.stages[0].tolerance.relative_l2)
    assert "replace_flipped_share" in replaced.reason


@pytest.mark.parametrize(
    ("bounds", "refused"),
    [
        (["memory<8GiB", "memory>9GiB"], True),
        (["p99<20ms", "p99>=0.02s"], True),
        (["p99<=20ms", "p99>=0.02s"], False),
        (["memory<8GiB", "p99>9s"], False),
    ],
)
def test_bounds_that_no_figure_keeps_are_refused(bounds: list[str], refused: bool) -> None:
    """Before hours of measuring end without a winner; one bound needs no list."""
    assert read_goal("memory", bounds[0], None) == read_goal("memory", bounds[:1], None)
    if not refused:
        assert len(read_goal("throughput", bounds, None).subject_to) == 2
        return
    with pytest.raises(RequestError, match="can keep both") as error:
        read_goal("throughput", bounds, None)
    assert all(bound in str(error.value) for bound in bounds)


@pytest.mark.parametrize(
    ("drop", "said"), [(0.005, "accuracy.max_dice_drop=0.005 is in points, 0.00005 of 1; "), (0.06, ""), (None, "")]
)
def test_a_limit_that_may_be_meant_as_a_share_is_noted(drop: float | None, said: str) -> None:
    """Dice is 0 to 1 elsewhere: half a point given as 0.005 would reject all but fp32."""
    note = points_note(AccuracyLimits(max_dice_drop=drop))
    assert said in note
    assert bool(note) == bool(said)
