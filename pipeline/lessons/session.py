"""A session of lessons: those that were chosen, one after another, and what was found, drawn."""

import os
from collections.abc import Sequence
from pathlib import Path

from models.one_line import FAILED, show
from pipeline.cli.progress import Progress
from pipeline.config.request_error import RequestError, nearest
from pipeline.lessons.contents import CONTENTS
from pipeline.lessons.draw import draw
from pipeline.lessons.lesson import Lesson
from pipeline.lessons.runner import run_lessons
from pipeline.lessons.variant_bench import Bench
from pipeline.measure.torch_device import keep_to_quota, open_device


def chosen(only: str | None, contents: Sequence[Lesson]) -> list[Lesson]:
    """The lessons named, in the order of the contents; all where `only` is None.

    Raises:
        RequestError: it names none, or there is no lesson of that name.
    """
    if only is None:
        return list(contents)
    names = [part.strip() for part in only.split(",") if part.strip()]
    known = [lesson.name for lesson in contents]
    if not names:
        raise RequestError(f"--only {only!r}: names no lesson; choose of: {', '.join(known)}")
    for name in names:
        if name not in known:
            raise RequestError(f"--only {name}: no such lesson; {nearest(name, known)}")
    return [lesson for lesson in contents if lesson.name in names]


def run(only: str | None, device: str, folder: Path) -> int:
    """Run the lessons and draw them; 1 where one failed.

    Args:
        only: names with commas between; None for all.
        device: "cuda" or "cpu".
        folder: of what they leave.

    Raises:
        RequestError: there is no such lesson.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler's messages would stand among the progress lines
    lessons = chosen(only, CONTENTS)
    keep_to_quota()
    bench = Bench(open_device(device))
    with Progress(len(lessons)) as progress:
        record = run_lessons(lessons, bench, folder, progress.stage_started)
        for lesson in record.lessons:
            if lesson.outcome != "ok":
                progress.say(f"{lesson.name} {lesson.outcome}: {lesson.reason.removeprefix('failed: ')}")
    show(f"{draw(record, folder)}\n")
    return FAILED if any(lesson.outcome == "failed" for lesson in record.lessons) else 0
