"""The ladder: one list of columns for the terminal, HTML, Markdown, CSV and a sweep, and its chart."""

from collections.abc import Callable
from dataclasses import dataclass

from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary
from pipeline.records.data_words import IMAGES, Words
from pipeline.records.goals import TaskName, accuracy_figure
from pipeline.records.run_record import EAGER
from pipeline.report.formatting import (
    NOTHING,
    clean,
    gibibytes,
    interval,
    milliseconds,
    seconds,
    share,
    significant,
    times,
)
from pipeline.report.sections import task_text
from pipeline.report.tables import Cell, Column, Table, View, figure, heading_of, unsorted
from pipeline.stats.intervals import Ratio

TONES = {"faster": "good", "slower": "bad", "failed": "bad", "inaccurate": "bad", "timeout": "bad", "skipped": "quiet"}
MARKS = {"winner": "▸\u00a0", "tie": "=\u00a0"}
EVERYWHERE: frozenset[View] = frozenset({"report", "terminal", "sweep"})
REPORT_AND_SWEEP: frozenset[View] = frozenset({"report", "sweep"})
CSV_ALONE: frozenset[View] = frozenset()

StageColumn = Column[StageSummary]
StageCell = Callable[[StageSummary], Cell]


@dataclass(frozen=True)
class Headings:
    """What the titles name; the default is for tables of several runs."""

    baseline: str = ""
    single_calls: str = "the single calls"  # how many of them were timed
    task: TaskName = "segmentation"  # what the answers are
    words: Words = IMAGES  # for the data


def headings_of(summary: RunSummary) -> Headings:
    """What the titles of one run's tables name."""
    return Headings(clean(summary.baseline), _single_calls(summary), summary.run.config.task.name, summary.run.words)


def stage_columns(named: Headings) -> list[StageColumn]:
    """Every figure of a stage, in the order in which tables show them; adding a column is adding a line to a group."""
    return [
        Column(
            "stage",
            help="▸ the winner, = a tie with it; legacy: its library deprecates it",
            cell=lambda stage: _name(stage, named),
            kind="text",
            views=EVERYWHERE,
            csv="stage",
        ),
        *_against_the_baseline(named),
        *_against_eager(named),
        *_times(named.words),
        *_latencies(named),
        *_resources(named.words),
        *(_correctness(named.words) if named.task == "segmentation" else _value_correctness(named.task)),
    ]


def _against_the_baseline(named: Headings) -> list[StageColumn]:
    over = f"the time of {named.baseline or 'the baseline'} over this stage's: above 1 is faster"
    outcomes = "faster, slower, same within 1 % or not resolved; else why it isn't ranked"
    by = "of that ratio, by order statistics of the blocks; none where it comes from one stretch of calls each"
    return [
        Column(f"× {named.baseline}".strip(), help=over, cell=_ratio, views=EVERYWHERE, csv="ratio"),
        Column("95 % interval", help=by, cell=_interval, views=EVERYWHERE, short="95 %"),
        csv_only("ratio_low", lambda stage: low(stage.ratio)),
        csv_only("ratio_high", lambda stage: high(stage.ratio)),
        Column("outcome", help=outcomes, cell=_outcome, kind="text", views=EVERYWHERE, short=""),
        csv_only("outcome", lambda stage: stage.compared.outcome),
        csv_only("blocks", lambda stage: stage.ratio and stage.ratio.blocks),
        csv_only("trials", lambda stage: stage.ratio and stage.ratio.trials),
    ]


def _against_eager(named: Headings) -> list[StageColumn]:
    def cell(stage: StageSummary) -> Cell:
        ratio = stage.eager_ratio
        shown = ratio if stage.ranked and named.baseline != EAGER else None
        return Cell(times(shown), ratio.value if shown and ratio else None)

    return [
        Column(f"× {EAGER}", help="the same against eager fp32", cell=cell),
        csv_only("eager_ratio", lambda stage: stage.eager_ratio and stage.eager_ratio.value),
        csv_only("eager_ratio_low", lambda stage: low(stage.eager_ratio)),
        csv_only("eager_ratio_high", lambda stage: high(stage.eager_ratio)),
        csv_only("host_ratio", lambda stage: stage.host_ratio),
    ]


def low(ratio: Ratio | None) -> float | None:
    """The lower end of a ratio's interval; None where it has none."""
    return ratio.low if ratio and ratio.blocks and ratio.bounded else None


def high(ratio: Ratio | None) -> float | None:
    """The upper end of a ratio's interval; None where it has none."""
    return ratio.high if ratio and ratio.blocks and ratio.bounded else None


def _times(words: Words) -> list[StageColumn]:
    pace = "ms per call at full load: back to back until the clock has settled, and on; else as interleaved"
    beside = "ms per call, median of the samples interleaved with the baseline's, where those weren't at full load"
    rate = figure_of(lambda stage: stage.images_per_second, significant)
    return [
        Column("ms", help=pace, cell=figure_of(lambda stage: stage.pace, milliseconds), views=EVERYWHERE),
        csv_only("sustained_seconds_per_call", lambda stage: stage.sustained_seconds),
        Column("ms interleaved", help=beside, cell=_interleaved, csv="seconds_per_call"),
        csv_only("seconds_per_call_low", lambda stage: stage.seconds and stage.seconds.low),
        csv_only("seconds_per_call_high", lambda stage: stage.seconds and stage.seconds.high),
        Column(f"{words.samples}/s", help="at full load", cell=rate, views=REPORT_AND_SWEEP, csv="images_per_second"),
    ]


def _interleaved(stage: StageSummary) -> Cell:
    """Nothing is shown where it is what stands under "ms" already; CSV has it all the same."""
    value = stage.seconds.value if stage.seconds else None
    return Cell(NOTHING if value is None or value == stage.pace else milliseconds(value), value)


def _latencies(named: Headings) -> list[StageColumn]:
    p50 = figure_of(lambda stage: stage.latency.p50 if stage.latency else None, milliseconds)
    p99 = figure_of(lambda stage: stage.latency.p99 if stage.latency else None, milliseconds)
    host = figure_of(lambda stage: stage.host_latency.p50 if stage.host_latency else None, milliseconds)
    single = "ms of single calls on an otherwise idle device, from device to device: half of them take no longer"
    slowest = f"99th percentile of {named.single_calls}; of fewer than a hundred that is the slowest"
    return [
        Column("p50 ms", help=single, cell=p50, views=REPORT_AND_SWEEP, csv="latency_p50_s"),
        csv_only("latency_p90_s", lambda stage: stage.latency and stage.latency.p90),
        Column("p99 ms", help=slowest, cell=p99, views=REPORT_AND_SWEEP, csv="latency_p99_s"),
        csv_only("latency_calls", lambda stage: len(stage.stage.latencies) or None),
        Column("host p50 ms", help="the same from pinned host memory and back", cell=host, csv="host_to_host_p50_s"),
        csv_only("host_to_host_p99_s", lambda stage: stage.host_latency and stage.host_latency.p99),
    ]


def _resources(words: Words) -> list[StageColumn]:
    peak = figure_of(lambda stage: stage.peak_bytes, gibibytes)
    energy = figure_of(lambda stage: stage.joules_per_image, significant)
    setup = figure_of(lambda stage: stage.setup_seconds, seconds)
    peak_help = "what the device sees of the process; on a CPU its resident peak"
    counter = f"joules {words.one} by the device's energy counter, idle power included"
    return [
        Column("GiB", help=peak_help, cell=peak, views=EVERYWHERE, csv="memory_bytes"),
        csv_only("allocated_peak_bytes", lambda stage: stage.stage.memory and stage.stage.memory.allocated_peak_bytes),
        csv_only("process_bytes", lambda stage: stage.stage.memory and stage.stage.memory.process_bytes),
        csv_only("host_peak_bytes", lambda stage: stage.stage.memory and stage.stage.memory.host_peak_bytes),
        Column(f"J/{words.sample}", help=counter, cell=energy, csv="joules_per_image"),
        Column("set-up", help="build and first call", cell=setup, views=EVERYWHERE),
        csv_only("build_s", lambda stage: stage.stage.build_seconds),
        csv_only("first_call_s", lambda stage: stage.stage.first_call_seconds),
        csv_only("break_even_images", lambda stage: stage.break_even),
    ]


def _correctness(words: Words) -> list[StageColumn]:
    differs = f"share of {words.points} whose class differs from the fp32 net's"
    return [
        Column(f"{words.points} that change", help=differs, cell=_flipped, csv="flipped_share"),
        csv_only("flipped_share_limit", lambda stage: stage.stage.spec.tolerance.flipped_share),
        csv_only("masks_judged", lambda stage: stage.masks_judged),
        csv_only("judged_images", lambda stage: stage.stage.accuracy and stage.stage.accuracy.images),
        csv_only("judged_pictures", lambda stage: stage.stage.accuracy and stage.stage.accuracy.pictures),
        csv_only("dice_mean", mean_dice),
        csv_only("dice_least", lambda stage: accuracy_of("min_dice", stage)),
        csv_only("dice_drop_points", lambda stage: accuracy_of("max_dice_drop", stage)),
        csv_only("relative_l2", lambda stage: stage.stage.accuracy and stage.stage.accuracy.relative_l2),
        csv_only("relative_l2_limit", lambda stage: stage.stage.spec.tolerance.relative_l2),
        csv_only("nan_share", lambda stage: stage.stage.accuracy and stage.stage.accuracy.nan_share),
        csv_only("one_class", lambda stage: stage.stage.accuracy and stage.stage.accuracy.one_class),
    ]


def _value_correctness(task: TaskName) -> list[StageColumn]:
    """Of answers that are no masks."""
    return [
        *(
            Column(each.title, help=each.help, cell=figure(_read(each), each.text), csv=each.csv or "relative_l2")
            for each in task_text.OF_TASK[task]
        ),
        csv_only("relative_l2_limit", lambda stage: stage.stage.spec.tolerance.relative_l2),
        csv_only("judged_samples", lambda stage: stage.stage.accuracy and stage.stage.accuracy.images),
        csv_only("nan_share", lambda stage: stage.stage.accuracy and stage.stage.accuracy.nan_share),
    ]


def _read(wanted: task_text.Figure) -> Callable[[StageSummary], float | None]:
    return lambda stage: wanted.read(stage.stage.accuracy) if stage.stage.accuracy else None


def _flipped(stage: StageSummary) -> Cell:
    """The share that changes class; of random weights, whose masks mean nothing, that they are not judged."""
    found = stage.stage.accuracy
    if found is not None and not stage.masks_judged:
        return Cell("not judged", None)
    return Cell(share(found.flipped_share), found.flipped_share) if found else Cell(NOTHING)


def mean_dice(stage: StageSummary) -> float | None:
    """Over the classes, against the labels; None without labels."""
    scores = stage.stage.accuracy.dice if stage.stage.accuracy else None
    return sum(scores) / len(scores) if scores else None


def accuracy_of(limit: str, stage: StageSummary) -> float | None:
    """The figure that a limit of `accuracy` is on; None where it wasn't compared."""
    return accuracy_figure(limit, stage.stage.accuracy) if stage.stage.accuracy else None


def figure_of(read: Callable[[StageSummary], float | None], show: Callable[[float], str]) -> StageCell:
    """Cells of one of a stage's numbers."""
    return figure(read, show)


def csv_only(name: str, read: Callable[[StageSummary], object]) -> StageColumn:
    """A column of results.csv that no table shows."""
    return Column("", cell=lambda stage: Cell("", plain(read(stage))), views=CSV_ALONE, csv=name)


def plain(value: object) -> float | str | bool | None:
    """A figure as CSV holds it; anything else is none."""
    return value if isinstance(value, float | int | str) else None


def shown_in(view: View, columns: list[StageColumn]) -> list[StageColumn]:
    """The columns of one view."""
    return [column for column in columns if view in column.views]


def ladder(summary: RunSummary) -> Table:
    """Every stage in the ladder's order; the columns that no stage fills are left out."""
    return ladder_of(shown_in("report", stage_columns(headings_of(summary))), summary).without_empty_columns


def ladder_of(columns: list[StageColumn], summary: RunSummary) -> Table:
    """Every stage in the ladder's order, in these columns."""
    return Table([heading_of(column) for column in columns], [row_of(columns, stage) for stage in summary.stages])


def row_of(columns: list[StageColumn], stage: StageSummary) -> list[Cell]:
    """One stage; the figures of one that isn't ranked sort last."""
    cells = [column.cell(stage) for column in columns]
    return cells if stage.ranked else unsorted(cells)


def _single_calls(summary: RunSummary) -> str:
    """Such as "19 to 60 single calls"."""
    counts = sorted(len(stage.stage.latencies) for stage in summary.stages if stage.stage.latencies)
    if not counts:
        return "no single calls"
    return f"{counts[0]} to {counts[-1]} single calls" if counts[0] < counts[-1] else f"{counts[0]} single calls"


def _name(stage: StageSummary, named: Headings) -> Cell:
    """With its mark; of the baseline that was measured against itself, that."""
    name = clean(stage.name)
    again = " again (A/A)" if name == named.baseline and stage.ratio and stage.ratio.blocks else ""
    return Cell(f"{MARKS.get(stage.place, '')}{name}{again}{' (legacy)' if stage.stage.spec.legacy else ''}", name)


def _ratio(stage: StageSummary) -> Cell:
    return Cell(times(stage.ratio if stage.ranked else None), stage.ratio.value if stage.ratio else None)


def _interval(stage: StageSummary) -> Cell:
    shown = stage.ratio if stage.ranked else None
    return Cell(interval(shown) or NOTHING, low(stage.ratio))


def _outcome(stage: StageSummary) -> Cell:
    outcome = stage.compared.outcome or stage.status
    return Cell(outcome, outcome, TONES.get(outcome, ""))
