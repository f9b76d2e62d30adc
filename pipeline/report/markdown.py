"""report.md: the first screen, the ladder and what to be careful about, for a pull request or a wiki."""

import re

from pipeline.analysis.bottleneck import DEFINITION
from pipeline.analysis.recommendations.rules import advice
from pipeline.analysis.summary import digest
from pipeline.records.run_record import RunRecord
from pipeline.report import formatting as words
from pipeline.report.first_screen import all_cautions, machine, state, trust, unwell
from pipeline.report.sections import bottleneck_section as bounds
from pipeline.report.sections.attribution_section import first_screen
from pipeline.report.sections.explanations import spoken
from pipeline.report.sections.ladder_section import Table, ladder

SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~&])")


def escape(text: object) -> str:
    """Text that Markdown, and the HTML it allows, takes as text."""
    return SPECIAL.sub(r"\\\1", words.clean(text)).replace("\\<", "&lt;").replace("\\>", "&gt;").replace("\\&", "&amp;")


def markdown(run: RunRecord) -> str:
    """The report as Markdown."""
    found, where = digest(run), machine(run)
    lines = [
        f"# {escape(where.shape)} on {escape(where.device)}",
        "",
        f"{escape(where.preset)}. {escape(where.versions)}.",
    ]
    if note := state(run):
        lines += ["", f"**{escape(note)}**"]
    for question, answer in first_screen(found):
        lines += ["", f"**{escape(question)}** {escape(answer)}"]
    lines += ["", "## The ladder", "", *table(ladder(found)), "", escape(trust(found))]
    if any(row.ranked for row in found.rows):
        lines += ["", "## What bounds each stage", "", escape(DEFINITION), "", *table(bounds.table(found))]
    for title, said in spoken(found).items():
        lines += ["", f"## {title}", "", *(f"- {escape(line)}" for line in said)]
    if unwell(found):
        lines += ["", "## Not ranked", "", *(f"- {escape(line)}" for line in unwell(found))]
    if every := all_cautions(found):
        lines += ["", "## Cautions", ""]
        lines += [
            f"- **{escape(who)}, {escape(part.name)}**: {escape(part.text)}. What to do: {escape(part.remedy)}."
            for who, part in every
        ]
    if tips := advice(found):
        lines += ["", "## What to try next", ""]
        lines += [
            f"{at}. {escape(tip.text)}: {escape(tip.evidence.rstrip('.'))}. `{tip.attempt.replace('`', '')}`"
            for at, tip in enumerate(tips, 1)
        ]
    command = words.clean(run.command).replace("`", "")
    lines += ["", f"`{command}`, started {escape(run.started_at)}, took {words.seconds(run.seconds)}.", ""]
    return "\n".join(lines)


def table(shown: Table) -> list[str]:
    """A table of cells as Markdown."""
    header = "| " + " | ".join(escape(title) for title, _ in shown.titles) + " |"
    rule = "|" + " --- |" * len(shown.titles)
    return [header, rule, *("| " + " | ".join(escape(cell.text) for cell in row) + " |" for row in shown.rows)]
