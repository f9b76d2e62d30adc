"""report.md, for a pull request: the answer, one table, and the rest folded."""

import re
from collections.abc import Sequence

from pipeline.analysis.summary import RunSummary
from pipeline.records.run_record import RunWarning
from pipeline.report import answer, run_text
from pipeline.report.formatting import clean, prose, seconds
from pipeline.report.sections import accuracy, bits, bottleneck, cost, fusion, host, layout, memory, roofline, way
from pipeline.report.sections.ladder import ladder
from pipeline.report.sections.recommendation import recommendation_texts
from pipeline.report.tables import Cell, Section, Table
from pipeline.report.usage import usage

SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~&])")
LEFT_OUT = ("× host to host", "Dice")  # of the choices: a pull request is narrow
MOST_COLUMNS = 6
EXPENDABLE = ("relative L2", "PSNR dB, truth", "dB lost")  # where there are more, one after another
# What a forge would turn into a link or a notification: @name, #12, an address. An empty comment ends the word.
LINKED = ((re.compile(r"@(?=\w)"), "@<!-- -->"), (re.compile(r"\\#(?=\d)"), r"\\#<!-- -->"))
ADDRESSES = ((re.compile(r"(?i)\b(https?|ftp):(?=//)"), r"\1\\:"), (re.compile(r"(?i)\bwww\."), r"www\\."))


def explaining(summary: RunSummary) -> list[Section]:
    """Return the sections that explain the ladder, of which the record holds something."""
    sections = [
        way.section(summary),
        bottleneck.section(summary),
        host.section(summary),
        host.path_section(summary),
        *roofline.sections(summary),
        layout.section(summary),
        fusion.section(summary),
        memory.section(summary),
        memory.through_a_call(summary),
        bits.section(summary),
    ]
    return [section for section in sections if not section.empty]


def escape(text: object) -> str:
    """Return text that Markdown, and the HTML it allows, takes as text, without links or notifications."""
    escaped = SPECIAL.sub(r"\\\1", clean(text)).replace("\\<", "&lt;").replace("\\>", "&gt;").replace("\\&", "&amp;")
    for pattern, instead in (*LINKED, *ADDRESSES):
        escaped = pattern.sub(instead, escaped)
    return escaped


def bullets(lines: Sequence[str]) -> list[str]:
    """Return lines as a list."""
    return [f"- {escape(line)}" for line in lines]


def table(shown: Table) -> list[str]:
    """Return a table of cells as Markdown."""
    header = "| " + " | ".join(escape(title) for title in shown.titles) + " |"
    rule = "|" + "".join(" --- |" if heading.kind == "text" else " ---: |" for heading in shown.headings)
    return [header, rule, *("| " + " | ".join(map(_cell, row)) + " |" for row in shown.rows)]


def _cell(cell: Cell) -> str:
    return f"{escape(cell.text)} (`{cell.key}`)" if cell.key else escape(cell.text)


def folded(title: str, lines: Sequence[str]) -> list[str]:
    """Return lines that a reader opens."""
    return ["<details>", f"<summary>{title}</summary>", "", *lines, "", "</details>", ""]


def markdown(summary: RunSummary) -> str:
    """Return the report as Markdown."""
    run, where = summary.run, run_text.machine(summary.run)
    lines = [f"# {escape(answer.headline(summary))}", "", escape(f"{where.device}: {where.shape}. {where.preset}.")]
    if note := run_text.state(run):
        lines += ["", f"**{escape(note)}**"]
    if said := answer.paragraph(summary):
        lines += ["", escape(" ".join(said))]
    if command := answer.longer(summary):
        lines += ["", "```sh", command, "```"]
    choices = _narrow(answer.choice_table(summary).without(LEFT_OUT))
    lines += ["", *table(choices)] if choices.rows else []
    careful = [f"- **{escape(found.code)}**: {escape(prose(found.text))}." for found in own_warnings(summary)]
    careful += [f"- **not ranked**: {escape(line)}" for line in run_text.faults(summary)]
    lines += ["", *careful, ""] if careful else [""]
    explained = [(escape(section.title), _section(section)) for section in explaining(summary)]
    parts = [
        ("How do I use it?", _use(summary)),
        ("Is it still right?", _right(summary)),
        ("Cost", _cost(summary)),
        ("The ladder", _ladder(summary)),
        *explained,
        ("Warnings", _warnings(summary)),
        ("What to try next", _recommendations(summary)),
    ]
    for title, part in parts:
        lines += folded(title, part) if part else []
    command = clean(run.command).replace("`", "")
    lines += [f"`{command}`, started {escape(run.started_at)}, took {seconds(run.seconds)}. {escape(where.versions)}."]
    return "\n".join([*lines, ""])


def _narrow(choices: Table) -> Table:
    """Leave out columns until the table is narrow enough for a pull request."""
    for title in EXPENDABLE:
        choices = choices.without([title]) if len(choices.titles) > MOST_COLUMNS else choices
    return choices


def own_warnings(summary: RunSummary) -> list[RunWarning]:
    """Return the winner's own warnings."""
    return summary.winner.warnings if summary.winner else []


def _section(section: Section) -> list[str]:
    """Return a section's sentences, and its table with its note where that is for Markdown; charts have none."""
    gist = [section.gist] if section.gist_in_markdown and section.gist else []
    lines = bullets([*gist, *section.sentences])
    if section.table_in_markdown and section.table.rows:
        lines += [*([""] if lines else []), *table(section.table), "", escape(section.note)]
    return lines


def _use(summary: RunSummary) -> list[str]:
    winner = summary.winner
    if winner is None or not answer.resolved(summary):
        return []
    found = usage(summary, winner)
    left = f"The run left `{clean(found.path)}`. " if found.path else ""
    return [f"{left}{escape(found.lead)}", "", f"```{found.language}", found.code, "```"]


def _right(summary: RunSummary) -> list[str]:
    said = accuracy.right_in_all(summary)
    return [escape(said)] if said else []


def _cost(summary: RunSummary) -> list[str]:
    shown, said = cost.cost_table(summary), [escape(line) for line in cost.cost_text(summary)]
    return [*said, "", *table(shown)] if shown.rows else said


def _ladder(summary: RunSummary) -> list[str]:
    if not summary.stages:
        return []
    skipped = bullets(run_text.skipped(summary))
    return [*table(ladder(summary)), "", escape(run_text.trust(summary)), *(["", *skipped] if skipped else [])]


def _warnings(summary: RunSummary) -> list[str]:
    return [
        f"- **{escape(who)}, {escape(found.code)}**: {escape(prose(found.text))}. "
        f"What to do: {escape(prose(found.remedy))}."
        for who, found in run_text.all_warnings(summary)
    ]


def _recommendations(summary: RunSummary) -> list[str]:
    tips = enumerate(recommendation_texts(summary), 1)
    return [f"{at}. {escape(prose(tip.line))} `{tip.action.replace('`', '')}`" for at, tip in tips]
