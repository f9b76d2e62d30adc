"""The memory of a stage: weights, activations, workspace, context; and when it is held."""

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Literal, get_args

from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary
from pipeline.errors import plural
from pipeline.records.diagnostics import MemoryTimeline, Watched
from pipeline.report import WORDS
from pipeline.report.charts import CLASSES
from pipeline.report.charts.bars import stacked
from pipeline.report.charts.plots import timeline as timeline_chart
from pipeline.report.formatting import clean, held, listed, method, share
from pipeline.report.run_text import note_text
from pipeline.report.tables import Column, Figure, Section, explained, methods, names, number, table_of

Part = Literal["weights", "held besides", "activations", "workspace", "in reserve", "context", "outside torch"]
PARTS: tuple[Part, ...] = get_args(Part)
ALLOCATED: tuple[Part, ...] = ("weights", "held besides", "activations", "workspace")  # at the peak of a call
Unknown = Literal["", "no timeline", "nothing allocated", "no workspace"]

LEAST_POINTS = 4  # of a timeline worth drawing: beginning, peak and end are in the table
WORTH_NAMING = 0.05  # of the peak, by which a neighbour's part must differ
NEAR = 0.1  # of the peak
PALETTE: dict[str, str] = dict(zip(PARTS, list(CLASSES.values())[: len(PARTS)], strict=True))
GIB = 2**30
NOTE: str = WORDS["memory"]["note"]
UNCAPTURED: str = WORDS["memory"]["uncaptured"]
UNKNOWN: dict[Unknown, str] = WORDS["memory"]["unknown"]
WATCHED: dict[Watched, str] = WORDS["memory"]["watched"]


@dataclass(frozen=True)
class MemoryFigures:
    """Bytes of one stage by what they are; None where unknown."""

    stage: StageSummary
    amounts: dict[Part, int | None]
    unknown: Unknown  # why something isn't known

    @property
    def timeline(self) -> MemoryTimeline | None:
        """Allocated bytes through one call."""
        return self.stage.stage.explained.timeline

    @property
    def allocated(self) -> int:
        """Bytes at the peak of one call."""
        return sum(self.amounts[part] or 0 for part in ALLOCATED)

    @property
    def process_bytes(self) -> int | None:
        """Memory of the whole process on the GPU."""
        return self.stage.stage.memory.process_bytes if self.stage.stage.memory else None


def memories(summary: RunSummary) -> list[MemoryFigures]:
    """Return the memory of every ranked stage with diagnostics."""
    return [figures_of(stage) for stage in summary.ranked if stage.stage.diagnostics]


def figures_of(stage: StageSummary) -> MemoryFigures:
    """Return a stage's memory by what it is: the parts of the call's peak, and what the process holds besides."""
    timeline, memory = stage.stage.explained.timeline, stage.stage.memory
    if timeline is None:
        return MemoryFigures(stage, dict.fromkeys(PARTS), "no timeline")
    pooled = timeline.workspace_bytes is None and timeline.activations_bytes == 0
    reserved, seen = (memory.reserved_peak_bytes, memory.process_bytes) if memory else (None, None)
    peak = timeline.held_bytes + timeline.activations_bytes + (timeline.workspace_bytes or 0)
    outside = None
    if seen is not None and reserved is not None and timeline.context_bytes is not None:
        outside = seen - reserved - timeline.context_bytes
    amounts: dict[Part, int | None] = {
        "weights": timeline.weights_bytes,
        "held besides": timeline.held_bytes - (timeline.weights_bytes or 0),
        "activations": None if pooled else timeline.activations_bytes,
        "workspace": timeline.workspace_bytes,
        "in reserve": None if reserved is None else reserved - peak,
        "context": timeline.context_bytes,
        "outside torch": outside,
    }
    known = {part: None if amount is None else max(0, amount) for part, amount in amounts.items()}
    blind: Unknown = "no workspace" if timeline.workspace_bytes is None else ""
    return MemoryFigures(stage, known, "nothing allocated" if pooled else blind)


def section(summary: RunSummary) -> Section:
    """Return every stage's memory by what it is."""
    said, every = sentences(summary), memories(summary)
    table, gist = table_of(columns(), every).without_empty_columns, said[-1] if said else ""
    return Section("memory", "Memory", gist, NOTE, said, chart(every), table)


def columns() -> list[Column[MemoryFigures]]:
    """Return the parts of a stage's memory."""

    def part(name: Part) -> Column[MemoryFigures]:
        return number(name, lambda each: each.amounts[name], held, f"memory_{name.replace(' ', '_')}_bytes")

    def resident(each: MemoryFigures) -> int | None:
        memory = each.stage.stage.memory
        return memory.host_peak_bytes if memory and each.process_bytes is None else None

    def why_unknown(each: MemoryFigures) -> str:
        notes = each.stage.stage.explained.notes_on("memory timeline") if each.unknown == "no timeline" else []
        return "; ".join(note_text(note) for note in notes) or UNKNOWN[each.unknown]

    shown: list[Column[MemoryFigures]] = [
        methods(lambda each: each.stage.name),
        number("GPU memory", lambda each: each.process_bytes, held),
        *map(part, PARTS),
        number(
            "allocator's peak", lambda of: own.allocated_peak_bytes if (own := of.stage.stage.memory) else None, held
        ),
        number("resident", resident, held),
        names("why unknown", why_unknown, "memory_why_unknown"),
    ]
    return explained("memory", shown)


def chart(figures: list[MemoryFigures]) -> list[Figure]:
    """Draw every stage's memory as stacked bars; nothing where none is known."""
    totals = [sum(amount or 0 for amount in each.amounts.values()) for each in figures]
    every = [each for each, total in zip(figures, totals, strict=True) if total]
    if not every:
        return []
    bars = [(method(each.stage.name), {str(part): (each.amounts[part] or 0) / GIB for part in PARTS}) for each in every]
    title = "GPU memory by use"
    draw = partial(stacked, bars, PALETTE, (title, "GiB of GPU memory"), [held(total) for total in totals if total])
    return [Figure(title, draw, "Of the process, at the peak of a call.")]


def sentences(summary: RunSummary) -> list[str]:
    """Return what dominates, what each rung did to the peak, and what GPU memory the winner needs."""
    every = memories(summary)
    watched = [each for each in every if each.amounts["workspace"] is not None]  # peaks that can be compared by parts
    machine, reference, said = summary.run.environment, summary.run.reference, []
    kinds = {clean(work.name): work.kind for work in reference.layers} if reference else {}
    for each in [each for each in watched if (each.amounts["workspace"] or 0) > each.allocated / 2]:
        layer, amounts = peak_layer(each), each.timeline.allocated_bytes if each.timeline else []
        library = "cuDNN" if "Conv" in kinds.get(layer, "") and machine and machine.cudnn is not None else "a library"
        near = sum(amount >= (1 - NEAR) * max(amounts) for amount in amounts) - 1
        often = f" {plural(near, 'other moment')} of the call came within {share(NEAR)} of it." if near > 0 else ""
        said.append(
            f"{method(each.stage.name)}: {held(each.amounts['workspace'])} of the {held(each.allocated)} allocated at "
            f"the peak is workspace, for an algorithm that {library} chose{f' for {layer}' if layer else ''}.{often}"
        )
    said += [step(before, after) for before, after in pairwise(watched)]
    uncaptured = [each.stage.name for each in every if each.timeline and each.timeline.call == "uncaptured"]
    if uncaptured:
        said.append(f"{listed([*map(method, uncaptured)])}: {UNCAPTURED}")
    seen = {each.stage.name: each.process_bytes for each in every if each.process_bytes}
    winner, baseline = summary.ranking.winner or "", summary.baseline
    if winner != baseline and winner in seen and baseline in seen:
        taken = f"{method(winner)} takes {held(seen[winner])} of GPU memory"
        said.append(f"{taken}, {method(baseline)} {held(seen[baseline])}.")
    return said


def peak_layer(each: MemoryFigures) -> str:
    """Return the layer that ran at the peak; empty where unknown."""
    return clean(each.timeline.peak_layer or "") if each.timeline else ""


def step(before: MemoryFigures, after: MemoryFigures) -> str:
    """Return text such as "tf32 → amp: GPU memory 2.6 GiB → 1.5 GiB. The allocator's peak of a call falls, …"."""
    both = f"{method(before.stage.name)} → {method(after.stage.name)}"
    peaks, seen = f"{held(before.allocated)} → {held(after.allocated)}", "the"
    if before.process_bytes is not None and after.process_bytes is not None:
        seen = f"GPU memory {held(before.process_bytes)} → {held(after.process_bytes)}. The"
    by = {part: (after.amounts[part] or 0) - (before.amounts[part] or 0) for part in ALLOCATED}
    changes = {part: change for part, change in by.items() if abs(change) > WORTH_NAMING * before.allocated}
    if not changes:
        return f"{both}: {seen} allocator's peak of a call hardly changes, {peaks}."
    alike = abs(after.allocated - before.allocated) <= WORTH_NAMING * before.allocated
    verb = "stays about the same" if alike else "falls" if after.allocated < before.allocated else "rises"
    said = ", ".join(f"{part} {'−' if change < 0 else '+'}{held(abs(change))}" for part, change in changes.items())
    old, new = peak_layer(before), peak_layer(after)
    moved = f"; the peak is now at {new}, no longer at {old}" if old and new and old != new else ""
    return f"{both}: {seen} allocator's peak of a call {verb}, {peaks}: {said}{moved}."


def through_a_call(summary: RunSummary) -> Section:
    """Draw memory through one call where it could be watched: the baseline and the winner, then the others."""
    every = map(figures_of, summary.ranked)
    watched = [each for each in every if each.timeline and len(each.timeline.seconds) >= LEAST_POINTS]
    first = [each for each in watched if each.stage.name in (summary.baseline, summary.ranking.winner)]
    others = [_over_time(each) for each in watched if each not in first]
    gist = "What torch's allocator holds from the beginning of a call to its end."
    pairs = [_over_time(each) for each in first]
    return Section("timelines", "Memory through one call", gist, pairs=pairs, others=others)


def _over_time(each: MemoryFigures) -> Figure:
    timeline = each.timeline
    assert timeline is not None
    title = f"Memory of {method(each.stage.name)} through one call"
    amounts = [amount / GIB for amount in timeline.allocated_bytes]
    layer = peak_layer(each)
    peak = f"{held(max(timeline.allocated_bytes))}{f' at {layer}' if layer else ''}"
    labels = (title, "milliseconds of the host", "GiB allocated")
    draw = partial(timeline_chart, timeline.seconds, amounts, labels, peak)
    call = ", of the same kernels launched one by one" if timeline.call == "uncaptured" else ""
    note = f"{WATCHED[timeline.watched]}{call}. Times are the host's, which runs ahead of the GPU."
    return Figure(title, draw, f"{note} {holders(each.stage)}")


def holders(stage: StageSummary) -> str:
    """Return the largest outputs alive at the peak."""
    timeline = stage.stage.explained.timeline
    if timeline is None or not timeline.holders:
        return ""
    said = "; ".join(f"{', '.join(each.layers)}: {held(each.size_bytes)}" for each in timeline.holders)
    return f"Outputs alive at the peak: {clean(said)}."
