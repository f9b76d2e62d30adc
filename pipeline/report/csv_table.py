"""results.csv: one line per stage, plain numbers with their units in the header."""

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from pipeline.analysis.cost import costs
from pipeline.analysis.fusion import fusions
from pipeline.analysis.memory import memories
from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary
from pipeline.report import objective_text
from pipeline.report.formatting import clean
from pipeline.report.sections import (
    attribution_section,
    bits_section,
    bottleneck_section,
    capacity_section,
    cost_section,
    fusion_section,
    host_path_section,
    host_time_section,
    layout_section,
    memory_section,
)
from pipeline.report.sections.ladder_section import StageColumn, csv_only, headings_of, stage_columns
from pipeline.report.tables import Column

FORMULA_SIGNS = ("=", "+", "-", "@")  # with which a spreadsheet would begin to compute
Item = TypeVar("Item")


def columns(summary: RunSummary) -> list[StageColumn]:
    """The columns of every table of stages that have a name here, and what else a spreadsheet needs on each line."""
    run = summary.run
    device = run.environment.device_name if run.environment else None
    batch = run.config.data.batch_size
    packages = run.environment.packages if run.environment else {}
    return [
        *_named(stage_columns(headings_of(summary))),
        csv_only("status", lambda stage: stage.status),
        csv_only("reason", lambda stage: stage.stage.reason),
        csv_only("place", lambda stage: stage.place),
        csv_only("objective", lambda _: run.config.goal.objective),
        csv_only("objective_value", lambda stage: objective_text.value_of(summary, stage.name)),
        csv_only("constraints_missed", lambda stage: objective_text.missed(summary, stage.name)),
        csv_only("accuracy_limits", lambda _: objective_text.asked(run.config.accuracy)),
        csv_only("legacy", lambda stage: stage.stage.spec.legacy),
        csv_only("baseline", lambda _: summary.baseline),
        csv_only("ran", lambda stage: stage.stage.description),
        csv_only("adds", lambda stage: stage.stage.spec.adds),
        csv_only("bottleneck", lambda stage: stage.bottleneck.kind if stage.seconds else None),
        *_named(bottleneck_section.columns(run.words)),
        *_named(bits_section.columns(summary)),
        csv_only("kernels_per_call", lambda stage: stage.stage.profile and stage.stage.profile.launches_per_call),
        csv_only("bytes_moved_per_call", lambda stage: stage.bottleneck.moved and stage.bottleneck.moved.amount),
        *_explaining(summary),
        *_pricing(summary),
        csv_only("torch", lambda _: packages.get("torch")),
        csv_only("driver", lambda _: run.environment and run.environment.driver),
        csv_only("device", lambda _: device),
        csv_only("batch_size", lambda _: batch),
    ]


def _named(shown: Iterable[Column[Item]]) -> list[Column[Item]]:
    """The columns that have a name here."""
    return [column for column in shown if column.csv]


def _explaining(summary: RunSummary) -> list[StageColumn]:
    """What the tables under "Why" say of a stage."""
    layouts = [*layout_section.columns(summary.run.words), layout_section.PLANNED]
    fused = [*fusion_section.columns(clean(summary.run.baseline)), *fusion_section.COUNTED]
    return [
        *_rows(attribution_section.class_columns(), attribution_section.profiled(summary), lambda each: each[0].name),
        *_rows(host_time_section.columns(), host_time_section.lines(summary), lambda each: each[0]),
        *_rows(host_path_section.columns(), host_path_section.measured(summary), lambda each: each.name),
        *_rows(layouts, layout_section.searched(summary), lambda each: each.stage.name),
        *_rows(fused, fusions(summary), lambda each: each.stage.name),
        *_rows(memory_section.columns(), memories(summary), lambda each: each.stage.name),
    ]


def _pricing(summary: RunSummary) -> list[StageColumn]:
    """What the tables of cost and of GPUs for a target say of a stage."""
    price = capacity_section.price_column(summary.run.config.report.gpu_hour_price)
    fleet = [*capacity_section.columns(summary.run.words), price]
    return [
        *_rows(cost_section.columns(summary), costs(summary), lambda each: each.stage.name),
        *_rows(fleet, capacity_section.lines(summary), lambda each: each[0]),
    ]


def _rows(shown: Iterable[Column[Item]], items: Iterable[Item], named: Callable[[Item], str]) -> list[StageColumn]:
    """A table's columns that have a name here; empty for a stage of which the table has no row."""
    rows = {named(item): item for item in items}

    def value(column: Column[Item], stage: StageSummary) -> object:
        return column.cell(rows[stage.name]).value if stage.name in rows else None

    return [csv_only(column.csv, partial(value, column)) for column in _named(shown)]


def header(summary: RunSummary) -> list[str]:
    """The names of the columns."""
    return [column.csv for column in columns(summary)]


def lines(summary: RunSummary) -> list[list[object]]:
    """The cells of every stage."""
    shown = columns(summary)
    return [[_plain(stage, column) for column in shown] for stage in summary.stages]


def csv_text(summary: RunSummary) -> str:
    """The table of the stages as CSV."""
    return written([header(summary), *lines(summary)])


def written(rows: Sequence[Sequence[object]]) -> str:
    """Rows as CSV."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def _plain(stage: StageSummary, column: StageColumn) -> object:
    value = column.cell(stage).value
    if not isinstance(value, str):
        return value
    text = clean(value)
    return f"'{text}" if text.startswith(FORMULA_SIGNS) else text
