"""results.csv: one line a stage, plain numbers with their units in the header."""

import csv
import io
from collections.abc import Callable
from typing import Any

from pipeline.analysis.summary import Digest, Row, digest
from pipeline.records.run_record import RunRecord
from pipeline.report import formatting as words

Column = Callable[[Digest, Row], Any]

FORMULA_SIGNS = ("=", "+", "-", "@")  # with which a spreadsheet would begin to reckon


def csv_text(run: RunRecord) -> str:
    """The table of the stages as CSV."""
    found = digest(run)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in found.rows:
        writer.writerow([_cell(column(found, row)) for column in COLUMNS.values()])
    return out.getvalue()


def _cell(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = words.clean(value)
    return f"'{text}" if text.startswith(FORMULA_SIGNS) else text


def _of(part: str, name: str) -> Column:
    """The field `name` of the part called `part` of a row or its stage; empty where there is none."""

    def read(_: Digest, row: Row) -> Any:
        holder = getattr(row, part, None) or getattr(row.stage, part, None)
        return None if holder is None else getattr(holder, name)

    return read


COLUMNS: dict[str, Column] = {
    "stage": lambda _, row: row.name,
    "adds": lambda _, row: row.stage.adds,
    "status": lambda _, row: row.status,
    "reason": lambda _, row: row.stage.reason,
    "place": lambda _, row: row.place,
    "legacy": lambda _, row: row.stage.legacy,
    "baseline": lambda found, _: found.run.baseline,
    "ratio": _of("ratio", "value"),
    "ratio_low": _of("ratio", "low"),
    "ratio_high": _of("ratio", "high"),
    "word": lambda _, row: row.word,
    "blocks": _of("ratio", "blocks"),
    "trials": _of("ratio", "trials"),
    "second_baseline": lambda found, _: found.run.second_baseline,
    "second_ratio": _of("second", "value"),
    "second_ratio_low": _of("second", "low"),
    "second_ratio_high": _of("second", "high"),
    "second_word": lambda _, row: row.second_word,
    "seconds_per_call": _of("seconds", "value"),
    "seconds_per_call_low": _of("seconds", "low"),
    "seconds_per_call_high": _of("seconds", "high"),
    "alone_seconds_per_call": lambda _, row: row.sustained_seconds,
    "images_per_second": lambda _, row: row.images_per_second,
    "latency_p50_s": _of("latency", "p50"),
    "latency_p90_s": _of("latency", "p90"),
    "latency_p99_s": _of("latency", "p99"),
    "host_to_host_p50_s": _of("host_latency", "p50"),
    "host_to_host_p99_s": _of("host_latency", "p99"),
    "allocated_peak_bytes": _of("memory", "allocated_peak_bytes"),
    "process_bytes": _of("memory", "process_bytes"),
    "host_peak_bytes": _of("memory", "host_peak_bytes"),
    "joules_per_image": lambda _, row: row.joules_per_image,
    "build_s": lambda _, row: row.stage.build_seconds,
    "first_call_s": lambda _, row: row.stage.first_call_seconds,
    "break_even_images": lambda _, row: row.break_even,
    "relative_l2": _of("accuracy", "relative_l2"),
    "flipped_share": _of("accuracy", "flipped_share"),
    "nan_share": _of("accuracy", "nan_share"),
    "one_class": _of("accuracy", "one_class"),
    "device": lambda found, _: found.run.environment.device_name if found.run.environment else None,
    "batch_size": lambda found, _: found.run.batch_size,
}
