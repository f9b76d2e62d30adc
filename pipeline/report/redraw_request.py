"""What may be asked of a finished run: `report.*`, `objective`, `subject_to` and `accuracy.*`, in place of its own."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import yaml

from pipeline.analysis.rejudged import rejudged
from pipeline.config.conversion import converted
from pipeline.config.goal_request import read_accuracy, read_goal
from pipeline.config.request_error import RequestError, nearest
from pipeline.records.codec import to_json
from pipeline.records.goals import OF_TASK, Goal
from pipeline.records.request import ReportTargets
from pipeline.records.run_record import RunRecord

GOAL_KEYS = ("objective", "subject_to")
ACCURACY_KEYS = tuple(f"accuracy.{name}" for names in OF_TASK.values() for name in names)
REPORT_KEYS = tuple(part.name for part in fields(ReportTargets))
KEYS = (*(f"report.{name}" for name in REPORT_KEYS), *GOAL_KEYS, *ACCURACY_KEYS)


@dataclass(frozen=True)
class Asked:
    """The knobs that were typed, without their group's name."""

    report: dict[str, Any] = field(default_factory=dict)
    goal: dict[str, Any] = field(default_factory=dict)
    accuracy: dict[str, Any] = field(default_factory=dict)

    def of(self, run: RunRecord) -> RunRecord:
        """The run with these knobs in place of its own; nothing is measured, and the record on disk stays as it is.

        Raises:
            RequestError: what this run can't tell, such as a drop of Dice without labels.
        """
        config = run.config
        report = replace(config.report, **self.report)
        goal = _goal(config.goal, self.goal, report.gpu_hour_price)
        run = replace(run, config=replace(config, report=report, goal=goal))
        if not self.accuracy:
            return run
        judged = [stage.accuracy for stage in run.stages if stage.accuracy]
        labelled = any(found.dice or found.truth_psnr is not None for found in judged)
        limits = {**to_json(config.accuracy), **self.accuracy}
        return rejudged(run, read_accuracy(limits, labelled, config.model.is_trained, config.task.name))


def _goal(own: Goal, asked: dict[str, Any], price: float | None) -> Goal:
    """The run's own goal with the parts that were typed."""
    texts = [each.text for each in own.subject_to]
    given = {"objective": own.objective, "subject_to": texts, **asked}
    return read_goal(given["objective"], given["subject_to"], price) if asked else own


def split(arguments: Sequence[str]) -> tuple[list[Path], Asked]:
    """The folders, and the knobs.

    Raises:
        RequestError: a key that isn't among them, or a value that can't be.
    """
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
    """The value as Hydra would read it: null, a number, a list of texts, or a text.

    Raises:
        RequestError: it is none of these.
    """
    with suppress(ValueError):
        return float(text)
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise RequestError(f'{key}={text}: not a value; lists look like ["p99<20ms"]') from None
    return text if value is None and text not in ("null", "~") else value
