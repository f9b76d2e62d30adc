"""lessons.html and lessons.md out of lessons.json."""

import math
from pathlib import Path
from typing import Any

from markupsafe import Markup

from pipeline.errors import plural
from pipeline.lessons.claims import Judged, judged_all
from pipeline.lessons.contents import CONTENTS, lesson_of
from pipeline.lessons.lesson import Lesson
from pipeline.lessons.lesson_records import LessonRecord, LessonsRecord, Row
from pipeline.lessons.rows import Rows, Unit, amount, has_interval, shown, value
from pipeline.records.run_record import Environment
from pipeline.report import formatting, html
from pipeline.report import markdown as md
from pipeline.report.charts import bars as bar_charts
from pipeline.report.charts import plots
from pipeline.report.tables import Cell, Column, names, number, table_of
from pipeline.stats.intervals import Estimate

TONES = {"right": "good", "wrong": "bad", "depends": "", "unknown": "quiet"}
SUMMED = {"right": "right", "wrong": "wrong", "depends": "partly right", "unknown": "not told by this run"}
SCALES: dict[Unit, list[tuple[float, str, float]]] = {  # below which value a unit is taken, its name, and its factor
    "time": [(1e-3, "µs", 1e6), (1.0, "ms", 1e3), (math.inf, "s", 1.0)],
    "memory": [(math.inf, "MiB", 2**-20)],
    "TFLOP/s": [(math.inf, "TFLOP/s", 1.0)],
    "GB/s": [(math.inf, "GB/s", 1.0)],
}
RATES: tuple[Unit, ...] = ("TFLOP/s", "GB/s")
FIRST_CALL = "which builds, or finds the build in the compiler's cache on disk"


def draw(record: LessonsRecord, folder: Path) -> Path:
    """Write both files into the folder; the path of lessons.html."""
    (folder / "lessons.md").write_text(markdown(record), encoding="utf-8")
    path = folder / "lessons.html"
    path.write_text(page(record), encoding="utf-8")
    return path


def page(record: LessonsRecord) -> str:
    """Return one file that needs no network; everything from the record is escaped."""
    return html.environment().get_template("lessons.html.j2").render(told(record), tones=TONES)


def markdown(record: LessonsRecord) -> str:
    """Return the same as Markdown, without charts."""
    return md.environment().get_template("lessons.md.j2").render(told(record))


def told(record: LessonsRecord) -> dict[str, object]:
    """Return what both files tell: the lessons in the order in which they were held, and every claim."""
    claims = judged_all(record)
    outcomes = [found.outcome for _, found in claims.values()]
    return {
        "record": record,
        "machine": machine(record.environment),
        "sections": [section(part, claims.get(part.name)) for part in record.lessons],
        "claims": [*claims.values()],
        "sum": ", ".join(f"{outcomes.count(each)} {text}" for each, text in SUMMED.items() if each in outcomes),
    }


def section(part: LessonRecord, claim: tuple[dict[str, Any], Judged] | None) -> dict[str, object]:
    """Return what is told of one lesson; only the table of a lesson that this version doesn't have."""
    rows = Rows(part.rows)
    table = table_of(columns(rows), rows).without_empty_columns if part.rows else None
    known = {"part": part, "claims": [claim] if claim else [], "table": table}
    if part.name not in CONTENTS:
        reason = "this version has no lesson of that name, and can't say what it showed"
        nothing = dict.fromkeys(("how", "lead", "says", "chart"), "")
        return {**known, "title": formatting.clean(part.name), "reason": reason, **nothing}
    lesson, reason = lesson_of(part.name), part.reason.removeprefix(f"{part.outcome}: ")
    lead, *others = lesson.says(rows) or [""]
    said = {"lead": lead, "says": " ".join(filter(None, others)), "chart": chart(lesson, rows)}
    return {**known, "title": lesson.title, "how": lesson.how, "reason": reason, **said}


def machine(found: Environment) -> str:
    """Return the device and the versions that count."""
    parts = [formatting.clean(found.device_name), f"torch {formatting.clean(found.packages.get('torch', 'unknown'))}"]
    if found.device == "cpu":
        parts.append(plural(found.cpu_threads, "thread"))
    parts += [f"{name} {formatting.clean(version)}" for name, version in
              (("CUDA", found.cuda), ("driver", found.driver)) if version]  # fmt: skip
    return " · ".join(parts)


def columns(rows: Rows) -> list[Column[Row]]:
    """Return the figures of a lesson's rows."""

    def figure(row: Row) -> Cell:
        found, name, scale = scaled(row)
        if found is None:
            return Cell(formatting.NOTHING)
        return Cell(f"{formatting.significant(found.value * scale)} {name}", found.value)

    def interval(row: Row) -> Cell:
        found, _, scale = scaled(row)
        if found is None:
            return Cell("")
        low, high = (formatting.significant(end * scale) for end in (found.low, found.high))
        return Cell(f"[{low}, {high}]" if has_interval(row) else "(no interval)", found.high - found.low)

    def pace(row: Row) -> Cell:
        ratio = rows.times(row.against, row.name)
        return Cell(amount(ratio), ratio.value) if ratio else Cell("")

    def compared(row: Row) -> Cell:
        return Cell(formatting.clean(row.against) if rows.times(row.against, row.name) else "")

    def rate(unit: Unit) -> Column[Row]:
        return number(unit, lambda row: found.value if (found := value(row, unit)) else None, formatting.significant)

    def moved(row: Row) -> float | None:
        return row.moved_bytes / row.repeats if row.moved_bytes is not None else None

    def note(row: Row) -> Cell:
        return Cell(
            formatting.clean(row.reason or row.note), tone="bad" if row.reason.startswith("failed") else "quiet"
        )

    return [
        names("variant", lambda row: formatting.clean(row.name)),
        Column("value", figure, "median; of one repeat, where a call repeats the work"),
        Column("95 % interval", interval, "of the median, by order statistics of the samples; none of fewer than six"),
        Column("times as fast", pace, "interleaved with the row that it is compared with, with a 95 % interval"),
        Column("compared with", compared),
        *map(rate, RATES),
        number("kernels per call", lambda row: row.kernels, "{:g}".format),
        number("bytes moved", moved, formatting.size, help="through memory or over the link"),
        number("first call", lambda row: row.built_seconds, formatting.seconds, help=FIRST_CALL),
        Column("note", note, kind="text"),
    ]


def scaled(row: Row) -> tuple[Estimate | None, str, float]:
    """Return a row's figure, the name of the unit that suits it, and the factor to that unit."""
    unit: Unit = "memory" if row.held_bytes else "time"
    found = value(row, unit)
    return found, *scale_of(unit, [found.value] if found else [])


def scale_of(unit: Unit, values: list[float]) -> tuple[str, float]:
    """Return the unit's name that suits the largest value, and the factor to it."""
    most = max(values, default=0.0)
    return next((name, factor) for limit, name, factor in SCALES[unit] if most < limit)


def chart(lesson: Lesson, rows: Rows) -> Markup | None:
    """Return bars with intervals, or lines over the lesson's axis; None where nothing was measured."""
    taken = [(row, found) for row in rows.measured() if (found := value(row, lesson.unit))]
    if not taken:
        return None
    name, scale = scale_of(lesson.unit, [found.value for _, found in taken])
    if lesson.axis:
        series: dict[str, list[tuple[float, float]]] = {}
        for row, found in taken:
            series.setdefault(formatting.clean(row.series), []).append((row.at or 0.0, found.value * scale))
        return Markup(plots.lines(series, {}, (lesson.title, lesson.axis, name)))  # noqa: S704 - escaped by matplotlib
    best = best_of([(row.against or row.name, found.value) for row, found in taken], lesson.unit)
    bars = []
    for row, found in taken:
        low, high = (found.low, found.high) if has_interval(row) else (found.value, found.value)
        whiskers = Estimate(found.value * scale, low * scale, high * scale)
        is_best = found.value == best.get(row.against or row.name)
        bars.append((formatting.clean(row.name), whiskers, shown(found.value, lesson.unit), is_best))
    return Markup(bar_charts.bars(bars, (lesson.title, name)))  # noqa: S704


def best_of(values: list[tuple[str, float]], unit: Unit) -> dict[str, float]:
    """Return the best value of every group of rows that are compared with each other, where there are two or more."""
    pick = max if unit in RATES else min
    groups: dict[str, list[float]] = {}
    for group, found in values:
        groups.setdefault(group, []).append(found)
    return {group: pick(found) for group, found in groups.items() if len(found) > 1}
