"""Who wins, who ties, and who isn't ranked."""

import pytest

from pipeline.records.run_record import RunRecord
from pipeline.records.samples import Pair
from pipeline.stats.ranking import contenders, ranking
from tests.fake_machine import pair_of, run_record, stage_record, steady_pair


def ladder(**ratios: float) -> list[object]:
    return [stage_record(name, steady_pair(value, b=name)) for name, value in ratios.items()]


def run_of(ratios: dict[str, float], **fields: object) -> RunRecord:
    return run_record(ladder(**ratios), **fields)  # type: ignore[arg-type]


def met(leader: str, rival: str, value: float) -> Pair:
    return steady_pair(value, a=leader, b=rival)


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


def test_a_difference_below_the_floor_is_a_tie() -> None:
    """Intervals apart by 0.7 % say nothing where A/A pairs lie 1 % apart."""
    assert ranking(run_of({"compile": 3.0, "graph": 3.02})).ties == ["compile"]


@pytest.mark.parametrize(("value", "ties"), [(0.95, []), (0.997, ["compile"]), (1.003, ["compile"])])
def test_turns_with_the_winner_decide(value: float, ties: list[str]) -> None:
    run = run_of({"compile": 3.0, "graph": 3.0003}, head_to_head=[met("graph", "compile", value)])
    found = ranking(run)
    assert (found.winner, found.ties) == ("graph", ties)


def test_a_rival_that_its_turns_show_to_be_faster_leads() -> None:
    pairings = [met("graph", "compile", 1.05), met("graph", "half", 1.0495)]
    found = ranking(run_of({"half": 2.9999, "compile": 3.0, "graph": 3.0003}, head_to_head=pairings))
    assert (found.winner, found.ties) == ("compile", ["half"])
    assert found.order[0] == "compile"


def test_the_wrong_the_unmeasured_and_the_unclear_never_rank() -> None:
    """Fast and wrong, failed, without blocks, and with work on a side stream: none is in the order."""
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
    assert best_for(run, 10**6) == "honest"


def test_where_all_are_slower_the_baseline_wins() -> None:
    found = ranking(run_of({"slow": 0.8}))
    assert (found.winner, found.ties, found.outcomes["slow"]) == ("eager", [], "slower")


def test_a_stage_like_the_baseline_ties_with_it() -> None:
    assert ranking(run_of({"tf32": 1.002})).ties == ["eager"]


def test_a_baseline_that_is_a_rung_is_ranked_by_its_turns() -> None:
    found = ranking(run_of({"eager": 1.001, "compile": 3.0}))
    assert found.order == ["compile", "eager"]
    assert found.ratios["eager"].value == pytest.approx(1.001)


def test_nothing_usable_has_no_winner() -> None:
    run = run_record([stage_record("wrong", None, status="inaccurate")])
    found = ranking(run)
    assert (found.winner, found.order, contenders(run), best_for(run, 1)) == (None, [], [], None)


def test_rivals_are_the_fastest_and_those_near_it() -> None:
    assert contenders(run_of({"amp": 2.0, "compile": 3.0, "graph": 3.01, "half": 2.99})) == ["graph", "compile", "half"]


def test_break_even_is_where_the_lines_meet() -> None:
    """At 2 ms an image for the baseline and 1 ms for the stage, 10 s more of set-up are 10,000 images."""
    pair = pair_of(lambda i: (0.04, 0.02))
    stages = [
        stage_record("eager", pair_of(lambda i: (0.04, 0.04)), build_seconds=0.5, first_call_seconds=0.5),
        stage_record("compile", pair, build_seconds=10.0, first_call_seconds=1.0),
        stage_record("quick", pair_of(lambda i: (0.04, 0.025)), build_seconds=0.0, first_call_seconds=0.5),
        stage_record("slow", pair_of(lambda i: (0.04, 0.05)), build_seconds=5.0),
    ]
    run = run_record(stages)
    even = {stage.name: break_even_images(stage, run) for stage in stages}
    assert even["compile"] == pytest.approx(10_000)
    assert (even["quick"], even["slow"], even["eager"]) == (0.0, None, 0.0)
    assert [best_for(run, images) for images in (100, 1_000_000)] == ["quick", "compile"]


def test_a_failed_stage_breaks_even_never() -> None:
    stage = stage_record("dead", None, status="failed")
    assert break_even_images(stage, run_record([stage])) is None
