"""How often equal stages are told apart on a machine that other programs use, by the rules of `pipeline.stats`.

    python -m tests.benchmarks.simulated_neighbours

A CPU run of twelve blocks, with 1 % noise a sample and 5 % of samples up to half as long again, beside a neighbour that
comes and goes, or stays. Two sides that wait for processors needn't lose alike: one of the two loses more. No time is
measured: these are the figures of docs/measuring.md.
"""

import argparse
import sys
from dataclasses import dataclass, replace

import numpy as np

from pipeline.config.plan import Plan
from pipeline.records.samples import Pair
from pipeline.stats.drift import steady_ratio
from pipeline.stats.intervals import Ratio, ratio
from pipeline.stats.outcomes import Noise
from tests.fake_machine import Machine, sampling

PLAN = Plan(interim_analyses=(12,))
TAKEN = 0.5  # of the processors, while the neighbour is at work beside a run that has all of them


@dataclass(frozen=True)
class Neighbour:
    """What other programs do.

    Attributes:
        share: of the samples beside which they work.
        lasting: samples that they work for once they have begun, on average.
        baseline, stage: times as long a sample of either takes beside them.
        uneven: standard deviation of the log of that.
    """

    share: float = 0.0
    lasting: float = 6.0
    baseline: float = 1.0
    stage: float = 1.0
    uneven: float = 0.0


NEIGHBOURS = {
    "nobody": Neighbour(),
    "comes and goes, and slows both alike": Neighbour(0.5, baseline=2.0, stage=2.0, uneven=0.3),
    "comes and goes, and slows the baseline more": Neighbour(0.5, baseline=3.0, stage=1.5, uneven=0.3),
    "stays, and slows both alike": Neighbour(1.0, baseline=2.0, stage=2.0, uneven=0.5),
    "stays, and slows the baseline more": Neighbour(1.0, baseline=3.0, stage=1.5, uneven=0.5),
}
RULES = ("interval", "and drift", "and itself", "and width", "and processors")


def beside(neighbour: Neighbour, true_ratio: float, rng: np.random.Generator, *, own: bool = False) -> Pair:
    """A pair of samples beside the neighbour; of the baseline and itself with `own`."""
    pair = sampling(Machine(rng), true_ratio, PLAN)
    working, blocks = rng.random() < neighbour.share, []
    stops = 1 / neighbour.lasting
    starts = stops * neighbour.share / (1 - neighbour.share) if neighbour.share < 1 else 1.0
    loses = {"A": neighbour.baseline, "B": neighbour.baseline if own else neighbour.stage}
    for block in pair.blocks:
        taken = {"A": list(block.baseline), "B": list(block.stage)}
        slowed: dict[str, list[object]] = {"A": [], "B": []}
        for side in block.order:
            working = rng.random() >= stops * (neighbour.share < 1) if working else rng.random() < starts
            factor = loses[side] * np.exp(neighbour.uneven * rng.standard_normal()) if working else 1.0
            sample = taken[side].pop(0)
            slowed[side].append(replace(sample, seconds=sample.seconds * factor))
        blocks.append(replace(block, baseline=tuple(slowed["A"]), stage=tuple(slowed["B"])))  # type: ignore[arg-type]
    return replace(pair, blocks=blocks, taken_share=TAKEN * neighbour.share)


def claims(pair: Pair, own: Pair) -> list[bool]:
    """Whether each of the rules, with those before it, calls the stage faster or slower."""
    plain, counted = ratio(pair), steady_ratio([pair])
    uncounted, itself = (steady_ratio([replace(each, taken_share=None)]) for each in (pair, own))
    noise = Noise(itself=itself)
    told = [noise.outcome(each) in ("faster", "slower") for each in (uncounted, counted)]
    return [_excludes_one(plain), _excludes_one(uncounted), _excludes_one(uncounted) and _beyond(noise, plain), *told]


def _excludes_one(found: Ratio) -> bool:
    return (found.low > 1 or found.high < 1) and Noise().exceeded_by(found.value)


def _beyond(noise: Noise, found: Ratio) -> bool:
    return noise.exceeded_by(found.value)


def row(name: str, true_ratio: float, runs: int, seed: int) -> str:
    """A line of the table: in what share of the runs each rule claims a difference."""
    rng, neighbour = np.random.default_rng(seed), NEIGHBOURS[name]
    made = [claims(beside(neighbour, true_ratio, rng), beside(neighbour, 1.0, rng, own=True)) for _ in range(runs)]
    shares = " | ".join(f"{share:.1%}".replace("%", " %") for share in np.mean(made, axis=0))
    return f"| {name} | {true_ratio:g} | {shares} |"


def main() -> None:
    """The table, as Markdown."""
    parser = argparse.ArgumentParser(description="Simulates what is claimed on a machine that others use.")
    parser.add_argument("--runs", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    sys.stdout.write(f"| the neighbour | true ratio | {' | '.join(RULES)} |\n|{' --- |' * (2 + len(RULES))}\n")
    for true_ratio in (1.0, 2.0):
        for name in NEIGHBOURS:
            sys.stdout.write(row(name, true_ratio, asked.runs, asked.seed) + "\n")


if __name__ == "__main__":
    main()
