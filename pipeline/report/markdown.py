"""report.md: what a person pastes into a pull request: the answer, one table, and the rest folded."""

import re
from collections.abc import Callable, Sequence

from pipeline.analysis.summary import RunSummary
from pipeline.report import answer, run_text
from pipeline.report.formatting import clean, prose, seconds
from pipeline.report.sections import accuracy_section, bits_section, bottleneck_section
from pipeline.report.sections.cost_section import cost_table, cost_text
from pipeline.report.sections.explanations import sentences
from pipeline.report.sections.ladder_section import ladder
from pipeline.report.sections.recommendation_section import recommendation_texts
from pipeline.report.tables import Table
from pipeline.report.usage import usage

SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~&])")
LEFT_OUT = ("× host to host", "Dice")  # of the choices: a pull request is narrow
MOST_COLUMNS = 6
EXPENDABLE = ("relative L2", "PSNR dB, truth", "dB lost")  # where there are more, one after another
# What a forge would turn into a link or a notification: @name, #12, an address. An empty comment ends the word.
LINKED = ((re.compile(r"@(?=\w)"), "@<!-- -->"), (re.compile(r"\\#(?=\d)"), r"\\#<!-- -->"))
ADDRESSES = ((re.compile(r"(?i)\b(https?|ftp):(?=//)"), r"\1\\:"), (re.compile(r"(?i)\bwww\."), r"www\\."))


def escape(text: object) -> str:
    """Text that Markdown, and the HTML it allows, takes as text; it links nowhere and notifies nobody."""
    escaped = SPECIAL.sub(r"\\\1", clean(text)).replace("\\<", "&lt;").replace("\\>", "&gt;").replace("\\&", "&amp;")
    for pattern, instead in (*LINKED, *ADDRESSES):
        escaped = pattern.sub(instead, escaped)
    return escaped


def markdown(summary: RunSummary) -> str:
    """The report as Markdown."""
    run, where = summary.run, run_text.machine(summary.run)
    lines = [f"# {escape(answer.headline(summary))}", "", escape(f"{where.device}: {where.shape}. {where.preset}.")]
    if note := run_text.state(run):
        lines += ["", f"**{escape(note)}**"]
    if said := answer.paragraph(summary):
        lines += ["", escape(" ".join(said))]
    if command := answer.longer(summary):
        lines += ["", "```sh", command, "```"]
    if (choices := answer.choice_table(summary)).rows:
        lines += ["", *table(_narrow(without(choices, LEFT_OUT)))]
    lines += [*_careful(summary), ""]
    for title, make in PARTS:
        if part := make(summary):
            lines += folded(title, part)
    command = clean(run.command).replace("`", "")
    lines += [f"`{command}`, started {escape(run.started_at)}, took {seconds(run.seconds)}. {escape(where.versions)}."]
    return "\n".join([*lines, ""])


def _narrow(choices: Table) -> Table:
    """The choices in as many columns as a pull request shows."""
    for title in EXPENDABLE:
        if len(choices.titles) > MOST_COLUMNS:
            choices = without(choices, (title,))
    return choices


def _careful(summary: RunSummary) -> list[str]:
    """The winner's own warnings, and who isn't ranked, but for the stages that have no form here."""
    found = summary.winner.warnings if summary.winner else []
    lines = [f"- **{escape(warning.code)}**: {escape(prose(warning.text))}." for warning in found]
    lines += [f"- **not ranked**: {escape(line)}" for line in run_text.faults(summary)]
    return ["", *lines] if lines else []


def folded(title: str, lines: Sequence[str]) -> list[str]:
    """Lines that a reader opens."""
    return ["<details>", f"<summary>{title}</summary>", "", *lines, "", "</details>", ""]


def _use(summary: RunSummary) -> list[str]:
    winner = summary.winner
    if winner is None or not answer.resolved(summary):
        return []
    found = usage(summary, winner)
    path = [f"The run left `{clean(found.path)}`. {escape(found.lead)}"] if found.path else [escape(found.lead)]
    return [*path, "", f"```{found.language}", found.code, "```"]


def _right(summary: RunSummary) -> list[str]:
    said = accuracy_section.right_in_all(summary)
    return [escape(said)] if said else []


def _cost(summary: RunSummary) -> list[str]:
    shown, said = cost_table(summary), [escape(line) for line in cost_text(summary)]
    return [*said, "", *table(shown)] if shown.rows else said


def _ladder(summary: RunSummary) -> list[str]:
    if not summary.stages:
        return []
    skipped = [f"- {escape(line)}" for line in run_text.skipped(summary)]
    return [*table(ladder(summary)), "", escape(run_text.trust(summary)), *(["", *skipped] if skipped else [])]


def _bottlenecks(summary: RunSummary) -> list[str]:
    shown = bottleneck_section.table(summary)
    return [*table(shown), "", escape(bottleneck_section.definition(summary))] if shown.rows else []


def _bits(summary: RunSummary) -> list[str]:
    shown = bits_section.table(summary)
    return [*table(shown), "", escape(summary.run.words.put_into(bits_section.NOTE))] if shown.rows else []


def _explanations(summary: RunSummary) -> list[str]:
    lines = []
    for title, said in sentences(summary).items():
        lines += ["", f"**{title}**", "", *(f"- {escape(line)}" for line in said)]
    return lines[1:]


def _warnings(summary: RunSummary) -> list[str]:
    return [
        f"- **{escape(who)}, {escape(found.code)}**: {escape(prose(found.text))}. "
        f"What to do: {escape(prose(found.remedy))}."
        for who, found in run_text.all_warnings(summary)
    ]


def _recommendations(summary: RunSummary) -> list[str]:
    return [
        f"{at}. {escape(prose(tip.line))} `{tip.action.replace('`', '')}`"
        for at, tip in enumerate(recommendation_texts(summary), 1)
    ]


PARTS: tuple[tuple[str, Callable[[RunSummary], list[str]]], ...] = (
    ("How do I use it?", _use),
    ("Is it still right?", _right),
    ("Cost", _cost),
    ("The ladder", _ladder),
    ("What limits each stage", _bottlenecks),
    (bits_section.TITLE, _bits),
    ("Why", _explanations),
    ("Warnings", _warnings),
    ("What to try next", _recommendations),
)


def without(shown: Table, titles: Sequence[str]) -> Table:
    """The table without the columns of those titles."""
    kept = [at for at, title in enumerate(shown.titles) if title not in titles]
    return Table([shown.headings[at] for at in kept], [[row[at] for at in kept] for row in shown.rows])


def table(shown: Table) -> list[str]:
    """A table of cells as Markdown."""
    header = "| " + " | ".join(escape(title) for title in shown.titles) + " |"
    rule = "|" + "".join(" --- |" if heading.kind == "text" else " ---: |" for heading in shown.headings)
    return [header, rule, *("| " + " | ".join(escape(cell.text) for cell in row) + " |" for row in shown.rows)]
