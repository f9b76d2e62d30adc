"""What holds for the ratio of any two stages."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.records.samples import Block, Pair, Sample
from pipeline.stats.intervals import inverse, latency, ratio, seconds_per_call

SECONDS = st.floats(1e-6, 1e3)
FEW = settings(max_examples=20, deadline=None)


def sample(seconds: float) -> Sample:
    return Sample(4, seconds, None)


BLOCKS = st.lists(
    st.builds(
        Block,
        st.sampled_from(["ABBA", "BAAB"]),
        st.tuples(SECONDS.map(sample), SECONDS.map(sample)),
        st.tuples(SECONDS.map(sample), SECONDS.map(sample)),
    ),
    min_size=1,
    max_size=14,
)


def scaled(block: Block, factor: float) -> Block:
    """The same on a machine that takes `factor` times as long for everything."""
    sides = [[replace(part, seconds=part.seconds * factor) for part in side] for side in (block.baseline, block.stage)]
    return Block(block.order, *map(tuple, sides))  # type: ignore[arg-type]


@FEW
@given(BLOCKS)
def test_a_ratio_lies_within_its_interval_and_within_the_data(blocks: list[Block]) -> None:
    found = ratio(Pair("a", "b", blocks))
    assert found.low <= found.value <= found.high
    times = [part.per_call for block in blocks for part in (*block.baseline, *block.stage)]
    assert min(times) / max(times) * 0.999 <= found.value <= max(times) / min(times) * 1.001


@FEW
@given(BLOCKS, st.floats(0.1, 10))
def test_a_slower_machine_changes_no_ratio(blocks: list[Block], factor: float) -> None:
    one, other = (ratio(Pair("a", "b", part)) for part in (blocks, [scaled(block, factor) for block in blocks]))
    assert other.value == pytest.approx(one.value)
    assert (other.low, other.high) == pytest.approx((one.low, one.high))


@FEW
@given(BLOCKS)
def test_swapped_sides_give_the_inverse(blocks: list[Block]) -> None:
    one = inverse(ratio(Pair("a", "b", blocks)))
    other = ratio(Pair("b", "a", [Block(block.order, block.stage, block.baseline) for block in blocks]))
    assert other.value == pytest.approx(one.value)
    assert (other.low, other.high) == pytest.approx((one.low, one.high))


@FEW
@given(BLOCKS, st.floats(0, 0.1))
def test_a_spread_between_processes_only_widens(blocks: list[Block], spread: float) -> None:
    narrow, wide = ratio(Pair("a", "b", blocks)), ratio(Pair("a", "b", blocks), spread)
    assert wide.low <= narrow.low * (1 + 1e-12)
    assert wide.high >= narrow.high * (1 - 1e-12)


@FEW
@given(BLOCKS, st.randoms())
def test_the_order_of_blocks_changes_no_time(blocks: list[Block], draw: object) -> None:
    turned = blocks[::-1]
    assert seconds_per_call(Pair("a", "b", turned)) == seconds_per_call(Pair("a", "b", blocks))


@FEW
@given(st.lists(SECONDS, min_size=1, max_size=60))
def test_quantiles_are_in_order(latencies: list[float]) -> None:
    found = latency(latencies)
    values = [value for value in vars(found).values() if isinstance(value, float) and not math.isnan(value)]
    assert all(min(latencies) * 0.999 <= value <= max(latencies) * 1.001 for value in values)
