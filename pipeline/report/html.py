"""report.html: one file that needs no network. Records in, a string out; everything from a record is escaped."""

import json
import re
from collections.abc import Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from pipeline.analysis import attribution as why
from pipeline.analysis import bottleneck as regime
from pipeline.analysis import capacity as queue
from pipeline.analysis.recommendations.rules import advice
from pipeline.analysis.summary import Digest, Row, digest
from pipeline.records.run_record import RunRecord
from pipeline.report import detail_lines as facts
from pipeline.report import first_screen as answers
from pipeline.report import formatting as words
from pipeline.report.charts import bars as charts
from pipeline.report.charts import stacked_bars as stacks
from pipeline.report.figure import Figure
from pipeline.report.gallery import Picture
from pipeline.report.sections import attribution_section as because
from pipeline.report.sections import bottleneck_section as bounds
from pipeline.report.sections import fusion_section as fusion
from pipeline.report.sections import host_time_section as split
from pipeline.report.sections import layout_section as layout
from pipeline.report.sections import memory_section as memory
from pipeline.report.sections import roofline_section as roofline
from pipeline.report.sections import traffic_section as traffic
from pipeline.report.sections.cost_section import cost_table
from pipeline.report.sections.explanations import explained
from pipeline.report.sections.ladder_section import Cell, Table, ladder, peak_bytes

WIDE_RANGE = 20  # from the least to the most: on a linear axis all but the most would lie on the floor


def environment() -> Environment:
    """The templates, with everything escaped that isn't a chart of our own."""
    found = Environment(loader=PackageLoader("pipeline.report"), autoescape=True, undefined=StrictUndefined)
    found.trim_blocks = found.lstrip_blocks = True
    found.globals["words"] = words
    found.filters["file"] = file_link
    return found


def file_link(path: str) -> Markup:
    """A link to a file of the run's folder; what doesn't look like one stays text, wherever a record says it is."""
    if re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)*", path):
        return Markup('<a href="{0}">{0}</a>').format(path)
    return escape(path)


def page(run: RunRecord, pictures: Sequence[Sequence[Picture]] = ()) -> str:
    """The report of one run.

    Args:
        run: its record.
        pictures: of each image shown: the image, the reference's mask, the stages' masks.
    """
    found = digest(run)
    return environment().get_template("report.html.j2").render(
        run=run,
        found=found,
        headline=headline(found),
        machine=answers.machine(run),
        state=answers.state(run),
        answers=because.first_screen(found),
        unwell=answers.unwell(found),
        warnings=answers.all_cautions(found),
        trust=answers.trust(found),
        ladder=ladder(found),
        marks=dict(enumerate(mark(row) for row in found.rows)),
        links={at: f"stage-{at + 1}" for at in range(len(found.rows))},
        anchors={row.name: f"stage-{at + 1}" for at, row in enumerate(found.rows)},
        ladder_chart=ladder_chart(found) if found.rows else "",
        way=why.steps(found),
        aside=words.listed(why.way(found)[1]),
        figures=figures(found),
        definition=regime.DEFINITION,
        bounds=bounds.table(found),
        ceilings=roofline.ceilings(run),
        splits=split.table(found),
        explained=explained(found),
        fronts=fronts(found),
        layers_flops=split.layers_flops(run),
        advice=advice(found),
        cost=cost_table(found),
        queue=queue.section(found),
        stages=[section(run, row) for row in found.rows],
        pictures=pictures,
        config=json.dumps(run.config, indent=1, ensure_ascii=False, default=str),
    )  # fmt: skip


def figures(found: Digest) -> list[Figure]:
    """Where the time went, in the order in which it is read."""
    return [figure for figure in (waterfall(found), classes(found), *roofline.rooflines(found)) if figure]


def mark(row: Row) -> str:
    """The style of a stage's line in the ladder."""
    return "winner" if row.place == "winner" else "" if row.ranked else "out"


def headline(found: Digest) -> str:
    """The answer in one line."""
    winner = found.winner
    if winner is None or winner.ratio is None:
        return "No stage won"
    if winner.name == found.run.baseline:
        return f"{winner.name}: nothing is faster here"
    name = words.listed([winner.name, *found.ranking.ties])
    if winner.word != "faster":
        return f"{winner.name} leads, by no margin that this run resolves"
    return f"{name}: {words.times(winner.ratio)} {found.run.baseline}{', a tie' if found.ranking.ties else ''}"


def ladder_chart(found: Digest) -> Markup:
    """Bars with error bars; both baselines as lines."""
    bars = [
        (words.clean(row.name), row.ratio if row.ranked else None, row.place if row.ranked else row.status)
        for row in found.rows
    ]
    second = found.row(found.run.second_baseline)
    marks = [(words.clean(found.run.baseline), 1.0)]
    if second and second.ranked and second.ratio:
        marks.append((words.clean(second.name), second.ratio.value))
    return Markup(charts.ladder(bars, marks, words.clean(found.run.baseline)))  # noqa: S704 - escaped by matplotlib


def waterfall(found: Digest) -> Figure | None:
    """From the baseline to the winner."""
    way = why.steps(found)
    if not way:
        return None
    first = (next(row.name for row in found.rows if row.ranked), 0.0, way[0].before)
    last = ("→ the winner", 0.0, way[-1].after)
    bars = [first, *((f"+ {step.name}", step.before, step.after) for step in way), last]
    svg = charts.waterfall([(words.clean(name), *rest) for name, *rest in bars], "milliseconds per call")  # type: ignore[misc]
    table = Table(
        [("rung", ""), ("before", ""), ("after", ""), ("change", "")],
        [
            [
                Cell(step.name),
                Cell(words.seconds(step.before), step.before),
                Cell(words.seconds(step.after), step.after),
                Cell(why.signed(step.after - step.before), step.after - step.before),
            ]
            for step in way
        ],
    )
    return Figure("From the baseline to the winner", Markup(svg), "", table)  # noqa: S704


def classes(found: Digest) -> Figure | None:
    """Where the time goes, by class of work."""
    rows = [row for row in found.rows if row.ranked and row.stage.profile and row.stage.profile.kernels]
    if not rows:
        return None
    sums = [(words.clean(row.name), why.by_class(row.stage.profile)) for row in rows if row.stage.profile]
    kinds = [kind for kind in charts.CLASSES if any(kind in by_class for _, by_class in sums)]
    table = Table(
        [("stage", ""), *((kind, "ms per call") for kind in kinds), ("seen", "share of the stage's time that this is")],
        [
            _class_cells(row, name, [by.get(kind, 0.0) for kind in kinds])
            for row, (name, by) in zip(rows, sums, strict=True)
        ],
    )
    note = "From a pass under the profiler, apart from all timing. What it can't see inside, it can't class."
    bars = [(name, {kind: 1e3 * seconds for kind, seconds in by.items()}) for name, by in sums]
    title = "Where the time goes: milliseconds per call by class of work"
    svg = stacks.stacked(bars, charts.CLASSES, (title, "milliseconds per call, under the profiler"))
    return Figure("Where the time goes", Markup(svg), note, table)  # noqa: S704


def _class_cells(row: Row, name: str, parts: list[float]) -> list[Cell]:
    seen = why.seen_share(row)
    return [Cell(name), *(Cell(words.milliseconds(part), part) for part in parts), Cell(words.share(seen), seen)]


def fronts(found: Digest) -> list[Figure]:
    """Accuracy and memory against speed, of the ranked stages."""
    rows = [row for row in found.rows if row.ranked and row.ratio]
    baseline = words.clean(found.run.baseline)
    accuracy = [(row, row.stage.accuracy.relative_l2) for row in rows if row.stage.accuracy]
    accuracy = [(row, error) for row, error in accuracy if error > 0]
    memory = [(row, peak / 2**20) for row in rows if (peak := peak_bytes(row))]
    x_axis = f"times as fast as {baseline}"
    figures = []
    if len(accuracy) > 1:
        titles = ("Error against speed", x_axis, "relative L2 of the logits")
        note = "Right and low is better. A stage without any error has no place on this scale."
        figures.append(_front(accuracy, titles, note, log=True))
    if len(memory) > 1:
        peaks = [peak for _, peak in memory]
        titles = ("Memory against speed", x_axis, "MiB at the peak")
        figures.append(_front(memory, titles, "Right and low is better.", log=max(peaks) > WIDE_RANGE * min(peaks)))
    return figures


def _front(rows: list[tuple[Row, float]], titles: tuple[str, str, str], note: str, log: bool = False) -> Figure:
    points = _points(rows)
    cells = [
        [Cell(name), Cell(words.significant(x), x), Cell(words.significant(y), y)]
        for name, x, y, _ in sorted(points, key=lambda point: -point[1])
    ]
    table = Table([("stage", ""), (titles[1], ""), (titles[2], "")], cells)
    return Figure(titles[0], Markup(charts.front(points, titles, log)), note, table)  # noqa: S704


def _points(rows: list[tuple[Row, float]]) -> list[tuple[str, float, float, str]]:
    return [(words.clean(row.name), row.ratio.value, value, row.place) for row, value in rows if row.ratio]


def section(run: RunRecord, row: Row) -> dict[str, Any]:
    """What the page of one stage shows."""
    stage, found = row.stage, row.stage.accuracy
    return {
        "row": row,
        "stage": stage,
        "right": answers.right(stage) if found else "",
        "memory": answers.memory_words(stage) if stage.memory else "",
        "regime": regime.of_stage(run, row).sentence if row.seconds else "",
        "split": split.section(run, stage),
        "layers": roofline.top_layers(run, stage),
        "notes": stage.diagnostics.notes if stage.diagnostics else [],
        "changes": layout.changes(stage),
        "generated": fusion.generated(stage),
        "fused": fusion.summary(stage),
        "sources": fusion.sources(stage),
        "graphs": stage.diagnostics.fusion.graphs if stage.diagnostics and stage.diagnostics.fusion else [],
        "holders": memory.holders(stage),
        "counted": traffic.summary(stage),
        "kernels": traffic.kernels(stage, run.measured_peaks.bandwidth_bytes_per_s if run.measured_peaks else None),
        "asked": [(key, _value(value)) for key, value in stage.options.items()],
        "details": [(key.replace("_", " "), facts.lines(value)) for key, value in stage.details.items()],
    }


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
