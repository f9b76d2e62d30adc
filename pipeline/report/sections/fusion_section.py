"""How much is launched and moved, and what a compiler put into one kernel."""

from collections.abc import Sequence

from pipeline.analysis import fusion as figures
from pipeline.analysis.attribution import hides_all
from pipeline.analysis.fusion import FusionFigures, FusionStep, fusions, kernel_seconds
from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary
from pipeline.analysis.traffic import BY_COUNTERS, Moved, Source
from pipeline.errors import plural
from pipeline.records.diagnostics import FusedKernel
from pipeline.records.run_record import CompileFacts, StageRecord
from pipeline.report.charts.bars import stacked
from pipeline.report.charts.canvas import PLAIN
from pipeline.report.figure import Figure, drawn
from pipeline.report.formatting import NOTHING, clean, gigabytes, listed, share, significant
from pipeline.report.sections import traffic_section
from pipeline.report.sections.source_text import COUNTED_BY, bytes_text
from pipeline.report.tables import Cell, Column, Table, figure, names, table_of

DIRECTIONS = {
    "vertical": "a chain",
    "horizontal": "siblings",
    "both": "chains and siblings",
    "single": "a single operator",
    "unknown": "unknown",
}
MOVED = "GB moved"
REASONS_SHOWN, REASON_LETTERS = 2, 100  # of what broke a graph or compiled it again; the details have them whole
NOTE = (
    "A chain (vertical fusion) is operators that feed each other; siblings (horizontal fusion) do not. Bytes are the "
    "inputs and outputs of each operator or kernel, counted once: fusing removes them. The GPU's own counters, where "
    "they could be read, show what really passed: less where a cache saved it, more where a library works in memory of "
    "its own."
)


def columns(baseline: str) -> list[Column[FusionFigures]]:
    """Kernels and bytes of every stage, and their shares of the baseline's."""
    return [
        names("stage", lambda each: clean(each.stage.name)),
        Column(
            "kernels",
            help="per call; on a CPU operators that call no other",
            cell=figure(lambda each: each.fusion.kernels_per_call, number),
            csv="fusion_kernels_per_call",
        ),
        Column(
            f"of {baseline}'s",
            help="kernels",
            cell=figure(lambda each: each.kernels_share, share),
            csv="fusion_kernels_share",
        ),
        Column(
            "GB",
            help="moved per call, inputs and outputs of each operator or kernel once",
            cell=figure(lambda each: each.fusion.bytes_per_call, gigabytes),
            csv="fusion_bytes_per_call",
        ),
        Column(
            f"of {baseline}'s",
            help="bytes, where both were counted the same way",
            cell=figure(lambda each: each.bytes_share, share),
            csv="fusion_bytes_share",
        ),
        names("bytes counted as", lambda each: bytes_text(each.recorded_moved), csv="fusion_bytes_counted_as"),
        names(
            "written by the compiler",
            directions_text,
            "kernels that do a chain, siblings, or a single operator",
            "generated_kernels",
        ),
    ]


COUNTED: list[Column[FusionFigures]] = [
    Column(
        "GB by counters",
        help="to and from device memory, as the GPU's own counters saw one call",
        cell=figure(lambda each: each.counted_bytes, gigabytes),
        csv="counted_bytes_per_call",
    ),
    Column(
        "GB of L2",
        help="asked of the L2 cache, by the same counters",
        cell=figure(lambda each: each.cache_bytes, gigabytes),
        csv="counted_l2_bytes_per_call",
    ),
]


def table(summary: RunSummary) -> Table:
    """Every ranked stage whose fusion is on record."""
    every = fusions(summary)
    more = COUNTED if any(each.counted_bytes is not None for each in every) else []
    return table_of([*columns(clean(summary.run.baseline)), *more], every)


def charts(summary: RunSummary) -> list[Figure]:
    """Bytes through device memory as bars, one chart for each way of counting that two stages or more share.

    By the GPU's counters first, then by the count that most stages share.
    """
    found = figures.by_count(fusions(summary))
    order = sorted(found, key=lambda source: (source != BY_COUNTERS, -len(found[source]), source))
    return [_chart(source, found[source]) for source in order if len(found[source]) > 1]


def _chart(source: Source, amounts: list[tuple[FusionFigures, int]]) -> Figure:
    """Stages whose bytes were counted in one way, with their kernels beside them."""
    bars = [(clean(each.stage.name), {MOVED: through / 1e9}) for each, through in amounts]
    beside = [f"{gigabytes(through)} GB, {number(each.fusion.kernels_per_call)} kernels" for each, through in amounts]
    title = f"Bytes moved per call by {COUNTED_BY[source]}"
    svg = stacked(bars, {MOVED: PLAIN}, (title, "GB per call, read and written"), beside)
    return drawn(title, svg, "Stages whose bytes were counted in another way are not comparable and not drawn here.")


def moved_text(moved: Moved) -> str:
    """Such as "32.8 GB"; "bytes unknown" where they couldn't be counted."""
    return "bytes unknown" if moved.amount is None else f"{gigabytes(moved.amount)} GB"


def directions_text(each: FusionFigures) -> str:
    """How many of the generated kernels do what, such as "13 a chain, 10 a single operator"."""
    return ", ".join(f"{each.directions[name]} {said}" for name, said in DIRECTIONS.items() if each.directions[name])


def sentences(summary: RunSummary) -> list[str]:
    """What the whole way did, what each rung on it did, and what the compilers fused."""
    every = fusions(summary)
    steps = [_step(step) for step in figures.steps(every, summary)]
    seen = traffic_section.sentences([each.stage.stage for each in every], summary.ranking.winner)
    return [*steps, *seen, *(_written(each) for each in every if each.fusion.kernels)]


def _step(step: FusionStep) -> str:
    """Such as "half → compile: 75 → 57 kernels per call, 18.1 GB → 13.7 GB moved."."""
    old, new = step.before, step.after
    names = f"{clean(old.stage.name)} → {clean(new.stage.name)}"
    if hidden := [clean(each.stage.name) for each in (old, new) if hides_all(each.stage)]:
        return f"{names}: the profiler doesn't see into {listed(hidden)}, so kernels and bytes can't be compared."
    kernels = arrow(number(old.fusion.kernels_per_call), number(new.fusion.kernels_per_call))
    if step.through:
        through = f"{arrow(*(gigabytes(amount) for amount in step.through))} GB moved"
    elif step.both_known:
        through = "bytes counted differently and so not comparable"
    else:
        through = f"{arrow(moved_text(old.best_moved), moved_text(new.best_moved))} moved"
    return f"{names}: {kernels} kernels per call, {through}."


def arrow(before: str, after: str) -> str:
    """Both, or the one that they are."""
    return after if before == after else f"{before} → {after}"


def number(kernels: float | None) -> str:
    """A mean that is mostly a whole number."""
    return NOTHING if kernels is None else f"{kernels:,.1f}".removesuffix(".0")


def _written(each: FusionFigures) -> str:
    """How many of the compiler's kernels fuse chains, siblings or nothing."""
    kernels, directions = each.fusion.kernels, each.directions
    vague = f", and {directions['unknown']} could not be read" if directions["unknown"] else ""
    both = f", {directions['both']} fuse both" if directions["both"] else ""
    chains, siblings, single = (str(directions[name] or "none") for name in ("vertical", "horizontal", "single"))
    count = f"{plural(len(kernels), 'kernel')} that its compiler wrote, launched"
    launches = f"{sum(kernel.launches_per_call for kernel in kernels)} times per call"
    if directions["unknown"] == len(kernels):
        return f"{clean(each.stage.name)}: {count} {launches}; what they fuse their sources don't say."
    return (
        f"{clean(each.stage.name)}: of the {count} {launches}, {chains} fuse a chain, {siblings} fuse siblings{both}, "
        f"{single} do a single operator{vague}."
    )


def summary(stage: StageSummary) -> str:
    """What one stage launches and moves, and how its compilation went."""
    fusion = stage.stage.diagnostics.fusion if stage.stage.diagnostics else None
    if fusion is None:
        return ""
    each = FusionFigures(stage, fusion, None, None)
    through = "bytes not known" if fusion.bytes_per_call is None else f"{moved_text(each.recorded_moved)} moved"
    text = f"{number(fusion.kernels_per_call)} kernels per call, {through} ({bytes_text(each.recorded_moved)})."
    if fusion.kernels:
        converting = sum(kernel.turns_layout for kernel in fusion.kernels)
        text += f" The compiler wrote {plural(len(fusion.kernels), 'kernel')}: {directions_text(each)}"
        text += f"; {converting} of them read one layout and write the other." if converting else "."
    return text + compiled(stage.stage.compile_facts)


def compiled(facts: CompileFacts | None) -> str:
    """Graphs, kernels, graph breaks and recompilations with their reasons, where the stage counts them."""
    if facts is None or facts.graph_breaks is None:
        return ""
    made = facts.generated_kernels
    kernels = "" if made is None else f", kernels generated, those only tried included: {made}"
    breaks = [
        f"{_brief(reason)}{f', {times} times' if times != 1 else ''}" for reason, times in facts.graph_breaks.items()
    ]
    text = (
        f" Graphs: {facts.graphs}{kernels}, graph breaks: {facts.breaks}{_reasons(breaks)}, "
        f"recompiles: {facts.recompiles}{_reasons([*map(_brief, facts.recompile_reasons or [])])}."
    )
    return f" {clean(text)}"


def _reasons(reasons: Sequence[str]) -> str:
    """Such as " (print; sleep, 2 times; 3 more)"."""
    more = [f"{len(reasons) - REASONS_SHOWN} more"] if len(reasons) > REASONS_SHOWN else []
    return f" ({'; '.join([*reasons[:REASONS_SHOWN], *more])})" if reasons else ""


def _brief(reason: str) -> str:
    return reason if len(reason) <= REASON_LETTERS else f"{reason[:REASON_LETTERS]}…"


def sources(stage: StageRecord) -> list[str]:
    """The files that hold the generated kernels."""
    fusion = stage.diagnostics.fusion if stage.diagnostics else None
    return sorted({kernel.source for kernel in fusion.kernels}) if fusion else []


def generated(stage: StageSummary) -> Table:
    """Each kernel that the compiler wrote, with its time per call where the profile knows its name."""
    fusion = stage.stage.diagnostics.fusion if stage.stage.diagnostics else None

    def microseconds(kernel: FusedKernel) -> Cell:
        taken = kernel_seconds(stage, kernel)
        return Cell(NOTHING if taken is None else significant(taken * 1e6), taken)

    shown: list[Column[FusedKernel]] = [
        names("kernel", lambda kernel: clean(kernel.name)),
        names("operators, in order", lambda kernel: clean(", ".join(kernel.operators)) or "unknown"),
        names("fuses", lambda kernel: DIRECTIONS.get(kernel.direction, clean(kernel.direction))),
        Column("launches", cell=figure(lambda kernel: kernel.launches_per_call, str)),
        Column("µs", cell=microseconds),
        names("layout", lambda kernel: "converted" if kernel.turns_layout else ""),
    ]
    return table_of(shown, fusion.kernels if fusion else [])
