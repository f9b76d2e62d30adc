"""`python -m pipeline.report RUN [report.key=value]`: draw a report again, of a run, of a sweep, or of several."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from models.one_line import guarded, tell, unforeseen
from pipeline.analysis.earlier_runs import since
from pipeline.analysis.summary import summarize
from pipeline.analysis.sweep_jobs import job_folders, read_jobs
from pipeline.config.load import REPORT_KEYS, check_report
from pipeline.config.request_error import RequestError, nearest
from pipeline.records import codec
from pipeline.records.run_record import RunRecord
from pipeline.report.formatting import clean, visible
from pipeline.report.write import write_report, write_sweep_report

REFUSED = 2
Knobs = dict[str, Any]  # of the config's `report`


def draw(folder: Path, knobs: Knobs) -> Path:
    """The report of what the folder holds: a run, or a sweep's jobs.

    Args:
        folder: of a run or a sweep.
        knobs: of the config's `report`, in place of what the run was asked with; the record stays as it is.

    Raises:
        RecordError: neither is there, or the record can't be read.
    """
    if not (folder / "results.json").exists() and job_folders(folder):
        jobs = read_jobs(folder, lambda run: changed(run, knobs))
        for job in jobs:
            if job.run:  # the sweep's report says which job has no record, and why
                write_report(job.summary or summarize(job.run), job.folder)
        return write_sweep_report(jobs, folder)
    run = changed(codec.load(folder), knobs)
    try:
        return write_report(replace(summarize(run), since=since(run, folder)), folder)
    except OSError:
        raise
    except Exception as error:
        raise codec.RecordError(f"{folder}: its record can't be drawn: {unforeseen(error)}") from error


def changed(run: RunRecord, knobs: Knobs) -> RunRecord:
    """The record with other knobs of the report."""
    return replace(run, settings=replace(run.settings, report=replace(run.settings.report, **knobs)))


def split(arguments: Sequence[str]) -> tuple[list[Path], Knobs]:
    """The folders, and the report's knobs.

    Raises:
        RequestError: a key that isn't the report's, or a value that can't be.
    """
    overrides = [word for word in arguments if "=" in word and not Path(word).exists()]
    knobs = {}
    for word in overrides:
        key, _, value = word.partition("=")
        if not key.startswith("report."):
            known = [f"report.{name}" for name in REPORT_KEYS]
            raise RequestError(f"{key}: not a key of the report; {nearest(key, known)}")
        knobs[key.removeprefix("report.")] = _number(value)
    check_report(knobs)
    return [Path(word) for word in arguments if word not in overrides], knobs


def _number(text: str) -> float | str | None:
    if text == "null":
        return None
    try:
        return float(text)
    except ValueError:
        return text


def main(arguments: list[str] | None = None) -> int:
    """Print the path of every report drawn; 2 with one line where a folder holds none, or a knob is wrong."""
    return guarded(lambda: drawn(arguments))


def drawn(arguments: list[str] | None) -> int:
    """The exit code of `main`."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.report", description=__doc__)
    parser.add_argument("run", nargs="+", help="the folder of a run or a sweep, or report.key=value for all of them")
    try:
        folders, knobs = split(parser.parse_args(arguments).run)
        if not folders:
            raise RequestError("name the folder of a run or a sweep, such as outputs/DATE/TIME")
        for folder in folders:
            sys.stdout.write(f"{visible(draw(folder, knobs))}\n")
    except BrokenPipeError:
        raise
    except (RequestError, codec.RecordError, OSError) as error:
        tell(f"error: {clean(error)}")
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
