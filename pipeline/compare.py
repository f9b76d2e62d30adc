"""Print what changed between two runs beyond the noise: `python -m pipeline.compare outputs/A outputs/B`.

Exit codes: 0 no regression, 1 a regression, 2 a bad request.
"""

import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from pipeline.command_line import FILES_TOO, Parser, guarded, importing, show, unforeseen

with importing():
    from pipeline.analysis import run_comparison as runs
    from pipeline.analysis.run_comparison import Change, Difference
    from pipeline.config.request_error import RequestError
    from pipeline.errors import shortened
    from pipeline.records import codec
    from pipeline.report.formatting import clean, interval, listed, seconds, times
    from pipeline.report.markdown import bullets, escape, table
    from pipeline.report.tables import Cell, Column, names, table_of

REGRESSED = 1


def outcome_text(change: Change) -> str:
    """Return the outcome with its note."""
    return f"{change.outcome}{': ' + clean(change.note) if change.note else ''}"


COLUMNS: list[Column[Change]] = [
    names("stage", lambda change: change.stage),
    Column("A", lambda change: Cell(times(change.before))),
    Column("B", lambda change: Cell(times(change.after))),
    Column("B over A", lambda change: Cell(times(change.change))),
    Column("95 % interval", lambda change: Cell(interval(change.change))),
    names("outcome", outcome_text),
]


def difference_text(difference: Difference) -> str:
    """Return one difference, such as "torch: 2.11.0 and 2.12.1"."""
    old, new = difference.old, difference.new
    if isinstance(old, float) and isinstance(new, float) and difference.what == "baseline seconds":
        return f"the baseline's own time: {seconds(old)} and {seconds(new)} per call; the ratios below can't tell why"
    if difference.what == "unfinished":
        runs = [f"run {label}" for label, unfinished in (("A", old), ("B", new)) if unfinished]
        return f"completeness: {' and '.join(runs)} did not finish"
    if difference.what == "environment":
        return "the description of their machine: one has none"
    return clean(f"{difference.what}: {shortened(str(old))} and {shortened(str(new))}")


def text(changes: Sequence[Change], differ: Sequence[Difference]) -> str:
    """Return the comparison for a terminal, in plain lines."""
    groups: dict[str, list[str]] = defaultdict(list)  # settings of a group in a line, all else alone
    for each in differ:
        group, dot, _ = each.what.partition(".")
        groups[group if dot else each.what].append(difference_text(each))
    lines = [f"warning: these runs differ in {'; '.join(group)}" for group in groups.values()]
    wide = max((len(clean(change.stage)) for change in changes), default=0)
    lines += [f"{clean(change.stage):{wide}}  {sentence(change)}" for change in changes]
    return "\n".join([*lines, conclusion(changes), ""])


def markdown(changes: Sequence[Change], differ: Sequence[Difference]) -> str:
    """Return the comparison for a pull request."""
    lines = [f"**{escape(conclusion(changes))}**", ""]
    if differ:
        lines += ["These runs differ, so read with care:", "", *bullets([*map(difference_text, differ)]), ""]
    return "\n".join([*lines, *table(table_of(COLUMNS, changes)), ""])


def sentence(change: Change) -> str:
    """Return one stage's change."""
    said = outcome_text(change)
    if change.change is None:
        return said
    ratio = f"{times(change.change)} {interval(change.change)}"
    return f"{times(change.before)} → {times(change.after)}, {ratio}: {said}"


def conclusion(changes: Sequence[Change]) -> str:
    """Return the whole in a line; "nothing changed" is said of no more than was compared."""
    outcomes = (("Regressed", runs.regressed(changes)), ("Better", runs.improved(changes)))
    parts = [f"{label}: {listed(stages)}." for label, stages in outcomes if stages]
    if parts:
        return " ".join(parts)
    gone = [clean(change.stage) for change in changes if change.outcome == "gone"]
    left_out = f" Not in B: {listed(gone)}." if gone else ""
    if not any(change.change for change in changes):
        return f"No stage was measured in both runs: nothing is compared.{left_out}"
    if not runs.anything_told(changes):
        return f"Not resolved: the noise is larger than any change; measure both on an idle machine.{left_out}"
    return f"Nothing changed beyond the noise.{left_out}"


def main(arguments: list[str] | None = None) -> int:
    """Compare two runs; the exit code says whether anything regressed."""
    return guarded(lambda: compared(arguments), refuses=FILES_TOO)


def compared(arguments: list[str] | None) -> int:
    """Return the exit code of `main`."""
    parser = Parser(prog="python -m pipeline.compare", description=__doc__)
    parser.add_argument("runs", nargs=2, type=Path, metavar="RUN", help="the folders of two runs, the older one first")
    parser.add_argument("--markdown", action="store_true", help="print a table for a pull request")
    parser.add_argument("--across", action="store_true", help="allow another network, weights, images, batch or GPU")
    asked = parser.parse_args(arguments)
    first, second = (codec.load(folder) for folder in asked.runs)
    if (apart := runs.incomparable(first, second)) and not asked.across:
        bare = [str(folder) for folder, run in zip(asked.runs, (first, second), strict=True) if not run.environment]
        why = f"measured different things ({listed([difference_text(each) for each in apart])})"
        why = f"{why}; --across compares them anyway"
        if bare:
            why = f"can't be compared: {listed(bare)} ended before anything was measured"
        raise RequestError(f"these runs {why}")
    try:
        changes, differ = runs.compare(first, second), runs.differences(first, second)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        why = f"these records can't be compared: {unforeseen(error)}"
        raise RequestError(f"{asked.runs[0]} and {asked.runs[1]}: {why}") from error
    show((markdown if asked.markdown else text)(changes, differ))
    return REGRESSED if runs.regressed(changes) else 0


if __name__ == "__main__":
    sys.exit(main())
