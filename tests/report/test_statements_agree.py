"""What one part of the report says, no other part denies; and nothing is said of what wasn't seen."""

import csv
from dataclasses import replace
from typing import Any

from pipeline.analysis.attribution import Finding, largest_step, remaining, seen_share, steps
from pipeline.analysis.summary import RunSummary
from pipeline.records.diagnostics import KernelRow, LayerTime, LayerWork, Profile
from pipeline.records.run_record import RunRecord
from pipeline.report import answer
from pipeline.report.charts.bars import waterfall
from pipeline.report.csv_table import csv_text
from pipeline.report.sections import bottleneck, way
from pipeline.report.sections.ladder import ends
from pipeline.report.sections.layout import costs
from pipeline.stats.intervals import Ratio
from tests.analysis.made_up_nets import net, summarized
from tests.report import made_up_run as made_up

RUN = made_up.run()
DRIFTED = replace(RUN, drift=0.3)


def on_a_processor(whole: RunRecord, **fields: Any) -> RunRecord:
    return replace(whole, environment=replace(made_up.environment(), device="cpu"), **fields)


def one_convolution(reach: float = 0.7) -> RunRecord:
    """A CPU's stage of one layer that reaches so much of the peak."""
    layer = LayerWork("conv", "Conv2d", "convs", 10**11, 4 * 10**6, 4 * 10**6, 9 * 10**6)
    return on_a_processor(net([layer], [LayerTime("conv", 1e-3 / reach, 1.0)], seconds=1.01e-3 / reach))


def test_a_processor_s_peaks_of_another_pace_name_no_bottleneck() -> None:
    """Where the baseline drifted or others used the processors, a share of the peak may come to twice the peak."""
    steady = one_convolution()
    assert summarized(steady).bottleneck.kind == "compute-bound"
    crowded = [replace(pair, taken_share=0.5) for pair in steady.stages[0].pairs]
    for found in (summarized(replace(steady, drift=-0.4)), summarized(steady, pairs=crowded)):
        assert (found.bottleneck.kind, found.bottleneck.reason) == ("unknown", "other pace")
        assert found.bottleneck.evidence.compute is None
        assert seen_share(found) is None
    whole = made_up.summary(replace(steady, drift=-0.4))
    assert "Unknown of half: the machine's pace changed" in bottleneck.definition(whole)
    assert any(cost.share for cost in costs(made_up.summary(RUN)))
    assert not any(cost.share for cost in costs(made_up.summary(on_a_processor(DRIFTED))))


def test_a_program_under_one_name_passes_over_no_memory() -> None:
    found = summarized(one_convolution(0.4), profile=hiding(2.5e-3))
    assert (found.bottleneck.kind, found.bottleneck.reason) == ("unknown", "not profiled")
    assert remaining(replace(found, layers=[])) is None


def hiding(seconds: float) -> Profile:
    """One operator that holds all, and a small copy beside it."""
    kernels = [KernelRow("forward", "other", 1.0, seconds), KernelRow("aten::copy_", "copy", 1.0, seconds / 10)]
    return Profile(10, seconds, None, 2.0, kernels, None)


def tied(summary: RunSummary) -> RunSummary:
    """With the last rung but one on the way named a tie of the winner."""
    before = steps(summary)[-1].previous
    return replace(summary, ranking=replace(summary.ranking, ties=[before]))


def findings(summary: RunSummary) -> list[Finding]:
    return [step.finding for step in steps(summary)]


def test_no_step_leads_from_a_tie_to_the_winner() -> None:
    found = made_up.summary(RUN)
    same = tied(found)
    assert findings(found)[-1] != "no difference"
    assert findings(same) == [*findings(found)[:-1], "no difference"]
    alone = replace(same, ranking=replace(same.ranking, ties=[stage.name for stage in same.ranked]))
    assert largest_step(alone) is None
    [drawn] = way.way_figures(same)
    assert "hatched" in drawn.svg
    assert "hatched" not in waterfall([("a", 0.0, 2.0), ("+ b", 2.0, 1.0)], "ms")


def test_a_drifting_baseline_explains_no_step() -> None:
    found = made_up.summary(DRIFTED)
    assert steps(found) == []
    (said,) = way.step_sentences(found)
    assert said.startswith("The saving of each rung is unknown: the baseline drifted too far for times of ")
    assert way.way_figures(found) == []


def test_the_winner_is_named_where_another_stage_was_the_last_to_be() -> None:
    found = tied(made_up.summary(RUN))
    assert found.winner is not None
    tie, setup = answer.paragraph(replace(found, run=on_a_processor(RUN)))[:2]
    assert tie.endswith(" ties.")
    assert setup.startswith("Building takes ")
    host, after = answer.paragraph(made_up.summary(RUN))[-2:]
    assert host.startswith(f"Including transfers to and from the GPU, {found.winner.name} is ")
    assert after.startswith("Building takes ")
    assert f". {found.winner.name} " in way.of_winner(found, found.winner)


def test_the_csv_has_no_interval_where_the_tables_have_none() -> None:
    extremes = Ratio(2.0, 1.0, 4.0, 3, doubt="few blocks")
    assert ends(extremes) == (None, None)
    assert ends(replace(extremes, doubt=None)) == (1.0, 4.0)
    few = made_up.stage("half", 2.0, 0.1, 10**9, "", pairs=[made_up.pair("eager", "half", (0.1, 0.05), blocks=2)])
    (row,) = csv.DictReader(csv_text(made_up.summary(replace(RUN, stages=[few]))).splitlines())
    assert (row["ratio_low"], row["ratio_high"], row["ratio"] != "") == ("", "", True)
