"""A lesson, and how lessons run one after another; a failed one keeps its reason and costs no other."""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import torch

from pipeline.command_line import check_writable
from pipeline.lessons.bench import Bench, why
from pipeline.lessons.lesson_records import LessonRecord, LessonsRecord, Row, save
from pipeline.lessons.rows import Rows, Unit, measured
from pipeline.measure.environment import describe
from pipeline.records.disk import code_digest
from pipeline.records.run_record import SCHEMA_VERSION

Say = Callable[[str, str], None]  # a name, and a line about it


@dataclass(frozen=True)
class Lesson:
    """One experiment."""

    name: str  # what `--only` takes
    title: str  # as a question
    how: str  # what is done, in one sentence
    unit: Unit  # of the chart
    # does it; about five seconds. It may leave out of a CPU's rows only what it names as skipped
    run: Callable[[Bench], list[Row]]
    # what a person would say of the rows, first in one sentence with its figures; empty where they don't tell
    says: Callable[[Rows], list[str]] = lambda rows: [rows.paces()]
    axis: str = ""  # of a chart of lines; empty for bars
    gpu_only: str = ""  # why there is nothing to do on a CPU; empty where there is


def run_lessons(lessons: Sequence[Lesson], bench: Bench, folder: Path, say: Say) -> LessonsRecord:
    """Run the lessons; lessons.json is saved after each, so that an interruption loses one at most."""
    check_writable(folder, f"--out {folder}")
    began, started_at = time.perf_counter(), datetime.now().astimezone().isoformat(timespec="seconds")
    environment = describe(bench.device)
    done: list[LessonRecord] = []
    record = LessonsRecord(SCHEMA_VERSION, started_at, 0.0, environment, done, code_digest())
    for lesson in lessons:
        say(lesson.name, lesson.title)
        done.append(run_lesson(lesson, bench))
        record = replace(record, seconds=time.perf_counter() - began)
        save(record, folder)
    return record


def run_lesson(lesson: Lesson, bench: Bench) -> LessonRecord:
    """Return the record of one lesson, also of one that fails; its memory is freed."""
    began = time.perf_counter()
    if lesson.gpu_only and not bench.on_gpu:
        return LessonRecord(lesson.name, "skipped", lesson.gpu_only, 0.0, [])
    rows: list[Row] = []
    try:
        rows = lesson.run(bench)
        reason = "" if any(map(measured, rows)) else "no variant could be measured"
    except Exception as error:  # noqa: BLE001 - a lesson that fails is a result
        reason = why(error)
    gc.collect()
    if bench.on_gpu:
        torch.cuda.empty_cache()
    return LessonRecord(lesson.name, "failed" if reason else "ok", reason, time.perf_counter() - began, rows)
