"""How often a nominal 95 % interval of a ratio holds the truth, by the order in which samples are taken.

    python -m tests.benchmarks.simulated_coverage

Two stages on a made-up machine whose faults are known (`tests.fake_machine.Machine`): 1 % noise a sample, 5 % of
samples up to half as long again, 3 % of drift, steps of the clock, and 1 % that whatever comes second loses. No time is
measured: these are the figures of docs/measuring.md.
"""

import argparse
import sys
from collections.abc import Callable, Sequence

import numpy as np

from pipeline.config.plan import Plan
from pipeline.records.samples import Block, Pair, Sample
from pipeline.stats.intervals import Ratio, ratio
from tests.fake_machine import CALLS, SAMPLE_SECONDS, Machine, sampling

FAULTS = {"drift": 0.03, "clock_changes": 0.02, "second_place": 0.01}
TRUE = 1.10
BLOCKS = 30


def in_order(machine: Machine, order: str) -> Pair:
    """A pair of 60 samples of each side, A and B, in the order of the letters, as if that had been in blocks."""
    taken: dict[str, list[Sample]] = {"A": [], "B": []}
    for side in order:
        nominal = SAMPLE_SECONDS * (TRUE if side == "A" else 1.0)
        taken[side].append(Sample(CALLS, machine.seconds(nominal), None))
    pairs = zip(*(zip(part[::2], part[1::2], strict=True) for part in (taken["A"], taken["B"])), strict=True)
    return Pair("A", "B", [Block("ABBA", first, second) for first, second in pairs])


ORDERS: dict[str, Callable[[Machine], Pair]] = {
    "all of A, then all of B": lambda machine: in_order(machine, "A" * 2 * BLOCKS + "B" * 2 * BLOCKS),
    "A B, A B, A B …": lambda machine: in_order(machine, "AB" * 2 * BLOCKS),
    "blocks ABBA or BAAB, 30": lambda machine: sampling(machine, TRUE, Plan(interim_analyses=(BLOCKS,))),
    "the same, looked at after 30, 60, 120, 240": lambda machine: sampling(machine, TRUE, Plan()),
    "the same, looked at after every block": lambda machine: sampling(
        machine, TRUE, Plan(interim_analyses=tuple(range(6, 8 * BLOCKS + 1)))
    ),
    "blocks ABBA or BAAB, 6": lambda machine: sampling(machine, TRUE, Plan(interim_analyses=(6,))),
}


def found(order: Callable[[Machine], Pair], runs: int, seed: int) -> list[Ratio]:
    """The ratios of so many runs, each on a machine of its own."""
    rng = np.random.default_rng(seed)
    return [ratio(order(Machine(rng, **FAULTS))) for _ in range(runs)]  # type: ignore[arg-type]


def row(name: str, ratios: Sequence[Ratio]) -> str:
    """A line of the table: coverage, bias and half-width, in per cent."""
    held = np.mean([part.low <= TRUE <= part.high for part in ratios])
    bias = np.mean([part.value for part in ratios]) / TRUE - 1
    width = np.median([(part.high - part.low) / 2 / part.value for part in ratios])
    return f"| {name} | {held:.1%} | {bias:+.2%} | ±{width:.2%} |".replace("%", " %")


def main() -> None:
    """The table, as Markdown."""
    parser = argparse.ArgumentParser(description="Simulates the coverage of a ratio's interval.")
    parser.add_argument("--runs", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    sys.stdout.write(
        "| order of the samples | intervals that hold the truth | bias | half-width |\n| --- | --- | --- | --- |\n"
    )
    for name, order in ORDERS.items():
        sys.stdout.write(row(name, found(order, asked.runs, asked.seed)) + "\n")


if __name__ == "__main__":
    main()
