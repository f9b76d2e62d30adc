"""report.html: one file that needs no network. A summary in, a string out; everything from a record is escaped."""

import json
import re
from base64 import b64encode
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup, escape

from pipeline.analysis.summary import RunSummary
from pipeline.errors import plural
from pipeline.records.codec import to_json
from pipeline.report import answer, formatting, run_text, usage
from pipeline.report.gallery import Gallery
from pipeline.report.markdown import explaining, own_warnings
from pipeline.report.sections import accuracy, cost, host, ladder, roofline, stage
from pipeline.report.sections.recommendation import recommendation_texts

Present = Callable[[str], bool]
TEMPLATES = Path(__file__).parent / "templates"
UNIT = re.compile(r"(?<=\d) (?=(?:[%×]|[µm]?s|min|[GMK]iB|TFLOP/s|TB/s|GB/s)(?!\w))")  # no line ends here


@cache
def environment() -> Environment:
    """Return the templates; they escape everything but our own charts, and make every character visible."""
    found = Environment(
        loader=PackageLoader("pipeline.report"), autoescape=True, undefined=StrictUndefined, finalize=seen
    )
    found.trim_blocks = found.lstrip_blocks = True
    script = Markup((TEMPLATES / "page.js").read_text(encoding="utf-8").strip())  # noqa: S704 - our own file
    digest = b64encode(sha256(script.encode()).digest()).decode()
    found.globals |= {"format": formatting, "plural": plural, "script": script, "script_hash": f"sha256-{digest}"}
    found.filters |= {"file": linked, "exactly": exactly, "tied": tied}
    return found


def seen(value: object) -> object:
    """Return a string without characters that hide or turn its direction; our own markup as it is."""
    return formatting.readable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def tied(text: str) -> str:
    """Keep each number beside its unit: no line ends between them."""
    return UNIT.sub("\u00a0", text)


def exactly(text: str) -> Markup:
    """Return text to be copied: no character of it is changed, but for those that hide."""
    return escape(formatting.readable(text))


@pass_context
def linked(context: Context, path: str) -> Markup:
    """Return a link to a file that is there, by the page's `present`; else its path as text."""
    return file_link(path) if context["present"](path) else exactly(path)


def file_link(path: str) -> Markup:
    """Return a link to a file of the run's folder; any other path stays text."""
    if re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)*", path):
        return Markup('<a href="{0}">{0}</a>').format(path)
    return exactly(path)


def kept_by_all(path: str) -> bool:
    """Return whether every run has left a file that its record names, so that a page may link to it."""
    return path != "check.py"


def page(summary: RunSummary, masks: Gallery | None = None, present: Present = kept_by_all) -> str:
    """Return the report of one run.

    Args:
        summary: of its record.
        masks: the pictures that the run left.
        present: whether a file lies in the page's folder, by its path within it; the others are no links.
    """
    run, winner = summary.run, summary.winner
    marks = ["winner" if row.place == "winner" else "" if row.ranked else "out" for row in summary.stages]
    chart = ladder.ladder_chart(summary) if summary.stages else ""
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            run=run,
            summary=summary,
            winner=winner,
            machine=run_text.machine(run),
            state=run_text.state(run),
            headline=answer.headline(summary),
            paragraph=answer.paragraph(summary),
            numbers=answer.numbers(summary),
            choices=answer.choice_table(summary),
            longer=answer.longer(summary),
            usage=usage.usage(summary, winner) if winner and answer.resolved(summary) else None,
            own_warnings=own_warnings(summary),
            right=accuracy.right_in_all(summary),
            masks=masks or Gallery(),
            present=present,
            error_front=ladder.error_front(summary),
            cost=cost.cost_table(summary),
            cost_text=cost.cost_text(summary),
            capacity=cost.capacity(summary),
            trust=run_text.trust(summary),
            ladder=ladder.ladder(summary),
            ladder_chart=Markup(chart),  # noqa: S704 - escaped by the chart
            marks=dict(enumerate(marks)),
            links={at: f"stage-{at + 1}" for at in range(len(summary.stages))},
            faults=run_text.faults(summary),
            skipped=run_text.skipped(summary),
            warnings=run_text.all_warnings(summary),
            recommendations=recommendation_texts(summary),
            explanations=explaining(summary),
            stages=[stage.part(summary, row) for row in summary.stages],
            peaks=roofline.peaks_text(run),
            flops=host.flops_text(run),
            samples=run_text.samples_text(run),
            config=json.dumps(to_json(run.config), indent=1, ensure_ascii=False),
        )
    )
