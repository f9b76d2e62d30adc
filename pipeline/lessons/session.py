"""A session of lessons: those that were chosen, one after another, and what was found, drawn."""

import os
from pathlib import Path

from pipeline.cli.progress import Progress
from pipeline.command_line import FAILED, show
from pipeline.lessons.bench import Bench
from pipeline.lessons.contents import lesson_of
from pipeline.lessons.draw import draw
from pipeline.lessons.lesson import run_lessons
from pipeline.measure.torch_device import keep_to_quota, open_device


def run(names: list[str], device: str, folder: Path) -> int:
    """Run the lessons and draw them; 1 where one failed.

    Args:
        names: of the lessons.
        device: "cuda" or "cpu".
        folder: of what they leave.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler's messages would stand among the progress lines
    lessons = [lesson_of(name) for name in names]
    keep_to_quota()
    bench = Bench(open_device(device))
    with Progress(len(lessons)) as progress:
        record = run_lessons(lessons, bench, folder, progress.stage_started)
        for lesson in record.lessons:
            if lesson.outcome != "ok":
                progress.say(f"{lesson.name} {lesson.outcome}: {lesson.reason.removeprefix('failed: ')}")
    show(f"{draw(record, folder)}\n")
    return FAILED if any(lesson.outcome == "failed" for lesson in record.lessons) else 0
