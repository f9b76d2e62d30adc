"""Where the wall time goes, what it means, and whether the sums agree."""

from dataclasses import replace

import pytest

from pipeline.analysis.bottleneck import Evidence
from pipeline.analysis.summary import RunSummary, summarize
from pipeline.records.diagnostics import Diagnostics, LayerTime, TimeSplit
from pipeline.report.sections import way
from pipeline.report.sections.host import columns, host_time, in_a_line, lines, meaning, path_section
from pipeline.stats.intervals import seconds_per_call
from tests.fake_machine import run_record, stage_record, steady_pair
from tests.made_up_request import changed
from tests.report import made_up_run as made_up

RUN = made_up.run()
BUSY = TimeSplit(10e-3, 9.8e-3, 0.3e-3, 0.9e-3, 0.4e-3, 0.0)
CPU = TimeSplit(10e-3, None, 0.0, 8e-3, 2e-3, 0.0)


@pytest.mark.parametrize(
    ("split", "said"),
    [
        (BUSY, "The GPU idles for only 2.0 %: launches are not the limit."),
        (replace(BUSY, device_seconds=6e-3), "the GPU waits for 40 % of the time; the host spends most in the fr"),
        (replace(BUSY, device_seconds=6e-3, interpreter_seconds=3e-3), "the host spends most in the interpreter"),
        (CPU, "No GPU: 20 % of the time is outside the framework's operators."),
        (replace(CPU, wall_seconds=0.0), "Nothing was recorded."),
    ],
)
def test_what_a_split_means(split: TimeSplit, said: str) -> None:
    assert said in meaning(host_time(split))


def test_what_waits_for_the_profiler_alone_is_not_said_to_wait() -> None:
    split = replace(BUSY, device_seconds=4e-3)
    said = "Only the profiler holds the GPU up; outside it the call's kernels leave 2.4 % of the time: launches are not"
    assert said in meaning(host_time(split, 4.1e-3))
    assert "the GPU waits for 60 % of the time" in meaning(host_time(split, 8e-3))
    shares = (Evidence(None, None, 0.6, None, unfilled=left).idle_told for left in (0.02, 0.5, None))
    assert [*shares] == [None, 0.6, 0.6]
    first = RUN.stages[0]
    took = seconds_per_call(first.pairs).value
    slow = replace(first, diagnostics=replace(first.diagnostics, split=TimeSplit(9 * took, 0.95 * took, 0, 0, 0, 0)))
    said = in_a_line(made_up.summary(replace(RUN, stages=[slow, *RUN.stages[1:]])))
    assert "under the profiler, or of a call outside it, the GPU idles for at most 5.0 % of the time." in said


def test_every_ranked_stage_s_split_is_a_line() -> None:
    assert [columns()[0].cell(one).value for one in lines(made_up.summary(RUN))] == [rung[0] for rung in made_up.LADDER]
    text = made_up.page(RUN)
    assert 'id="time-table"' not in text
    line = "Launches limit no stage: under the profiler the GPU idles for at most 2.0 % of the time."
    assert in_a_line(made_up.summary(RUN)) == line
    assert line in text
    waits = [replace(one, diagnostics=Diagnostics(split=replace(BUSY, device_seconds=6e-3))) for one in RUN.stages[:1]]
    waiting = made_up.run(stages=[*waits, *RUN.stages[1:]])
    assert in_a_line(made_up.summary(waiting)) == ""
    assert 'id="time-table"' in made_up.page(waiting)


def why_of(found: RunSummary) -> str:
    assert found.winner is not None
    return way.of_winner(found, found.winner)


def test_a_winner_that_shows_its_layers_names_the_level() -> None:
    found = made_up.summary(replace(RUN, stages=RUN.stages[:5]))
    assert "Largest headroom: decoder 0, " in why_of(found)
    assert way.QUESTION not in made_up.page(replace(RUN, stages=[]))
    bare = replace(RUN, measured_peaks=None, stages=[replace(RUN.stages[0], profile=None, diagnostics=None)])
    said = why_of(made_up.summary(bare))
    assert said == f"What limits {bare.stages[0].name} is unknown: the bottleneck needs both roofs."


def test_time_between_layers_is_named_where_it_is_the_most() -> None:
    half = RUN.stages[4]
    times = [LayerTime(time.name, 9e-3 if not time.name else 1e-4, 1.0) for time in half.diagnostics.layers]
    slow = replace(half, diagnostics=replace(half.diagnostics, layers=times))
    said = why_of(made_up.summary(replace(RUN, stages=[slow])))
    assert said.endswith("; another 9.00 ms lie between layers, which have no roofline.")


def summary(**fields: object) -> RunSummary:
    """A run whose winner takes 10 ms, and a stage whose path wasn't measured."""
    fast = changed(stage_record("fast", steady_pair(2.0, b="fast")), **fields)
    return summarize(run_record([fast, stage_record("eager", steady_pair(1.0, b="eager"))]))


def test_what_was_not_measured_says_why() -> None:
    assert path_section(summary(host_path_left_out="no copies")).sentences == ["Not measured: no copies."]
    assert path_section(summary()).empty
