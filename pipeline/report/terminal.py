"""The first screen on a terminal, in 80 columns; colours only where rich finds a terminal."""

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pipeline.analysis.recommendations.rules import advice
from pipeline.analysis.summary import Digest, Row, digest
from pipeline.records.run_record import RunRecord, StageRecord
from pipeline.report import formatting as words
from pipeline.report.first_screen import all_cautions, machine, state, trust, unwell
from pipeline.report.sections import attribution_section as because
from pipeline.report.sections.ladder_section import peak_bytes
from pipeline.stats.intervals import between_run_std, minimum_detectable_effect, ratio, seconds_per_call, verdict
from pipeline.stats.ranking import rankable

COLOURS = {"faster": "green", "slower": "red", "failed": "red", "inaccurate": "red", "timeout": "red"}
WIDTH = 80
MOST_ADVICE = 3
MOST_CAUTIONS = 4  # on the first screen; the report has all


def first_screen(run: RunRecord) -> RenderableType:
    """The answer, then the ladder."""
    found = digest(run)
    where = machine(run)
    parts: list[RenderableType] = [Text(""), Text(words.clean(where.device), style="bold")]
    parts += [Text(words.clean(line)) for line in (where.shape, where.preset)]
    if note := state(run):
        parts.append(Text(note, style="bold yellow"))
    parts.append(Text(""))
    for question, answer in because.first_screen(found):
        parts += [Text(question, style="bold"), _indented(answer)]
    parts += [Text(""), ladder(found)]
    parts += [_indented(line) for line in unwell(found)]
    parts += _next(found)
    parts += [Text(""), *_cautions(found), Text(trust(found))]
    return Group(*parts)


def verdict_line(run: RunRecord, stage: StageRecord) -> str:
    """What became of a stage, as one line of progress; `run` is what is on record so far."""
    name, reason = stage.name, words.clean(stage.reason)
    if not stage.usable:
        return f"{name}: {stage.status}{': ' + reason if reason else ''}"
    each = words.seconds(seconds_per_call(stage.pairs).value)
    if not rankable(stage):
        return f"{name}: not ranked, {each} a call; the report says why"
    found = ratio(stage.pairs, between_run_std(run.aa_pairs))
    word = verdict(found, minimum_detectable_effect(run.aa_pairs))
    return f"{name}: {words.times(found)} {words.interval(found)} {run.baseline}, {word}; {each} a call"


def ladder(found: Digest) -> Table:
    """The rungs in order."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), width=WIDTH - 1)
    table.add_column("stage", overflow="fold", min_width=15)
    for title in (f"× {words.clean(found.run.baseline)}", "95 %"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for title in ("ms/call", "memory", "build"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in found.rows:
        table.add_row(*_cells(row))
    return table


def _cells(row: Row) -> list[Text]:
    mark = {"winner": "▸ ", "tie": "= "}.get(row.place, "  ")
    name = Text(mark + words.clean(row.name), style="bold" if row.place == "winner" else "")
    word = row.word or row.status
    shown = row.ratio if row.ranked else None
    return [
        name,
        Text(words.times(shown).removesuffix(" ×")),
        Text(words.interval(shown)),
        Text(word + (" (legacy)" if row.stage.legacy else ""), style=COLOURS.get(word, "")),
        Text(words.milliseconds(row.seconds.value if row.seconds else None)),
        Text(words.size(peak_bytes(row))),
        Text(words.seconds(row.setup_seconds)),
    ]


def _cautions(found: Digest) -> list[RenderableType]:
    every = all_cautions(found)
    lines: list[RenderableType] = [
        Text(words.clean(f"! {who}: {part.name}: {part.text}"), style="yellow") for who, part in every[:MOST_CAUTIONS]
    ]
    if len(every) > MOST_CAUTIONS:
        lines.append(Text(f"! and {words.plural(len(every) - MOST_CAUTIONS, 'caution')} more, in the report"))
    return lines


def _next(found: Digest) -> list[RenderableType]:
    """The first pieces of advice, each with its command on lines of its own, to be copied."""
    lines: list[RenderableType] = []
    for number, tip in enumerate(advice(found)[:MOST_ADVICE], 1):
        lines += [_indented(f"{number}. {tip.text}: {tip.evidence.rstrip('.')}."), _indented(f"   {tip.attempt}")]
    return [Text(""), Text("What to try next", style="bold"), *lines] if lines else []


def _indented(text: str) -> Padding:
    return Padding(Text(words.clean(text)), (0, 0, 0, 2))
