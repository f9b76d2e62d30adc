"""`python -m tests.house.compare_reports BEFORE AFTER`: whether two drawings of the same records show the same numbers.

For each report.html, report.md, results.csv, lessons.html and lessons.md below both folders, the figures of one and of
the other are compared as multisets, so that wording and order are free. `tests.house.report_figures` says what a figure
is. A figure that a report still has, but no longer in a table's row of the same name, has moved; a row that was renamed
is not looked at. What this can't see: two numbers that changed places outside tables or within a row, and a number
written as a word.

Exit codes: 0 where all are the same, 1 where a number is missing, extra or moved, or a file has no pair, 2 where there
is nothing to compare.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.house.report_figures import Figure, of_file

NAMES = ("report.html", "report.md", "results.csv", "lessons.html", "lessons.md")
DIFFERENT, NOTHING = 1, 2
Key = tuple[str, str]


@dataclass(frozen=True)
class Compared:
    """One part of a report, before and after."""

    name: str
    before: int  # figures
    after: int
    missing: list[Figure]
    extra: list[Figure]
    moved: list[Figure]  # of before: still there, but not in their row
    unit_moved: int  # figures whose unit stands beside them on one side alone, where that is allowed

    @property
    def differences(self) -> dict[str, list[Figure]]:
        """The figures that differ, by how."""
        return {"missing": self.missing, "extra": self.extra, "moved": self.moved}


def key(figure: Figure) -> Key:
    """What makes two figures the same."""
    return figure.number, figure.unit


def surplus(of: Sequence[Figure], over: Sequence[Figure], same: Callable[[Figure], Hashable] = key) -> list[Figure]:
    """The figures that one has more often than the other: the last of each, in their order."""
    left = Counter(map(same, of)) - Counter(map(same, over))
    found = []
    for figure in reversed(of):
        if left[same(figure)] > 0:
            left[same(figure)] -= 1
            found.append(figure)
    return found[::-1]


def moved(before: Sequence[Figure], after: Sequence[Figure], missing: Sequence[Figure]) -> list[Figure]:
    """The figures that left a row which both sides have, without those that are missing altogether."""
    rows = {figure.row for figure in before} & {figure.row for figure in after} - {""}
    old, new = ([part for part in side if part.row in rows] for side in (before, after))
    return surplus(surplus(old, new, lambda part: (part.row, part.number)), missing, lambda part: part.number)


def compare(name: str, before: Sequence[Figure], after: Sequence[Figure], *, units_may_move: bool = False) -> Compared:
    """What one part of a report lacks, has too much, and has elsewhere.

    Args:
        name: of the part.
        before: its figures.
        after: its figures.
        units_may_move: a number whose unit stands beside it on one side alone, say because a column's title names it on
            the other, is the same number.
    """
    missing, extra, pairs = surplus(before, after), surplus(after, before), 0
    if units_may_move:
        missing, extra, pairs = without_pairs(missing, extra)
    return Compared(name, len(before), len(after), missing, extra, moved(before, after, missing), pairs)


def without_pairs(missing: Sequence[Figure], extra: Sequence[Figure]) -> tuple[list[Figure], list[Figure], int]:
    """Both without the numbers that are the same but for a unit that one of the two lacks, and how many those are."""
    lost, left = [], list(extra)
    for figure in missing:
        pair = next((x for x in left if x.number == figure.number and not (x.unit and figure.unit)), None)
        if pair is None:
            lost.append(figure)
        else:
            left.remove(pair)
    return lost, left, len(missing) - len(lost)


def reports(folder: Path) -> set[Path]:
    """The reports below a folder, from there."""
    return {path.relative_to(folder) for name in NAMES for path in folder.rglob(name)}


def compare_folders(before: Path, after: Path, *, units_may_move: bool = False) -> list[Compared]:
    """Every part of every report that both folders hold."""
    found = []
    for path in sorted(reports(before) & reports(after)):
        old, new = of_file(before / path), of_file(after / path)
        for part in old:
            name = f"{path}, {part}" if part else f"{path}"
            found.append(compare(name, old[part], new[part], units_may_move=units_may_move))
    return found


def lines_of(part: Compared, show: int) -> list[str]:
    """What to print of one part, with so many of its differences of each kind."""
    counts = ", ".join(f"{len(some):,} {kind}" for kind, some in part.differences.items() if some)
    units = f"; the unit of {part.unit_moved:,} stands elsewhere" if part.unit_moved else ""
    lines = [f"{part.name}: {part.before:,} numbers before, {part.after:,} after: {counts or 'all the same'}{units}"]
    for kind, some in part.differences.items():
        lines += [f"  {kind} {figure}: {figure.around}" for figure in some[:show]]
        lines += [f"  {kind}: {len(some) - show:,} more"] if len(some) > show else []
    return lines


def summary(parts: Sequence[Compared], files: int) -> str:
    """How many numbers were compared, and how many differ."""
    kinds = {kind: sum(len(part.differences[kind]) for part in parts) for kind in ("missing", "extra", "moved")}
    before, after = sum(part.before for part in parts), sum(part.after for part in parts)
    counts = ", ".join(f"{count:,} {kind}" for kind, count in kinds.items())
    return f"{files} files, {before:,} numbers before and {after:,} after: {counts}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what differs, and how many numbers were compared."""
    parser = argparse.ArgumentParser(prog="python -m tests.house.compare_reports", description="Compare two drawings.")
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--show", type=int, default=20, metavar="N", help="differences of a part and kind; 20 without")
    parser.add_argument("--units-may-move", action="store_true", help="a unit may stand in a title instead")
    asked = parser.parse_args(arguments)
    old, new = reports(asked.before), reports(asked.after)
    lonely = [
        *(f"only before: {path}" for path in sorted(old - new)),
        *(f"only after: {path}" for path in sorted(new - old)),
    ]
    parts = compare_folders(asked.before, asked.after, units_may_move=asked.units_may_move)
    if not any(part.before for part in parts):
        sys.stderr.write(f"error: no numbers to compare below {asked.before} and {asked.after}\n")
        return NOTHING
    lines = [line for part in parts for line in lines_of(part, asked.show)] + lonely
    sys.stdout.write("".join(f"{line}\n" for line in (*lines, summary(parts, len(old & new)))))
    return DIFFERENT if lonely or any(some for part in parts for some in part.differences.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
