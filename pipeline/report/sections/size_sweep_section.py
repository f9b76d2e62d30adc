"""What each size of a sweep costs, and for how many calls padding pays, in a table and in sentences."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.analysis.summary import RunSummary
from pipeline.analysis.sweeps import (
    LEAST_COLD_SECONDS,
    Line,
    Padding,
    Point,
    Search,
    lines,
    paddings,
    usable,
    worth_padding,
)
from pipeline.records.data_words import IMAGES, Words
from pipeline.records.diagnostics import Searcher
from pipeline.report.formatting import clean, listed, milliseconds, seconds, significant
from pipeline.report.tables import Cell, Column, Table, figure, names, table_of

NOTE = (
    "Cold is build and first call, in a process of its own for every size. What a process pays only once is counted "
    "for each size, so the savings are upper bounds. The effect of padding on the mask near {one}'s border isn't "
    "measured."
)
ASKED: dict[Searcher, str] = {"cuDNN": "cuDNN times its own", "Inductor": "Inductor times its own"}
Entry = tuple[str, Point]  # a line's name and one of its points


@dataclass(frozen=True)
class SizeSection:
    """What the sweep's report shows."""

    note: str
    table: Table
    sentences: list[str]


def section(runs: list[RunSummary], words: Words = IMAGES) -> SizeSection | None:
    """The sizes of a sweep; None where no stage met two."""
    found = lines(runs)
    if not found:
        return None
    entries = [(label(line), point) for line in found for point in line.points]
    sentences = [text for line in found for text in padding_texts(line)]
    return SizeSection(words.put_into(NOTE), table_of(columns(words), entries), sentences)


def columns(words: Words) -> list[Column[Entry]]:
    """One stage at one size."""

    def warm(entry: Entry) -> float | None:
        return entry[1].warm.value if entry[1].warm else None

    def each(entry: Entry) -> float | None:
        return entry[1].warm.value / entry[1].batch if entry[1].warm else None

    return [
        names("stage", lambda entry: entry[0]),
        Column("size", help=f"{words.points} a side", cell=figure(lambda entry: entry[1].size, str)),
        Column("batch", help=f"{words.samples} per call", cell=figure(lambda entry: entry[1].batch, str)),
        Column("cold", "s", "build and first call", figure(lambda entry: entry[1].cold_seconds, significant)),
        Column(
            "warm", "ms", "per call", figure(lambda entry: entry[1].warm.value if entry[1].warm else None, milliseconds)
        ),
        Column("warm", f"ms/{words.sample}", "", figure(each, milliseconds)),
        Column("recompiles", help="by Dynamo", cell=figure(lambda entry: entry[1].recompiles, str)),
        names("searches", lambda entry: searches_text(entry[1].searches), "for the fastest algorithm"),
        Column("status", cell=_status, kind="text"),
    ]


def _status(entry: Entry) -> Cell:
    point = entry[1]
    unsteady = "" if point.steady else ", unsteady"
    return Cell(f"{point.status}{unsteady}", point.status, "" if point.status == "ok" else "bad")


def label(line: Line) -> str:
    """The stage's name, with what sets it apart from others of the same name."""
    return clean(", ".join([line.name, *(f"{key} {value}" for key, value in line.apart)]))


def searches_text(searches: Sequence[Search]) -> str:
    """Each count such as "cuDNN: 14 problems", and what has none in words."""
    return clean(", ".join(_search(each) for each in searches)) or "none on record"


def _search(search: Search) -> str:
    counted = search.counted
    if counted is None:
        if search.candidates is not None:
            return f"{search.candidates} candidates timed"
        return f"cuDNN, {search.method}" if search.method else ASKED.get(search.searcher, search.searcher)
    who = f"{counted.searcher}{f', {counted.method}' if counted.method else ''}"
    unit = counted.unit.removesuffix("s") if counted.count == 1 else counted.unit
    return f"{who}: {counted.count:,} {unit}{' timed' if counted.unit == 'candidates' else ''}"


def padding_texts(line: Line) -> list[str]:
    """A sentence for each size and the next larger one, and one for all sizes padded to the largest."""
    points, name = usable(line), label(line)
    if len(points) < 2:
        return [f"{name}: fewer than two sizes were measured, so nothing is known of padding."]
    if not worth_padding(points):
        return [f"{name}: no gain from padding, as no size takes {seconds(LEAST_COLD_SECONDS)} to set up."]
    return [f"{name}: padding {_sizes(found)} to {found.bucket.size} {effect(found)}" for found in paddings(points)]


def _sizes(found: Padding) -> str:
    return f"all {len(found.small) + 1} sizes" if len(found.small) > 1 else str(found.small[0].size)


def effect(found: Padding) -> str:
    """Such as "saves 41 s of set-up and costs 1.9 ms per call: it pays for fewer than 21,600 calls."."""
    if found.outcome == "gains nothing":
        return f"gains nothing: {seconds(found.saved_seconds)} of set-up is all that it saves."
    rough = listed([str(size) for size in found.unsettled])
    unsettled = f" This is a rough figure: times had not settled at {rough}." if rough else ""
    saves = f"saves {seconds(found.saved_seconds)} of set-up and"
    mean = " on average, if all sizes come equally often" if len(found.small) > 1 else ""
    each = f"{seconds(abs(found.extra.value))} per call{mean}"
    if found.outcome == "faster":
        return f"{saves} {each}: it pays.{unsettled}"
    count = significant(found.calls) if found.calls > 100 else f"{math.ceil(found.calls)}"
    pays = f"it pays for fewer than {count} calls"
    if found.outcome == "costs":
        return f"{saves} costs {each}: {pays}.{unsettled}"
    most = f"at most {seconds(found.extra.high)} per call{mean}"
    return f"{saves} costs {most}: {pays}, and whether it costs anything is not resolved.{unsettled}"
