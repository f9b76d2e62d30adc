"""report.html: one file that needs no network. A summary in, a string out; everything from a record is escaped."""

import json
import re
from collections.abc import Sequence
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from pipeline.analysis.attribution import steps, way
from pipeline.analysis.summary import RunSummary, StageSummary
from pipeline.report import first_screen, formatting
from pipeline.report.figure import Figure
from pipeline.report.gallery import Picture
from pipeline.report.sections import (
    attribution_section,
    bottleneck_section,
    capacity_section,
    host_time_section,
    roofline_section,
)
from pipeline.report.sections.cost_section import cost_table
from pipeline.report.sections.explanations import explanations
from pipeline.report.sections.fronts import fronts
from pipeline.report.sections.ladder_section import ladder, ladder_chart
from pipeline.report.sections.recommendation_section import advice
from pipeline.report.sections.stage_section import section


@cache
def environment() -> Environment:
    """The templates, with everything escaped that isn't a chart of our own."""
    found = Environment(loader=PackageLoader("pipeline.report"), autoescape=True, undefined=StrictUndefined)
    found.trim_blocks = found.lstrip_blocks = True
    found.globals["format"] = formatting
    found.globals["notes"] = {"host_times": host_time_section.NOTE}
    found.filters["file"] = file_link
    return found


def file_link(path: str) -> Markup:
    """A link to a file of the run's folder; what doesn't look like one stays text, wherever a record says it is."""
    if re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)*", path):
        return Markup('<a href="{0}">{0}</a>').format(path)
    return escape(path)


def page(summary: RunSummary, pictures: Sequence[Sequence[Picture]] = ()) -> str:
    """The report of one run.

    Args:
        summary: of its record.
        pictures: of each image shown: the image, the reference's mask, the stages' masks.
    """
    run, anchors = summary.run, {stage.name: f"stage-{at}" for at, stage in enumerate(summary.stages, 1)}
    return environment().get_template("report.html.j2").render(
        run=run,
        summary=summary,
        headline=first_screen.headline(summary),
        machine=first_screen.machine(run),
        state=first_screen.state(run),
        answers=first_screen.answers(summary),
        unwell=first_screen.unwell(summary),
        warnings=first_screen.all_warnings(summary),
        trust=first_screen.trust(summary),
        ladder=ladder(summary),
        marks=dict(enumerate(map(mark, summary.stages))),
        links=dict(enumerate(anchors.values())),
        anchors=anchors,
        ladder_chart=Markup(ladder_chart(summary) if summary.stages else ""),  # noqa: S704 - escaped by matplotlib
        way=[(step.name, attribution_section.sentence(step)) for step in steps(summary)],
        aside=formatting.listed(way(summary)[1]),
        figures=figures(summary),
        definition=bottleneck_section.DEFINITION,
        bottlenecks=bottleneck_section.table(summary),
        peaks=roofline_section.peaks_text(run),
        host_times=host_time_section.shown(summary),
        explanations=explanations(summary),
        fronts=fronts(summary),
        flops=host_time_section.flops_text(run),
        advice=advice(summary),
        cost=cost_table(summary),
        capacity=capacity_section.section(summary),
        stages=[section(summary, stage) for stage in summary.stages],
        pictures=pictures,
        config=json.dumps(run.config, indent=1, ensure_ascii=False, default=str),
    )  # fmt: skip


def figures(summary: RunSummary) -> list[Figure]:
    """Where the time went, in the order in which it is read."""
    first = (attribution_section.way_figure(summary), attribution_section.classes_figure(summary))
    return [figure for figure in (*first, *roofline_section.rooflines(summary)) if figure]


def mark(stage: StageSummary) -> str:
    """The style of a stage's line in the ladder."""
    return "winner" if stage.place == "winner" else "" if stage.ranked else "out"
