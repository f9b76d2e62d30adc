"""How much is launched and moved, and what a compiler put into one kernel."""

from collections import Counter

from markupsafe import Markup

from pipeline.reasons import Fusion
from pipeline.records import StageRecord
from pipeline.report import charts, words
from pipeline.report.digest import Digest, Row
from pipeline.report.figure import Figure
from pipeline.report.ladder import Cell, Table

DIRECTIONS = {
    "vertical": "a chain",
    "horizontal": "siblings",
    "both": "chains and siblings",
    "single": "a single operator",
    "unknown": "unknown",
}
MOVED = "GB moved"


def figure(found: Digest) -> Figure | None:
    """Bytes through device memory and kernels, stage by stage."""
    rows = [(row, why.fusion) for row in found.rows if row.ranked and (why := row.stage.why) and why.fusion]
    if not rows:
        return None
    bars = [(words.clean(row.name), {MOVED: (part.bytes_per_call or 0) / 1e9}) for row, part in rows]
    svg = charts.stacked(bars, {MOVED: charts.PLAIN}, ("Bytes moved per call", "GB a call, read and written"))
    note = (
        "Each operator's, or kernel's, inputs and outputs counted once: what fusing takes away, not what a counter in "
        "the hardware would show, as caches save some of it."
    )
    first = next((part for row, part in rows if row.name == found.run.baseline), None)
    return Figure("Fusion: bytes moved and kernels launched", Markup(svg), note, _table(rows, first), [0, 4, 5])  # noqa: S704


def _table(rows: list[tuple[Row, Fusion]], first: Fusion | None) -> Table:
    titles = [
        ("stage", ""),
        ("kernels", "a call; on a CPU operators that call no other"),
        ("GB", "moved a call"),
        ("of the baseline's", ""),
        ("counted as", ""),
        ("written by the compiler", "kernels that do a chain, siblings, or a single operator"),
    ]
    whole = first.bytes_per_call if first else None
    return Table(titles, [_cells(row, part, whole) for row, part in rows])


def _cells(row: Row, part: Fusion, whole: int | None) -> list[Cell]:
    moved = part.bytes_per_call
    share = moved / whole if moved and whole else None
    return [
        Cell(words.clean(row.name)),
        Cell(words.significant(part.kernels_per_call), part.kernels_per_call),
        Cell(words.NOTHING if moved is None else words.significant(moved / 1e9), moved),
        Cell(words.share(share), share),
        Cell(words.clean(part.bytes_from)),
        Cell(kinds(part)),
    ]


def kinds(part: Fusion) -> str:
    """How many of the generated kernels do what, such as "13 a chain, 10 a single operator"."""
    counted = Counter(kernel.direction for kernel in part.kernels)
    return ", ".join(f"{counted[name]} {said}" for name, said in DIRECTIONS.items() if counted[name])


def summary(stage: StageRecord) -> str:
    """What one stage launches and moves, and how its compilation went."""
    part = stage.why.fusion if stage.why else None
    if part is None:
        return ""
    moved = f"{part.bytes_per_call / 1e9:.3g} GB moved" if part.bytes_per_call else "bytes not known"
    text = f"{words.significant(part.kernels_per_call)} kernels a call, {moved} ({words.clean(part.bytes_from)})."
    if part.kernels:
        turning = sum(kernel.turns_layout for kernel in part.kernels)
        text += f" The compiler wrote {words.plural(len(part.kernels), 'kernel')}: {kinds(part)}"
        text += f"; {turning} of them read in one layout and write in the other." if turning else "."
    return text + compiled(stage)


def compiled(stage: StageRecord) -> str:
    """Graphs, graph breaks and recompilations with their reasons, where the stage counts them."""
    facts = stage.facts
    if "graph_breaks" not in facts:
        return ""
    reasons = [*(facts.get("graph_break_reasons") or {}), *(facts.get("recompile_reasons") or [])]
    text = (
        f"Graphs: {facts.get('graphs')}, graph breaks: {facts['graph_breaks']}, recompiles: {facts.get('recompiles')}"
    )
    because = f" ({'; '.join(map(str, reasons))})" if reasons else ""
    return f" {words.clean(text + because)}."


def sources(stage: StageRecord) -> list[str]:
    """The files that hold the generated kernels."""
    part = stage.why.fusion if stage.why else None
    return sorted({kernel.source for kernel in part.kernels}) if part else []


def generated(stage: StageRecord) -> Table:
    """Each kernel that the compiler wrote, with its time where the profile knows its name."""
    part = stage.why.fusion if stage.why else None
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
