"""The ladder: one list of columns for the terminal, HTML, Markdown, CSV and a sweep, and its charts."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary
from pipeline.records.data_words import IMAGES, Words
from pipeline.records.goals import TaskName, accuracy_figure
from pipeline.records.run_record import EAGER
from pipeline.records.samples import Accuracy, Service
from pipeline.report import WORDS, formatting
from pipeline.report.charts.bars import ladder as ladder_bars
from pipeline.report.charts.plots import front
from pipeline.report.formatting import NOTHING, gibibytes, interval, method, milliseconds, seconds, significant, times
from pipeline.report.sections.accuracy import OF_TASK
from pipeline.report.tables import Cell, Column, Figure, Table, View, explained, number, stage_cell
from pipeline.stats.intervals import Ratio

TONES = {"faster": "good", "slower": "bad", "failed": "bad", "inaccurate": "bad", "timeout": "bad", "skipped": "quiet"}
MARKS = {"winner": "▸\u00a0", "tie": "=\u00a0"}
EVERYWHERE: frozenset[View] = frozenset({"report", "terminal", "sweep"})
REPORT_AND_SWEEP: frozenset[View] = frozenset({"report", "sweep"})
TAIL: str = WORDS["ladder"]["columns"]["latency_p99_s"]

StageColumn = Column[StageSummary]


@dataclass(frozen=True)
class Headings:
    """Names within the titles; the default is for tables of several runs."""

    baseline: str = ""
    calls: str = ""  # how many single calls were timed, such as "17 to 20"
    task: TaskName = "segmentation"  # what the answers are
    words: Words = IMAGES  # for the data


def headings_of(summary: RunSummary) -> Headings:
    """Return the names within the titles of one run's tables."""
    named, words = summary.run.config.task.name, summary.run.words
    return Headings(method(summary.baseline), counted_calls(summary.stages), named, words)


def counted_calls(stages: Sequence[StageSummary]) -> str:
    """Return how many single calls of these stages were timed, such as "17 to 20"."""
    counts = sorted({stage.latency.calls for stage in stages if stage.latency})
    return f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else "".join(map(str, counts))


def stage_columns(named: Headings) -> list[StageColumn]:
    """Return every figure of a stage in the order of the tables; a new column is a line in a group."""

    def served(read: Callable[[Service], float | None]) -> Callable[[StageSummary], float | None]:
        return lambda stage: read(stage.stage.service) if stage.stage.service else None

    task = _correctness(named.words) if named.task == "segmentation" else [
        *OF_TASK[named.task],
        csv_only("relative_l2_limit", lambda stage: stage.stage.spec.tolerance.relative_l2),
        of_accuracy("judged_samples", lambda found: found.images),
        of_accuracy("nan_share", lambda found: found.nan_share),
    ]  # fmt: skip
    resources: list[StageColumn] = [
        number("GiB", lambda stage: stage.peak_bytes, gibibytes, "memory_bytes", EVERYWHERE),
        csv_only("allocated_peak_bytes", lambda stage: stage.stage.memory and stage.stage.memory.allocated_peak_bytes),
        csv_only("process_bytes", lambda stage: stage.stage.memory and stage.stage.memory.process_bytes),
        csv_only("host_peak_bytes", lambda stage: stage.stage.memory and stage.stage.memory.host_peak_bytes),
        number("loads in", served(lambda found: found.load_seconds), seconds, "service_load_s"),
        number("service GiB", served(lambda found: found.held_bytes), gibibytes, "service_bytes"),
        csv_only("service_host_bytes", served(lambda found: found.host_bytes)),
        csv_only("service_reserved_bytes", served(lambda found: found.reserved_bytes)),
        number(f"J/{named.words.sample}", lambda of: of.joules_per_image, significant, "joules_per_image"),
        number("set-up", lambda stage: stage.setup_seconds, seconds, views=EVERYWHERE),
        csv_only("build_s", lambda stage: stage.stage.build_seconds),
        csv_only("first_call_s", lambda stage: stage.stage.first_call_seconds),
        csv_only("break_even_images", lambda stage: stage.break_even),
    ]
    columns = [*_ratios(named), *_times(named), *resources, *task]
    return explained("ladder", columns, named.words, baseline=named.baseline or "the baseline")


def _ratios(named: Headings) -> list[StageColumn]:
    def name(stage: StageSummary) -> Cell:
        again = " again (A/A)" if method(stage.name) == named.baseline and stage.ratio and stage.ratio.blocks else ""
        legacy = " (legacy)" if stage.stage.spec.legacy else ""
        return stage_cell(stage.name, MARKS.get(stage.place, ""), f"{again}{legacy}")

    def ratio(stage: StageSummary) -> Cell:
        return Cell(times(stage.ratio if stage.ranked else None), stage.ratio.value if stage.ratio else None)

    def between(stage: StageSummary) -> Cell:
        return Cell(interval(stage.ratio if stage.ranked else None) or NOTHING, ends(stage.ratio)[0])

    def outcome(stage: StageSummary) -> Cell:
        said = stage.compared.outcome or stage.status
        return Cell(said, said, TONES.get(said, ""))

    def to_eager(stage: StageSummary) -> Cell:
        shown = stage.eager_ratio if stage.ranked and named.baseline != EAGER else None
        return Cell(times(shown), shown.value if shown else None)

    return [
        Column("method", name, "", "text", "stage", EVERYWHERE, "stage"),
        Column(f"× {named.baseline}".strip(), ratio, csv="ratio", views=EVERYWHERE),
        Column("95 % interval", between, views=EVERYWHERE, short="95 %"),
        csv_only("ratio_low", lambda stage: ends(stage.ratio)[0]),
        csv_only("ratio_high", lambda stage: ends(stage.ratio)[1]),
        Column("outcome", outcome, kind="text", views=EVERYWHERE, short=""),
        csv_only("outcome", lambda stage: stage.compared.outcome),
        csv_only("blocks", lambda stage: stage.ratio and stage.ratio.blocks),
        csv_only("trials", lambda stage: stage.ratio and stage.ratio.trials),
        Column(f"× {EAGER}", to_eager),
        csv_only("eager_ratio", lambda stage: stage.eager_ratio and stage.eager_ratio.value),
        csv_only("eager_ratio_low", lambda stage: ends(stage.eager_ratio)[0]),
        csv_only("eager_ratio_high", lambda stage: ends(stage.eager_ratio)[1]),
        csv_only("host_ratio", lambda stage: stage.host_ratio),
    ]


def ends(ratio: Ratio | None) -> tuple[float | None, float | None]:
    """Return the ends of a ratio's interval; None where it has none."""
    return (ratio.low, ratio.high) if ratio and ratio.blocks and ratio.bounded else (None, None)


def _times(named: Headings) -> list[StageColumn]:
    both, slowest_of = REPORT_AND_SWEEP, f"slowest{f' of {named.calls}' if named.calls else ''}, ms"

    def interleaved(stage: StageSummary) -> Cell:
        value = stage.seconds.value if stage.seconds else None
        return Cell(NOTHING if value is None or value == stage.pace else milliseconds(value), value)

    def slowest(stage: StageSummary) -> float | None:
        return stage.latency.slowest if stage.latency and stage.latency.p99 is None else None

    return [
        number("ms", lambda stage: stage.pace, milliseconds, views=EVERYWHERE),
        csv_only("sustained_seconds_per_call", lambda stage: stage.sustained_seconds),
        Column("ms interleaved", interleaved, csv="seconds_per_call"),
        csv_only("seconds_per_call_low", lambda stage: stage.seconds and stage.seconds.low),
        csv_only("seconds_per_call_high", lambda stage: stage.seconds and stage.seconds.high),
        number(f"{named.words.samples}/s", lambda of: of.images_per_second, significant, "images_per_second", both),
        number("p50 ms", lambda of: of.latency and of.latency.p50, milliseconds, "latency_p50_s", both),
        csv_only("latency_p90_s", lambda stage: stage.latency and stage.latency.p90),
        number("p99 ms", lambda of: of.latency and of.latency.p99, milliseconds, "latency_p99_s", both),
        number(slowest_of, slowest, milliseconds, views=both, help=TAIL),
        csv_only("latency_slowest_s", lambda stage: stage.latency and stage.latency.slowest),
        csv_only("latency_calls", lambda stage: len(stage.stage.latencies) or None),
        number("host p50 ms", lambda of: of.host_latency and of.host_latency.p50, milliseconds, "host_to_host_p50_s"),
        csv_only("host_to_host_p99_s", lambda stage: stage.host_latency and stage.host_latency.p99),
        csv_only("host_to_host_slowest_s", lambda stage: stage.host_latency and stage.host_latency.slowest),
    ]


def _correctness(words: Words) -> list[StageColumn]:
    def flipped(stage: StageSummary) -> Cell:
        found = stage.stage.accuracy
        if found is not None and stage.unjudged:
            return Cell("not judged", None)
        return Cell(formatting.share(found.flipped_share), found.flipped_share) if found else Cell(NOTHING)

    return [
        Column(f"{words.points} that change", flipped, csv="flipped_share"),
        csv_only("flipped_share_limit", lambda stage: stage.stage.spec.tolerance.flipped_share),
        csv_only("masks_judged", lambda stage: not stage.unjudged),
        of_accuracy("judged_images", lambda found: found.images),
        of_accuracy("judged_pictures", lambda found: found.pictures),
        csv_only("dice_mean", mean_dice),
        of_accuracy("dice_least", lambda found: accuracy_figure("min_dice", found)),
        of_accuracy("dice_drop_points", lambda found: accuracy_figure("max_dice_drop", found)),
        of_accuracy("relative_l2", lambda found: found.relative_l2),
        csv_only("relative_l2_limit", lambda stage: stage.stage.spec.tolerance.relative_l2),
        of_accuracy("nan_share", lambda found: found.nan_share),
        of_accuracy("one_class", lambda found: found.one_class),
    ]


def mean_dice(stage: StageSummary) -> float | None:
    """Return the mean Dice against the labels; None without labels."""
    return stage.stage.accuracy.mean_dice if stage.stage.accuracy else None


def of_accuracy(name: str, read: Callable[[Accuracy], object]) -> StageColumn:
    """Return a column of results.csv of a stage's comparison; empty where it wasn't compared."""
    return csv_only(name, lambda stage: read(stage.stage.accuracy) if stage.stage.accuracy else None)


def csv_only(name: str, read: Callable[[StageSummary], object]) -> StageColumn:
    """Return a column of results.csv that no table shows; a figure that is no number, text or truth stays empty."""

    def cell(stage: StageSummary) -> Cell:
        value = read(stage)
        return Cell("", value if isinstance(value, float | int | str) else None)

    return Column("", cell, csv=name, views=frozenset())


def shown_in(view: View, columns: list[StageColumn]) -> list[StageColumn]:
    """Return the columns of one view."""
    return [column for column in columns if view in column.views]


def by_time(summary: RunSummary) -> list[StageSummary]:
    """Return the stages but the skipped (unless all were), fastest first; those that aren't ranked come last.

    Times of different moments are compared by the ratio: a machine that slows down moves no stage.
    """
    tried = [stage for stage in summary.stages if stage.status != "skipped"] or summary.stages
    times = {name: each * summary.run.batch_size for name, each in summary.image_seconds.items()}
    times |= {stage.name: stage.sustained_seconds for stage in summary.ranked if stage.sustained_seconds}
    return sorted(tried, key=lambda stage: times[stage.name] if stage.ranked else math.inf)


def ladder(summary: RunSummary) -> Table:
    """Return every stage that was tried, fastest first; the columns that no stage fills are left out."""
    columns = shown_in("report", stage_columns(headings_of(summary)))
    return Table(columns, [row_of(columns, stage) for stage in by_time(summary)]).without_empty_columns


def row_of(columns: list[StageColumn], stage: StageSummary) -> list[Cell]:
    """Return the cells of one stage; the figures of one that isn't ranked sort last."""
    cells = [column.cell(stage) for column in columns]
    if stage.ranked:
        return cells
    return [cell if isinstance(cell.value, str) else replace(cell, value=None) for cell in cells]


def ladder_chart(summary: RunSummary) -> str:
    """Draw every stage's ratio with its interval; unresolved ones are hatched, unranked ones give their status."""
    bars: list[tuple[str, Ratio | None, str]] = []
    for stage in by_time(summary):
        unresolved = stage.compared.outcome == "not resolved"
        kind = "not resolved" if unresolved else stage.place if stage.ranked else stage.status
        bars.append((method(stage.name), stage.ratio if stage.ranked else None, kind))
    return ladder_bars(bars, method(summary.baseline))


def error_front(summary: RunSummary) -> Figure | None:
    """Draw the pixels that change, or the relative L2, against speed; None where fewer than two stages have any."""
    accuracies = [(stage, stage.stage.accuracy) for stage in summary.ranked if stage.stage.accuracy]
    if summary.run.config.task.has_masks:
        words = summary.run.words
        values = [(stage, 100 * found.flipped_share) for stage, found in accuracies if found.flipped_share]
        title, axis = f"{words.points.capitalize()} that change against speed", f"% of {words.points} that change"
        exact = f"changes no {words.point}"
    else:
        values = [(stage, found.relative_l2) for stage, found in accuracies if found.relative_l2 > 0]
        title, axis, exact = "Error against speed", "relative L2 against fp32", "answers as fp32 does, bit for bit,"
    points = [(method(stage.name), stage.ratio.value, value, stage.place) for stage, value in values if stage.ratio]
    if len(points) < 2:
        return None
    fast = f"times as fast as {method(summary.baseline)}"
    note = f"Right and low is better. A stage that {exact} has no place on this scale. The figures stand in the ladder."
    return Figure(title, partial(front, points, (title, fast, axis), log=True), note)
