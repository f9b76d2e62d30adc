"""What a new image size costs in a sweep over data.size, and whether padding sizes to a larger one pays."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pipeline.analysis.summary import Digest, Row
from pipeline.records.diagnostics import SEARCH_CUDNN, SEARCH_INDUCTOR, SEARCH_ONNX_RUNTIME, SEARCH_OWN
from pipeline.report import formatting as words
from pipeline.report.sections.ladder_section import Cell, Table
from pipeline.stats.intervals import Estimate

LEAST_COLD_SECONDS = 1.0  # moving the weights and loading a library take as long: less is no build
SHAPE_KEYS = ("data.size", "data.batch_size")
NOTE = (
    "Cold is build and first call, in a process of its own for every size: what a process pays only once is counted "
    "for each, so the savings are upper bounds. What padding does to the mask near an image's border isn't measured."
)


@dataclass(frozen=True)
class Point:
    """One stage at one size; `warm` is seconds per call, None where the stage isn't ranked."""

    size: int
    batch: int
    cold_seconds: float | None
    warm: Estimate | None
    recompiles: int | None
    searches: str
    status: str
    steady: bool = True  # its pace had come to rest before it was measured


@dataclass(frozen=True)
class Line:
    """One stage in one setting over the sizes of the sweep, rising."""

    name: str
    points: list[Point]


@dataclass(frozen=True)
class Section:
    """What the sweep's report shows."""

    note: str
    table: Table
    sentences: list[str]


def section(runs: list[Digest]) -> Section | None:
    """The sizes of a sweep; None where no stage met two."""
    found = lines(runs)
    return Section(NOTE, _table(found), [text for line in found for text in padding(line)]) if found else None


def lines(runs: list[Digest]) -> list[Line]:
    """Every stage that met two sizes or more; jobs that differ in anything else are lines of their own."""
    groups: dict[str, dict[int, Point]] = {}
    settings: dict[str, tuple[str, dict[str, str]]] = {}
    for found in runs:
        size = (found.run.config.get("data") or {}).get("size")
        if not isinstance(size, int):
            continue
        for row in found.rows:
            setting = _setting(found, row)
            key = json.dumps([row.name, setting], sort_keys=True)
            settings[key] = (row.name, setting)
            groups.setdefault(key, {}).setdefault(size, _point(found, row, size))
    kept = [key for key, points in groups.items() if len(points) > 1]
    return [
        Line(_label(settings[key], [settings[k] for k in kept]), [groups[key][size] for size in sorted(groups[key])])
        for key in kept
    ]


def _setting(found: Digest, row: Row) -> dict[str, str]:
    """All that was asked for but the size, and the machine."""
    asked = {key: part for key, part in found.run.config.items() if key != "stage"}
    flat = dict(_flat(asked, ""))
    machine = found.run.environment.device_name if found.run.environment else "unknown machine"
    batch = {"batch": str(found.run.batch_size), "machine": machine}
    return (
        {key: text for key, text in flat.items() if key not in SHAPE_KEYS} | dict(_flat(row.stage.options, "")) | batch
    )


def _flat(value: dict[str, Any], prefix: str) -> Iterable[tuple[str, str]]:
    for key, part in value.items():
        if isinstance(part, dict):
            yield from _flat(part, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(part)


def _label(own: tuple[str, dict[str, str]], others: list[tuple[str, dict[str, str]]]) -> str:
    """The stage's name, with what sets it apart from others of the same name."""
    name, setting = own
    same = [other for stage, other in others if stage == name]
    apart = [f"{key} {text}" for key, text in setting.items() if any(other.get(key) != text for other in same)]
    return words.clean(", ".join([name, *apart]))


def _point(found: Digest, row: Row, size: int) -> Point:
    recompiles = row.stage.details.get("recompiles")
    return Point(
        size=size,
        batch=found.run.batch_size,
        cold_seconds=row.setup_seconds,
        warm=row.seconds if row.ranked else None,
        recompiles=recompiles if isinstance(recompiles, int) else None,
        searches=_searches(found, row),
        status=row.status,
        steady=row.stage.warm_up is None or row.stage.warm_up.steady,
    )


def _searches(found: Digest, row: Row) -> str:
    """What the record says of algorithms that were tried for this size: each count, and what has none in words."""
    counts = row.stage.diagnostics.searches if row.stage.diagnostics else {}
    counted = [_counted(who, count) for who, count in counts.items()]
    uncounted = [text for who, text in _asked(found, row) if who not in counts]
    return words.clean(", ".join([*counted, *uncounted])) or "none on record"


def _counted(who: str, count: int) -> str:
    """Such as "cuDNN: 14 problems"."""
    searcher, _, what = who.partition(": ")
    first, *rest = what.split(" ")
    one = [first.removesuffix("s") if count == 1 else first, *rest]
    return f"{searcher}: {count:,} {' '.join(one)}"


def _asked(found: Digest, row: Row) -> list[tuple[str, str]]:
    """Who was asked to search, by the stage's options and facts, and how that reads without a count."""
    facts, asked = row.stage.details, row.stage.options
    parts = [(SEARCH_OWN, f"{facts['candidates_measured']} candidates timed")] if "candidates_measured" in facts else []
    if found.run.environment and found.run.environment.device == "cuda":
        parts += [(SEARCH_CUDNN, "cuDNN times its own")] if asked.get("cudnn_benchmark") is True else []
        search = str(asked.get("algo_search", "")).lower()
        parts += [(SEARCH_ONNX_RUNTIME.format(search=search), f"cuDNN, {search}")] if search else []
    tuned = str(asked.get("mode", "")).startswith("max-autotune")
    return [*parts, *([(SEARCH_INDUCTOR, "Inductor times its own")] if tuned else [])]


def padding(line: Line) -> list[str]:
    """A sentence for each size and the next larger one, and one for all sizes padded to the largest."""
    usable = [point for point in line.points if point.warm and point.cold_seconds is not None]
    if len(usable) < 2:
        return [f"{line.name}: fewer than two sizes were measured, so nothing is known of padding."]
    if max(point.cold_seconds or 0.0 for point in usable[:-1]) < LEAST_COLD_SECONDS:
        return [f"{line.name}: no gain from padding, as no size takes {words.seconds(LEAST_COLD_SECONDS)} to set up."]
    texts = [
        f"{line.name}: padding {small.size} to {large.size} {verdict([small], large)}"
        for small, large in pairwise(usable)
    ]
    if len(usable) > 2:
        *rest, largest = usable
        texts.append(f"{line.name}: padding all {len(usable)} sizes to {largest.size} {verdict(rest, largest)}")
    return texts


def saved_seconds(small: list[Point]) -> float:
    """Set-up that isn't needed once these sizes are padded to one that is set up anyway."""
    return sum(point.cold_seconds or 0.0 for point in small)


def extra_seconds(small: list[Point], bucket: Point) -> float:
    """Seconds a call that padding costs: of the one size's calls, or the mean over all where several share the bucket.

    Below 0 where the larger size is the faster one. A size whose interval overlaps the bucket's adds nothing.
    """
    assert bucket.warm
    waits = [_difference(point.warm, bucket.warm) for point in small if point.warm]
    return sum(waits) / (1 if len(small) == 1 else len(small) + 1)


def _difference(small: Estimate, large: Estimate) -> float:
    apart = small.high < large.low or large.high < small.low
    return large.value - small.value if apart else 0.0


def verdict(small: list[Point], bucket: Point) -> str:
    """Such as "saves 41 s of set-up and costs 1.9 ms a call: it pays for fewer than 21,600 calls."."""
    saved, extra = saved_seconds(small), extra_seconds(small, bucket)
    restless = words.listed([str(point.size) for point in [*small, bucket] if not point.steady])
    rough = f" A rough figure: the pace was still changing at {restless}." if restless else ""
    if saved < LEAST_COLD_SECONDS:
        return f"gains nothing: {words.seconds(saved)} of set-up is all that it saves."
    gain, mean = f"saves {words.seconds(saved)} of set-up and", " on average, if all sizes come equally often"
    each = f"{words.seconds(abs(extra))} a call{mean if len(small) > 1 else ''}"
    if extra == 0:
        return f"{gain} costs no time that was measured: it pays.{rough}"
    if extra < 0:
        return f"{gain} {each}: it pays.{rough}"
    calls = saved / extra
    count = words.significant(calls) if calls > 100 else f"{math.ceil(calls)}"
    return f"{gain} costs {each}: it pays for fewer than {count} calls.{rough}"


def _table(found: list[Line]) -> Table:
    titles = [
        ("stage", ""), ("size", "pixels a side"), ("batch", "images per call"), ("cold s", "build and first call"),
        ("warm ms", "per call"), ("warm ms/image", ""), ("recompiles", "by Dynamo"),
        ("searches", "for the fastest algorithm"), ("status", ""),
    ]  # fmt: skip
    return Table(titles, [_cells(line.name, point) for line in found for point in line.points])


def _cells(name: str, point: Point) -> list[Cell]:
    warm = point.warm.value if point.warm else None
    each = warm / point.batch if warm is not None else None
    cold, count = point.cold_seconds, point.recompiles
    return [
        Cell(name, name),
        Cell(str(point.size), point.size),
        Cell(str(point.batch), point.batch),
        Cell(words.NOTHING if cold is None else words.significant(cold), cold),
        Cell(words.milliseconds(warm), warm),
        Cell(words.milliseconds(each), each),
        Cell(words.NOTHING if count is None else str(count), count),
        Cell(point.searches, point.searches),
        Cell(
            f"{point.status}{'' if point.steady else ', unsteady'}", point.status, "" if point.status == "ok" else "bad"
        ),
    ]
