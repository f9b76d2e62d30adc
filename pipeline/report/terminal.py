"""The first screen on a terminal, in 80 columns; colours only where rich finds a terminal."""

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary
from pipeline.errors import plural
from pipeline.records.run_record import RunRecord, StageRecord
from pipeline.report import answer, run_text
from pipeline.report.formatting import clean, interval, listed, method, prose, seconds, times
from pipeline.report.sections.ladder import StageColumn, by_time, headings_of, shown_in, stage_columns
from pipeline.report.usage import usage
from pipeline.stats.intervals import seconds_per_call, steady_ratio
from pipeline.stats.ranking import noise_and_ratios, rankable
from pipeline.stats.warnings import GRAVITY

COLOURS = {"good": "green", "bad": "red"}
WIDTH = 80
MOST_WARNINGS = 1  # of the run and its winner on the first screen, the gravest; the report has all
MOST_UNWELL = 4  # lines of their own


class Whole:
    """A table in its own width: a narrower terminal wraps its lines, where rich would leave its last columns out."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the parts that rich asks for."""
        yield from console.render(self.table, options.update(width=WIDTH - 1))


def first_screen(summary: RunSummary) -> RenderableType:
    """Return the answer in a few lines, the gravest warning with the count of others, and the ladder."""
    where = run_text.machine(summary.run)
    parts: list[RenderableType] = [Text(""), Text(clean(f"{where.device}: {where.shape}, {where.preset}"))]
    if note := run_text.state(summary.run):
        parts.append(Text(note, style="bold yellow"))
    parts += [Text(""), Text(clean(answer.headline(summary)), style="bold")]
    numbers = answer.numbers(summary)[1 if answer.speed_is_told(summary) else 0 :]
    large = [f"{number.value} {number.label}{f'; {number.note}' if number.note else ''}." for number in numbers]
    parts += [_indented(line) for line in (*large, *answer.paragraph(summary))]
    if command := answer.longer(summary):  # in one line, however long, so that it can be copied
        parts.append(Text(f"  {clean(command)}", no_wrap=True, overflow="ignore"))
    if summary.winner and answer.resolved(summary):
        path = usage(summary, summary.winner).path
        use = f"To use it: {f'{path} and ' if path else ''}the report's lines; check.py times it."
        parts.append(_indented(use))
    own = [*summary.warnings, *(summary.winner.warnings if summary.winner else [])]
    own = sorted(own, key=lambda warning: GRAVITY.index(warning.code))[:MOST_WARNINGS]
    warned = [clean(f"! {warning.code}: {prose(warning.text)}") for warning in own]
    others = len(run_text.all_warnings(summary)) - len(own)
    if others > 0:
        warned.append(f"! {plural(others, 'warning')}{' more' if own else ''}, in the report")
    parts += [Text(""), *(Text(line, style="yellow") for line in warned), *([Text("")] if warned else [])]
    return Group(*parts, Whole(ladder(summary)), *_unwell(summary))


def _indented(line: str) -> Padding:
    return Padding(Text(clean(line)), (0, 0, 0, 2))


def _unwell(summary: RunSummary) -> list[RenderableType]:
    """Return which stages can't be ranked, and why; of many the failures with reasons, and the skipped by name."""
    faults = run_text.faults(summary)
    shown = faults[:MOST_UNWELL]
    lines: list[RenderableType] = [Text(clean(line)) for line in shown]
    if len(faults) > MOST_UNWELL:
        lines.append(Text(f"and {len(faults) - MOST_UNWELL} more that can't be ranked, in the report"))
    absent = [stage for stage in summary.stages if stage.status == "skipped"]
    if len(absent) > MOST_UNWELL:
        lines.append(Text(f"skipped: {listed([clean(stage.name) for stage in absent])}; the report says why"))
    elif absent:
        lines.append(Text(f"skipped: {run_text.skipped(summary)}"))
    return lines


def outcome_line(run: RunRecord, stage: StageRecord) -> str:
    """Return the outcome of a stage as one line of progress; `run` is what is on record so far."""
    name, reason = stage.name, clean(stage.reason)
    if not stage.usable:
        return f"{name}: {stage.status}{': ' + reason if reason else ''}"
    each = seconds(seconds_per_call(stage.pairs).value)
    if not rankable(stage):
        return f"{name}: not ranked, {each} per call; the report says why"
    noise, _ = noise_and_ratios(run)
    found = steady_ratio(stage.pairs, noise.spread)
    return f"{name}: {times(found)} {run.baseline} {interval(found)}, {noise.outcome(found)}; {each} per call"


def ladder(summary: RunSummary) -> Table:
    """Return the stages that were tried, fastest first; the skipped ones are named below."""
    columns = shown_in("terminal", stage_columns(headings_of(summary)))
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), width=WIDTH - 1)
    for column in columns:
        title = column.title if column.short is None else column.short
        if column.kind == "text":
            table.add_column(title, overflow="fold", min_width=15 if title else None)
        else:
            table.add_column(title, justify="right", no_wrap=True)
    for stage in by_time(summary):
        table.add_row(*(_text(stage, column) for column in columns))
    return table


def _text(stage: StageSummary, column: StageColumn) -> Text:
    cell = column.cell(stage)
    if column.kind == "number":
        return Text(cell.text.removesuffix(" ×"))
    if column.csv != "stage":
        return Text(cell.text, style=COLOURS.get(cell.tone, ""))
    lead = "" if stage.place else "  "  # where the others have their mark
    shown = cell.text.replace(method(stage.name), clean(stage.name)).replace("\u00a0", " ")
    return Text(lead + shown, style="bold" if stage.place == "winner" else "")
