"""One report of all jobs of a sweep: what each gave, and how speed and latency go with batch and size."""

import csv
import io
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from pipeline.analysis import size_sweep as shapes
from pipeline.analysis.summary import Digest, Row, digest
from pipeline.records import codec
from pipeline.records.run_record import RunRecord
from pipeline.report import formatting as words
from pipeline.report.charts import bars as charts
from pipeline.report.csv_table import csv_text
from pipeline.report.figure import Figure
from pipeline.report.first_screen import machine
from pipeline.report.html import environment
from pipeline.report.markdown import escape, table
from pipeline.report.sections.ladder_section import Cell, Table, peak_bytes

KNEE_SHARE = 0.90  # of the best throughput: the least batch that reaches it is the knee


@dataclass(frozen=True)
class Job:
    """One job of a sweep: its record's digest, or why there is none."""

    name: str
    found: Digest | None
    reason: str


def job_folders(folder: Path) -> list[Path]:
    """The folders of a sweep's jobs, by number."""
    found = [path for path in folder.iterdir() if path.is_dir() and path.name.isdigit()] if folder.is_dir() else []
    return sorted(found, key=lambda path: int(path.name))


def read_jobs(folder: Path) -> list[Job]:
    """All jobs; one that left no record says so."""
    jobs = []
    for path in job_folders(folder):
        if not (path / "results.json").exists():
            jobs.append(Job(path.name, None, "it left no record"))
            continue
        try:
            run = codec.load(path)
        except codec.RecordError as error:
            jobs.append(Job(path.name, None, words.clean(str(error).replace(str(folder), "."))))
            continue
        refused = next((part.text for part in run.warnings if part.name == "refused"), "")
        jobs.append(Job(path.name, None if refused else digest(run), refused))
    return jobs


def summary(jobs: list[Job]) -> Table:
    """Every stage of every job."""
    titles = [
        ("job", "folder"), ("stage", ""), ("batch", "images per call"), ("size", "pixels a side"), ("status", ""),
        ("×", "to the job's own baseline"), ("95 % interval", ""), ("word", ""), ("images/s", ""), ("p50 ms", ""),
        ("p99 ms", ""), ("memory", "peak"), ("set-up", "build and first call"),
    ]  # fmt: skip
    rows = [_cells(job, job.found, row) for job in jobs if job.found for row in job.found.rows]
    blank = [Cell(words.NOTHING)] * (len(titles) - 5)
    empty = [Cell("")] * 3
    missing = [job for job in jobs if job.found is None]
    rows += [[Cell(job.name, job.name), *empty, Cell(job.reason, tone="bad"), *blank] for job in missing]
    return Table(titles, rows)


def _cells(job: Job, found: Digest, row: Row) -> list[Cell]:
    shown, rate, quick = row.ratio if row.ranked else None, row.images_per_second, row.latency
    unfinished = "" if found.run.finished else " (unfinished run)"
    reason = f": {words.clean(row.stage.reason)}" if row.status != "ok" and row.stage.reason else ""
    peak = peak_bytes(row)
    return [
        Cell(job.name, job.name),
        Cell(words.clean(row.name), words.clean(row.name)),
        Cell(str(found.run.batch_size), found.run.batch_size),
        Cell(str(_size(found.run) or "own"), _size(found.run)),
        Cell(f"{row.status}{unfinished}{reason}", row.status, "" if row.status == "ok" else "bad"),
        Cell(words.times(shown), shown.value if shown else None),
        Cell(words.interval(shown), shown.low if shown else None),
        Cell(row.word or "", row.word or ""),
        Cell(words.significant(rate) if rate else words.NOTHING, rate),
        Cell(words.milliseconds(quick.p50 if quick else None), quick.p50 if quick else None),
        Cell(words.milliseconds(quick.p99 if quick else None), quick.p99 if quick else None),
        Cell(words.size(peak), peak),
        Cell(words.seconds(row.setup_seconds), row.setup_seconds),
    ]


def _size(run: RunRecord) -> int | None:
    size = (run.config.get("data") or {}).get("size")
    return int(size) if isinstance(size, int) else None


Series = dict[str, list[tuple[float, float]]]


def series(jobs: list[Job], axis: str, figure: str) -> Series:
    """Points of every ranked stage over "batch" or "size"; lines with one point are no lines.

    Jobs that differ in the other axis are lines of their own.
    """
    lines: Series = {}
    for job in jobs:
        for row in job.found.rows if job.found else []:
            assert job.found
            batch, size = job.found.run.batch_size, _size(job.found.run)
            x, other = (batch, f" at {size}") if axis == "batch" else (size, f", batch {batch}")
            y = row.images_per_second if figure == "throughput" and row.images_per_second else None
            y = 1e3 * row.latency.p50 if figure == "latency" and row.latency else y
            if row.ranked and x is not None and y is not None:
                lines.setdefault(f"{words.clean(row.name)}{other}", []).append((float(x), y))
    return {name: sorted(points) for name, points in lines.items() if len({x for x, _ in points}) > 1}


def knees(lines: Series) -> list[str]:
    """For every line of throughput over batch: the least batch that gives 90 % of the most."""
    found = []
    for name, points in lines.items():
        batch, rate = _knee_of(points)
        most = max(y for _, y in points)
        found.append(
            f"{name}: batch {batch:g} gives {rate / most:.0%} of its best, {words.significant(most)} images/s."
        )
    return found


def sweep_figures(jobs: list[Job]) -> list[Figure]:
    """Throughput and latency over batch and over size, where the sweep varied them."""
    figures = []
    for axis, x_label in (("batch", "batch size"), ("size", "pixels a side")):
        for figure, y_label in (("throughput", "images/s"), ("latency", "p50 ms a call")):
            lines = series(jobs, axis, figure)
            if not lines:
                continue
            knee = knees(lines) if (axis, figure) == ("batch", "throughput") else []
            marked = {name: _knee_of(points) for name, points in lines.items()} if knee else {}
            title = f"{figure.capitalize()} against {x_label}"
            svg = charts.lines(lines, marked, (title, x_label, y_label))
            figures.append(Figure(title, Markup(svg), " ".join(knee)))  # noqa: S704 - escaped by matplotlib
    return figures


def _knee_of(points: list[tuple[float, float]]) -> tuple[float, float]:
    most = max(y for _, y in points)
    return next(point for point in points if point[1] >= KNEE_SHARE * most)


def opening(jobs: list[Job]) -> list[str]:
    """What the sweep says, in sentences."""
    missing = [job for job in jobs if job.found is None]
    lines = [f"{words.plural(len(jobs), 'job')}, {len(jobs) - len(missing)} with a record."]
    lines += [f"Job {job.name} gave none: {job.reason}" for job in missing]
    runs = [job.found.run for job in jobs if job.found]
    if names := sorted({words.clean(machine(run).device) for run in runs}):
        lines.append(
            f"On {words.listed(names)}." + (" They are different machines: compare no times." if len(names) > 1 else "")
        )
    rates = [
        (row.images_per_second, row, job)
        for job in jobs
        if job.found
        for row in job.found.rows
        if row.ranked and row.images_per_second
    ]
    if rates:
        rate, row, job = max(rates, key=lambda part: part[0])
        assert job.found
        where = f"batch {job.found.run.batch_size} (job {job.name})"
        lines.append(f"Most images a second: {row.name} at {where}, {words.significant(rate)}.")
    return lines


def sizes(jobs: list[Job]) -> shapes.Section | None:
    """What each size costs, where the sweep varied it."""
    return shapes.section([job.found for job in jobs if job.found])


def sweep_page(jobs: list[Job]) -> str:
    """The sweep's report as one HTML file."""
    reports = [job.name for job in jobs if job.found]
    return environment().get_template("sweep.html.j2").render(
        opening=opening(jobs), figures=sweep_figures(jobs), shapes=sizes(jobs), summary=summary(jobs), reports=reports
    )  # fmt: skip


def sweep_markdown(jobs: list[Job]) -> str:
    """The sweep's report as Markdown."""
    lines = ["# A sweep", "", *(f"- {escape(line)}" for line in opening(jobs)), ""]
    if found := sizes(jobs):
        lines += ["## Shapes", "", escape(found.note), "", *(f"- {escape(text)}" for text in found.sentences), ""]
        lines += [*table(found.table), "", "## All jobs", ""]
    lines += [*table(summary(jobs)), ""]
    return "\n".join(lines)


def sweep_csv(jobs: list[Job]) -> str:
    """The tables of all jobs, one below the other, each line with its job and the shape of its images."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for job in jobs:
        if job.found:
            head, *rows = csv.reader(io.StringIO(csv_text(job.found.run)))
            if not out.tell():
                writer.writerow(["job", "size", *head])
            writer.writerows([job.name, _size(job.found.run), *row] for row in rows)
    return out.getvalue()
