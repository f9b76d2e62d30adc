"""Write the report of a run or a sweep again, without measuring: `python -m pipeline.report outputs/DATE/TIME`.

Keys that may change: report.KEY, accuracy.KEY, objective and subject_to; --cfg job of python -m pipeline lists them.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import yaml

from pipeline.analysis.run_comparison import since
from pipeline.analysis.summary import RunSummary, check_calls, summarize
from pipeline.analysis.sweeps import Job, job_folders, read_jobs
from pipeline.command_line import FILES_TOO, Parser, guarded, show, tell, unforeseen
from pipeline.config.conversion import converted
from pipeline.config.goal_request import read_accuracy, read_goal
from pipeline.config.request_error import RequestError
from pipeline.errors import nearest
from pipeline.records import codec
from pipeline.records.disk import write_text
from pipeline.records.goals import OF_TASK, AccuracyLimits, Goal
from pipeline.records.request import ReportTargets
from pipeline.records.run_record import RunRecord
from pipeline.report import PAGE, TABLE, TEXT
from pipeline.report.answer import headline
from pipeline.report.csv_table import csv_text
from pipeline.report.formatting import clean, visible
from pipeline.report.gallery import gallery
from pipeline.report.html import page
from pipeline.report.markdown import markdown
from pipeline.report.sweep import sweep_csv, sweep_texts

ACCURACY_KEYS = tuple(f"accuracy.{name}" for names in OF_TASK.values() for name in names)
REPORT_KEYS = tuple(f"report.{each.name}" for each in fields(ReportTargets))
KEYS = (*REPORT_KEYS, "objective", "subject_to", *ACCURACY_KEYS)
NOT_TIMED = "so it was not measured in this run, and keeps the limits that are asked for now; run it again with them"


def write_report(summary: RunSummary, folder: Path) -> Path:
    """Draw report.html, report.md and results.csv of a run into its folder; return the path of the first."""
    html = page(summary, gallery(summary, folder), lambda path: (folder / path).is_file())
    return _write(folder, html, markdown(summary), csv_text(summary))


def write_sweep_report(jobs: Sequence[Job], folder: Path) -> Path:
    """Draw one report of all jobs into the sweep's folder, also of those that left no record."""
    return _write(folder, *sweep_texts(jobs), sweep_csv(jobs))


def _write(folder: Path, html: str, text: str, table: str) -> Path:
    write_text(text, folder / TEXT)
    write_text(table, folder / TABLE)
    write_text(html, folder / PAGE)
    return folder / PAGE


@dataclass(frozen=True)
class Asked:
    """The settings that were typed, without their group's name."""

    report: dict[str, Any] = field(default_factory=dict)
    goal: dict[str, Any] = field(default_factory=dict)
    accuracy: dict[str, Any] = field(default_factory=dict)

    def of(self, run: RunRecord) -> RunRecord:
        """Return the run with these settings, nothing measured; RequestError for what this run cannot tell."""
        config = run.config
        report = replace(config.report, **self.report)
        goal = _goal(config.goal, self.goal, report.gpu_hour_price)
        run = replace(run, config=replace(config, report=report, goal=goal))
        if self.goal:
            made = max((len(stage.latencies) for stage in run.stages if stage.usable), default=0)
            check_calls(run.config, run.command, made)
        if not self.accuracy:
            return run
        judged = [stage.accuracy for stage in run.stages if stage.accuracy]
        labelled = any(found.dice or found.truth_psnr is not None for found in judged)
        limits = {**codec.to_json(config.accuracy), **self.accuracy}
        return rejudged(run, read_accuracy(limits, labelled, config.model.is_trained, config.task.name))


def rejudged(run: RunRecord, limits: AccuracyLimits) -> RunRecord:
    """Return the run as if these limits had been asked for, as far as the measurements tell."""
    stages = []
    for stage in run.stages:
        by_limit, found = stage.failure == "accuracy limit", stage
        missed = limits.missed(stage.accuracy, run.words) if stage.accuracy else ""
        if missed and (stage.status == "ok" or by_limit):
            found = replace(stage, status="inaccurate", failure="accuracy limit", reason=missed)
        elif by_limit and stage.accuracy and stage.pairs:
            found = replace(stage, status="ok", failure=None, reason="")
        elif by_limit and stage.accuracy:
            found = replace(stage, reason=f"{stage.reason}, {NOT_TIMED}")
        stages.append(found)
    return replace(run, config=replace(run.config, accuracy=limits), stages=stages)


def _goal(own: Goal, asked: dict[str, Any], price: float | None) -> Goal:
    """Return the run's own goal with the parts that were typed."""
    given = {"objective": own.objective, "subject_to": [each.text for each in own.subject_to], **asked}
    return read_goal(given["objective"], given["subject_to"], price) if asked else own


def split(arguments: Sequence[str]) -> tuple[list[Path], Asked]:
    """Return the folders, and the settings; RequestError for an unknown key or a value that it cannot take."""
    overrides = [word for word in arguments if "=" in word and not Path(word).exists()]
    asked = Asked()
    for word in overrides:
        key, _, text = word.partition("=")
        if key not in KEYS:
            raise RequestError(f"{key}: not a key of the report; {nearest(key, KEYS)}")
        group, _, name = key.rpartition(".")
        getattr(asked, group or "goal")[name] = _value(key, text)
    converted(asked.report, ReportTargets, "report")
    _goal(Goal(), {key: value for key, value in asked.goal.items() if value != "cost"}, price=0.0)
    return [Path(word) for word in arguments if word not in overrides], asked


def _value(key: str, text: str) -> object:
    """Return the value as Hydra would read it: null, a number, a list of texts, or a text."""
    with suppress(ValueError):
        return float(text)
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise RequestError(f'{key}={text}: not a value; lists look like ["p99<20ms"]') from None
    return text if value is None and text not in ("null", "~") else value


def draw(folder: Path, asked: Asked) -> Path:
    """Draw the report of what the folder holds, a run or a sweep, as if `asked` had been asked for."""
    if not (folder / codec.FILE).exists() and job_folders(folder):
        jobs = read_jobs(folder, asked.of)
        for job in jobs:
            if job.summary:  # the sweep's report says which job has no record, and why
                write_report(job.summary, job.folder)
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

    def drawn() -> int:
        parser = Parser(prog="python -m pipeline.report", description=__doc__)
        parser.add_argument("run", nargs="+", help="the folder of a run or a sweep, or KEY=VALUE for all of them")
        parser.keys = KEYS
        folders, asked = split(parser.parse_args(arguments).run)
        if not folders:
            raise RequestError("name the folder of a run or a sweep, such as outputs/DATE/TIME")
        for folder in folders:
            show(f"{visible(draw(folder, asked))}\n")
        return 0

    return guarded(drawn, refuses=FILES_TOO)
