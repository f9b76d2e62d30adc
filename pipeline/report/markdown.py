"""report.md: the first screen, the ladder and the warnings, for a pull request or a wiki."""

import re

from pipeline.analysis.summary import RunSummary
from pipeline.report import first_screen
from pipeline.report.formatting import clean, seconds
from pipeline.report.sections import bottleneck_section
from pipeline.report.sections.explanations import spoken
from pipeline.report.sections.ladder_section import ladder
from pipeline.report.sections.recommendation_section import advice
from pipeline.report.tables import Table

SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~&])")


def escape(text: object) -> str:
    """Text that Markdown, and the HTML it allows, takes as text."""
    return SPECIAL.sub(r"\\\1", clean(text)).replace("\\<", "&lt;").replace("\\>", "&gt;").replace("\\&", "&amp;")


def markdown(summary: RunSummary) -> str:
    """The report as Markdown."""
    run, where = summary.run, first_screen.machine(summary.run)
    lines = [
        f"# {escape(where.shape)} on {escape(where.device)}",
        "",
        f"{escape(where.preset)}. {escape(where.versions)}.",
    ]
    if note := first_screen.state(run):
        lines += ["", f"**{escape(note)}**"]
    for question, answer in first_screen.answers(summary):
        lines += ["", f"**{escape(question)}** {escape(answer)}"]
    lines += ["", "## The ladder", "", *table(ladder(summary)), "", escape(first_screen.trust(summary))]
    if summary.ranked:
        shown = table(bottleneck_section.table(summary))
        lines += ["", "## What limits each stage", "", escape(bottleneck_section.DEFINITION), "", *shown]
    for title, said in spoken(summary).items():
        lines += ["", f"## {title}", "", *(f"- {escape(line)}" for line in said)]
    if unwell := first_screen.unwell(summary):
        lines += ["", "## Not ranked", "", *(f"- {escape(line)}" for line in unwell)]
    lines += [*_warnings(summary), *_advice(summary)]
    command = clean(run.command).replace("`", "")
    return "\n".join([*lines, "", f"`{command}`, started {escape(run.started_at)}, took {seconds(run.seconds)}.", ""])


def _warnings(summary: RunSummary) -> list[str]:
    lines = [
        f"- **{escape(who)}, {escape(warning.code)}**: {escape(warning.text)}. What to do: {escape(warning.remedy)}."
        for who, warning in first_screen.all_warnings(summary)
    ]
    return ["", "## Warnings", "", *lines] if lines else []


def _advice(summary: RunSummary) -> list[str]:
    lines = [f"{at}. {escape(tip.line)} `{tip.attempt.replace('`', '')}`" for at, tip in enumerate(advice(summary), 1)]
    return ["", "## What to try next", "", *lines] if lines else []


def table(shown: Table) -> list[str]:
    """A table of cells as Markdown."""
    header = "| " + " | ".join(escape(title) for title in shown.titles) + " |"
    rule = "|" + " --- |" * len(shown.titles)
    return [header, rule, *("| " + " | ".join(escape(cell.text) for cell in row) + " |" for row in shown.rows)]
