"""Run small experiments on your device, each with a table and a chart: `python -m pipeline.lessons --only gelu,chain`.

Exit codes: 0 all well, 1 a lesson failed, 2 the request was wrong, 130 interrupted; what was finished is saved.
"""

import argparse
import os
import sys
from pathlib import Path

from pipeline.command_line import FAILED, FILES_TOO, INTERRUPTED, Parser, guarded, importing, path_of, show

with importing():
    from pipeline.cli.progress import Progress, print_error
    from pipeline.config.request_error import RequestError
    from pipeline.devices.accelerators import accelerators, choose_device
    from pipeline.lessons.contents import chosen, lesson_of
    from pipeline.lessons.lesson_records import load

FOLDER = Path("outputs/lessons")


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    found = Parser(prog="python -m pipeline.lessons", description=__doc__)
    found.add_argument("--device", help="auto, cuda or cpu (default auto)")
    found.add_argument("--out", type=path_of, metavar="FOLDER", help="folder for the results (default outputs/lessons)")
    found.add_argument("--only", metavar="NAME,NAME", help="run only these lessons")
    found.add_argument("--draw", type=Path, metavar="FOLDER", help="write a folder's pages again, without measuring")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run lessons, or draw them again; the last line is the path of lessons.html."""
    return guarded(lambda: answered(arguments), refuses=FILES_TOO)


def answered(arguments: list[str] | None) -> int:
    """Return the exit code of `main`."""
    asked = parser().parse_args(arguments)
    if asked.draw:
        if beside := [name for name in ("device", "out", "only") if getattr(asked, name) is not None]:
            raise RequestError(f"--draw {asked.draw}: draws what is there; --{beside[0]} says nothing then")
        record = load(asked.draw)
        from pipeline.lessons.draw import draw  # and so torch, for which no wrong word waits

        show(f"{draw(record, asked.draw)}\n")
        return 0
    names, folder = chosen(asked.only), asked.out or FOLDER
    device = choose_device(asked.device or "auto", accelerators(), "--device ")
    try:
        return run(names, device, folder)
    except OSError as error:
        error.filename = error.filename or str(folder)
        raise
    except KeyboardInterrupt:
        print_error(f"interrupted; what was finished is in {folder}, and --draw {folder} draws it")
        return INTERRUPTED


def run(names: list[str], device: str, folder: Path) -> int:
    """Run these lessons on "cuda" or "cpu", and draw what they leave in the folder; 1 where one failed."""
    from pipeline.lessons.bench import Bench  # as above
    from pipeline.lessons.draw import draw
    from pipeline.lessons.lesson import run_lessons
    from pipeline.measure.torch_device import keep_to_quota, open_device

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


if __name__ == "__main__":
    sys.exit(main())
