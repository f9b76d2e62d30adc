"""results.csv: one line per stage, plain numbers with their units in the header."""

import csv
import io
from collections.abc import Sequence

from pipeline.analysis.summary import RunSummary, StageSummary
from pipeline.report import objective_text
from pipeline.report.formatting import clean
from pipeline.report.sections import bits_section
from pipeline.report.sections.ladder_section import StageColumn, csv_only, headings_of, stage_columns

FORMULA_SIGNS = ("=", "+", "-", "@")  # with which a spreadsheet would begin to compute


def columns(summary: RunSummary) -> list[StageColumn]:
    """The ladder's columns that have a name here, and what else a spreadsheet needs on each line."""
    run = summary.run
    device = run.environment.device_name if run.environment else None
    batch = run.settings.data.batch_size
    packages = run.environment.packages if run.environment else {}
    return [
        *(column for column in stage_columns(headings_of(summary)) if column.csv),
        csv_only("status", lambda stage: stage.status),
        csv_only("reason", lambda stage: stage.stage.reason),
        csv_only("place", lambda stage: stage.place),
        csv_only("objective", lambda _: run.settings.goal.objective),
        csv_only("objective_value", lambda stage: objective_text.value_of(summary, stage.name)),
        csv_only("constraints_missed", lambda stage: objective_text.missed(summary, stage.name)),
        csv_only("accuracy_limits", lambda _: objective_text.asked(run.settings.accuracy)),
        csv_only("legacy", lambda stage: stage.stage.legacy),
        csv_only("baseline", lambda _: summary.baseline),
        csv_only("ran", lambda stage: stage.stage.description),
        csv_only("adds", lambda stage: stage.stage.adds),
        csv_only("bottleneck", lambda stage: stage.bottleneck.kind if stage.seconds else None),
        *_evidence(),
        csv_only("kernels_per_call", lambda stage: stage.stage.profile and stage.stage.profile.launches_per_call),
        csv_only("bytes_moved_per_call", lambda stage: stage.bottleneck.moved and stage.bottleneck.moved.amount),
        csv_only("torch", lambda _: packages.get("torch")),
        csv_only("driver", lambda _: run.environment and run.environment.driver),
        csv_only("device", lambda _: device),
        csv_only("batch_size", lambda _: batch),
    ]


def _evidence() -> list[StageColumn]:
    """What the bottleneck is told by, and what the stage computes with and leaves to be loaded."""
    return [
        csv_only("near_arithmetic_share", lambda stage: (of := stage.bottleneck.evidence.shares) and of.compute),
        csv_only("near_memory_share", lambda stage: (of := stage.bottleneck.evidence.shares) and of.memory),
        csv_only("peak_flops_per_s", lambda stage: stage.roofline and stage.roofline.flops_per_s),
        csv_only("peak_share", lambda stage: stage.bottleneck.evidence.compute),
        csv_only("bandwidth_share", lambda stage: stage.bottleneck.evidence.memory),
        csv_only("gpu_idle_share", lambda stage: stage.bottleneck.evidence.idle_told),
        csv_only("batch_slope", lambda stage: stage.bottleneck.evidence.slope),
        csv_only("pixel_slope", lambda stage: stage.bottleneck.evidence.image_slope),
        csv_only("precision", lambda stage: stage.stage.precision),
        csv_only("file_bytes", bits_section.bytes_left),
    ]


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
