"""The first screen on a terminal, in 80 columns; colours only where rich finds a terminal."""

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pipeline.analysis.summary import RunSummary, StageSummary
from pipeline.records.run_record import RunRecord, StageRecord
from pipeline.report import first_screen as sentences
from pipeline.report.formatting import clean, interval, plural, seconds, times
from pipeline.report.sections.ladder_section import StageColumn, headings_of, shown_in, stage_columns
from pipeline.report.sections.recommendation_section import advice
from pipeline.report.tables import Cell
from pipeline.stats.intervals import between_run_std, minimum_detectable_effect, outcome_of, ratio, seconds_per_call
from pipeline.stats.ranking import rankable

COLOURS = {"good": "green", "bad": "red"}
WIDTH = 80
MOST_ADVICE = 3
MOST_WARNINGS = 4  # on the first screen; the report has all


def first_screen(summary: RunSummary) -> RenderableType:
    """The answer, then the ladder."""
    where = sentences.machine(summary.run)
    parts: list[RenderableType] = [Text(""), Text(clean(where.device), style="bold")]
    parts += [Text(clean(line)) for line in (where.shape, where.preset)]
    if note := sentences.state(summary.run):
        parts.append(Text(note, style="bold yellow"))
    parts.append(Text(""))
    for question, answer in sentences.answers(summary):
        parts += [Text(question, style="bold"), _indented(answer)]
    parts += [Text(""), ladder(summary)]
    parts += [_indented(line) for line in sentences.unwell(summary)]
    parts += _next(summary)
    parts += [Text(""), *_warnings(summary), Text(sentences.trust(summary))]
    return Group(*parts)


def outcome_line(run: RunRecord, stage: StageRecord) -> str:
    """The outcome of a stage as one line of progress; `run` is what is on record so far."""
    name, reason = stage.name, clean(stage.reason)
    if not stage.usable:
        return f"{name}: {stage.status}{': ' + reason if reason else ''}"
    each = seconds(seconds_per_call(stage.pairs).value)
    if not rankable(stage):
        return f"{name}: not ranked, {each} per call; the report says why"
    found = ratio(stage.pairs, between_run_std(run.aa_pairs))
    outcome = outcome_of(found, minimum_detectable_effect(run.aa_pairs))
    return f"{name}: {times(found)} {interval(found)} {run.baseline}, {outcome}; {each} per call"


def ladder(summary: RunSummary) -> Table:
    """The rungs in order."""
    columns = shown_in("terminal", stage_columns(headings_of(summary)))
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), width=WIDTH - 1)
    for column in columns:
        title = column.heading if column.short is None else column.short
        if column.kind == "text":
            table.add_column(title, overflow="fold", min_width=15 if title else None)
        else:
            table.add_column(title, justify="right", no_wrap=True)
    for stage in summary.stages:
        table.add_row(*(_text(stage, column, column.cell(stage)) for column in columns))
    return table


def _text(stage: StageSummary, column: StageColumn, cell: Cell) -> Text:
    if column.kind == "text":
        lead = "" if stage.place or column.csv != "stage" else "  "  # where the others have their mark
        bold = "bold" if stage.place == "winner" and column.csv == "stage" else ""
        return Text(lead + cell.text.replace("\u00a0", " "), style=COLOURS.get(cell.tone, bold))
    return Text(cell.text.removesuffix(" ×"))


def _warnings(summary: RunSummary) -> list[RenderableType]:
    every = sentences.all_warnings(summary)
    lines: list[RenderableType] = [
        Text(clean(f"! {who}: {warning.code}: {warning.text}"), style="yellow")
        for who, warning in every[:MOST_WARNINGS]
    ]
    if len(every) > MOST_WARNINGS:
        lines.append(Text(f"! and {plural(len(every) - MOST_WARNINGS, 'warning')} more, in the report"))
    return lines


def _next(summary: RunSummary) -> list[RenderableType]:
    """The first pieces of advice, each with its command on lines of its own, to be copied."""
    lines: list[RenderableType] = []
    for number, tip in enumerate(advice(summary)[:MOST_ADVICE], 1):
        lines += [_indented(f"{number}. {tip.line}"), _indented(f"   {tip.attempt}")]
    return [Text(""), Text("What to try next", style="bold"), *lines] if lines else []


def _indented(text: str) -> Padding:
    return Padding(Text(clean(text)), (0, 0, 0, 2))
