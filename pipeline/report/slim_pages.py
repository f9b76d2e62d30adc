"""Dice against milliseconds: runs of a network and of its slim forms, in their best stages."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean

from pipeline.analysis.summary import winner_of
from pipeline.config.request_error import RequestError
from pipeline.records.goals import POINTS
from pipeline.records.run_record import RunRecord, StageRecord
from pipeline.report import markdown
from pipeline.report.charts import ACCENT, PLAIN
from pipeline.report.charts.bars import Bar, Part
from pipeline.report.charts.plots import front
from pipeline.report.formatting import milliseconds, significant
from pipeline.report.html import environment
from pipeline.report.tables import Column, Figure, Table, names, number, table_of
from pipeline.stats.intervals import seconds_per_call


def best_stages(run: RunRecord) -> list[StageRecord]:
    """Return the run's winner, and its fastest stages in fp16 and in fp8; raise RequestError if no stage was right."""
    usable = sorted((part for part in run.stages if part.usable), key=lambda part: seconds_per_call(part.pairs).value)
    if not usable:
        raise RequestError("no stage of the run was right and measured; measure one first")
    best = [stage for stage in usable if stage.name == winner_of(run)] or usable[:1]
    for precision in ("fp16", "fp8"):
        best += [stage for stage in usable if stage.precision == precision][:1]
    return list({stage.name: stage for stage in best}.values())


@dataclass(frozen=True)
class Point:
    """A network in one stage."""

    network: str
    stage: str
    seconds: float  # per call
    dice: float  # mean of the classes but the background

    def beats(self, other: "Point") -> bool:
        """Return whether it is at least as fast and as good as another, and better in one of the two."""
        figures = (self.seconds, -self.dice), (other.seconds, -other.dice)
        return figures[0] != figures[1] and all(own <= its for own, its in zip(*figures, strict=True))


def points_of(runs: Sequence[tuple[str, RunRecord]]) -> list[Point]:
    """Return the best stages of named runs; raise RequestError if one has no labels, or another batch size."""
    found: list[Point] = []
    for name, run in runs:
        if run.batch_size != runs[0][1].batch_size:
            raise RequestError(
                f"{name}: data.batch_size={run.batch_size}, where {runs[0][0]} has {runs[0][1].batch_size}"
            )
        judged = [(stage, stage.accuracy.dice) for stage in best_stages(run) if stage.accuracy and stage.accuracy.dice]
        if not judged:
            raise RequestError(f"{name}: its images have no labels, so there is no Dice; measure with data.labels")
        for stage, dice in judged:
            found.append(Point(name, stage.name, seconds_per_call(stage.pairs).value, fmean(dice[1:] or dice)))
    return found


def write_pareto(found: list[Point], folder: Path) -> str:
    """Write pareto.html, and return its table and path."""
    best, title = max(point.dice for point in found), "Dice against milliseconds"
    ahead = {one for one in found if not any(other.beats(one) for other in found)}
    marks = [
        (f"{one.network}, {one.stage}", 1e3 * one.seconds, POINTS * (best - one.dice), "winner" if one in ahead else "")
        for one in found
    ]
    draw = partial(front, marks, (title, "milliseconds per call", "points of Dice below the best"), log=False)
    columns: list[Column[Point]] = [
        names("network", lambda one: one.network),
        names("stage", lambda one: one.stage),
        number("ms", lambda one: one.seconds, milliseconds),
        number("Dice", lambda one: one.dice, lambda value: significant(value, 4)),
        names("no other is faster and better", lambda one: "yes" if one in ahead else ""),
    ]
    lead = (
        "Each run's winner and its fastest stages in fp16 and fp8; Dice is the mean of the classes but the background."
    )
    return written(folder / "pareto.html", title, lead, Figure(title, draw), table_of(columns, found))


def timed_bar(name: str, seconds: float, faster: float | None, note: str = "", strong: bool = False) -> Bar:
    """Return a bar of milliseconds, with the ratio to the full network or loop; `strong` ones stand out."""
    ratio = "" if faster is None else f", {significant(faster)} ×"
    parts = [Part(0.0, 1e3 * seconds, ACCENT if strong else PLAIN)]
    return Bar(name, parts, f"{milliseconds(seconds)}{ratio}{note}", strong=strong)


def written(path: Path, title: str, lead: str, figure: Figure, table: Table) -> str:
    """Write a page of a figure and a table, and return what the program prints: the table and the page's path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shown = {"title": title, "lead": lead, "figure": figure, "table": table}
    path.write_text(environment().get_template("slim.html.j2").render(shown), encoding="utf-8")
    return "\n".join([*markdown.table(table), f"{path}\n"])
