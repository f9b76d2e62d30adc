"""Who goes when, and when it ends."""

import random
from collections.abc import Callable
from itertools import count

import pytest

from pipeline.orchestrate.interleave import interleave
from pipeline.records.plan import Plan
from pipeline.records.samples import Sample


class Stub:
    """A sampler that writes down when it was asked."""

    def __init__(self, name: str, asked: list[str], seconds: Callable[[], float] = lambda: 1.0) -> None:
        self.name = name
        self._asked = asked
        self._seconds = seconds

    def sample(self) -> Sample:
        self._asked.append(self.name)
        return Sample(1, self._seconds(), None)


def noisy(seed: int) -> Callable[[], float]:
    rng = random.Random(seed)
    return lambda: 1.0 + 0.5 * rng.random()


def test_blocks_are_abba_or_baab_and_both_come() -> None:
    asked: list[str] = []
    pair = interleave(Stub("A", asked), Stub("B", asked), Plan(interim_analyses=(12,)), random.Random(0), lambda: 0.0)
    orders = ["".join(asked[at : at + 4]) for at in range(0, 48, 4)]
    assert orders == [block.order for block in pair.blocks]
    assert set(orders) == {"ABBA", "BAAB"}


def test_the_seed_gives_the_order() -> None:
    drawn = []
    for seed in (1, 1, 2):
        pair = interleave(Stub("A", []), Stub("B", []), Plan(interim_analyses=(30,)), random.Random(seed), lambda: 0.0)
        drawn.append([block.order for block in pair.blocks])
    assert drawn[0] == drawn[1] != drawn[2]


def test_slices_lie_with_their_side_in_the_order_they_were_taken() -> None:
    numbers = count(1)
    asked: list[str] = []
    first, second = (Stub(name, asked, lambda: float(next(numbers))) for name in "AB")
    [block] = interleave(first, second, Plan(interim_analyses=(1,)), random.Random(0), lambda: 0.0).blocks
    taken = {"A": [part.seconds for part in block.baseline], "B": [part.seconds for part in block.stage]}
    expected = [index + 1 for index, side in enumerate(block.order) if side == "A"]
    assert taken == {"A": expected, "B": sorted({1, 2, 3, 4} - set(expected))}


@pytest.mark.parametrize(("noise", "blocks"), [(False, 30), (True, 240)])
def test_it_ends_at_an_analysis_that_finds_the_interval_narrow_and_at_the_last_one(noise: bool, blocks: int) -> None:
    first, second = (Stub(name, [], noisy(seed) if noise else lambda: 1.0) for seed, name in enumerate("AB"))
    assert len(interleave(first, second, Plan(half_width=0.001), random.Random(0), lambda: 0.0).blocks) == blocks


def test_between_the_interim_analyses_nothing_is_analysed() -> None:
    """An interval that would do after 31 blocks ends nothing before the interim analysis at 60."""
    taken = count()
    first, second = (Stub(name, [], lambda: 1.0 + (next(taken) % 7 < 3) * (next(taken) < 240)) for name in "AB")
    found = interleave(first, second, Plan(interim_analyses=(30, 60, 120, 240)), random.Random(0), lambda: 0.0)
    assert len(found.blocks) in (60, 120, 240)


@pytest.mark.parametrize(("step", "blocks"), [(5, 12), (25, 6), (100, 3), (1000, 1)])
def test_no_block_begins_after_the_time(step: int, blocks: int) -> None:
    """What was taken is kept, whatever its width; the six that an interval needs may take five times as long."""
    moments = count(0, step)
    pair = interleave(Stub("A", []), Stub("B", []), Plan(sampling_seconds=60), random.Random(0), lambda: next(moments))
    assert len(pair.blocks) == blocks


def test_each_block_is_told_of() -> None:
    told: list[int] = []
    interleave(Stub("A", []), Stub("B", []), Plan(interim_analyses=(3,)), random.Random(0), lambda: 0.0, told.append)
    assert told == [1, 2, 3]


def test_a_sampler_that_dies_ends_the_sampling() -> None:
    def die() -> float:
        raise ConnectionError("injected")

    with pytest.raises(ConnectionError, match="injected"):
        interleave(Stub("A", []), Stub("B", [], die), Plan(), random.Random(0), lambda: 0.0)
