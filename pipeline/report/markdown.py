"""report.md, for a pull request: the answer, one table, and the rest folded."""

import re
from collections.abc import Sequence
from functools import cache

from jinja2 import Environment

from pipeline.analysis.summary import RunSummary
from pipeline.report import answer, run_text
from pipeline.report.formatting import clean, prose, seconds, templates
from pipeline.report.sections import (
    accuracy,
    bits,
    bottleneck,
    cost,
    fusion,
    host,
    ladder,
    layout,
    memory,
    roofline,
    way,
)
from pipeline.report.sections.recommendation import recommendation_texts
from pipeline.report.tables import Section, Table
from pipeline.report.usage import usage

SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~&])")
LEFT_OUT = ("× host to host", "Dice")  # of the choices: a pull request is narrow
MOST_COLUMNS = 6
EXPENDABLE = ("relative L2", "PSNR dB, truth", "dB lost")  # where there are more, one after another
# What a forge would turn into a link or a notification: @name, #12, an address. An empty comment ends the word.
LINKED = ((re.compile(r"@(?=\w)"), "@<!-- -->"), (re.compile(r"\\#(?=\d)"), r"\\#<!-- -->"))
ADDRESSES = ((re.compile(r"(?i)\b(https?|ftp):(?=//)"), r"\1\\:"), (re.compile(r"(?i)\bwww\."), r"www\\."))

# What both the page and Markdown ask for what they show.
SHOWN = {
    "answer": answer, "run_text": run_text, "accuracy": accuracy, "cost": cost, "ladder": ladder, "usage": usage,
    "recommendations": recommendation_texts,
}  # fmt: skip


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
    rule = "|" + "".join(" --- |" if column.kind == "text" else " ---: |" for column in shown.columns)
    cells = [[f"{escape(cell.text)}{f' (`{cell.key}`)' if cell.key else ''}" for cell in row] for row in shown.rows]
    return [header, rule, *(f"| {' | '.join(row)} |" for row in cells)]


def markdown(summary: RunSummary) -> str:
    """Return the report as Markdown."""
    choices = answer.choice_table(summary).without(LEFT_OUT)
    for title in EXPENDABLE:
        choices = choices.without([title]) if len(choices.titles) > MOST_COLUMNS else choices
    found = {"summary": summary, "choices": choices, "explanations": explaining(summary)}
    return environment().get_template("report.md.j2").render(SHOWN, **found)


@cache
def environment() -> Environment:
    """Return the templates of Markdown."""
    found = templates(of_pages=False)
    found.filters |= {"md": escape, "table": table, "bullets": bullets, "prose": prose, "seconds": seconds}
    return found
