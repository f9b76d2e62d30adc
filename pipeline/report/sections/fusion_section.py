"""How much is launched and moved, and what a compiler put into one kernel."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

from markupsafe import Markup

from pipeline.analysis.attribution import way
from pipeline.analysis.summary import Digest, Row
from pipeline.records.diagnostics import Fusion
from pipeline.records.run_record import StageRecord
from pipeline.report import formatting as words
from pipeline.report.charts import bars as charts
from pipeline.report.charts import stacked_bars as stacks
from pipeline.report.figure import Figure
from pipeline.report.sections import traffic_section as traffic
from pipeline.report.sections.ladder_section import Cell, Table

DIRECTIONS = {
    "vertical": "a chain",
    "horizontal": "siblings",
    "both": "chains and siblings",
    "single": "a single operator",
    "unknown": "unknown",
}
MOVED = "GB moved"
WORTH_NAMING = 0.05  # of a rung's kernels or bytes
NOTE = (
    "A chain (vertical fusion) is operators that feed each other, siblings (horizontal) are some that don't. Bytes are "
    "each operator's, or kernel's, inputs and outputs counted once: what fusing takes away. The GPU's own counters, "
    "where they could be read, show what really passed: less where a cache saved it, more where a library works in "
    "memory of its own."
)
COUNTED = [
    ("GB by counters", "to and from device memory, as the GPU's own counters saw one call"),
    ("GB of L2", "asked of the L2 cache, by the same counters"),
]
TEXTS = [0, 5, 6]


def fused(found: Digest) -> list[tuple[Row, Fusion]]:
    """The ranked stages whose fusion is on record."""
    return [(row, why.fusion) for row in found.rows if row.ranked and (why := row.stage.diagnostics) and why.fusion]


def figure(found: Digest) -> Figure | None:
    """Bytes through device memory as bars, by the counters where all have them, with the kernels beside them."""
    rows = fused(found)
    if all(traffic.counted(row.stage) for row, _ in rows):
        rows = [(row, _by_counters(row, part)) for row, part in rows]
    if not any(part.bytes_per_call for _, part in rows):
        return None
    bars = [(words.clean(row.name), {MOVED: (part.bytes_per_call or 0) / 1e9}) for row, part in rows]
    beside = [f"{moved(part)}, {number(part.kernels_per_call)} kernels" for _, part in rows]
    labels = ("Bytes moved and kernels launched per call", "GB a call, read and written")
    return Figure(labels[0], Markup(stacks.stacked(bars, {MOVED: charts.PLAIN}, labels, beside)))  # noqa: S704


def _by_counters(row: Row, part: Fusion) -> Fusion:
    """The same with the bytes that the counters saw, where they were read."""
    if traffic.counted(row.stage) is None:
        return part
    through, source = traffic.moved(row.stage)
    return replace(part, bytes_per_call=through, bytes_from=source)


def moved(part: Fusion) -> str:
    """Such as "32.8 GB"; "bytes unknown" where they couldn't be counted."""
    known = part.bytes_per_call
    return "bytes unknown" if known is None else f"{words.significant(known / 1e9)} GB"


def table(found: Digest) -> Table:
    """Kernels and bytes of every stage, and their shares of the baseline's."""
    rows, baseline = fused(found), words.clean(found.run.baseline)
    titles = [
        ("stage", ""),
        ("kernels", "a call; on a CPU operators that call no other"),
        (f"of {baseline}'s", "kernels"),
        ("GB", "moved a call, each operator's or kernel's inputs and outputs once"),
        (f"of {baseline}'s", "bytes"),
        ("bytes counted as", ""),
        ("written by the compiler", "kernels that do a chain, siblings, or a single operator"),
    ]
    first = next((part for row, part in rows if row.name == found.run.baseline), None)
    cells = [_cells(row, part, first) for row, part in rows]
    if any(traffic.counted(row.stage) for row, _ in rows):
        titles += COUNTED
        cells = [[*line, *_counted(row.stage)] for line, (row, _) in zip(cells, rows, strict=True)]
    return Table(titles, cells)


def _counted(stage: StageRecord) -> list[Cell]:
    seen = traffic.counted(stage)
    return [_gigabytes(amount) for amount in ((seen.moved_bytes, seen.cache_bytes) if seen else (None, None))]


def _cells(row: Row, part: Fusion, first: Fusion | None) -> list[Cell]:
    kernels, known = part.kernels_per_call, part.bytes_per_call
    fewer = kernels / first.kernels_per_call if first and first.kernels_per_call else None
    less = known / first.bytes_per_call if first and first.bytes_per_call and known else None
    return [
        Cell(words.clean(row.name)),
        Cell(number(kernels), kernels),
        Cell(words.share(fewer), fewer),
        _gigabytes(known),
        Cell(words.share(less), less),
        Cell(words.clean(part.bytes_from)),
        Cell(kinds(part)),
    ]


def _gigabytes(amount: int | None) -> Cell:
    return Cell(words.NOTHING if amount is None else words.significant(amount / 1e9), amount)


def kinds(part: Fusion) -> str:
    """How many of the generated kernels do what, such as "13 a chain, 10 a single operator"."""
    counted = Counter(kernel.direction for kernel in part.kernels)
    return ", ".join(f"{counted[name]} {said}" for name, said in DIRECTIONS.items() if counted[name])


def sentences(found: Digest) -> list[str]:
    """What the whole way did, what each rung on it did, and what the compilers fused."""
    rows = {row.name: _by_counters(row, part) for row, part in fused(found)}
    path = [row.name for row in way(found)[0] if row.name in rows]
    pairs = list(pairwise(path))
    ends = [(path[0], path[-1])] if len(pairs) > 1 else []
    steps = [_step(before, after, rows) for before, after in [*ends, *pairs]]
    written = [_written(name, part) for name, part in rows.items() if part.kernels]
    seen = traffic.sentences([row.stage for row, _ in fused(found)], found.ranking.winner)
    return [*(step for step in steps if step), *seen, *written]


def _step(before: str, after: str, rows: dict[str, Fusion]) -> str:
    """Such as "half → compile: 75 → 57 kernels a call, 12.6 GB → 13.1 GB moved."; empty where both hardly change."""
    old, new = rows[before], rows[after]
    pairs = [(old.kernels_per_call, new.kernels_per_call), (old.bytes_per_call, new.bytes_per_call)]
    if all(a is not None and b is not None and abs(a - b) < WORTH_NAMING * a for a, b in pairs):
        return ""
    differently = " (counted differently)" if old.bytes_from != new.bytes_from else ""
    kernels, through = arrow(number(pairs[0][0]), number(pairs[0][1])), arrow(moved(old), moved(new))
    return f"{words.clean(before)} → {words.clean(after)}: {kernels} kernels a call, {through} moved{differently}."


def arrow(before: str, after: str) -> str:
    """Both, or the one that they are."""
    return after if before == after else f"{before} → {after}"


def number(kernels: float | None) -> str:
    """A mean that is mostly a whole number."""
    return words.NOTHING if kernels is None else f"{kernels:,.1f}".removesuffix(".0")


def _written(name: str, part: Fusion) -> str:
    """How many of the compiler's kernels fuse chains, siblings or nothing."""
    counted = Counter(kernel.direction for kernel in part.kernels)
    vague = f", and of {counted['unknown']} it is unknown" if counted["unknown"] else ""
    both = f", {counted['both']} fuse both" if counted["both"] else ""
    chains, siblings, single = (str(counted[each] or "none") for each in ("vertical", "horizontal", "single"))
    launches = sum(kernel.launches_per_call for kernel in part.kernels)
    return (
        f"{words.clean(name)}: of the {words.plural(len(part.kernels), 'kernel')} that its compiler wrote, launched "
        f"{launches} times a call, {chains} fuse a chain, {siblings} fuse siblings{both}, "
        f"{single} do a single operator{vague}."
    )


def summary(stage: StageRecord) -> str:
    """What one stage launches and moves, and how its compilation went."""
    part = stage.diagnostics.fusion if stage.diagnostics else None
    if part is None:
        return ""
    through = f"{moved(part)} moved" if part.bytes_per_call is not None else "bytes not known"
    text = f"{number(part.kernels_per_call)} kernels a call, {through} ({words.clean(part.bytes_from)})."
    if part.kernels:
        turning = sum(kernel.turns_layout for kernel in part.kernels)
        text += f" The compiler wrote {words.plural(len(part.kernels), 'kernel')}: {kinds(part)}"
        text += f"; {turning} of them read in one layout and write in the other." if turning else "."
    return text + compiled(stage)


def compiled(stage: StageRecord) -> str:
    """Graphs, kernels, graph breaks and recompilations with their reasons, where the stage counts them."""
    facts = stage.details
    if "graph_breaks" not in facts:
        return ""
    made = (
        f", kernels generated, those only tried included: {facts['generated_kernels']}"
        if "generated_kernels" in facts
        else ""
    )
    text = (
        f" Graphs: {facts.get('graphs')}{made}, graph breaks: {facts['graph_breaks']}"
        f"{_because(facts.get('graph_break_reasons'))}, recompiles: {facts.get('recompiles')}"
        f"{_because(facts.get('recompile_reasons'))}."
    )
    return f" {words.clean(text)}"


def _because(reasons: object) -> str:
    """Such as " (print; sleep twice)": from a list, or from reasons with how often each was."""
    if isinstance(reasons, dict):
        said = [f"{reason}{f', {times} times' if times != 1 else ''}" for reason, times in reasons.items()]
    else:
        said = [str(reason) for reason in reasons] if isinstance(reasons, list | tuple) else []
    return f" ({'; '.join(said)})" if said else ""


def sources(stage: StageRecord) -> list[str]:
    """The files that hold the generated kernels."""
    part = stage.diagnostics.fusion if stage.diagnostics else None
    return sorted({kernel.source for kernel in part.kernels}) if part else []


def generated(stage: StageRecord) -> Table:
    """Each kernel that the compiler wrote, with its time where the profile knows its name."""
    part = stage.diagnostics.fusion if stage.diagnostics else None
    times = {row.name: row.seconds_per_call for row in stage.profile.kernels} if stage.profile else {}
    titles = [
        ("kernel", ""), ("operators", "in order"), ("fuses", ""), ("launches", "a call"), ("µs", "a call"),
        ("layout", ""),
    ]  # fmt: skip
    rows = []
    for kernel in part.kernels if part else []:
        taken = times.get(kernel.name)
        rows.append(
            [
                Cell(words.clean(kernel.name)),
                Cell(words.clean(", ".join(kernel.operators)) or "unknown"),
                Cell(DIRECTIONS.get(kernel.direction, words.clean(kernel.direction))),
                Cell(str(kernel.launches_per_call), float(kernel.launches_per_call)),
                Cell(words.NOTHING if taken is None else words.significant(taken * 1e6), taken),
                Cell("turned" if kernel.turns_layout else ""),
            ]
        )
    return Table(titles, rows)
