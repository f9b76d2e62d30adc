"""Changes from run A to run B beyond the noise, stage by stage, and from the run before to this one.

Both runs measured every stage against the baseline in the same minutes, so the ratios are compared, not the times: a
machine that was busier on one day changes no ratio.
"""

import re
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Literal

from pipeline.analysis.summary import Since
from pipeline.records import codec
from pipeline.records.request import RunConfig
from pipeline.records.run_record import Environment, RunRecord, StageRecord
from pipeline.stats.intervals import Ratio, steady_composed, steady_ratio
from pipeline.stats.outcomes import Noise, of_both
from pipeline.stats.ranking import baseline_seconds, noise_and_ratios, rankable

MACHINE = ("device_name", "driver", "cuda", "cudnn", "python", "cpu_name", "cpu_threads", "commit", "launcher")
A_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")  # the folder of a day's runs
MOST_READ = 20  # earlier records, the newest first: a folder may hold thousands
MISREAD = (codec.RecordError, OSError, ArithmeticError, LookupError, TypeError, ValueError)  # of a strange record
BASELINE_MOVED = 1.05  # times by which the baseline's own time may differ before it is said

ChangeOutcome = Literal["faster", "slower", "same", "not resolved", "broken", "mended", "new", "gone", "not measured"]
REGRESSIONS: set[ChangeOutcome] = {"slower", "broken"}


@dataclass(frozen=True)
class Change:
    """The change of one stage."""

    stage: str
    before: Ratio | None  # to the baseline in A; None where A doesn't rank it
    after: Ratio | None  # the same in B
    change: Ratio | None  # B's ratio over A's: above 1, it is faster now
    outcome: ChangeOutcome  # of the comparison
    note: str = ""  # B's reason or status, where the outcome needs one


def compare(first: RunRecord, second: RunRecord) -> list[Change]:
    """Compare every stage of either run, in the second's order."""
    old = {stage.name: stage for stage in first.stages}
    new = {stage.name: stage for stage in second.stages}
    noises = (noise_and_ratios(first)[0], noise_and_ratios(second)[0])
    names = [*new, *(name for name in old if name not in new)]
    changes = [_change(name, old.get(name), new.get(name), noises) for name in names]
    if second.finished:
        return changes
    return [  # a stage that a run lost by not finishing is broken
        replace(change, outcome="broken", note="run B did not finish")
        if change.outcome == "gone" and change.before is not None
        else change
        for change in changes
    ]


def _change(name: str, old: StageRecord | None, new: StageRecord | None, noises: tuple[Noise, Noise]) -> Change:
    spread, noise = max(each.spread for each in noises), of_both(*noises)
    before = steady_ratio(old.pairs, spread) if old and rankable(old) else None
    after = steady_ratio(new.pairs, spread) if new and rankable(new) else None
    if old is None or new is None:
        return Change(name, before, after, None, "gone" if new is None else "new")
    if before and after:
        change = steady_composed(new.pairs, old.pairs, noise.spread)
        return Change(name, before, after, change, noise.outcome(change))
    note = new.reason or new.status
    if before:
        return Change(name, before, None, None, "not measured" if new.status == "skipped" else "broken", note)
    if after:
        return Change(name, None, after, None, "mended")
    return Change(name, None, None, None, "not measured", note)


@dataclass(frozen=True)
class Difference:
    """Something in which two runs differ, so that they are less than comparable."""

    what: str  # a setting's key, a package, a property of the machine; "baseline seconds" and "unfinished" are figures
    old: object
    new: object


def incomparable(first: RunRecord, second: RunRecord) -> list[Difference]:
    """Return what makes them answers to different questions: network, weights, images, batch, device or baseline."""
    return _different(_question(first), _question(second))


def _different(old: Mapping[str, object], new: Mapping[str, object], absent: str | None = None) -> list[Difference]:
    """Return the entries of two that differ; what one lacks counts as `absent`."""
    pairs = [(key, old.get(key, absent), new.get(key, absent)) for key in {**old, **new}]
    return [Difference(key, one, other) for key, one, other in pairs if one != other]


def _question(run: RunRecord) -> dict[str, object]:
    """Return what a run was asked, without its stages and the path of its weights."""
    model, data = run.config.model, run.config.data
    options = {key: value for key, value in model.options.items() if key != "file" or "made_of" not in model.options}
    return {
        "device": run.environment.device_name if run.environment else None,
        "kind of device": run.environment.device if run.environment else None,
        "baseline": run.baseline,
        "model": model.target or model.name,
        "model.options": options,
        "the weights' SHA-256": run.reference.weights_sha256 if run.reference else None,
        **{f"data.{label}": getattr(data, label) for label in ("name", "path", "size", "batch_size")},
    }


def differences(first: RunRecord, second: RunRecord) -> list[Difference]:
    """Return what makes two runs less than comparable."""
    found = machine_differences(first.environment, second.environment)
    found += variable_differences(first.environment, second.environment)
    if first.baseline != second.baseline:
        found.append(Difference("baseline", first.baseline, second.baseline))
    old, new = (baseline_seconds(run) for run in (first, second))
    if old and new and not 1 / BASELINE_MOVED < old.value / new.value < BASELINE_MOVED:
        found.append(Difference("baseline seconds", old.value, new.value))
    shared = {stage.name for stage in first.config.stages} & {stage.name for stage in second.config.stages}
    found += config_differences(first.config, second.config, shared)
    if not first.finished or not second.finished:
        found.append(Difference("unfinished", not first.finished, not second.finished))
    return found


def machine_differences(one: Environment | None, other: Environment | None) -> list[Difference]:
    """Return how two machines, and the software on them, differ."""
    if one is None or other is None:
        return [] if one is other else [Difference("environment", one is not None, other is not None)]
    old, new = ({label.replace("_", " "): getattr(of, label) for label in MACHINE} for of in (one, other))
    packages = _different(one.packages, other.packages, "not on record")
    return [*_different(old, new), *sorted(packages, key=lambda each: each.what)]


def variable_differences(one: Environment | None, other: Environment | None) -> list[Difference]:
    """Return the environment variables that differ; none where one of the runs noted none."""
    if one is None or other is None or one.variables is None or other.variables is None:
        return []
    return sorted(_different(one.variables, other.variables, "not set"), key=lambda each: each.what)


def config_differences(old: RunConfig, new: RunConfig, stages: Container[str] | None = None) -> list[Difference]:
    """Return the differing settings of measurement and limits, of the named `stages` or of all."""
    one, other = (
        {
            key: value
            for key, value in config.measured_by().items()
            if stages is None or not key.startswith("stage.") or key.split(".")[1] in stages
        }
        for config in (old, new)
    )
    first, second = ({f"accuracy.{key}": limit for key, limit in asdict(of.accuracy).items()} for of in (old, new))
    return [*_different(one, other), *_different(first, second)]


def anything_told(changes: Sequence[Change]) -> bool:
    """Return whether a single stage that both measured can be told apart, or called the same."""
    return any(change.outcome != "not resolved" for change in changes if change.change)


def regressed(changes: Sequence[Change]) -> list[str]:
    """Return the stages that are slower or broken."""
    return [change.stage for change in changes if change.outcome in REGRESSIONS]


def improved(changes: Sequence[Change]) -> list[str]:
    """Return the stages that are faster, or right again."""
    return [change.stage for change in changes if change.outcome in ("faster", "mended")]


def since(run: RunRecord, folder: Path) -> Since | None:
    """Return what changed from the last finished run of the same question to this one; None where there is none.

    It lies beside the folder, or in that of another day. Of an interrupted run, the stages count that it measured.
    """
    beside = folder.resolve().parent
    records = list(beside.glob(f"*/{codec.FILE}"))
    if A_DAY.fullmatch(beside.name):
        records += beside.parent.glob(f"????-??-??/*/{codec.FILE}")
    written = {record.parent: record.stat().st_mtime for record in records if record.is_file()}
    found: dict[datetime, tuple[Path, RunRecord]] = {}
    for other in sorted(written.keys() - {folder.resolve()}, key=lambda path: -written[path])[:MOST_READ]:
        with suppress(*MISREAD):  # any file may lie beside it
            earlier = codec.load(other)
            begun, now = (datetime.fromisoformat(each.started_at) for each in (earlier, run))
            if earlier.finished and begun < now and not incomparable(earlier, run):
                found[begun] = other, earlier
    for _, (other, earlier) in sorted(found.items(), reverse=True):  # an export writes a record anew
        with suppress(*MISREAD):
            changes = compare(earlier, run)
            measured = [change for change in changes if change.change is not None]
            told = changes if run.finished else measured  # stages that were never begun are neither slower nor broken
            both = regressed(told), improved(told)
            return Since(other.name, earlier.started_at, len(measured), *both, anything_told(told))
    return None
