"""lessons.html and lessons.md out of lessons.json."""

from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from pipeline.errors import plural
from pipeline.lessons.claims import Claim, Judged, judged_all
from pipeline.lessons.contents import EXPERIMENTS
from pipeline.lessons.contents import lesson_of as known_lesson
from pipeline.lessons.lesson import Lesson
from pipeline.lessons.lesson_records import LessonRecord, LessonsRecord, Row
from pipeline.lessons.rows import Rows, Unit, amount, has_interval, shown, value
from pipeline.records.run_record import Environment
from pipeline.report import formatting
from pipeline.report.charts import bars as bar_charts
from pipeline.report.charts import plots
from pipeline.report.html import environment
from pipeline.report.markdown import escape
from pipeline.report.markdown import table as markdown_table
from pipeline.report.tables import Cell, Heading, Table
from pipeline.stats.intervals import Estimate

TONES = {"right": "good", "wrong": "bad", "depends": "", "unknown": "quiet"}
CHART_UNITS: dict[Unit, list[tuple[float, str]]] = {
    "time": [(1e-3, "µs"), (1, "ms"), (float("inf"), "s")],
    "memory": [(float("inf"), "MiB")],
    "TFLOP/s": [(float("inf"), "TFLOP/s")],
    "GB/s": [(float("inf"), "GB/s")],
}
SCALE = {"µs": 1e6, "ms": 1e3, "s": 1.0, "MiB": 1 / 2**20, "TFLOP/s": 1.0, "GB/s": 1.0}


def draw(record: LessonsRecord, folder: Path) -> Path:
    """Write both files into the folder; the path of lessons.html."""
    (folder / "lessons.md").write_text(markdown(record), encoding="utf-8")
    path = folder / "lessons.html"
    path.write_text(page(record), encoding="utf-8")
    return path


def lesson_of(part: LessonRecord) -> Lesson | None:
    """Return the record's lesson; None where this version has none of that name."""
    return known_lesson(part.name) if part.name in EXPERIMENTS else None


@dataclass(frozen=True)
class Section:
    """One lesson as page and Markdown show it."""

    part: LessonRecord
    title: str
    how: str
    reason: str
    lead: str
    says: str
    claims: list[tuple[Claim, Judged]]
    chart: Markup | None
    table: Table | None


def sections(record: LessonsRecord) -> list[Section]:
    """Return every lesson, in the order in which they were held."""
    claims = judged_all(record)
    return [section(part, [pair for pair in claims if pair[0].lesson == part.name]) for part in record.lessons]


def section(part: LessonRecord, claims: list[tuple[Claim, Judged]]) -> Section:
    """Return one lesson; only the table of a lesson that this version doesn't have."""
    lesson, rows = lesson_of(part), Rows(part.rows)
    table = table_of(rows) if part.rows else None
    if lesson is None:
        unknown = "this version has no lesson of that name, and can't say what it showed"
        return Section(part, formatting.clean(part.name), "", unknown, "", "", claims, None, table)
    lead, says = lesson.lead(rows), " ".join(sentence for sentence in lesson.says(rows) if sentence)
    reason = part.reason.removeprefix(f"{part.outcome}: ")
    return Section(part, lesson.title, lesson.how, reason, lead, says, claims, chart(lesson, rows), table)


def page(record: LessonsRecord) -> str:
    """Return one file that needs no network; everything from the record is escaped."""
    return environment().get_template("lessons.html.j2").render(
        record=record,
        machine=machine(record.environment),
        sections=sections(record),
        claims=judged_all(record),
        sum=summary(record),
        tones=TONES,
    )  # fmt: skip


def summary(record: LessonsRecord) -> str:
    """Return how many claims are right here, wrong, and neither."""
    outcomes = [found.outcome for _, found in judged_all(record)]
    said = {"right": "right", "wrong": "wrong", "depends": "partly right", "unknown": "not told by this run"}
    return ", ".join(f"{outcomes.count(outcome)} {text}" for outcome, text in said.items() if outcome in outcomes)


def machine(found: Environment) -> str:
    """Return the device and the versions that count."""
    parts = [formatting.clean(found.device_name), f"torch {formatting.clean(found.packages.get('torch', 'unknown'))}"]
    if found.device == "cpu":
        parts.append(plural(found.cpu_threads, "thread"))
    parts += [f"{name} {formatting.clean(version)}" for name, version in
              (("CUDA", found.cuda), ("driver", found.driver)) if version]  # fmt: skip
    return " · ".join(parts)


def table_of(rows: Rows) -> Table:
    """Return every row; the columns that none fills are left out."""
    headings = [
        Heading("variant", kind="text"),
        Heading("value", "median; of one repeat, where a call repeats the work"),
        Heading("95 % interval", "of the median, by order statistics of the samples; none of fewer than six"),
        Heading("times as fast", "interleaved with the row that it is compared with, with a 95 % interval"),
        Heading("compared with"),
        Heading("TFLOP/s"),
        Heading("GB/s"),
        Heading("kernels per call"),
        Heading("bytes moved", "through memory or over the link"),
        Heading("first call", "which builds, or finds the build in the compiler's cache on disk"),
        Heading("note", kind="text"),
    ]
    return Table(headings, [cells(row, rows) for row in rows]).without_empty_columns


def cells(row: Row, rows: Rows) -> list[Cell]:
    """Return one row of the table."""
    unit: Unit = "memory" if row.held_bytes else "time"
    found = value(row, unit)
    name, scale = scale_of(unit, [found.value] if found else [])
    ratio = rows.times(row.against, row.name) if row.against else None
    moved = row.moved_bytes / row.repeats if row.moved_bytes is not None else None
    rates: list[Estimate | None] = [value(row, "TFLOP/s"), value(row, "GB/s")]
    return [
        Cell(formatting.clean(row.name), formatting.clean(row.name)),
        Cell(f"{formatting.significant(found.value * scale)} {name}" if found else formatting.NOTHING,
             found.value if found else None),
        Cell(between(found, scale, has_interval(row)) if found else "", found.high - found.low if found else None),
        Cell(amount(ratio) if ratio else "", ratio.value if ratio else None),
        Cell(formatting.clean(row.against) if ratio else ""),
        *(Cell(formatting.significant(rate.value) if rate else formatting.NOTHING, rate.value if rate else None)
          for rate in rates),
        Cell(f"{row.kernels:g}" if row.kernels is not None else formatting.NOTHING, row.kernels),
        Cell(formatting.size(moved), moved),
        Cell(formatting.seconds(row.built_seconds), row.built_seconds),
        Cell(formatting.clean(row.reason or row.note), tone="bad" if row.reason.startswith("failed") else "quiet"),
    ]  # fmt: skip


def between(found: Estimate, scale: float, bounded: bool) -> str:
    """Return the interval in the unit of its value; of extremes that are none, that."""
    if not bounded:
        return "(no interval)"
    return f"[{formatting.significant(found.low * scale)}, {formatting.significant(found.high * scale)}]"


def scale_of(unit: Unit, values: list[float]) -> tuple[str, float]:
    """Return the unit's name that suits the largest value, and the factor to it."""
    most = max(values, default=0.0)
    name = next(name for limit, name in CHART_UNITS[unit] if most < limit)
    return name, SCALE[name]


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
    bars = [
        (formatting.clean(row.name), whiskers(found, scale, has_interval(row)),
         shown(found.value, lesson.unit), found.value == best.get(row.against or row.name))
        for row, found in taken
    ]  # fmt: skip
    return Markup(bar_charts.bars(bars, (lesson.title, name)))  # noqa: S704


def whiskers(found: Estimate, scale: float, bounded: bool) -> Estimate:
    """Return a bar's value with the ends of its interval; without one both are the value."""
    middle = found.value * scale
    return Estimate(middle, found.low * scale, found.high * scale) if bounded else Estimate(middle, middle, middle)


def best_of(values: list[tuple[str, float]], unit: Unit) -> dict[str, float]:
    """Return the best value of every group of rows that are compared with each other, where there are two or more."""
    pick = max if unit in ("TFLOP/s", "GB/s") else min
    groups: dict[str, list[float]] = {}
    for group, found in values:
        groups.setdefault(group, []).append(found)
    return {group: pick(found) for group, found in groups.items() if len(found) > 1}


def markdown(record: LessonsRecord) -> str:
    """Return the same as Markdown, without charts."""
    lines = ["# Lessons", "", f"{escape(machine(record.environment))}, {escape(record.started_at)}.", ""]
    lines += ["| people say | here | outcome |", "| --- | --- | --- |"]
    lines += [f"| {escape(c.text)} | {escape(found.here)} | **{found.outcome}** |" for c, found in judged_all(record)]
    for section in sections(record):
        lines += section_lines(section)
    return "\n".join([*lines, ""])


def section_lines(section: Section) -> list[str]:
    """Return one lesson."""
    lines = ["", f"## {escape(section.title)}", "", escape(section.how)]
    if section.reason:
        lines += ["", f"**{section.part.outcome}**: {escape(section.reason)}"]
    lines += [text for part in (f"**{escape(section.lead)}**" if section.lead else "", escape(section.says))
              if part for text in ("", part)]  # fmt: skip
    lines += claim_lines(section.claims)
    if section.table is None:
        return lines
    return [
        *lines,
        "",
        "<details><summary>Every variant</summary>",
        "",
        *markdown_table(section.table),
        "",
        "</details>",
    ]


def claim_lines(claims: list[tuple[Claim, Judged]]) -> list[str]:
    """Return the claims of a lesson."""
    lines: list[str] = []
    for claim, found in claims:
        lines += ["", (f"People say: “{escape(claim.text)}” Here: {escape(found.here)}: **{found.outcome}**. "
                  f"{escape(claim.rule)}")]  # fmt: skip
    return lines
