"""`python -m pipeline.lessons`: small experiments on your device, each with a table, a chart and what it showed.

Exit codes: 0 all well, 1 a lesson failed, 2 the request was wrong, 130 interrupted; what was finished is saved.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from models.errors import InputError
from models.one_line import FAILED, INTERRUPTED, Parser, guarded
from pipeline.cli.progress import Progress, print_error
from pipeline.config.request_error import RequestError, nearest
from pipeline.devices.choice import choose_device
from pipeline.devices.discover import accelerators
from pipeline.lessons.contents import CONTENTS
from pipeline.lessons.draw import draw
from pipeline.lessons.lesson import Lesson
from pipeline.lessons.lesson_records import load
from pipeline.lessons.runner import run_lessons
from pipeline.lessons.variant_bench import Bench
from pipeline.measure.torch_device import keep_to_quota, open_device
from pipeline.records.codec import RecordError

REFUSED = 2
FOLDER = Path("outputs/lessons")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = Parser(prog="python -m pipeline.lessons", description="Small experiments that teach.")
    found.add_argument("--device", help="auto, cuda or cpu")
    found.add_argument("--out", type=Path, metavar="FOLDER")
    found.add_argument("--only", metavar="NAME,NAME", help="these lessons alone")
    found.add_argument("--draw", type=Path, metavar="FOLDER", help="draw a folder's lessons again; measures nothing")
    return found


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


def check_drawing(asked: argparse.Namespace) -> None:
    """That nothing is asked besides drawing, which would be passed over.

    Raises:
        RequestError: something is.
    """
    if beside := [name for name in ("device", "out", "only") if getattr(asked, name) is not None]:
        raise RequestError(f"--draw {asked.draw}: draws what is there; --{beside[0]} says nothing then")


def run(asked: argparse.Namespace) -> int:
    """Run the lessons and draw them; 1 where one failed."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler's messages would stand among the progress lines
    lessons = chosen(asked.only, CONTENTS)
    keep_to_quota()
    bench = Bench(open_device(choose_device(asked.device or "auto", accelerators(), "--device ")))
    folder = asked.out or FOLDER
    with Progress(len(lessons)) as progress:
        record = run_lessons(lessons, bench, folder, progress.stage_started)
        for lesson in record.lessons:
            if lesson.outcome != "ok":
                progress.say(f"{lesson.name} {lesson.outcome}: {lesson.reason.removeprefix('failed: ')}")
    sys.stdout.write(f"{draw(record, folder)}\n")
    return FAILED if any(lesson.outcome == "failed" for lesson in record.lessons) else 0


def main(arguments: list[str] | None = None) -> int:
    """Run lessons, or draw them again; the last line is the path of lessons.html."""
    return guarded(lambda: answered(arguments))


def answered(arguments: list[str] | None) -> int:
    """The exit code of `main`."""
    asked = parser().parse_args(arguments)
    try:
        if asked.draw:
            check_drawing(asked)
            sys.stdout.write(f"{draw(load(asked.draw), asked.draw)}\n")
            return 0
        return run(asked)
    except BrokenPipeError:
        raise
    except (RequestError, InputError, RecordError, OSError) as error:
        print_error(str(error))
        return REFUSED
    except KeyboardInterrupt:
        folder = asked.out or FOLDER
        print_error(f"interrupted; what was finished is in {folder}, and --draw {folder} draws it")
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
