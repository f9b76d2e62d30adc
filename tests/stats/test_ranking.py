"""Who wins, who ties, and who isn't ranked."""

from dataclasses import replace

import pytest

from pipeline.records.run_record import RunRecord, StageRecord
from pipeline.records.samples import Pair
from pipeline.report.formatting import remedy
from pipeline.stats.intervals import Ratio
from pipeline.stats.outcomes import Noise
from pipeline.stats.ranking import contenders, ranking
from tests.fake_machine import run_record, stage_record, steady_pair, wide_pair


def ladder(**ratios: float) -> list[object]:
    return [stage_record(name, steady_pair(value, b=name)) for name, value in ratios.items()]


def run_of(ratios: dict[str, float], **fields: object) -> RunRecord:
    return run_record(ladder(**ratios), **fields)  # type: ignore[arg-type]


def met(leader: str, contender: str, value: float) -> Pair:
    return steady_pair(value, a=leader, b=contender)


def test_the_fastest_wins_and_those_not_set_apart_tie() -> None:
    found = ranking(run_of({"amp": 2.0, "compile": 3.0, "graph": 3.0003, "half": 2.5}))
    assert (found.winner, found.ties) == ("graph", ["compile"])
    assert found.order == ["graph", "compile", "half", "amp", "eager"]
    assert found.outcomes == {
        "amp": "faster",
        "compile": "faster",
        "graph": "faster",
        "half": "faster",
        "eager": "same",
    }
    assert found.ratios["half"].value == pytest.approx(2.5)


def test_a_difference_below_the_minimum_detectable_effect_is_a_tie() -> None:
    """Intervals apart by 0.7 % say nothing where A/A pairs lie 1 % apart."""
    assert ranking(run_of({"compile": 3.0, "graph": 3.02})).ties == ["compile"]


@pytest.mark.parametrize(("value", "ties"), [(0.95, []), (0.997, ["compile"]), (1.003, ["compile"])])
def test_head_to_head_with_the_winner_decides(value: float, ties: list[str]) -> None:
    run = run_of({"compile": 3.0, "graph": 3.0003}, head_to_head=[met("graph", "compile", value)])
    found = ranking(run)
    assert (found.winner, found.ties) == ("graph", ties)


def test_a_contender_shown_head_to_head_to_be_faster_leads() -> None:
    pairs = [met("graph", "compile", 1.05), met("graph", "half", 1.0495)]
    found = ranking(run_of({"half": 2.9999, "compile": 3.0, "graph": 3.0003}, head_to_head=pairs))
    assert (found.winner, found.ties) == ("compile", ["half"])
    assert found.order[0] == "compile"


def test_the_wrong_the_unmeasured_and_the_unclear_never_rank() -> None:
    fast = steady_pair(9.0)
    stages = [
        stage_record("wrong", fast, status="inaccurate"),
        stage_record("dead", fast, status="failed"),
        stage_record("unmeasured", None),
        stage_record("empty", Pair("eager", "empty", [])),
        stage_record("sly", steady_pair(9.0, device_seconds=0.001)),
        stage_record("honest", steady_pair(1.2, device_seconds=0.02)),
    ]
    run = run_record(stages)
    assert ranking(run).order == ["honest", "eager"]
    assert contenders(run) == ["honest"]


def test_where_all_are_slower_the_baseline_wins() -> None:
    found = ranking(run_of({"slow": 0.8}))
    assert (found.winner, found.ties, found.outcomes["slow"]) == ("eager", [], "slower")


def test_a_stage_like_the_baseline_ties_with_it() -> None:
    assert ranking(run_of({"tf32": 1.002})).ties == ["eager"]


def test_a_baseline_that_is_a_rung_is_ranked_by_its_own_pairs() -> None:
    found = ranking(run_of({"eager": 1.001, "compile": 3.0}))
    assert found.order == ["compile", "eager"]
    assert found.ratios["eager"].value == pytest.approx(1.001)


def test_nothing_usable_has_no_winner() -> None:
    run = run_record([stage_record("wrong", None, status="inaccurate")])
    found = ranking(run)
    assert (found.winner, found.order, contenders(run), found.unresolved) == (None, [], [], None)


def test_contenders_are_the_fastest_and_those_near_it() -> None:
    assert contenders(run_of({"amp": 2.0, "compile": 3.0, "graph": 3.01, "half": 2.99})) == ["graph", "compile", "half"]


def wide(value: float, name: str) -> StageRecord:
    return stage_record(name, wide_pair(value, b=name))


def test_what_is_not_resolved_is_not_named_a_winner() -> None:
    """Alone, beside slower ones, and beside one that is the same as the baseline: it may be faster than all of them."""
    for others in ({}, {"slow": 0.8}, {"tf32": 1.002}):
        found = ranking(run_record([*ladder(**others), wide(1.1, "compile")]))  # type: ignore[list-item]
        assert found.winner is None
        assert found.ties == []
        assert found.order[0] == "compile"
        assert found.unresolved is not None
        assert (found.unresolved.cause, found.unresolved.blocks) == ("wide interval", 30)


def test_beside_a_faster_stage_what_is_not_resolved_is_a_tie() -> None:
    found = ranking(run_record([*ladder(half=1.5), wide(1.6, "compile")]))  # type: ignore[list-item]
    assert (found.winner, found.ties, found.unresolved) == ("half", ["compile"], None)


def test_what_cannot_be_faster_leaves_the_baseline_its_place() -> None:
    """0.99 with its whole interval below 1: too little to be called slower, and no reason to doubt."""
    found = ranking(run_record([stage_record("near", steady_pair(0.992, spread=0.004, b="near"))]))
    assert found.outcomes["near"] == "not resolved"
    assert found.winner == "eager"


def test_what_is_below_the_effect_is_called_that_whatever_the_baseline_does() -> None:
    own = Ratio(1.006, 1.004, 1.012, 6)
    assert Noise(0.01, own).unresolved(own).cause == "below the effect"
    assert (
        Noise(0.01, replace(own, high=1.06)).unresolved(replace(own, value=1.05, high=1.06)).cause
        == "baseline not itself"
    )


@pytest.mark.parametrize(("speedup", "outcome"), [(2.0, "not resolved"), (0.5, "not resolved"), (4.0, "faster")])
def test_what_the_baseline_does_to_itself_shows_nothing(speedup: float, outcome: str) -> None:
    """On busy cores its own interval reaches three times: twice as fast, or half as fast, is no difference there."""
    run = run_record([wide(1.0, "eager"), *ladder(compile=speedup)])  # type: ignore[list-item]
    found = ranking(run)
    assert found.outcomes["compile"] == outcome
    assert (found.winner == "compile") == (outcome == "faster")
    if speedup == 2.0:
        assert found.unresolved is not None
        assert found.unresolved.cause == "baseline not itself"
        assert "against itself was 0.33 to 3.0 ×, so a ratio within" in remedy(found.unresolved)
