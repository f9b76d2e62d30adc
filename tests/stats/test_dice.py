"""Dice image by image, and the interval of what is lost: over pictures, and of the classes that count."""

import numpy as np
import pytest
import torch

from pipeline.measure.accuracy import compare
from pipeline.records.samples import DiceLoss
from pipeline.report.sections.accuracy import points_lost
from pipeline.stats.dice import joined, losses, numbered, overlap


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


@pytest.mark.parametrize(("pictures", "known"), [(12, True), (9, False), (0, False)])
def test_an_interval_takes_ten_pictures(pictures: int, known: bool) -> None:
    labels, masks = images(12, 0.5)
    answers = [torch.from_numpy(np.where(part == 255, 0, part).astype(np.int64)) for part in (masks, labels)]
    logits, exact = (torch.nn.functional.one_hot(part, 3).movedim(3, 1).float() for part in answers)
    names = [str(number % pictures) for number in range(12)] if pictures else []
    found = compare([logits], [exact], torch.from_numpy(labels), pictures=names)
    assert (found.dice_lost is not None) == known
    assert found.reference_dice == [1.0, 1.0, 1.0]
    flips = [float((part != exact).mean()) for part, exact in zip(*(part.numpy() for part in answers), strict=True)]
    assert found.worst_flipped_share == pytest.approx(max(flips))
    assert [loss is not None for loss in found.class_lost or []] == [True] * 3 * known
    unlabelled = torch.full((12, 8, 8), 255, dtype=torch.uint8)
    assert compare([logits], [exact], unlabelled, pictures=names).dice_lost is None


def test_a_loss_is_told_as_a_change_with_its_interval() -> None:
    said = "mean Dice of the classes −0.012 points (95 %: −0.040 to +0.004)"
    assert points_lost(DiceLoss(0.012, -0.004, 0.04)) == said
