"""The first screen on a terminal, in 80 columns; colours only where rich finds a terminal."""

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary
from pipeline.errors import plural
from pipeline.records.run_record import RunRecord, StageRecord
from pipeline.report import answer, large_numbers, run_text
from pipeline.report.formatting import clean, interval, listed, prose, seconds, times
from pipeline.report.sections.ladder_section import StageColumn, headings_of, shown_in, stage_columns
from pipeline.report.tables import Cell
from pipeline.report.usage import usage
from pipeline.stats.intervals import seconds_per_call, steady_ratio
from pipeline.stats.ranking import noise_and_ratios, rankable

COLOURS = {"good": "green", "bad": "red"}
WIDTH = 80
MOST_WARNINGS = 2  # of the winner on the first screen; the report has all
MOST_UNWELL = 4  # lines of their own
MOST_ROWS = 16  # of the ladder, with which the first screen keeps to 40 lines


class Whole:
    """A table in its own width: a narrower terminal wraps its lines, where rich would leave its last columns out."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """As rich asks a renderable for its parts."""
        yield from console.render(self.table, options.update(width=WIDTH - 1))


def first_screen(summary: RunSummary) -> RenderableType:
    """The answer in a few lines, what to beware of, and the ladder."""
    where = run_text.machine(summary.run)
    parts: list[RenderableType] = [
        Text(""),
        Text(f"{clean(where.device)}: {clean(where.shape)}, {clean(where.preset)}"),
    ]
    if note := run_text.state(summary.run):
        parts.append(Text(note, style="bold yellow"))
    parts += [Text(""), Text(clean(answer.headline(summary)), style="bold")]
    parts += [
        _indented(line)
        for line in (*numbers(summary), *answer.paragraph(summary), answer.longer(summary), *_use(summary))
        if line
    ]
    parts += [Text(""), *_warnings(summary), Whole(ladder(summary))]
    return Group(*parts, *_unwell(summary))


def _unwell(summary: RunSummary) -> list[RenderableType]:
    """Who can't be ranked, and why; of many the failures with their reasons, and the names of the skipped."""
    if len(every := run_text.unwell(summary)) <= MOST_UNWELL:
        return [_shortened(line) for line in every]
    faults = run_text.faults(summary)
    lines: list[RenderableType] = [_shortened(line) for line in faults[:MOST_UNWELL]]
    if len(faults) > MOST_UNWELL:
        lines.append(Text(f"and {len(faults) - MOST_UNWELL} more that can't be ranked, in the report"))
    absent = [clean(stage.name) for stage in summary.stages if stage.status == "skipped"]
    return [*lines, *([Text(f"skipped: {listed(absent)}; the report says why")] if absent else [])]


def numbers(summary: RunSummary) -> list[str]:
    """The large numbers, each with its comparison, in a line or two."""
    found = [
        f"{number.value} {number.label}{f'; {number.note}' if number.note else ''}"
        for number in large_numbers.numbers(summary)
    ]
    return [f"{line}." for line in (found[1:] if answer.speed_is_told(summary) else found)]


def _use(summary: RunSummary) -> list[str]:
    """Where the winner's file is, or that the report has the lines."""
    if not answer.resolved(summary) or summary.winner is None:
        return []
    path = usage(summary, summary.winner).path
    lead = f"To use it: {path}, and the lines in the report." if path else "To use it: the lines in the report."
    return [f"{lead} To check it: check.py."]


def outcome_line(run: RunRecord, stage: StageRecord) -> str:
    """The outcome of a stage as one line of progress; `run` is what is on record so far."""
    name, reason = stage.name, clean(stage.reason)
    if not stage.usable:
        return f"{name}: {stage.status}{': ' + reason if reason else ''}"
    each = seconds(seconds_per_call(stage.pairs).value)
    if not rankable(stage):
        return f"{name}: not ranked, {each} per call; the report says why"
    noise, _ = noise_and_ratios(run)
    found = steady_ratio(stage.pairs, noise.spread)
    return f"{name}: {times(found)} {interval(found)} {run.baseline}, {noise.outcome(found)}; {each} per call"


def ladder(summary: RunSummary) -> Table:
    """The rungs in order; where they are many without those that were skipped, which are named below."""
    columns = shown_in("terminal", stage_columns(headings_of(summary)))
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), width=WIDTH - 1)
    for column in columns:
        title = column.heading if column.short is None else column.short
        if column.kind == "text":
            table.add_column(title, overflow="fold", min_width=15 if title else None)
        else:
            table.add_column(title, justify="right", no_wrap=True)
    many = len(summary.stages) > MOST_ROWS
    for stage in (stage for stage in summary.stages if not (many and stage.status == "skipped")):
        table.add_row(*(_text(stage, column, column.cell(stage)) for column in columns))
    return table


def _text(stage: StageSummary, column: StageColumn, cell: Cell) -> Text:
    if column.kind == "text":
        lead = "" if stage.place or column.csv != "stage" else "  "  # where the others have their mark
        bold = "bold" if stage.place == "winner" and column.csv == "stage" else ""
        return Text(lead + cell.text.replace("\u00a0", " "), style=COLOURS.get(cell.tone, bold))
    return Text(cell.text.removesuffix(" ×"))


def _warnings(summary: RunSummary) -> list[RenderableType]:
    """The winner's own; how many others there are."""
    own = summary.winner.warnings if summary.winner else []
    lines: list[RenderableType] = [
        Text(clean(f"! {warning.code}: {prose(warning.text)}"), style="yellow") for warning in own[:MOST_WARNINGS]
    ]
    others = len(run_text.all_warnings(summary)) - len(own[:MOST_WARNINGS])
    if others > 0:
        lines.append(Text(f"! {plural(others, 'warning')}{' more' if own else ''}, in the report", style="yellow"))
    return [*lines, Text("")] if lines else []


def _shortened(line: str) -> Text:
    return Text(clean(line), no_wrap=True, overflow="ellipsis")


def _indented(text: str) -> Padding:
    return Padding(Text(clean(text)), (0, 0, 0, 2))
