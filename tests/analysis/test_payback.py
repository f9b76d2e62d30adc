"""What set-up buys: where lines meet, which stage is best from where on, and when neither can be said."""

from dataclasses import replace

import pytest

from pipeline.analysis.stage_summary import Line, break_even
from pipeline.analysis.summary import RunSummary, change_overs, summarize
from pipeline.records.plan import Plan
from pipeline.report.sections.cost import columns, cost_text, ruler
from pipeline.report.tables import Cell, table_of
from tests.fake_machine import pair_of, run_record, stage_record, steady_pair, wide_pair
from tests.made_up_request import asked
from tests.report import made_up_run as made_up

BASELINE = Line("eager", 1.0, 0.002)
NOBODY: frozenset[str] = frozenset()


def cost_rows(found: RunSummary) -> list[list[Cell]]:
    """Stage, images a second, hours and so on, of each ranked stage."""
    return table_of(columns(found), found.ranked).rows


@pytest.mark.parametrize(
    ("stage", "images"),
    [
        (Line("compile", 11.0, 0.001), 10_000),
        (Line("quick", 0.5, 0.00125), 0.0),
        (Line("slow", 5.0, 0.0025), None),
        (Line("alike", 2.0, 0.00199), None),
        (BASELINE, 0.0),
    ],
)
def test_break_even_is_where_the_lines_meet(stage: Line, images: float | None) -> None:
    """10 s more of set-up and 1 ms less an image are 10,000 images; at once; never; against itself."""
    found = break_even(stage, BASELINE, alike=stage.name == "alike")
    assert found == (None if images is None else pytest.approx(images))


def test_the_best_stage_changes_where_the_lines_cross() -> None:
    """Slopes 8, 4 and 2 ms with 0, 4 and 104 s: at 1,000 and at 50,000 images."""
    lines = [Line("a", 0.0, 0.008), Line("b", 4.0, 0.004), Line("c", 104.0, 0.002), Line("never", 9.0, 0.009)]
    found = change_overs(lines, NOBODY, 0.01)
    assert [name for name, _ in found] == ["a", "b", "c"]
    assert [start for _, start in found] == pytest.approx([1.0, 1_000.0, 50_000.0])
    lines[2] = Line("c", 3.0, 0.002)  # leads from 500 images on, so that b never does
    assert [name for name, _ in change_overs(lines, NOBODY, 0.01)] == ["a", "c"]


@pytest.mark.parametrize(("ties", "seconds"), [(frozenset({"b", "c"}), 0.002), (NOBODY, 0.00399)])
def test_a_tie_is_no_change(ties: frozenset[str], seconds: float) -> None:
    lines = [Line("a", 0.0, 0.008), Line("b", 4.0, 0.004), Line("c", 10.0, seconds)]
    assert [name for name, _ in change_overs(lines, ties, 0.01)] == ["a", "b"]


def test_of_a_run_it_uses_paces_and_set_up() -> None:
    """At 20 ms for two images and 10: 10 s more of set-up are 2,000 images."""
    stages = [
        stage_record("eager", pair_of(lambda i: (0.2, 0.2)), build_seconds=0.5, first_call_seconds=0.5),
        stage_record("compile", pair_of(lambda i: (0.2, 0.1)), build_seconds=10.0, first_call_seconds=1.0),
    ]
    found = summarize(run_record(stages))
    assert [stage.break_even for stage in found.stages] == [0.0, pytest.approx(2_000)]
    assert found.change_overs == [("eager", 1.0), ("compile", pytest.approx(2_000))]
    assert found.doubt is None
    drawn = ruler(found)
    assert drawn
    assert ">2,000</text>" in drawn.svg
    assert ruler(replace(found, change_overs=found.change_overs[:1])) is None


def test_of_what_is_not_resolved_nothing_is_said() -> None:
    short = asked(plan=Plan(sampling_seconds=6.0))
    found = summarize(run_record([stage_record("compile", wide_pair(1.1))], config=short))
    (stage,) = found.stages
    assert (stage.break_even, stage.break_even_doubt) == (None, "not resolved")
    assert (found.winner, found.change_overs, found.doubt) == (None, [], "not resolved")
    assert (found.change_overs, found.best_for_service) == ([], None)
    assert found.measure_again == "python -m pipeline measure=thorough"
    assert [row[2].text for row in cost_rows(found)] == ["–"]


@pytest.mark.parametrize(
    ("device", "seconds", "asked"), [("cuda", 150, "thorough"), ("cuda", 540, "3"), ("cpu", 60, "3")]
)
def test_what_measured_for_less_than_thorough_is_sent_there(device: str, seconds: float, asked: str) -> None:
    run = run_record([stage_record("compile", wide_pair(1.1))])
    run = replace(run, environment=replace(made_up.environment(), device=device))
    found = summarize(replace(run, config=replace(run.config, plan=Plan(sampling_seconds=seconds))))
    assert found.measure_again.endswith(f"={asked}")


def test_of_a_drifting_baseline_nothing_is_said_that_needs_seconds() -> None:
    steady = run_record([stage_record("half", steady_pair(2.0, b="half"), build_seconds=1.0)])
    assert summarize(steady).stages[0].break_even is not None
    found = summarize(replace(steady, drift=0.12))
    assert found.ranking.winner == "half"
    assert (found.change_overs, found.doubt) == ([], "baseline drifted")
    assert (found.stages[0].break_even, found.stages[0].break_even_doubt) == (None, "baseline drifted")
    assert [row[2].text for row in cost_rows(found)] == ["–"]
    assert cost_rows(summarize(steady))[0][2].value is not None


def test_a_slower_stage_is_not_best_for_a_service_because_the_baseline_was_none_of_its_own() -> None:
    found = summarize(run_record([stage_record("half", steady_pair(0.8, b="half"), latencies=[0.01] * 20)]))
    assert (found.ranking.winner, found.best_for_service) == ("eager", "eager")
    assert not any("service" in line for line in cost_text(found))
