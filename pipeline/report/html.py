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

from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary
from pipeline.records.codec import to_json
from pipeline.report import answer, formatting, large_numbers, run_text, usage
from pipeline.report.gallery import Gallery
from pipeline.report.sections import accuracy_section, capacity_section, host_time_section, roofline_section
from pipeline.report.sections.cost_section import cost_table, cost_text
from pipeline.report.sections.explanations import explanations
from pipeline.report.sections.fronts import error_front
from pipeline.report.sections.ladder_chart import ladder_chart
from pipeline.report.sections.ladder_section import ladder
from pipeline.report.sections.recommendation_section import recommendation_texts
from pipeline.report.sections.stage_section import section

Present = Callable[[str], bool]
TEMPLATES = Path(__file__).parent / "templates"
UNIT = re.compile(r"(?<=\d) (?=(?:[%×]|[µm]?s|min|[GMK]iB|TFLOP/s|TB/s|GB/s)(?!\w))")  # no line ends here


@cache
def environment() -> Environment:
    """The templates, with everything escaped that isn't a chart of our own, and every sign of a record made visible."""
    found = Environment(
        loader=PackageLoader("pipeline.report"), autoescape=True, undefined=StrictUndefined, finalize=seen
    )
    found.trim_blocks = found.lstrip_blocks = True
    script = Markup((TEMPLATES / "page.js").read_text(encoding="utf-8").strip())  # noqa: S704 - our own file
    digest = b64encode(sha256(script.encode()).digest()).decode()
    found.globals |= {"format": formatting, "script": script, "script_hash": f"sha256-{digest}"}
    found.filters |= {"file": linked, "exactly": exactly, "tied": tied}
    return found


def seen(value: object) -> object:
    """A string without signs that hide or turn its direction; our own markup as it is."""
    return formatting.readable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def tied(text: str) -> str:
    """Each number beside its unit: no line ends between them."""
    return UNIT.sub("\u00a0", text)


def exactly(text: str) -> Markup:
    """Text to be copied: no sign of it is changed, but for those that hide."""
    return escape(formatting.readable(text))


@pass_context
def linked(context: Context, path: str) -> Markup:
    """A link to a file that is there, by the page's own `present`; else its path as text."""
    return file_link(path) if context["present"](path) else exactly(path)


def file_link(path: str) -> Markup:
    """A link to a file of the run's folder; what doesn't look like one stays text, wherever a record says it is."""
    if re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)*", path):
        return Markup('<a href="{0}">{0}</a>').format(path)
    return exactly(path)


def kept_by_all(path: str) -> bool:
    """Whether a page of which nothing is known may link to a file: to what every run has left, as its record says."""
    return path != "check.py"


def page(summary: RunSummary, masks: Gallery | None = None, present: Present = kept_by_all) -> str:
    """The report of one run.

    Args:
        summary: of its record.
        masks: what the run left of them.
        present: whether a file lies in the page's folder, by its path within it; the others are no links.
    """
    run = summary.run
    anchors = {stage.name: f"stage-{at}" for at, stage in enumerate(summary.stages, 1)}
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            **answered(summary),
            run=run,
            summary=summary,
            masks=masks or Gallery(),
            present=present,
            error_front=error_front(summary),
            cost=cost_table(summary),
            cost_text=cost_text(summary),
            capacity=capacity_section.section(summary),
            trust=run_text.trust(summary),
            ladder=ladder(summary),
            marks=dict(enumerate(map(mark, summary.stages))),
            links=dict(enumerate(anchors.values())),
            ladder_chart=Markup(ladder_chart(summary) if summary.stages else ""),  # noqa: S704 - escaped by the chart
            faults=run_text.faults(summary),
            skipped=run_text.skipped(summary),
            warnings=run_text.all_warnings(summary),
            recommendations=recommendation_texts(summary),
            explanations=explanations(summary),
            stages=[section(summary, stage) for stage in summary.stages],
            peaks=roofline_section.peaks_text(run),
            flops=host_time_section.flops_text(run),
            samples=run_text.samples_text(run),
            config=json.dumps(to_json(run.config), indent=1, ensure_ascii=False),
        )
    )


def answered(summary: RunSummary) -> dict[str, object]:
    """What the first screen shows."""
    winner = summary.winner
    return {
        "winner": winner,
        "headline": answer.headline(summary),
        "numbers": large_numbers.numbers(summary),
        "paragraph": answer.paragraph(summary),
        "choices": answer.choice_table(summary),
        "longer": answer.longer(summary),
        "usage": usage.usage(summary, winner) if winner and answer.resolved(summary) else None,
        "machine": run_text.machine(summary.run),
        "state": run_text.state(summary.run),
        "right": accuracy_section.right_in_all(summary),
        "own_warnings": winner.warnings if winner else [],
    }


def mark(stage: StageSummary) -> str:
    """The style of a stage's line in the ladder."""
    return "winner" if stage.place == "winner" else "" if stage.ranked else "out"
