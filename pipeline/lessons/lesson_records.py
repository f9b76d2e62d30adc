"""The record of the lessons: raw samples in lessons.json; every figure is computed on reading."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pipeline.records.codec import document, from_json, reading, to_json
from pipeline.records.disk import write_json
from pipeline.records.run_record import Environment
from pipeline.records.samples import Sample

FILE = "lessons.json"

Outcome = Literal["ok", "skipped", "failed"]


@dataclass(frozen=True)
class Row:
    """One variant of an experiment.

    A row without samples says why in `reason`. The rows of a lesson are interleaved: sample i of one was taken in the
    same round as sample i of another.
    """

    name: str
    against: str = ""  # the row that it is compared with
    series: str = ""  # the line of the chart that it is a point of
    at: float | None = None  # where on the chart's axis
    repeats: int = 1  # of the work within one call
    flops: float | None = None  # of one call
    moved_bytes: float | None = None  # through memory, or over the link, in one call
    kernels: float | None = None  # of one call
    built_seconds: float | None = None  # of the first call, which compiles
    note: str = ""
    reason: str = ""  # why it was not measured
    samples: list[Sample] = field(default_factory=list)
    held_bytes: list[float] = field(default_factory=list)  # device memory, one sample for each fresh process


@dataclass(frozen=True)
class LessonRecord:
    """The result of one lesson."""

    name: str
    outcome: Outcome
    reason: str  # empty where all is well
    seconds: float
    rows: list[Row]


@dataclass(frozen=True)
class LessonsRecord:
    """All lessons of one run."""

    schema_version: int
    started_at: str  # ISO 8601 with its offset
    seconds: float
    environment: Environment
    lessons: list[LessonRecord]
    code_sha256: str | None = None  # of the program's sources


def save(record: LessonsRecord, folder: Path) -> None:
    """Write lessons.json, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(to_json(record), folder / FILE)


def load(folder: Path) -> LessonsRecord:
    """Return the record in `folder`."""
    path = folder / FILE
    with reading(path, "a record of lessons", "name a folder of lessons, such as outputs/lessons"):
        return from_json(LessonsRecord, document(path))
