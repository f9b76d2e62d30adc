"""One report of all jobs of a sweep: each job's figures, speed and latency over batch and size, the cost of a size."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from pipeline.analysis import sweeps
from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary
from pipeline.errors import per_cent, plural
from pipeline.records.data_words import IMAGES, Words, words_for_all
from pipeline.records.run_record import StageRecord
from pipeline.report import WORDS, csv_table, html, markdown
from pipeline.report.charts.plots import lines as lines_chart
from pipeline.report.formatting import NOTHING, clean, listed, method, milliseconds, remedy, seconds, significant
from pipeline.report.run_text import machine
from pipeline.report.sections.ladder import Headings, row_of, shown_in, stage_columns
from pipeline.report.tables import Cell, Column, Figure, Section, Table, explained, names, number, table_of

AXES: tuple[tuple[sweeps.Axis, str], ...] = (("batch", "batch size"), ("size", "{points} a side"))
MEASURES: tuple[tuple[sweeps.Measure, str], ...] = (("throughput", "{samples}/s"), ("latency", "p50 ms per call"))
MOST_CONTENDERS = 6  # named of the stages that can't be told apart
LONGER = "Measure longer, or on an idle machine"
SIZES_NOTE: str = WORDS["sweep"]["sizes_note"]


@dataclass(frozen=True)
class Entry:
    """One stage of one job, or a job without any."""

    job: sweeps.Job
    stage: StageSummary | None = None


def summaries(jobs: Sequence[sweeps.Job]) -> list[RunSummary]:
    """Return the summaries of the jobs that have one."""
    return [job.summary for job in jobs if job.summary]


def words_of(jobs: Sequence[sweeps.Job]) -> Words:
    """Return the words for the data of all jobs."""
    return words_for_all(summary.run.words for summary in summaries(jobs))


def _value(key: str, entry: Entry) -> str:
    """Return the value of a setting in a job."""
    if entry.job.summary is None or entry.stage is None:
        return NOTHING
    return clean(dict(sweeps.setting(entry.job.summary, entry.stage, [key])).get(key, NOTHING))


def summary_table(jobs: Sequence[sweeps.Job]) -> Table:
    """Return every stage of every job: the sweep's columns, and those of the ladder."""

    def batch(entry: Entry) -> int | None:
        return entry.job.summary.run.config.data.batch_size if entry.job.summary else None

    def size(entry: Entry) -> Cell:
        if entry.job.summary is None:
            return Cell(NOTHING)
        side = entry.job.summary.run.config.data.size
        return Cell(str(side or "own"), side)

    def status(entry: Entry) -> Cell:
        stage, summary = entry.stage, entry.job.summary
        if summary is None or stage is None:
            return Cell(clean(entry.job.reason), tone="bad")
        unfinished = "" if summary.run.finished else " (unfinished run)"
        reason = f": {clean(stage.stage.reason)}" if stage.status != "ok" and stage.stage.reason else ""
        return Cell(f"{stage.status}{unfinished}{reason}", stage.status, "" if stage.status == "ok" else "bad")

    tasks = {summary.run.config.task.name for summary in summaries(jobs)}
    words = words_of(jobs)
    named = Headings(task=tasks.pop(), words=words) if len(tasks) == 1 else Headings(words=words)
    besides: list[Column[Entry]] = [
        names("job", lambda entry: entry.job.name),
        Column("status", status, kind="text"),
        number("batch", batch, str),
        Column("size", size),
        *(names(clean(key), partial(_value, key)) for key in sweeps.swept_keys(summaries(jobs))),
    ]
    own = explained("sweep", besides, words)
    shown = shown_in("sweep", stage_columns(named))
    done = [Entry(job, stage) for job in jobs if job.summary for stage in job.summary.stages]
    rows = []
    for entry in (*done, *(Entry(job) for job in jobs if job.summary is None)):
        figures = row_of(shown, entry.stage) if entry.stage else [Cell(NOTHING)] * len(shown)
        rows.append([*(column.cell(entry) for column in own), *figures])
    return Table([*own, *shown], rows)


def curve_name(curve: sweeps.Curve, axis: sweeps.Axis) -> str:
    """Return the stage with the value of the other axis, and what else sets it apart."""
    other = f" at {curve.other or 'its own size'}" if axis == "batch" else f", batch {curve.other}"
    return clean(", ".join([f"{method(curve.stage)}{other}", *(f"{key} {value}" for key, value in curve.apart)]))


def knees(found: Sequence[sweeps.Curve], words: Words) -> Table:
    """Return for every curve of throughput over batch the least batch that gives 90 % of the most, where resolved."""

    def batch(curve: sweeps.Curve) -> Cell:
        at, rate = curve.knee
        share = per_cent(rate.value / curve.best.value)
        return Cell(f"{at:g} ({share})", at) if curve.knee_is_resolved else Cell("not resolved")

    shown: list[Column[sweeps.Curve]] = [
        names("curve", lambda curve: curve_name(curve, "batch")),
        Column(f"{per_cent(sweeps.KNEE_SHARE)} of its best from batch", batch),
        number(f"best {words.samples}/s", lambda curve: curve.best.value, significant),
    ]
    return table_of(shown, sorted(found, key=lambda curve: -curve.best.value))


def opening(jobs: Sequence[sweeps.Job]) -> list[str]:
    """Return what the sweep shows, in sentences."""
    missing = [job for job in jobs if job.summary is None]
    said = [f"{plural(len(jobs), 'job')}, {len(jobs) - len(missing)} with a record."]
    said += [f"Job {job.name} has no report: {clean(job.reason)}" for job in missing]
    devices = sorted({clean(machine(summary.run).device) for summary in summaries(jobs)})
    if devices:
        apart = " They are different machines: compare no times." if len(devices) > 1 else ""
        said.append(f"On {listed(devices)}.{apart}")
    lead = sweeps.lead_of(jobs)
    return said if lead is None or len(devices) > 1 else [*said, most_per_second(lead, words_of(jobs))]


def most_per_second(lead: sweeps.Lead, words: Words) -> str:
    """Return which stage gives the most samples per second, or which can't be told apart, and what to do."""
    rates = [lead.first, *sorted(lead.contenders, key=lambda rate: -rate.found.value)]
    places = [f"{method(rate.stage)} at batch {rate.batch} (job {rate.job})" for rate in rates]
    figures = [significant(rate.found.value) for rate in rates]
    if not lead.contenders and lead.cause is None:
        return f"Most {words.samples} per second: {places[0]}, {figures[0]}."
    shown = [f"{place} ({rate})" for place, rate in zip(places, figures, strict=True)]
    shown[MOST_CONTENDERS:] = [f"{len(rates) - MOST_CONTENDERS} more"] if len(rates) > MOST_CONTENDERS else []
    longer = f"{remedy(lead.cause)} To measure longer" if lead.cause else LONGER
    which = f"{listed(shown)} can't be told apart"
    if not lead.contenders:
        which = f"{shown[0]} is the highest, and not shown to be"
    unnamed = f"Which gives the most {words.samples} per second isn't resolved: {which}."
    return f"{unnamed} {longer}: {clean(lead.measure_again)}"


SizeEntry = tuple[str, sweeps.Point]  # a line's name and one of its points


def sizes(runs: list[RunSummary], words: Words = IMAGES) -> Section | None:
    """Return what each size costs, and for how many calls padding pays; None where no stage met two sizes."""
    found = sweeps.lines(runs)
    if not found:
        return None
    entries = [(label(line), point) for line in found for point in line.points]
    sentences = [text for line in found for text in padding_texts(line)]

    def warm(entry: SizeEntry) -> float | None:
        return entry[1].warm.value if entry[1].warm else None

    def status(entry: SizeEntry) -> Cell:
        point = entry[1]
        unsteady = "" if point.steady else ", unsteady"
        return Cell(f"{point.status}{unsteady}", point.status, "" if point.status == "ok" else "bad")

    shown: list[Column[SizeEntry]] = [
        names("stage", lambda entry: entry[0]),
        number("size", lambda entry: entry[1].size, str),
        number("batch", lambda entry: entry[1].batch, str),
        number("cold s", lambda entry: entry[1].cold_seconds, significant),
        number("warm ms", warm, milliseconds),
        number(f"warm ms/{words.sample}", lambda of: (warm(of) or 0.0) / of[1].batch or None, milliseconds),
        number("recompiles", lambda entry: entry[1].recompiles, str),
        names("searches", lambda entry: searches_text(entry[1].stage)),
        Column("status", status, kind="text"),
    ]
    table = table_of(explained("sweep", shown, words), entries)
    return Section("sizes", "Sizes", note=words.put_into(SIZES_NOTE), sentences=sentences, table=table)


def label(line: sweeps.Line) -> str:
    """Return the stage's name, with what sets it apart from others of the same name."""
    return clean(", ".join([method(line.name), *(f"{key} {value}" for key, value in line.apart)]))


def searches_text(stage: StageRecord) -> str:
    """Return each search for the fastest algorithm with its count, then those that were asked for and have none."""
    counts = stage.explained.searches
    said = []
    for each in counts:
        unit = each.unit.removesuffix("s") if each.count == 1 else each.unit
        who = f"{each.searcher}{f', {each.method}' if each.method else ''}"
        said.append(f"{who}: {each.count:,} {unit}{' timed' if each.unit == 'candidates' else ''}")
    counted = {each.searcher for each in counts}
    tiles = stage.compile_facts.candidates_measured if stage.compile_facts else None
    if tiles is not None and "own kernels" not in counted:
        said.append(f"{tiles} candidates timed")
    for asked in stage.searches_asked:
        if asked.searcher not in counted:
            own = f"{asked.searcher} times its own" if asked.searcher in ("cuDNN", "Inductor") else asked.searcher
            said.append(f"cuDNN, {asked.method}" if asked.method else own)
    return clean(", ".join(said)) or "none on record"


def padding_texts(line: sweeps.Line) -> list[str]:
    """Return a sentence for each size and the next larger one, and one for all sizes padded to the largest."""
    points = [point for point in line.points if point.warm and point.cold_seconds is not None]
    name = label(line)
    if len(points) < 2:
        return [f"{name}: fewer than two sizes were measured, so nothing is known of padding."]
    if max(point.cold_seconds or 0.0 for point in points[:-1]) < sweeps.LEAST_COLD_SECONDS:
        return [f"{name}: no gain from padding, as no size takes {seconds(sweeps.LEAST_COLD_SECONDS)} to set up."]
    pairs = [([small], large) for small, large in pairwise(points)]  # and at last all sizes padded to the largest
    said = []
    for small, large in [*pairs, *([(points[:-1], points[-1])] if len(points) > 2 else [])]:
        padded = f"all {len(points)} sizes" if len(small) > 1 else str(small[0].size)
        said.append(f"{name}: padding {padded} to {large.size} {effect(sweeps.padding(small, large))}")
    return said


def effect(found: sweeps.Padding) -> str:
    """Return text such as "saves 41 s of set-up and costs 1.9 ms per call: it pays for fewer than 21,600 calls."."""
    rough = listed([str(point.size) for point in (*found.small, found.bucket) if not point.steady])
    figures = {
        "saved": seconds(found.saved_seconds),
        "each": seconds(abs(found.extra.value)),
        "most": seconds(found.extra.high),
        "mean": " on average, if all sizes come equally often" if len(found.small) > 1 else "",
        "calls": significant(found.calls) if found.calls > 100 else math.ceil(found.calls),
        "rough": f" This is a rough figure: times had not settled at {rough}." if rough else "",
    }
    text: str = WORDS["sweep"]["effects"][found.outcome]
    return text.format(**figures, longer=LONGER)


def sweep_texts(jobs: Sequence[sweeps.Job]) -> tuple[str, str]:
    """Return the sweep's report as one HTML file, and as Markdown."""
    reports, words = [job.name for job in jobs if job.summary], words_of(jobs)
    told = {"opening": opening(jobs), "sizes": sizes(summaries(jobs), words), "jobs": summary_table(jobs)}
    figures = []  # throughput and latency over batch and over size, where the sweep varied them
    for axis, x_named in AXES:
        for measure, y_named in MEASURES:
            found = sweeps.curves(jobs, axis, measure)
            if not found:
                continue
            x_label, y_label = words.put_into(x_named), words.put_into(y_named)
            has_knees = (axis, measure) == ("batch", "throughput")
            points = {curve_name(curve, axis): [(x, y.value) for x, y in curve.points] for curve in found}
            ringed = [curve for curve in found if has_knees and curve.knee_is_resolved]
            marked = {curve_name(curve, axis): (curve.knee[0], curve.knee[1].value) for curve in ringed}
            title = f"{measure.capitalize()} against {x_label}"
            draw = partial(lines_chart, points, marked, (title, x_label, y_label))
            note = "Ringed: the least batch that gives 90 % of the most." if ringed else ""
            figures.append(Figure(title, draw, note, knees(found, words) if has_knees else None))
    page = html.environment().get_template("sweep.html.j2").render(told, figures=figures, reports=reports)
    return page, markdown.environment().get_template("sweep.md.j2").render(told)


def sweep_csv(jobs: Sequence[sweeps.Job]) -> str:
    """Return the tables of all jobs, one below the other, each line with its job, its size and what else was varied."""
    rows: list[list[object]] = []
    keys = sweeps.swept_keys(summaries(jobs))
    for job in jobs:
        if job.summary:
            header, *lines = csv_table.rows(job.summary)
            rows = rows or [["job", "size", *keys, *header]]
            size = job.summary.run.config.data.size
            for stage, line in zip(job.summary.stages, lines, strict=True):
                entry = Entry(job, stage)
                rows.append([job.name, size, *(_value(key, entry) for key in keys), *line])
    return csv_table.written(rows)
