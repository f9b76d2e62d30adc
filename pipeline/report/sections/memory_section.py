"""What a stage's memory is: weights, activations, workspace, context; and when it is held."""

from collections.abc import Callable

from pipeline.analysis import memory as figures
from pipeline.analysis.memory import (
    NEAR,
    PARTS,
    MemoryFigures,
    MemoryStep,
    Part,
    Unknown,
    memories,
    peak_layer,
    timeline_of,
    with_workspace,
)
from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary
from pipeline.errors import plural
from pipeline.report.charts.bars import stacked
from pipeline.report.charts.canvas import CLASSES
from pipeline.report.charts.curves import timeline as timeline_chart
from pipeline.report.figure import Figure, drawn
from pipeline.report.formatting import clean, listed, share, size
from pipeline.report.sections.source_text import note_text, watched_text
from pipeline.report.tables import Cell, Column, Table, figure, names, table_of

HELP: dict[Part, str] = {
    "weights": "of the stage's own net, where it is known",
    "held besides": "between calls: the inputs, the untouched net; with the weights where those are unknown",
    "activations": "at the peak of a call; with the workspace where that can't be told apart",
    "workspace": "what libraries work in, at the peak of a call",
    "in reserve": "reserved by torch but not allocated at the peak: its cache, and the pools of captured graphs",
    "context": "of the process, before its first tensor",
    "outside torch": "the rest of what the device sees: libraries, and runtimes with an allocator of their own",
}
PALETTE = dict(zip(PARTS, list(CLASSES.values())[: len(PARTS)], strict=True))
MIB, GIB = 2**20, 2**30
NOTE = (
    "Allocator statistics for one call, sampled at every layer or at every allocation. The remainder is process memory "
    "reported by the driver. A captured graph allocates from its own pool: shown by parts where its kernels could be "
    "launched one by one, otherwise in reserve. Another runtime's memory lies outside torch."
)
UNKNOWN: dict[Unknown, str] = {
    "": "",
    "no timeline": "no timeline was recorded",
    "nothing allocated": "nothing is allocated in a call: it lies in a pool, in reserve or outside torch",
    "no workspace": "no layer can be watched: workspace counts as activations, weights as held besides",
}
VERBS = {"same": "stays about the same", "falls": "falls", "rises": "rises"}


def columns() -> list[Column[MemoryFigures]]:
    """The parts of a stage's memory."""

    def amount(part: Part) -> Callable[[MemoryFigures], Cell]:
        return figure(lambda each: each.amounts[part], size)

    return [
        names("stage", name_of),
        Column("the device sees", help="of the whole process", cell=figure(lambda each: each.process_bytes, size)),
        *(
            Column(part, help=HELP[part], cell=amount(part), csv=f"memory_{part.replace(' ', '_')}_bytes")
            for part in PARTS
        ),
        Column(
            "allocator's peak",
            help="of torch's allocator in one call; pools of captured graphs and other runtimes' memory are not in it",
            cell=figure(_allocator_peak, size),
        ),
        Column(
            "resident",
            help="in the host's memory at its peak, where the device reports none",
            cell=figure(lambda each: each.resident_bytes, size),
        ),
        names("why unknown", why_unknown, "what a dash stands for", "memory_why_unknown"),
    ]


def _allocator_peak(each: MemoryFigures) -> int | None:
    memory = each.stage.stage.memory
    return memory.allocated_peak_bytes if memory else None


def table(summary: RunSummary) -> Table:
    """Every stage's memory; columns that no stage fills are left out."""
    return table_of(columns(), memories(summary)).without_empty_columns


def name_of(each: MemoryFigures) -> str:
    """The stage's, fit to be shown."""
    return clean(each.stage.name)


def why_unknown(each: MemoryFigures) -> str:
    """Why a part isn't known; of a stage without a timeline what its notes say."""
    diagnostics = each.stage.stage.diagnostics
    notes = diagnostics.notes_on("memory timeline") if diagnostics and each.unknown == "no timeline" else []
    return "; ".join(note_text(note) for note in notes) or UNKNOWN[each.unknown]


def chart(summary: RunSummary) -> Figure | None:
    """Every stage's memory as stacked bars."""
    every = [each for each in memories(summary) if each.total]
    if not every:
        return None
    bars = [(name_of(each), {str(part): (each.amounts[part] or 0) / GIB for part in PARTS}) for each in every]
    title = "What the device's memory holds"
    palette = {str(part): colour for part, colour in PALETTE.items()}
    svg = stacked(bars, palette, (title, "GiB of the device"), [size(each.total) for each in every])
    return drawn(title, svg, "The process on the device, at the peak of a call.")


def sentences(summary: RunSummary) -> list[str]:
    """What dominates, what each rung did to the peak, and what the winner needs of the device."""
    every = memories(summary)
    heavy = [_heavy(summary, each) for each in with_workspace(every) if each.mostly_workspace]
    return [*heavy, *(_step(step) for step in figures.steps(every)), *_uncaptured(every), *_device(summary, every)]


def _heavy(summary: RunSummary, each: MemoryFigures) -> str:
    """Workspace that is most of the peak: who asks for it, and in which layer."""
    layer = peak_layer(each.stage)
    who = "cuDNN" if figures.is_convolution_by_cudnn(summary, layer) else "a library"
    where = f" for {clean(layer)}" if layer else ""
    near = each.moments_near_peak
    often = f" {plural(near, 'other moment')} of the call came within {share(NEAR)} of it." if near > 0 else ""
    return (
        f"{name_of(each)}: {size(each.amounts['workspace'])} of the {size(each.allocated)} allocated at the peak is "
        f"workspace, for an algorithm that {who} chose{where}.{often}"
    )


def _step(step: MemoryStep) -> str:
    """Such as "tf32 → amp: the device sees 2.6 GiB → 1.5 GiB. The allocator's peak of a call falls, …"."""
    before, after = step.before, step.after
    names, peaks = f"{name_of(before)} → {name_of(after)}", f"{size(before.allocated)} → {size(after.allocated)}"
    seen = f"the device sees {size(step.seen[0])} → {size(step.seen[1])}. The" if step.seen else "the"
    if not step.changes:
        return f"{names}: {seen} allocator's peak of a call hardly changes, {peaks}."
    said = ", ".join(f"{part} {'−' if by < 0 else '+'}{size(abs(by))}" for part, by in step.changes.items())
    old, new = clean(peak_layer(before.stage)), clean(peak_layer(after.stage))
    moved = f"; the peak is now at {new}, no longer at {old}" if old and new and old != new else ""
    return f"{names}: {seen} allocator's peak of a call {VERBS[step.direction]}, {peaks}: {said}{moved}."


def _uncaptured(every: list[MemoryFigures]) -> list[str]:
    """Whose activations are those of kernels launched one by one, and where they lie in the stage itself."""
    names = [name_of(each) for each in every if each.timeline and each.timeline.call == "uncaptured"]
    if not names:
        return []
    return [
        (
            f"{listed(names)}: a call allocates nothing, because the graph's pool holds what its kernels need at all "
            "times. The same kernels were launched one by one to show it as activations and workspace, not in reserve."
        )
    ]


def _device(summary: RunSummary, every: list[MemoryFigures]) -> list[str]:
    """What the winner needs of the device beside the baseline."""
    found = figures.device_bytes(summary, every)
    if found is None:
        return []
    winner, baseline = clean(summary.ranking.winner), clean(summary.run.baseline)
    return [f"{winner} takes {size(found[0])} of the device, {baseline} {size(found[1])}."]


def timelines(summary: RunSummary) -> tuple[list[Figure], list[Figure]]:
    """The baseline's and the winner's memory through one call, and then the others', where it could be watched."""
    first, others = figures.watched(summary)
    return [_over_time(stage) for stage in first], [_over_time(stage) for stage in others]


def _over_time(stage: StageSummary) -> Figure:
    timeline, layer = timeline_of(stage), clean(peak_layer(stage))
    assert timeline is not None
    title = f"Memory of {clean(stage.name)} through one call"
    amounts = [amount / MIB for amount in timeline.allocated_bytes]
    peak = f"{size(max(timeline.allocated_bytes))}{f' at {layer}' if layer else ''}"
    svg = timeline_chart(timeline.seconds, amounts, (title, "milliseconds of the host", "MiB allocated"), peak)
    note = f"{watched_text(timeline)}. Times are the host's, which runs ahead of the GPU. {holders(stage)}"
    return drawn(title, svg, note)


def holders(stage: StageSummary) -> str:
    """The largest outputs alive at the peak."""
    timeline = timeline_of(stage)
    if timeline is None or not timeline.holders:
        return ""
    said = "; ".join(f"{', '.join(each.layers)}: {each.size_bytes / MIB:.1f} MiB" for each in timeline.holders)
    return f"Outputs alive at the peak: {clean(said)}."
