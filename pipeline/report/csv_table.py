"""results.csv: one line per stage, plain numbers with their units in the header."""

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from pipeline.analysis.capacity import fleets
from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary
from pipeline.report import answer
from pipeline.report.formatting import clean
from pipeline.report.sections import bits, bottleneck, cost, fusion, host, layout, memory, way
from pipeline.report.sections.ladder import StageColumn, csv_only, headings_of, stage_columns
from pipeline.report.tables import Column

FORMULA_SIGNS = ("=", "+", "-", "@")  # with which a spreadsheet would begin to compute
Item = TypeVar("Item")


def columns(summary: RunSummary) -> list[StageColumn]:
    """Return the columns of every table of stages that have a name here, and what else a spreadsheet needs."""
    run, there = summary.run, summary.run.environment
    return [
        *_named(stage_columns(headings_of(summary))),
        csv_only("status", lambda stage: stage.status),
        csv_only("reason", lambda stage: stage.stage.reason),
        csv_only("place", lambda stage: stage.place),
        csv_only("objective", lambda _: run.config.goal.objective),
        csv_only("objective_value", lambda stage: summary.choice and summary.choice.values.get(stage.name)),
        csv_only("constraints_missed", lambda stage: answer.missed(summary, stage.name)),
        csv_only("accuracy_limits", lambda _: answer.asked(run.config.accuracy)),
        csv_only("legacy", lambda stage: stage.stage.spec.legacy),
        csv_only("baseline", lambda _: summary.baseline),
        csv_only("ran", lambda stage: stage.stage.description),
        csv_only("adds", lambda stage: stage.stage.spec.adds),
        csv_only("bottleneck", lambda stage: stage.bottleneck.kind if stage.seconds else None),
        *_named(bottleneck.columns(run.words)),
        *_named(bits.columns(summary)),
        csv_only("kernels_per_call", lambda stage: stage.stage.profile and stage.stage.profile.launches_per_call),
        csv_only("bytes_moved_per_call", lambda stage: stage.bottleneck.moved and stage.bottleneck.moved.amount),
        *_rows(way.class_columns(), way.profiled(summary), lambda each: each[0].name),
        *_rows(host.columns(), host.lines(summary), lambda each: each[0]),
        *_rows(host.path_columns(), host.on_the_path(summary), lambda each: each.name),
        *_rows([*layout.columns(run.words), layout.PLANNED], layout.searched(summary), lambda each: each.stage.name),
        *_rows([*fusion.columns(""), *fusion.COUNTED], fusion.fusions(summary), lambda each: each.stage.name),
        *_rows(memory.columns(), memory.memories(summary), lambda each: each.stage.name),
        *_rows(cost.columns(summary), summary.ranked, lambda each: each.name),
        *_rows(cost.capacity_columns(summary), fleets(summary).items(), lambda each: each[0]),
        csv_only("torch", lambda _: there and there.packages.get("torch")),
        csv_only("driver", lambda _: there and there.driver),
        csv_only("device", lambda _: there and there.device_name),
        csv_only("batch_size", lambda _: run.config.data.batch_size),
    ]


def _named(shown: Iterable[Column[Item]]) -> list[Column[Item]]:
    return [column for column in shown if column.csv]


def _rows(shown: Iterable[Column[Item]], items: Iterable[Item], named: Callable[[Item], str]) -> list[StageColumn]:
    """Return a table's columns that have a name here; empty for a stage of which the table has no row."""
    rows = {named(item): item for item in items}

    def value(column: Column[Item], stage: StageSummary) -> object:
        return column.cell(rows[stage.name]).value if stage.name in rows else None

    return [csv_only(column.csv, partial(value, column)) for column in _named(shown)]


def rows(summary: RunSummary) -> list[list[object]]:
    """Return the columns' names and the cells of every stage; text that a spreadsheet would compute is quoted."""

    def quoted(value: object) -> object:
        text = clean(value) if isinstance(value, str) else ""
        return f"'{text}" if text.startswith(FORMULA_SIGNS) else text or value

    shown = columns(summary)
    cells = [[quoted(column.cell(stage).value) for column in shown] for stage in summary.stages]
    return [[column.csv for column in shown], *cells]


def csv_text(summary: RunSummary) -> str:
    """Return the table of the stages as CSV."""
    return written(rows(summary))


def written(rows: Sequence[Sequence[object]]) -> str:
    """Return rows as CSV."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()
