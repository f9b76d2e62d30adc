"""The bottleneck of every stage, side by side, and of one stage in a line."""

from collections import defaultdict
from collections.abc import Callable
from functools import partial

from pipeline.analysis import bottleneck as limits
from pipeline.analysis.bottleneck import BY_COUNTERS
from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary
from pipeline.records.data_words import Words
from pipeline.report import WORDS
from pipeline.report.charts import ACCENT, TIED
from pipeline.report.charts.bars import Bar, Part, rows
from pipeline.report.formatting import NOTHING, clean, listed, method, share, significant
from pipeline.report.run_text import bytes_text
from pipeline.report.sections.ladder import by_time
from pipeline.report.tables import Cell, Column, Figure, Section, explained, methods, names, number, table_of
from pipeline.stats.ranking import IDLE_THROTTLED

ALL_BUT_NOTHING = 0.99  # of the time in matrix work: the rest isn't worth a word
DEARER_SLOPE = 1.1  # with the batch, from which more images cost clearly more each
NO_FASTER = "Work at 100 % of either is no faster without doing less of it."
REASONS: dict[limits.Reason, str] = WORDS["bottleneck"]["reasons"]


def section(summary: RunSummary) -> Section:
    """Return the bottleneck of every ranked stage."""
    gist, title = in_short(summary.winner) if summary.winner else "", "What limits each stage"
    ranked = [stage for stage in by_time(summary) if stage.ranked]
    table = table_of(columns(summary.run.words), ranked).without_empty_columns
    charts, note = speed_of_light(summary), definition(summary)
    return Section("bottlenecks", title, gist, note, charts=charts, table=table, table_in_markdown=True)


def speed_of_light(summary: RunSummary) -> list[Figure]:
    """Draw what each stage reaches of the arithmetic and of the bandwidth, fastest first; empty where none is known."""
    bars = []
    for stage in by_time(summary):
        evidence, name = stage.bottleneck.evidence, method(stage.name)
        least = _least(stage.bottleneck, "≥ ")
        for reached, colour, lead in ((evidence.compute, ACCENT, ""), (evidence.memory, TIED, least)):
            if stage.ranked and reached is not None:
                bars.append(Bar(name, [Part(0.0, 100 * reached, colour)], f"{lead}{share(reached)}"))
                name = ""
    title, legend = "Speed of light", {"arithmetic": ACCENT, "bandwidth": TIED}
    unit = "% of the most that anything reached on this device, over a whole call"
    return [Figure(title, partial(rows, bars, title, unit=unit, legend=legend), NO_FASTER)] if bars else []


def columns(words: Words) -> list[Column[StageSummary]]:
    """Return the bottleneck's figures for each stage."""

    def of(read: Callable[[limits.Evidence], float | None]) -> Callable[[StageSummary], float | None]:
        return lambda stage: read(stage.bottleneck.evidence)

    def near(read: Callable[[limits.TimeShares], float]) -> Callable[[StageSummary], float | None]:
        return of(lambda each: read(each.shares) if each.shares else None)

    def peak(stage: StageSummary) -> Cell:
        roofline = stage.roofline
        if roofline is None:
            return Cell(NOTHING)
        return Cell(f"{roofline.precision} {significant(roofline.flops_per_s / 1e12)}", roofline.flops_per_s)

    def bandwidth(stage: StageSummary) -> Cell:
        reached = stage.bottleneck.evidence.memory
        return Cell(NOTHING) if reached is None else Cell(f"{_least(stage.bottleneck, '≥ ')}{share(reached)}", reached)

    columns: list[Column[StageSummary]] = [
        methods(lambda stage: stage.name),
        names("bottleneck", lambda stage: stage.bottleneck.kind),
        number("compute-limited time", near(lambda shares: shares.compute), share, "near_arithmetic_share"),
        number("bandwidth-limited time", near(lambda shares: shares.memory), share, "near_memory_share"),
        Column("peak TFLOP/s", peak, csv="peak_flops_per_s"),
        number("of the peak", of(lambda each: each.compute), share, "peak_share"),
        Column("of the bandwidth", bandwidth, csv="bandwidth_share"),
        number("GPU idle", of(lambda each: each.idle_at_least), share, "gpu_idle_share"),
        number("growth", of(lambda each: each.slope), "{:.2f}".format, "batch_slope"),
        number(f"by {words.points}", of(lambda each: each.image_slope), "{:.2f}".format, "pixel_slope"),
    ]
    return explained("bottleneck", columns, words, IDLE_THROTTLED=share(IDLE_THROTTLED))


def definition(summary: RunSummary) -> str:
    """Return what makes a bottleneck, in the words for the run's data, and why none is named of some stages."""
    named: dict[str, list[str]] = defaultdict(list)
    for stage in summary.ranked:
        if stage.bottleneck.kind == "unknown":
            named[REASONS[stage.bottleneck.reason]].append(method(stage.name))
    words = summary.run.words
    unknown = [f"Unknown of {listed(names)}: {words.put_into(reason)}." for reason, names in named.items()]
    shares = {name: share(getattr(limits, name)) for name in ("MOST_OF_THE_TIME", "NEAR_ARITHMETIC")}
    said = WORDS["bottleneck"]["definition"].format(**shares, **words.named)
    return " ".join([said, *unknown])


def _least(bottleneck: limits.Bottleneck, word: str) -> str:
    """Return the word where the bytes are a lower bound: all but those that the GPU's counters saw."""
    return "" if bottleneck.moved and bottleneck.moved.source == BY_COUNTERS else word


def sentence(stage: StageSummary) -> str:
    """Return the bottleneck with its figures, where they tell; empty for a stage that was not measured."""
    if stage.seconds is None:
        return ""
    bottleneck, words = stage.bottleneck, stage.words
    if bottleneck.reason == "other pace":  # its figures may be on record, and tell nothing
        return f"{bottleneck.kind}: {REASONS[bottleneck.reason]}"
    slope = bottleneck.evidence.image_slope
    grows = f"{_grows(slope)} with the {words.samples}' {words.points} (slope {slope:.2f})" if slope is not None else ""
    roofline, reached, evidence = bottleneck.roofline, bottleneck.evidence.compute, bottleneck.evidence
    compute, ran = "share of the arithmetic unknown (no FLOPs on record)", stage.stage.execution
    if bottleneck.gap == "no precision":
        why = clean(ran.unknown if ran else "") or "nothing on record"
        compute = f"shares of the roofs unknown (its precision is unknown: {why})"
    elif bottleneck.gap:
        peak = "peaks" if bottleneck.gap == "no measured peaks" else f"{stage.stage.precision} peak"
        compute = f"shares of the roofs unknown (this run measured no {peak})"
    elif reached is not None and roofline is not None:
        peak = f"{roofline.precision} peak ({significant(roofline.flops_per_s / 1e12)} TFLOP/s)"
        compute = f"over the whole call {share(reached)} of the {peak}"
    idle = f"GPU idle for {share(evidence.idle)} under the profiler"
    if not bottleneck.on_gpu:
        idle = "no GPU to idle"
    elif evidence.idle_at_least is None:
        idle = f"GPU idle unknown ({'no profile' if evidence.idle is None else 'its samples were throttled'})"
    growth, steepest = "growth with the batch unknown (it was timed at one batch only)", evidence.steepest
    if evidence.slope is not None:
        worst = f", {steepest:.2f} between smaller ones" if steepest is not None and steepest > DEARER_SLOPE else ""
        growth = f"time {_grows(evidence.slope)} with the batch (slope {evidence.slope:.2f}{worst})"
    said = [_where(evidence.shares), compute, _memory(bottleneck), idle, growth, grows]
    reason = words.put_into(REASONS[bottleneck.reason])
    return f"{bottleneck.kind}: {', '.join(part for part in said if part)}{f'; {reason}' if reason else ''}"


def _where(shares: limits.TimeShares | None) -> str:
    """Return text such as "44 % of its kernels' time in matrix work at 82 % of its roofs, …"."""
    parts = []
    if shares and shares.matrix_reach is not None:
        reach = f"in matrix work at {share(shares.matrix_reach)} of its roofs"
        parts.append(f"{share(shares.matrix)} of the kernels' time {reach}")
    if shares and shares.matrix < ALL_BUT_NOTHING:
        reach = "" if shares.passes_reach is None else f" at {share(shares.passes_reach)} of the bandwidth or more"
        parts.append(f"{share(1 - shares.matrix)} in passes over memory{reach}")
    return ", ".join(parts)


def _memory(bottleneck: limits.Bottleneck) -> str:
    if bottleneck.moved is None:
        return "share of the bandwidth unknown"
    if bottleneck.evidence.memory is None:
        return f"share of the bandwidth unknown ({bottleneck.moved.unknown or bytes_text(bottleneck.moved)})"
    reached = f"{_least(bottleneck, 'at least ')}{share(bottleneck.evidence.memory)}"
    return f"{reached} of the bandwidth ({bytes_text(bottleneck.moved)})"


def _grows(slope: float) -> str:
    return "hardly grows" if slope < limits.FLAT_SLOPE else "grows"


def in_short(stage: StageSummary) -> str:
    """Return the bottleneck with the figures that decide it, for the first screen."""
    bottleneck, evidence = stage.bottleneck, stage.bottleneck.evidence
    said = [_where(evidence.shares)]
    if bottleneck.reason == "idle":
        said.append(f"the GPU idle for {share(evidence.idle)} under the profiler")
    if evidence.image_slope is not None:
        said.append(f"{share(4**-evidence.image_slope)} of the time for a quarter of each {stage.words.sample}")
    figures = ", ".join(part for part in said if part)
    beside = f" ({figures})" if figures else ""
    if bottleneck.kind == "unknown":
        reason = stage.words.put_into(REASONS[bottleneck.reason])
        return f"What limits {method(stage.name)} is unknown: {reason}{beside}."
    return f"{method(stage.name)} is {bottleneck.kind}{beside}."
