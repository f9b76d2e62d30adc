"""`python -m pipeline.report RUN`: draw a report again, of a run, of a sweep, or of several."""

import argparse
import sys
from contextlib import suppress
from pathlib import Path

from pipeline import store
from pipeline.report.sweep import job_folders
from pipeline.report.write import write_report, write_sweep_report

REFUSED = 2


def draw(folder: Path) -> Path:
    """The report of what the folder holds: a run, or a sweep's jobs.

    Raises:
        RecordError: neither is there, or the record can't be read.
    """
    if not (folder / "results.json").exists() and job_folders(folder):
        for job in job_folders(folder):
            with suppress(store.RecordError):  # the sweep's report says which job has no record, and why
                write_report(store.load(job), job)
        return write_sweep_report(folder)
    return write_report(store.load(folder), folder)


def main(arguments: list[str] | None = None) -> int:
    """Print the path of every report drawn; 2 with one line where a folder holds none."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.report", description=__doc__)
    parser.add_argument("run", nargs="+", type=Path, help="the folder of a run or a sweep, such as outputs/DATE/TIME")
    try:
        for folder in parser.parse_args(arguments).run:
            sys.stdout.write(f"{draw(folder)}\n")
    except (store.RecordError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
