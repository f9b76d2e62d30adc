"""Computes again what a run's report prints, from the raw samples in results.json alone.

    python -m tests.house.recompute docs/h200/net/classic/1

It uses nothing of the program: another reading of the record, and other arithmetic. A statement agrees when the number
that is printed is the recomputed one, rounded to as many digits. A number that nothing recomputes agrees with nothing.
"""

import json
import lzma
import math
import re
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

UNITS = {
    "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "%": 0.01, "MiB": 2.0**20, "GiB": 2.0**30, "GB": 1e9, "million": 1e6,
}  # fmt: skip
BASELINES = {"amp": "autocast", "eager": "eager"}
SIDES = ("baseline", "stage")
NUMBER = rf"(?:[−+]?\d+(?:,\d{{3}})*(?:\.\d+)?(?:e-\d+)?(?: (?:{'|'.join(UNITS)})(?!\w))?|none\b)"
LEFT = re.compile(rf"(?<![\w.])(?!none){NUMBER}")  # a digit within a name, such as upsample.3 or fp8, is no figure
NO_PROSE = r"(?sm)^```.*?^```|^\|[^\n]*|`[^`\n]*`|\\|^\d\. "  # code, tables and the numbers of a list


@dataclass(frozen=True)
class Statement:
    """A printed number, and what the raw samples make of it; in the unit that is printed."""

    what: str
    printed: str
    recomputed: float

    @property
    def agrees(self) -> bool:
        """Whether the printed number is the recomputed one, rounded to its digits, of which two at least count."""
        found = re.match(r"^([−+]?)([\d,]+(?:\.\d+)?)(e-\d+)?\s*(\S*)", self.printed.replace("none", "0"))
        if found is None:
            return False
        sign, digits, power = found[1].replace("−", "-"), found[2].replace(",", ""), found[3] or ""
        whole, _, decimals = digits.partition(".")
        zeros = 0 if decimals else max(0, min(len(whole) - len(whole.rstrip("0")), len(whole) - 2))
        step = float(f"1{power}") * 10.0 ** (zeros - len(decimals)) if digits != "0" else 0.0
        return abs(float(sign + digits + power) - self.recomputed / UNITS.get(found[4], 1.0)) <= 0.501 * step


def samples(stage: dict[str, Any], side: str) -> list[float]:
    """Seconds a call of every sample of one side."""
    blocks = [block for pair in stage["pairs"] for block in pair["blocks"]]
    return [taken["seconds"] / taken["calls"] for block in blocks for taken in block[side]]


def logs_of(pairs: list[dict[str, Any]]) -> list[float]:
    """The logarithm of √(A1·A2 / (B1·B2)) of every block, A the baseline's seconds a call and B the stage's, sorted."""
    found = []
    for block in (block for pair in pairs for block in pair["blocks"]):
        first, second, third, fourth = (each["seconds"] / each["calls"] for side in SIDES for each in block[side])
        found.append(math.log(first * second / third / fourth) / 2)
    return sorted(found)


def block_ratio(stage: dict[str, Any]) -> float:
    """The median of that ratio over blocks."""
    return math.exp(statistics.median(logs_of(stage["pairs"])))


def drift(pairs: list[dict[str, Any]]) -> float:
    """By how much the baseline's last quarter is slower than the first."""
    times = samples({"pairs": pairs}, "baseline")
    quarter = max(1, len(times) // 4)
    return statistics.median(times[-quarter:]) / statistics.median(times[:quarter]) - 1


def interval(pairs: list[dict[str, Any]], between: float = 0.0011) -> tuple[float, float]:
    """The 95 % interval of that median by order statistics.

    It is widened by the spread of a ratio between runs, and by a baseline that drifted by a tenth or more.
    """
    logs = logs_of(pairs)
    count, rank, below = len(logs), 0, 0.5 ** len(logs)
    while below <= 0.025:
        rank += 1
        below += math.comb(count, rank) / 2**count
    middle, ends = statistics.median(logs), (logs[max(rank, 1) - 1], logs[-max(rank, 1)])
    low, high = (math.hypot(end - middle, 1.96 * between) for end in ends)
    drifted = abs(math.log1p(drift(pairs))) if abs(drift(pairs)) >= 0.1 else 0.0
    return math.exp(middle - low - drifted), math.exp(middle + high + drifted)


def tables(text: str) -> list[list[dict[str, str]]]:
    """Every table of a report.md, each row by its column's title."""
    found: list[list[dict[str, str]]] = []
    for block in re.findall(r"(?:^\|.*\|$\n?)+", text, flags=re.MULTILINE):
        lines = [re.split(r"(?<!\\)\|", line.strip()[1:-1]) for line in block.splitlines()]
        head, _, *rows = ([cell.strip().replace("\\", "") for cell in line] for line in lines)
        found.append([dict(zip(head, row, strict=True)) for row in rows])
    return found


def named(row: dict[str, str]) -> str:
    """The stage that a row is about."""
    key = re.search(r"`(\w+)`", row["method"])
    return key[1] if key else re.sub(r"^[▸=] | again.*", "", row["method"]).strip()


def record_of(folder: Path) -> dict[str, Any]:
    """The raw record of a run's folder."""
    packed = folder / "results.json.xz"
    raw = lzma.decompress(packed.read_bytes()) if packed.exists() else (folder / "results.json").read_bytes()
    found: dict[str, Any] = json.loads(raw)
    return found


def statements(folder: Path) -> Iterator[Statement]:
    """What report.md says in its title, its paragraphs and its tables, beside the raw samples."""
    from tests.house.figures import Figures

    text = (folder / "report.md").read_text(encoding="utf-8")
    keys = {row["method"]: named(row) for table in tables(text) for row in table if "method" in row}
    winner = next((key for shown, key in keys.items() if shown.startswith("▸")), "")
    methods = {re.sub(r"^[▸=] | \(legacy\)| again.*| \(`.*", "", shown): key for shown, key in keys.items()}
    figures = Figures(record_of(folder), winner)
    methods |= {method: name for name, method in BASELINES.items()}
    rows = (row for table in tables(text) for row in table if "method" in row)
    for row in rows:
        for column, cell in row.items():
            for printed, value in figures.of_a_cell(named(row), column, cell):
                yield Statement(f"{named(row)}: {column}", printed, value)
    every = "|".join(map(re.escape, sorted(methods, key=len, reverse=True)))
    section = "first screen"
    for line in re.sub(NO_PROSE, "", text).splitlines():
        section = re.sub("<.*?>", "", line) if line.startswith("<summary>") else section
        marked = re.sub(rf"(?<![\w.])(?:{every})(?![\w])", lambda found: f"⟨{methods[found[0]]}⟩", line)
        for what, printed, value in figures.of_a_line(marked):
            yield Statement(f"{section}: {what}", printed, value)


def told(statements: Iterator[Statement]) -> int:
    """A line for what differs, and how many agree; 1 where any differs."""
    found = list(statements)
    wrong = [statement for statement in found if not statement.agrees]
    for statement in wrong:
        sys.stdout.write(f"{statement.what}: printed {statement.printed}, recomputed {statement.recomputed:.6g}\n")
    sys.stdout.write(f"{len(found) - len(wrong)} of {len(found)} statements agree\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(told(statements(Path(sys.argv[1]))))
