"""What one part of a report says no other denies: whom a sweep names, what wasn't seen, and which form is ahead."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.analysis.attribution import Finding, largest_step, remaining, seen_share, steps
from pipeline.analysis.summary import RunSummary, summarize
from pipeline.analysis.sweeps import Curve, Job, Lead, Rate
from pipeline.config.request_error import RequestError
from pipeline.records.data_words import IMAGES
from pipeline.records.diagnostics import KernelRow, LayerTime, LayerWork, Profile
from pipeline.records.run_record import RunRecord
from pipeline.records.samples import Accuracy, Block, Pair
from pipeline.report import answer
from pipeline.report.charts.bars import waterfall
from pipeline.report.formatting import method
from pipeline.report.sections import bottleneck, way
from pipeline.report.sections.ladder import ends
from pipeline.report.sections.layout import searched
from pipeline.report.slim_pages import points_of, write_pareto
from pipeline.report.sweep import knees, most_per_second, opening
from pipeline.stats.intervals import Estimate, Ratio
from pipeline.stats.outcomes import Unresolved
from tests.analysis.made_up_nets import net, summarized
from tests.export.recorded import MACHINE, stage
from tests.made_up_request import asked
from tests.report import made_up_run as made_up

SWEPT = "python -m pipeline -m stage=half,compile data.batch_size=1,8"


def rough(pair: Pair, factor: float) -> Pair:
    """The pair with the stage so many times as slow in every second block."""

    def slowed(block: Block) -> Block:
        first, second = (
            replace(sample, seconds=factor * sample.seconds, device_seconds=factor * (sample.device_seconds or 0.0))
            for sample in block.stage
        )
        return replace(block, stage=(first, second))

    return replace(pair, blocks=[slowed(block) if at % 2 else block for at, block in enumerate(pair.blocks)])


def job(number: int, pair: Pair, batch: int, **fields: Any) -> Job:
    stage = made_up.stage(pair.stage, 1.0, 1.0, 10**9, "", pairs=[pair], energy=None)
    asked = replace(made_up.run(), stages=[stage], command=SWEPT, **fields)
    record: RunRecord = made_up.with_settings(asked, data={"batch_size": batch})
    return Job(Path(str(number)), summarize(record), "")


def pair(stage: str, baseline_seconds: float, seconds: float) -> Pair:
    return made_up.pair("eager", stage, (baseline_seconds, seconds))


def test_the_most_images_per_second_are_named_where_they_are_resolved() -> None:
    jobs = [job(0, pair("compile", 0.02, 0.010), 1), job(1, pair("compile", 0.05, 0.020), 8)]
    (said,) = [line for line in opening(jobs) if "per second" in line]
    assert said.startswith("Most images per second: torch.compile at batch 8 (job 1), 400")
    first = Rate("1", "half", 8, Estimate(405.0, 404.0, 406.0), 0.01)
    cause = Unresolved("few blocks", 2, 0.01, 0.01, 0.1, 6)
    said = most_per_second(Lead(first, [], cause, SWEPT), IMAGES)
    assert "isn't resolved: half precision at batch 8 (job 1) (405) is the highest, and not shown to be." in said
    other = replace(made_up.environment(), device_name="NVIDIA L4")
    jobs = [job(0, pair("half", 0.04, 0.02), 8), job(1, pair("compile", 0.04, 0.016), 8, environment=other)]
    assert opening(jobs)[-1].endswith("They are different machines: compare no times.")


def test_what_no_ratio_resolves_is_not_named() -> None:
    """The stage and the baseline that it can't be told from stand there, why, and the command that measures longer."""
    jobs = [job(0, pair("half", 0.020, 0.0202), 1), job(1, rough(pair("half", 0.02, 0.015), 1.8), 8)]
    (said,) = [line for line in opening(jobs) if "per second" in line]
    assert not any(line.startswith("Most images") for line in opening(jobs))
    assert said.startswith("Which gives the most images per second isn't resolved: eager at batch 8 (job 1) (400)")
    assert "and half precision at batch 8 (job 1) (382) can't be told apart. The interval is ±" in said
    assert said.endswith(
        "would resolve it. To measure longer: "
        "python -m pipeline -m stage=half,compile data.batch_size=1,8 measure=thorough"
    )


def test_a_baseline_without_samples_of_its_own_is_a_contender_all_the_same() -> None:
    few = pair("half", 0.020, 0.0198)
    alone = job(1, replace(few, blocks=few.blocks[:2]), 8).summary
    lost = made_up.stage("eager", 1.0, 1.0, 10**9, "", pairs=[], energy=None)
    record = replace(alone.run, stages=[lost, *alone.run.stages])
    jobs = [job(0, pair("half", 0.16, 0.1599), 1), Job(Path("1"), summarize(record), "")]
    (said,) = [line for line in opening(jobs) if "per second" in line]
    assert "isn't resolved: half precision at batch 8 (job 1) (405), eager at batch 8 (job 1) (401)" in said


def test_those_that_can_t_be_told_apart_stand_in_the_order_of_their_rates() -> None:
    jobs = [job(at, rough(pair("half", 0.16, seconds), 1.3), 8) for at, seconds in enumerate((0.05, 0.041, 0.045))]
    (said,) = [line for line in opening(jobs) if "per second" in line]
    places = [said.index(f"(job {at})") for at in (1, 2, 0)]
    assert places == sorted(places)


def test_a_baseline_that_drifted_over_a_job_leaves_its_rate_open() -> None:
    """500 and 400 images a second are apart, unless the machine itself went 30 % slower meanwhile."""
    first, second = pair("half", 0.04, 0.02), pair("compile", 0.04, 0.016)
    (said,) = [line for line in opening([job(0, first, 8), job(1, second, 8)]) if "per second" in line]
    assert said.startswith("Most images per second: torch.compile")
    (said,) = [line for line in opening([job(0, first, 8), job(1, second, 8, drift=0.3)]) if "per second" in line]
    assert "isn't resolved: torch.compile at batch 8 (job 1) (500) and half precision at batch 8 (job 0) (400)" in said


def test_what_the_intervals_or_a_drift_hide_is_not_named() -> None:
    """Batch 8 gives 95 % of the best by its middle, and between 80 and 110 % by its interval."""
    best, wide, narrow = Estimate(500.0, 498.0, 502.0), Estimate(475.0, 400.0, 550.0), Estimate(475.0, 470.0, 480.0)
    first = Estimate(100.0, 99.0, 101.0)
    for each, said in ((narrow, "8 (95 %)"), (wide, "not resolved")):
        (row,) = knees([Curve("half", 512, [(1.0, first), (8.0, each), (32.0, best)])], IMAGES).rows
        assert [cell.text for cell in row] == ["half precision at 512", said, "500"]
    found = made_up.summary(DRIFTED)
    assert steps(found) == []
    (said,) = way.step_sentences(found)
    assert said.startswith("The saving of each step is unknown: the baseline drifted too far for times of ")
    assert way.way_figures(found) == []


RUN = made_up.run()
DRIFTED = replace(RUN, drift=0.3)


def one_convolution(reach: float = 0.7) -> RunRecord:
    """A CPU's stage of one layer that reaches so much of the peak."""
    layer = LayerWork("conv", "Conv2d", "convs", 10**11, 4 * 10**6, 4 * 10**6, 9 * 10**6)
    return made_up.on_a_processor(net([layer], [LayerTime("conv", 1e-3 / reach, 1.0)], seconds=1.01e-3 / reach))


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
    assert "Unknown of half precision: the machine's pace changed" in bottleneck.definition(whole)
    assert any(cost.share for cost in searched(made_up.summary(RUN)))
    assert not any(cost.share for cost in searched(made_up.summary(made_up.on_a_processor(DRIFTED))))


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


def test_no_step_leads_from_a_tie_to_the_winner_which_is_named() -> None:
    found = made_up.summary(RUN)
    same = tied(found)
    assert findings(found)[-1] != "no difference"
    assert findings(same) == [*findings(found)[:-1], "no difference"]
    alone = replace(same, ranking=replace(same.ranking, ties=[stage.name for stage in same.ranked]))
    assert largest_step(alone) is None
    [drawn] = way.way_figures(same)
    assert "hatched" in drawn.svg
    assert "hatched" not in waterfall([("a", 0.0, 2.0), ("+ b", 2.0, 1.0)], "ms")
    found = tied(made_up.summary(RUN))
    assert found.winner is not None
    tie, setup = answer.paragraph(replace(found, run=made_up.on_a_processor(RUN)))[:2]
    assert tie.endswith(" ties.")
    assert setup.startswith("Building takes ")
    _, host, after = answer.paragraph(made_up.summary(RUN))[:3]
    assert host.startswith("Including transfers to and from the GPU, torch.compile is ")
    assert after.startswith("Building takes ")
    assert f". {method(found.winner.name)} " in way.of_winner(found, found.winner)


def test_the_csv_has_no_interval_where_the_tables_have_none() -> None:
    extremes = Ratio(2.0, 1.0, 4.0, 3, doubt="few blocks")
    assert ends(extremes) == (None, None)
    assert ends(replace(extremes, doubt=None)) == (1.0, 4.0)
    few = made_up.stage("half", 2.0, 0.1, 10**9, "", pairs=[made_up.pair("eager", "half", (0.1, 0.05), blocks=2)])
    (row,) = made_up.csv_rows(made_up.summary(replace(RUN, stages=[few])))
    assert (row["ratio_low"], row["ratio_high"], row["ratio"] != "") == ("", "", True)


FIGURES = Accuracy(0.0, 0.0, 1.0, 0.0, None, 0.0, False, None, None, None, None, 8)


def run_of(seconds: dict[str, float], dice: float | None) -> RunRecord:
    figures = replace(FIGURES, dice=None if dice is None else [0.99, dice])
    stages = [
        replace(stage(name), pairs=[made_up.pair("eager", name, (0.004, each), "cpu", blocks=2)], accuracy=figures)
        for name, each in seconds.items()
    ]
    return RunRecord("", "", asked(), MACHINE, stages=stages, finished=True, winner=next(iter(seconds)))


def test_what_is_slower_and_worse_is_not_ahead(tmp_path: Path) -> None:
    runs = [
        ("full", run_of({"eager": 0.004}, 0.95)),
        ("half", run_of({"eager": 0.001}, 0.94)),
        ("bad", run_of({"eager": 0.002}, 0.9)),
    ]
    found = points_of(runs)
    assert [(point.network, point.dice) for point in found] == [("full", 0.95), ("half", 0.94), ("bad", 0.9)]
    assert [[one.beats(other) for other in found] for one in found] == [[False] * 3, [False, False, True], [False] * 3]
    assert write_pareto(found, tmp_path).endswith(f"{tmp_path}/pareto.html\n")
    page = (tmp_path / "pareto.html").read_text()
    assert all(f"{name}, eager" in page for name, _ in runs)


def test_runs_without_labels_or_of_other_batches_are_refused() -> None:
    full = run_of({"eager": 0.004}, 0.95)
    with pytest.raises(RequestError, match=r"slim: its images have no labels"):
        points_of([("full", full), ("slim", run_of({"eager": 0.001}, None))])
    other = replace(full, config=replace(full.config, data=replace(full.config.data, batch_size=7)))
    with pytest.raises(RequestError, match=r"slim: data.batch_size=7, where full has 2"):
        points_of([("full", full), ("slim", other)])
