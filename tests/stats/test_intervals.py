"""Ratios, intervals, words, percentiles and Dice against values worked out by hand or taken from tables."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.measure.accuracy import compare
from pipeline.records.codec import to_json
from pipeline.records.samples import Block, DiceLoss, Pair, Sample
from pipeline.report.sections.accuracy import points_lost
from pipeline.stats.dice import joined, losses, numbered, overlap
from pipeline.stats.intervals import Ratio, composed, interval_rank, inverse, latency, ratio, seconds_per_call
from pipeline.stats.outcomes import Noise, minimum_detectable_effect
from tests.fake_machine import pair_of, steady_pair
from tests.house.figures import of_counts

EMPTY = Pair("eager", "stage", [])


@pytest.mark.parametrize(("count", "rank"), [(5, 0), (6, 1), (12, 3), (30, 10), (60, 22), (100, 40)])
def test_ranks_are_those_of_the_sign_test(count: int, rank: int) -> None:
    """The table of the median's 95 % interval; below six values there is none."""
    assert interval_rank(count) == rank


def test_the_interval_runs_from_the_kth_to_the_kth_from_the_end() -> None:
    steps = [math.exp(0.01 * index) for index in range(30)]
    found = ratio(pair_of(lambda i: (steps[i], 1.0)))
    assert (found.low, found.high) == (pytest.approx(steps[9]), pytest.approx(steps[20]))
    assert found.value == pytest.approx(math.exp(0.145))
    assert (found.blocks, found.trials, found.bounded) == (30, 1, True)


def test_fewer_than_six_blocks_bound_nothing_and_none_have_no_ratio() -> None:
    found = ratio(pair_of(lambda i: (2.0 + i, 1.0), blocks=5))
    assert (found.low, found.high, found.bounded) == (pytest.approx(2.0), pytest.approx(6.0), False)
    assert Noise(0.01).outcome(found) == "not resolved"
    assert Noise(0.01).unresolved(found).cause == "few blocks"
    for work in (ratio, seconds_per_call, lambda pair: composed(pair, pair)):
        with pytest.raises(ValueError, match="at least one block"):
            work(EMPTY)
    with pytest.raises(ValueError, match="at least one call"):
        latency([])


def test_of_several_trials_the_wider_interval_is_told() -> None:
    """Three trials at 1, 1.1 and 1.2 differ by more than their blocks; three alike don't."""
    apart = ratio([steady_pair(value) for value in (1.0, 1.1, 1.2)])
    logs = np.log([1.0, 1.1, 1.2])
    assert apart.value == pytest.approx(math.exp(logs.mean()))
    assert math.log(apart.high / apart.value) == pytest.approx(4.303 * logs.std(ddof=1) / math.sqrt(3), rel=1e-3)
    alike = ratio([steady_pair(1.1)] * 3)
    assert (alike.trials, alike.blocks) == (3, 90)
    assert 1 < alike.high / alike.low < 1.002


@pytest.mark.parametrize(
    ("value", "low", "high", "effect", "outcome"),
    [(1.10, 1.08, 1.12, 0.01, "faster"), (1.10, 0.99, 1.12, 0.01, "not resolved"),
     (1.02, 1.015, 1.025, 0.03, "not resolved"), (1.008, 1.006, 1.0099, 0.01, "same"),
     (1.0, 0.995, 1.005, 0.01, "same"), (1.0, 0.98, 1.02, 0.01, "not resolved"), (0.90, 0.88, 0.92, 0.01, "slower"),
     (0.98, 0.975, 0.985, 0.03, "not resolved"), (1.0, 1.0, 1.0, 0.01, "same")],
)  # fmt: skip
def test_the_four_outcomes(value: float, low: float, high: float, effect: float, outcome: str) -> None:
    assert Noise(effect).outcome(Ratio(value, low, high, 30)) == outcome


def test_the_minimum_detectable_effect_is_a_per_cent_or_what_control_pairs_show() -> None:
    assert minimum_detectable_effect([]) == 0.01
    assert minimum_detectable_effect([steady_pair(1.001)] * 5) == 0.01
    aa_pairs = [steady_pair(math.exp(part)) for part in (0.01, -0.01, 0.01, -0.01, 0.01)]
    assert minimum_detectable_effect([*aa_pairs, EMPTY]) == pytest.approx(0.0257, rel=1e-3)


def test_composed_intervals_cover_and_of_exact_or_few_samples_stay_numbers() -> None:
    rng, held = np.random.default_rng(0), 0
    for _ in range(100):
        first, second = (2.0 * np.exp(0.02 * rng.standard_normal(30)) for _ in range(2))
        before, after = pair_of(lambda i, s=first: (s[i] * 1.25, 2.0)), pair_of(lambda i, s=second: (s[i], 2.0))  # type: ignore[misc]
        found = composed(before, after)
        held += found.low <= 1.25 <= found.high
    assert held >= 88
    exact = composed(pair_of(lambda i: (2.0, 1.0)), pair_of(lambda i: (1.0, 1.0)))
    assert (exact.value, exact.low, exact.high) == (2.0, 2.0, 2.0)
    few = composed(pair_of(lambda i: (2.0 + i, 1.0), 3), pair_of(lambda i: (1.0, 1.0), 3))
    assert (few.low, few.high, few.bounded) == (pytest.approx(2.0), pytest.approx(4.0), False)


@pytest.mark.parametrize(
    ("calls", "p99", "p90_limit", "p99_limit"),
    [(1, None, None, None), (29, None, None, None), (30, None, 29, None), (299, None, 277, None),
     (300, None, 278, 299), (999, None, 914, 994), (1000, 989.01, 915, 995)],
)  # fmt: skip
def test_a_tail_needs_enough_calls(calls: int, p99: float | None, p90_limit: int | None, p99_limit: int | None) -> None:
    found = latency([float(index) for index in range(calls)])
    assert found.p99 == (p99 if p99 is None else pytest.approx(p99))
    assert (found.p90_limit, found.p99_limit) == (p90_limit, p99_limit)


SECONDS = st.floats(1e-6, 1e3)
FEW = settings(max_examples=20, deadline=None)


def sample(seconds: float) -> Sample:
    return Sample(4, seconds, None)


TWO = st.tuples(SECONDS.map(sample), SECONDS.map(sample))
BLOCKS = st.lists(st.builds(Block, st.sampled_from(["ABBA", "BAAB"]), TWO, TWO), min_size=1, max_size=14)


@FEW
@given(BLOCKS)
def test_a_ratio_lies_within_its_interval_and_within_the_data(blocks: list[Block]) -> None:
    found = ratio(Pair("a", "b", blocks))
    assert found.low <= found.value <= found.high
    times = [part.per_call for block in blocks for part in (*block.baseline, *block.stage)]
    assert min(times) / max(times) * 0.999 <= found.value <= max(times) / min(times) * 1.001


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


def images(count: int, wrong: float) -> tuple[np.ndarray, np.ndarray]:
    """Labels of three classes [count, 8, 8], 255 in a corner, and masks that miss a share of class 2."""
    labels = np.tile(np.repeat([0, 1, 2, 2], 2).astype(np.uint8), (count, 8, 1))
    masks = labels.copy()
    missed = np.random.default_rng(0).random(masks.shape) < wrong
    masks[(labels == 2) & missed] = 1
    labels[:, :2, :2] = 255
    return labels, masks


def test_dice_is_that_of_all_pixels_and_unlabelled_ones_do_not_count() -> None:
    labels, masks = images(6, 0.3)
    found = joined([overlap(masks[:2], labels[:2], 3), overlap(masks[2:], labels[2:], 3)])
    known = labels != 255
    for number, dice in enumerate(found.dice()):
        both = ((masks == number) & (labels == number) & known).sum()
        assert dice == pytest.approx(2 * both / (((masks == number) & known).sum() + (labels == number).sum()))
    assert overlap(masks, labels, 5).mean_dice == found.dice()[1:].mean(), "a class that occurs nowhere is left out"
    assert overlap(labels * 0, labels * 0, 3).mean_dice == 1.0, "of the background where it is alone"
    assert np.isnan(overlap(masks, np.full_like(labels, 255), 3).mean_dice)


def test_the_loss_is_of_the_classes_but_the_background_and_windows_of_a_picture_count_together() -> None:
    labels, masks = images(40, 0.3)
    exact, own = overlap(labels, labels, 3), overlap(masks, labels, 3)
    lost = losses(exact, own, 0)
    assert lost.counted.tolist() == [1, 2]
    assert lost.of(0) == DiceLoss(0.0, 0.0, 0.0)
    assert lost.mean.low < lost.mean.points < lost.mean.high
    assert lost.mean.points == pytest.approx((lost.of(1).points + lost.of(2).points) / 2)
    groups = numbered([f"picture {number // 4}" for number in range(40)])
    assert groups.max() == 9
    assert losses(exact.pooled(groups), own.pooled(groups), 0).mean.points == pytest.approx(lost.mean.points)


@pytest.mark.parametrize(("pictures", "bare"), [(12, 2), (12, 3), (9, 0), (0, 0)])
def test_an_interval_takes_ten_labelled_pictures(pictures: int, bare: int) -> None:
    labels, masks = images(12, 0.5)
    labels[:bare] = 255
    known = pictures - bare >= 10
    answers = [torch.from_numpy(np.where(part == 255, 0, part).astype(np.int64)) for part in (masks, labels)]
    logits, exact = (torch.nn.functional.one_hot(part, 3).movedim(3, 1).float() for part in answers)
    names = [str(number % pictures) for number in range(12)] if pictures else []
    found = compare([logits], [exact], torch.from_numpy(labels), pictures=names)
    assert (found.dice_lost is not None) == known
    assert found.reference_dice == [1.0, 1.0, 1.0]
    flips = [float((part != exact).mean()) for part, exact in zip(*(part.numpy() for part in answers), strict=True)]
    assert found.worst_flipped_share == pytest.approx(max(flips))
    assert [loss is not None for loss in found.class_lost or []] == [True] * 3 * known
    assert found.counts.pictures == ([number % pictures for number in range(12)] if pictures else [])
    recorded = to_json(replace(found, pictures=pictures))
    again = of_counts(recorded["counts"])
    assert ("pictures" in again, "class_lost" in again) == (pictures > 0, known)
    assert again == {name: recorded[name] for name in again}
    assert compare([logits] * 167, [exact] * 167, None).counts is None  # above 2,000 images
    unlabelled = torch.full((12, 8, 8), 255, dtype=torch.uint8)
    assert compare([logits], [exact], unlabelled, pictures=names).dice_lost is None


def test_a_loss_is_told_as_a_change_with_its_interval() -> None:
    said = "mean Dice of the classes −0.012 points (95 %: −0.040 to +0.004)"
    assert points_lost(DiceLoss(0.012, -0.004, 0.04)) == said
