"""Fusion: how much is launched and moved, what a compiler put into one kernel, and what the GPU's counters saw."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from pipeline.analysis.attribution import NEXT_TO_NOTHING, hides, told_share, way
from pipeline.analysis.bottleneck import BY_COUNTERS, Moved, Source, moved
from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary
from pipeline.errors import plural
from pipeline.records.diagnostics import CountedBytes, FusedKernel, Fusion, KernelRow
from pipeline.records.run_record import CompileFacts, MeasuredPeaks, StageRecord
from pipeline.report import WORDS
from pipeline.report.charts import PLAIN
from pipeline.report.charts.bars import cut_at, stacked
from pipeline.report.formatting import clean, gigabytes, listed, method, microseconds, milliseconds, share, significant
from pipeline.report.run_text import COUNTED_BY, bytes_text, note_text
from pipeline.report.tables import Column, Figure, Section, Table, explained, methods, names, number, table_of

DIRECTIONS: dict[str, str] = WORDS["fusion"]["directions"]
CLOSE = 1.25  # two counts of bytes whose ratio is below this agree
WORTH_NAMING = 0.05  # of a rung's kernels or bytes
KERNELS_SHOWN, NAME_LETTERS = 12, 160
NOTE: str = WORDS["fusion"]["note"]

APART = "Stages whose bytes were counted in another way are not comparable and not drawn here."


@dataclass(frozen=True)
class FusionFigures:
    """One stage's kernels and bytes per call."""

    stage: StageSummary
    fusion: Fusion
    kernels_share: float | None = None  # of the baseline's
    bytes_share: float | None = None  # of the baseline's; None where the two were counted differently

    @property
    def seen(self) -> CountedBytes | None:
        """The readings of the GPU's counters in one call."""
        return self.stage.stage.explained.counted

    @property
    def recorded_moved(self) -> Moved:
        """The bytes by the operators, also where counters were read."""
        return Moved(self.fusion.bytes_per_call, self.fusion.bytes_source, self.fusion.bytes_unknown)


def blind(stage: StageSummary) -> bool:
    """Return whether the profile doesn't see the work: on a CPU a runtime may run the whole network as one operator."""
    # a GPU's profile has every launched kernel
    return hides(stage) and (not stage.bottleneck.on_gpu or (told_share(stage) or 0.0) < NEXT_TO_NOTHING)


def section(summary: RunSummary) -> Section:
    """Return kernels and bytes of every ranked stage whose fusion is on record."""
    said, every = sentences(summary), fusions(summary)
    table = table_of([*columns(method(summary.baseline)), *COUNTED], every).without_empty_columns
    return Section("fusion", "Fusion", said[0] if said else "", NOTE, said, charts(every), table)


def fusions(summary: RunSummary) -> list[FusionFigures]:
    """Return the ranked stages whose fusion is on record."""
    known = [(stage, fusion) for stage in summary.ranked if (fusion := stage.stage.explained.fusion)]
    first = next((fusion for stage, fusion in known if stage.name == summary.baseline), None)
    found = []
    for stage, fusion in known:
        told = first and first.kernels_per_call and not blind(stage)
        fewer = fusion.kernels_per_call / first.kernels_per_call if first and told else None
        through = first.bytes_per_call if first and first.bytes_source == fusion.bytes_source else None
        less = fusion.bytes_per_call / through if through and fusion.bytes_per_call else None
        found.append(FusionFigures(stage, fusion, fewer, less))
    return found


def columns(baseline: str) -> list[Column[FusionFigures]]:
    """Return kernels and bytes of every stage, and their shares of the baseline's."""

    def launched(each: FusionFigures) -> float | None:
        return None if blind(each.stage) else each.fusion.kernels_per_call

    of = f"of {baseline}'s"
    shown: list[Column[FusionFigures]] = [
        methods(lambda each: each.stage.name),
        number("kernels", launched, mean, "fusion_kernels_per_call"),
        number(of, lambda each: each.kernels_share, share, "fusion_kernels_share"),
        number("GB", lambda each: each.fusion.bytes_per_call, gigabytes, "fusion_bytes_per_call"),
        number(of, lambda each: each.bytes_share, share, "fusion_bytes_share"),
        names("bytes counted as", lambda each: bytes_text(each.recorded_moved), "fusion_bytes_counted_as"),
        names("written by the compiler", directions_text, "generated_kernels"),
    ]
    return explained("fusion", shown)


COUNTED: list[Column[FusionFigures]] = explained("fusion", [
    number("GB by counters", lambda of: of.seen.moved_bytes if of.seen else None, gigabytes, "counted_bytes_per_call"),
    number("GB of L2", lambda of: of.seen.cache_bytes if of.seen else None, gigabytes, "counted_l2_bytes_per_call"),
])  # fmt: skip


def charts(every: list[FusionFigures]) -> list[Figure]:
    """Draw bytes through device memory, one chart for each way of counting that two stages or more share."""
    found: dict[Source, list[tuple[FusionFigures, int]]] = defaultdict(list)
    for each in every:
        for through in {moved(each.stage.stage), each.recorded_moved}:
            if through.amount and through.source:
                found[through.source].append((each, through.amount))
    amounts = [through / 1e9 for shown in found.values() for _, through in shown]
    axis, charts = cut_at(amounts) or max(amounts, default=1.0), []
    order = sorted(found, key=lambda source: (source != BY_COUNTERS, -len(found[source]), source))
    for source in [source for source in order if len(found[source]) > 1]:
        shown = found[source]
        bars = [(method(each.stage.name), {"GB moved": through / 1e9}) for each, through in shown]
        beside = [f"{gigabytes(through)} GB, {mean(each.fusion.kernels_per_call)} kernels" for each, through in shown]
        title = f"Bytes moved per call by {COUNTED_BY[source]}"
        draw = partial(stacked, bars, {"GB moved": PLAIN}, (title, "GB per call, read and written"), beside, axis)
        charts.append(Figure(title, draw, APART))
    return charts


def directions_text(each: FusionFigures) -> str:
    """Return how many of the generated kernels do what, such as "13 a chain, 10 a single operator"."""
    counts = Counter(kernel.direction for kernel in each.fusion.kernels)
    return ", ".join(f"{counts[name]} {said}" for name, said in DIRECTIONS.items() if counts[name])


def sentences(summary: RunSummary) -> list[str]:
    """Return what the whole way did, what each rung on it did, what counters saw, and what the compilers fused."""
    every = fusions(summary)
    by_name = {each.stage.name: each for each in every}
    path = [by_name[stage.name] for stage in way(summary)[0] if stage.name in by_name]
    pairs = [*([(path[0], path[-1])] if len(path) > 2 else []), *pairwise(path)]
    steps = [said for said in (step(*pair) for pair in pairs) if said]
    seen = counter_sentences([each.stage.stage for each in every], summary.ranking.winner)
    return [*steps, *seen, *(_written(each) for each in every if each.fusion.kernels)]


def step(old: FusionFigures, new: FusionFigures) -> str:
    """Return text such as "half → compile: 75 → 57 kernels per call, 18.1 GB → 13.7 GB moved."; empty of no change."""
    both = f"{method(old.stage.name)} → {method(new.stage.name)}"
    counts = old.fusion.kernels_per_call, new.fusion.kernels_per_call
    best = moved(old.stage.stage), moved(new.stage.stage)  # by the counters where they were read
    ways = (best, (old.recorded_moved, new.recorded_moved))
    alike = [(one.amount, other.amount) for one, other in ways if one.source == other.source]
    through = next(((before, after) for before, after in alike if before is not None and after is not None), None)
    # bytes that can't be compared count as a change
    if through and all(abs(before - after) < WORTH_NAMING * before for before, after in (counts, through)):
        return ""
    if hidden := [method(each.stage.name) for each in (old, new) if blind(each.stage)]:
        return f"{both}: the profiler doesn't see into {listed(hidden)}, so kernels and bytes can't be compared."
    if through:
        said = f"{arrow(*map(gigabytes, through))} GB moved"
    elif all(each.amount is not None for each in best):
        said = "bytes counted differently and so not comparable"
    else:
        said = f"{arrow(*map(moved_text, best))} moved"
    return f"{both}: {arrow(*map(mean, counts))} kernels per call, {said}."


def moved_text(through: Moved) -> str:
    """Return text such as "32.8 GB"; "bytes unknown" where they couldn't be counted."""
    return "bytes unknown" if through.amount is None else f"{gigabytes(through.amount)} GB"


def arrow(before: str, after: str) -> str:
    """Return both, or the one that they are."""
    return after if before == after else f"{before} → {after}"


def mean(kernels: float) -> str:
    """Return a mean that is mostly a whole number."""
    return f"{kernels:,.1f}".removesuffix(".0")


def _written(each: FusionFigures) -> str:
    """Return how many of the compiler's kernels fuse chains, siblings or nothing."""
    kernels = each.fusion.kernels
    directions = Counter(kernel.direction for kernel in kernels)
    vague = f", and {directions['unknown']} could not be read" if directions["unknown"] else ""
    both = f", {directions['both']} fuse both" if directions["both"] else ""
    chains, siblings, single = (str(directions[name] or "none") for name in ("vertical", "horizontal", "single"))
    count = f"{plural(len(kernels), 'kernel')} that its compiler wrote, launched"
    launches = f"{sum(kernel.launches_per_call for kernel in kernels)} times per call"
    if directions["unknown"] == len(kernels):
        return f"{method(each.stage.name)}: {count} {launches}; what they fuse their sources don't say."
    return (
        f"{method(each.stage.name)}: of the {count} {launches}, {chains} fuse a chain, {siblings} fuse siblings{both}, "
        f"{single} do a single operator{vague}."
    )


def counter_sentences(stages: list[StageRecord], winner: str | None) -> list[str]:
    """Return the counters' bytes of the winner, where they differ from the operators', or why they weren't read."""
    who: dict[str, list[str]] = defaultdict(list)
    for stage in stages:
        counted, fusion = stage.explained.counted, stage.explained.fusion
        if counted is None or fusion is None or not fusion.bytes_per_call:
            continue
        seen, expected = counted.moved_bytes, fusion.bytes_per_call
        text = f"the GPU's counters saw {gigabytes(seen)} GB per call"
        others = f"{gigabytes(expected)} GB by {COUNTED_BY[fusion.bytes_source]}"
        more = "inside of them more is moved, or the same more than once"
        if not 1 / CLOSE < seen / expected < CLOSE:
            why = more if seen >= expected else "caches saved the rest"
            who[f"{text}, {share(seen / expected)} of the {others}: {why}."].append(method(stage.name))
        elif stage.name == winner:
            who[f"{text}, close to the {others}."].append(method(stage.name))
    notes = dict.fromkeys(note_text(note) for of in stages for note in of.explained.notes_on("hardware counters"))
    return [*(f"{listed(stages)}: {text}" for text, stages in who.items()), *(f"{note}." for note in notes)]


def of_stage(stage: StageSummary) -> str:
    """Return what one stage launches and moves, and how its compilation went."""
    fusion = stage.stage.explained.fusion
    if fusion is None:
        return ""
    each = FusionFigures(stage, fusion)
    through = "bytes not known" if fusion.bytes_per_call is None else f"{moved_text(each.recorded_moved)} moved"
    kernels = "kernels not known" if blind(stage) else f"{mean(fusion.kernels_per_call)} kernels per call"
    text = f"{kernels}, {through} ({bytes_text(each.recorded_moved)})."
    if fusion.kernels:
        converting = sum(kernel.turns_layout for kernel in fusion.kernels)
        text += f" The compiler wrote {plural(len(fusion.kernels), 'kernel')}: {directions_text(each)}"
        text += f"; {converting} of them read one layout and write the other." if converting else "."
    return text + compiled(stage.stage.compile_facts)


def compiled(facts: CompileFacts | None) -> str:
    """Return how many graphs, kernels, graph breaks and recompilations; empty if the stage doesn't count them."""
    if facts is None or facts.graph_breaks is None:
        return ""
    made = facts.generated_kernels
    kernels = "" if made is None else f", kernels generated, those only tried included: {made}"
    return f" Graphs: {facts.graphs}{kernels}, graph breaks: {facts.breaks}, recompiles: {facts.recompiles}."


def generated(stage: StageSummary) -> Table:
    """Return each kernel that the compiler wrote, with its time per call where the profile knows its name."""
    fusion = stage.stage.explained.fusion
    rows = stage.stage.profile.kernels if stage.stage.profile else []
    seconds = {row.name: row.seconds_per_call for row in rows}
    shown: list[Column[FusedKernel]] = [
        names("kernel", lambda kernel: clean(kernel.name)),
        names("operators, in order", lambda kernel: clean(", ".join(kernel.operators)) or "unknown"),
        names("fuses", lambda kernel: DIRECTIONS.get(kernel.direction, clean(kernel.direction))),
        number("launches", lambda kernel: kernel.launches_per_call, str),
        number("µs", lambda kernel: seconds.get(kernel.name), microseconds),
        names("layout", lambda kernel: "converted" if kernel.turns_layout else ""),
    ]
    return table_of(shown, fusion.kernels if fusion else [])


def kernels(stage: StageRecord, peaks: MeasuredPeaks | None) -> Table:
    """Return the longest kernels with their time per call and, where it was counted, what they move."""
    rows, seen = stage.profile.kernels if stage.profile else [], stage.explained.counted
    total, bandwidth = sum(row.seconds_per_call for row in rows), peaks.bandwidth_bytes_per_s if peaks else 0.0

    def reached(row: KernelRow) -> float | None:
        through = seen.by_kernel.get(row.name) if seen else None
        known = through is not None and row.seconds_per_call and bandwidth
        return through / row.seconds_per_call / bandwidth if known and through is not None else None

    shown: list[Column[KernelRow]] = [
        names("kernel", lambda row: clean(row.name)[:NAME_LETTERS]),
        names("class", lambda row: row.kind),
        number("ms", lambda row: row.seconds_per_call, milliseconds),
        number("of the kernels' time", lambda row: row.seconds_per_call / total if total else None, share),
        number("launches", lambda row: row.launches_per_call, significant),
    ]
    if seen and seen.by_kernel:
        by_kernel = seen.by_kernel
        shown.append(number("GB", lambda row: by_kernel.get(row.name), gigabytes))
        shown.append(number("of the bandwidth", reached, share))
    return table_of(explained("fusion", shown), rows[:KERNELS_SHOWN])
