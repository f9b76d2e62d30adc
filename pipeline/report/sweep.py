"""One report of all jobs of a sweep: what each gave, and how speed and latency go with batch and size."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary
from pipeline.analysis.sweeps import KNEE_SHARE, Axis, Curve, Job, Lead, Measure, Rate, curves, lead_of
from pipeline.errors import per_cent, plural
from pipeline.records.data_words import Words, words_for_all
from pipeline.report import csv_table
from pipeline.report.charts.curves import lines as lines_chart
from pipeline.report.figure import Figure, drawn
from pipeline.report.formatting import NOTHING, clean, listed, remedy, significant, spoken
from pipeline.report.html import environment
from pipeline.report.markdown import escape, table
from pipeline.report.run_text import machine
from pipeline.report.sections.ladder_section import Headings, row_of, shown_in, stage_columns
from pipeline.report.sections.size_sweep_section import SizeSection, section
from pipeline.report.tables import Cell, Column, Table, figure, heading_of, names

AXES: tuple[tuple[Axis, str], ...] = (("batch", "batch size"), ("size", "{points} a side"))
MEASURES: tuple[tuple[Measure, str], ...] = (("throughput", "{samples}/s"), ("latency", "p50 ms per call"))
MOST_CONTENDERS = 6  # named of the stages that can't be told apart
LONGER = "Measure longer, or on an idle machine"


@dataclass(frozen=True)
class Entry:
    """One stage of one job, or a job without any."""

    job: Job
    summary: RunSummary | None = None
    stage: StageSummary | None = None


def words_of(jobs: Sequence[Job]) -> Words:
    """The words for the data of all jobs."""
    return words_for_all(job.summary.run.words for job in jobs if job.summary)


def job_columns(words: Words) -> list[Column[Entry]]:
    """What a sweep knows of a line besides the stage's figures."""
    return [
        names("job", lambda entry: entry.job.name, "folder"),
        Column("status", cell=_status, kind="text"),
        Column("batch", help=f"{words.samples} per call", cell=figure(_batch, str)),
        Column("size", help=f"{words.points} a side", cell=_size),
    ]


def summary_table(jobs: Sequence[Job]) -> Table:
    """Every stage of every job: the sweep's columns, and those of the ladder."""
    tasks = {job.summary.run.config.task.name for job in jobs if job.summary}
    words = words_of(jobs)
    named = Headings(task=tasks.pop(), words=words) if len(tasks) == 1 else Headings(words=words)
    own, shown = job_columns(words), shown_in("sweep", stage_columns(named))
    headings = [*map(heading_of, own), *map(heading_of, shown)]
    done = [Entry(job, job.summary, stage) for job in jobs if job.summary for stage in job.summary.stages]
    missing = [Entry(job) for job in jobs if job.summary is None]
    rows = []
    for entry in (*done, *missing):
        figures = row_of(shown, entry.stage) if entry.stage else [Cell(NOTHING)] * len(shown)
        rows.append([*(column.cell(entry) for column in own), *figures])
    return Table(headings, rows)


def _status(entry: Entry) -> Cell:
    if entry.summary is None or entry.stage is None:
        return Cell(clean(entry.job.reason), tone="bad")
    stage, unfinished = entry.stage, "" if entry.summary.run.finished else " (unfinished run)"
    reason = f": {clean(stage.stage.reason)}" if stage.status != "ok" and stage.stage.reason else ""
    return Cell(f"{stage.status}{unfinished}{reason}", stage.status, "" if stage.status == "ok" else "bad")


def _batch(entry: Entry) -> int | None:
    return entry.summary.run.config.data.batch_size if entry.summary else None


def _size(entry: Entry) -> Cell:
    if entry.summary is None:
        return Cell(NOTHING)
    size = entry.summary.run.config.data.size
    return Cell(str(size or "own"), size)


def curve_name(curve: Curve, axis: Axis) -> str:
    """The stage with the value of the other axis."""
    other = f" at {curve.other}" if axis == "batch" else f", batch {curve.other}"
    return f"{clean(curve.stage)}{other}"


def knees(found: list[Curve], words: Words) -> list[str]:
    """For every curve of throughput over batch: the least batch that gives 90 % of the most, where that is resolved."""
    lines = []
    for curve in found:
        (batch, rate), name = curve.knee, curve_name(curve, "batch")
        most = max(y.value for _, y in curve.points)
        if curve.knee_is_resolved:
            best = f"{significant(most)} {words.samples}/s"
            lines.append(f"{name}: batch {batch:g} gives {per_cent(rate.value / most)} of its best, {best} (ringed).")
        else:
            lines.append(
                f"{name}: from which batch on it gives {per_cent(KNEE_SHARE)} of its best isn't resolved. {LONGER}."
            )
    return lines


def sweep_figures(jobs: Sequence[Job]) -> list[Figure]:
    """Throughput and latency over batch and over size, where the sweep varied them."""
    figures, words = [], words_of(jobs)
    for axis, x_named in AXES:
        for measure, y_named in MEASURES:
            found = curves(jobs, axis, measure)
            if not found:
                continue
            x_label, y_label = words.put_into(x_named), words.put_into(y_named)
            has_knees = (axis, measure) == ("batch", "throughput")
            points = {curve_name(curve, axis): [(x, y.value) for x, y in curve.points] for curve in found}
            ringed = [curve for curve in found if has_knees and curve.knee_is_resolved]
            marked = {curve_name(curve, axis): (curve.knee[0], curve.knee[1].value) for curve in ringed}
            title = f"{measure.capitalize()} against {x_label}"
            svg = lines_chart(points, marked, (title, x_label, y_label))
            figures.append(drawn(title, svg, " ".join(knees(found, words)) if has_knees else ""))
    return figures


def opening(jobs: Sequence[Job]) -> list[str]:
    """What the sweep shows, in sentences."""
    missing = [job for job in jobs if job.summary is None]
    lines = [f"{plural(len(jobs), 'job')}, {len(jobs) - len(missing)} with a record."]
    lines += [f"Job {job.name} has no report: {clean(job.reason)}" for job in missing]
    devices = sorted({clean(machine(job.summary.run).device) for job in jobs if job.summary})
    if devices:
        apart = " They are different machines: compare no times." if len(devices) > 1 else ""
        lines.append(f"On {listed(devices)}.{apart}")
    lead = lead_of(jobs)
    return lines if lead is None or len(devices) > 1 else [*lines, most_per_second(lead, words_of(jobs))]


def most_per_second(lead: Lead, words: Words) -> str:
    """Who gives the most samples per second; where that isn't resolved, who can't be told apart and what to do."""
    if lead.resolved:
        return f"Most {words.samples} per second: {_placed(lead.first)}, {significant(lead.first.found.value)}."
    rates = [lead.first, *sorted(lead.contenders, key=lambda rate: -rate.found.value)]
    shown = [f"{_placed(rate)} ({significant(rate.found.value)})" for rate in rates[:MOST_CONTENDERS]]
    shown += [f"{len(rates) - MOST_CONTENDERS} more"] if len(rates) > MOST_CONTENDERS else []
    remedied = f"{remedy(lead.cause)} To measure longer" if lead.cause else LONGER
    who = (
        f"{listed(shown)} can't be told apart" if lead.contenders else f"{shown[0]} is the highest, and not shown to be"
    )
    unnamed = f"Which gives the most {words.samples} per second isn't resolved: {who}."
    return f"{unnamed} {remedied}: {clean(lead.measure_again)}"


def _placed(rate: Rate) -> str:
    return f"{spoken(rate.stage)} at batch {rate.batch} (job {rate.job})"


def sizes(jobs: Sequence[Job]) -> SizeSection | None:
    """What each size costs, where the sweep varied it."""
    return section([job.summary for job in jobs if job.summary], words_of(jobs))


def sweep_page(jobs: Sequence[Job]) -> str:
    """The sweep's report as one HTML file."""
    reports = [job.name for job in jobs if job.summary]
    return environment().get_template("sweep.html.j2").render(
        opening=opening(jobs), figures=sweep_figures(jobs), sizes=sizes(jobs), jobs=summary_table(jobs), reports=reports
    )  # fmt: skip


def sweep_markdown(jobs: Sequence[Job]) -> str:
    """The sweep's report as Markdown."""
    lines = ["# A sweep", "", *(f"- {escape(line)}" for line in opening(jobs)), ""]
    if found := sizes(jobs):
        lines += ["## Sizes", "", escape(found.note), "", *(f"- {escape(text)}" for text in found.sentences), ""]
        lines += [*table(found.table), "", "## All jobs", ""]
    return "\n".join([*lines, *table(summary_table(jobs)), ""])


def sweep_csv(jobs: Sequence[Job]) -> str:
    """The tables of all jobs, one below the other, each line with its job and the size of its images."""
    rows: list[list[object]] = []
    for job in jobs:
        if job.summary is None:
            continue
        if not rows:
            rows.append(["job", "size", *csv_table.header(job.summary)])
        size = job.summary.run.config.data.size
        rows += [[job.name, size, *line] for line in csv_table.lines(job.summary)]
    return csv_table.written(rows)
