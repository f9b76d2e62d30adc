"""`python -m pipeline.report RUN [key=value]`: draw a report again, of a run, of a sweep, or of several.

What may be asked anew: report.gpu_hour_price and its kind, objective, subject_to, accuracy.max_dice_drop and its kind.
"""

from dataclasses import replace
from pathlib import Path

from pipeline.analysis.run_comparison import since
from pipeline.analysis.summary import summarize
from pipeline.analysis.sweeps import job_folders, read_jobs
from pipeline.command_line import REFUSED, Parser, guarded, show, tell, unforeseen
from pipeline.config.request_error import RequestError
from pipeline.records import codec
from pipeline.report.answer import headline
from pipeline.report.formatting import clean, visible
from pipeline.report.redraw_request import KEYS, Asked, split
from pipeline.report.write import write_report, write_sweep_report


def draw(folder: Path, asked: Asked) -> Path:
    """The report of what the folder holds: a run, or a sweep's jobs.

    Args:
        folder: of a run or a sweep.
        asked: in place of what the run was asked with; the record stays as it is.

    Raises:
        RecordError: neither is there, or the record can't be read.
        RequestError: the run can't tell what is asked.
    """
    if not (folder / codec.FILE).exists() and job_folders(folder):
        jobs = read_jobs(folder, asked.of)
        for job in jobs:
            if job.run:  # the sweep's report says which job has no record, and why
                write_report(job.summary or summarize(job.run), job.folder)
        return write_sweep_report(jobs, folder)
    run = asked.of(codec.load(folder))
    try:
        summary = replace(summarize(run), since=since(run, folder))
        path = write_report(summary, folder)
        tell(f"{visible(folder)}: {clean(headline(summary))}")
    except OSError:
        raise
    except Exception as error:
        raise codec.RecordError(f"{folder}: its record can't be drawn: {unforeseen(error)}") from error
    return path


def main(arguments: list[str] | None = None) -> int:
    """Print the path of every report drawn, and to stderr its answer; 2 with one line where a request is wrong."""
    return guarded(lambda: drawn(arguments))


def drawn(arguments: list[str] | None) -> int:
    """The exit code of `main`."""
    parser = Parser(prog="python -m pipeline.report", description=__doc__)
    parser.add_argument("run", nargs="+", help="the folder of a run or a sweep, or key=value for all of them")
    parser.keys = KEYS
    folders: list[Path] = []
    try:
        folders, asked = split(parser.parse_args(arguments).run)
        if not folders:
            raise RequestError("name the folder of a run or a sweep, such as outputs/DATE/TIME")
        for folder in folders:
            show(f"{visible(draw(folder, asked))}\n")
    except BrokenPipeError:
        raise
    except (RequestError, codec.RecordError) as error:
        tell(f"error: {clean(error)}")
        return REFUSED
    except OSError as error:
        where = error.filename2 or error.filename or ", ".join(map(str, folders))
        tell(f"error: {clean(where)}: {error.strerror or type(error).__name__}")
        return REFUSED
    return 0
