"""`python -m pipeline.compare A B`: what changed from run A to run B beyond the noise, stage by stage.

Both runs measured every stage against the baseline in the same minutes, so the ratios are compared, not the times: a
machine that was busier that day changes no ratio. Exit codes: 0 no regression, 1 a regression, 2 a bad request.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pipeline.analysis.summary import digest
from pipeline.records import codec
from pipeline.records.run_record import Environment, RunRecord, StageRecord
from pipeline.report import formatting as words
from pipeline.report.markdown import escape
from pipeline.stats.intervals import Ratio, between_run_std, composed, minimum_detectable_effect, ratio, verdict
from pipeline.stats.ranking import rankable

REGRESSED, REFUSED = 1, 2
IGNORED_CONFIG = {"hydra", "preset", "report", "strict"}  # which change what is shown, not what is measured
MACHINE = ("device_name", "driver", "cuda", "cudnn", "python", "cpu_name", "cpu_threads", "commit", "launcher")
BASELINE_MOVED = 1.05  # times by which the baseline's own time may differ before it is said

Outcome = Literal["faster", "slower", "same", "not resolved", "broken", "mended", "new", "gone", "not measured"]
REGRESSIONS: set[Outcome] = {"slower", "broken"}


@dataclass(frozen=True)
class Change:
    """What became of one stage.

    Attributes:
        before, after: its ratios to the baseline; None where a run doesn't rank it.
        change: B's ratio over A's: above 1, it is faster now.
        outcome: in a word.
        note: why, where the word doesn't say it.
    """

    stage: str
    before: Ratio | None
    after: Ratio | None
    change: Ratio | None
    outcome: Outcome
    note: str = ""


def compare(first: RunRecord, second: RunRecord) -> list[Change]:
    """Every stage of either run, in the second's order."""
    old = {stage.name: stage for stage in first.stages}
    new = {stage.name: stage for stage in second.stages}
    floor = max(minimum_detectable_effect(first.aa_pairs), minimum_detectable_effect(second.aa_pairs))
    spread = max(between_run_std(first.aa_pairs), between_run_std(second.aa_pairs))
    names = [*new, *(name for name in old if name not in new)]
    changes = [_change(name, old.get(name), new.get(name), floor, spread) for name in names]
    return changes if second.finished else [_lost(change) for change in changes]


def _lost(change: Change) -> Change:
    """A stage that a run lost by not finishing: nobody left it out on purpose."""
    if change.outcome != "gone" or change.before is None:
        return change
    return replace(change, outcome="broken", note="run B did not finish")


def _change(name: str, old: StageRecord | None, new: StageRecord | None, floor: float, spread: float) -> Change:
    before = ratio(old.pairs, spread) if old and rankable(old) else None
    after = ratio(new.pairs, spread) if new and rankable(new) else None
    if old is None or new is None:
        return Change(name, before, after, None, "gone" if new is None else "new")
    if before and after:
        change = composed(new.pairs, old.pairs, spread * math.sqrt(2))  # both runs launched both
        return Change(name, before, after, change, verdict(change, floor))
    note = words.clean(new.reason) or new.status
    if before:
        return Change(name, before, None, None, "not measured" if new.status == "skipped" else "broken", note)
    if after:
        return Change(name, None, after, None, "mended")
    return Change(name, None, None, None, "not measured", note)


def differences(first: RunRecord, second: RunRecord) -> list[str]:
    """What makes two runs less than comparable, each in a few words."""
    found = _machine_differences(first.environment, second.environment)
    if first.baseline != second.baseline:
        found.append(f"baseline: {first.baseline} and {second.baseline}")
    times = [digest(run).baseline_seconds for run in (first, second)]
    if times[0] and times[1] and not 1 / BASELINE_MOVED < times[0].value / times[1].value < BASELINE_MOVED:
        shown = f"{words.seconds(times[0].value)} and {words.seconds(times[1].value)}"
        found.append(f"the baseline's own time: {shown} a call; the ratios below can't tell why")
    found += _config_differences(first.config, second.config, "")
    unfinished = [label for label, run in (("A", first), ("B", second)) if not run.finished]
    return found + [f"completeness: run {label} did not finish" for label in unfinished]


def _machine_differences(one: Environment | None, other: Environment | None) -> list[str]:
    if one is None or other is None:
        return [] if one is other else ["what they say of their machine: one says nothing"]
    pairs = [(label.replace("_", " "), getattr(one, label), getattr(other, label)) for label in MACHINE]
    names = sorted({*one.packages, *other.packages})
    pairs += [(name, one.packages.get(name, "none"), other.packages.get(name, "none")) for name in names]
    return [f"{label}: {old} and {new}" for label, old, new in pairs if old != new]


def _config_differences(old: Any, new: Any, key: str) -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        names = [name for name in {**old, **new} if key or name not in IGNORED_CONFIG]
        nested = [_config_differences(old.get(name), new.get(name), f"{key}.{name}".lstrip(".")) for name in names]
        return [part for parts in nested for part in parts]
    return [] if old == new else [f"{key}: {old} and {new}"]


def text(changes: Sequence[Change], warnings: Sequence[str]) -> str:
    """For a terminal, in plain lines."""
    lines = [f"warning: these runs differ in {words.clean(part)}" for part in warnings]
    wide = max((len(words.clean(part.stage)) for part in changes), default=0)
    lines += [f"{words.clean(part.stage):{wide}}  {sentence(part)}" for part in changes]
    return "\n".join([*lines, conclusion(changes), ""])


def markdown(changes: Sequence[Change], warnings: Sequence[str]) -> str:
    """For a pull request."""
    lines = [f"**{escape(conclusion(changes))}**", ""]
    if warnings:
        lines += ["These runs differ, so read with care:", "", *(f"- {escape(part)}" for part in warnings), ""]
    lines += ["| stage | A | B | B over A | 95 % interval | verdict |", "| --- | --- | --- | --- | --- | --- |"]
    for part in changes:
        cells = (part.stage, words.times(part.before), words.times(part.after), words.times(part.change))
        ends = (words.interval(part.change), f"{part.outcome}{': ' + part.note if part.note else ''}")
        lines.append("| " + " | ".join(escape(cell) for cell in (*cells, *ends)) + " |")
    return "\n".join([*lines, ""])


def sentence(part: Change) -> str:
    """One stage's change."""
    said = f"{part.outcome}{': ' + part.note if part.note else ''}"
    if part.change is None:
        return said
    change = f"{words.times(part.change)} {words.interval(part.change)}"
    return f"{words.times(part.before)} → {words.times(part.after)}, {change}: {said}"


def conclusion(changes: Sequence[Change]) -> str:
    """The whole in a line."""
    worse = [part.stage for part in changes if part.outcome in REGRESSIONS]
    better = [part.stage for part in changes if part.outcome in ("faster", "mended")]
    if not worse and not better:
        return _unchanged(changes)
    parts = [f"{label}: {words.listed(names)}" for label, names in (("Regressed", worse), ("Better", better)) if names]
    return ". ".join(parts) + "."


def _unchanged(changes: Sequence[Change]) -> str:
    """That nothing changed, said of no more than was compared."""
    gone = [words.clean(part.stage) for part in changes if part.outcome == "gone"]
    left_out = f" Not in B: {words.listed(gone)}." if gone else ""
    if not any(part.change for part in changes):
        return f"No stage was measured in both runs: nothing is compared.{left_out}"
    return f"Nothing changed beyond the noise.{left_out}"


def main(arguments: list[str] | None = None) -> int:
    """Compare two runs; the exit code says whether anything regressed."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.compare", description="What changed beyond the noise.")
    parser.add_argument("runs", nargs=2, type=Path, metavar="RUN", help="the folders of two runs, the older one first")
    parser.add_argument("--markdown", action="store_true", help="a table for a pull request")
    asked = parser.parse_args(arguments)
    try:
        first, second = (codec.load(folder) for folder in asked.runs)
    except (codec.RecordError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return REFUSED
    changes, warnings = compare(first, second), differences(first, second)
    sys.stdout.write((markdown if asked.markdown else text)(changes, warnings))
    return REGRESSED if any(part.outcome in REGRESSIONS for part in changes) else 0


if __name__ == "__main__":
    sys.exit(main())
