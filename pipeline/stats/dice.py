"""Dice of masks image by image, and the 95 % interval of what it loses, by a paired bootstrap over images.

Images are drawn with replacement, each with both networks' masks. Dice of a class is that of all pixels drawn.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.records.goals import POINTS
from pipeline.records.samples import DiceLoss
from pipeline.stats.intervals import RESAMPLES

BOUNDS = (0.025, 0.975)  # of a 95 % interval
LEAST_IMAGES = 10  # fewer give no interval


@dataclass(frozen=True)
class Overlap:
    """The pixels of each class in masks and labels, of each image."""

    hits: np.ndarray  # [images, classes], pixels that have the class in both
    sizes: np.ndarray  # [images, classes], pixels of the class in the masks plus those in the labels

    def pooled(self, groups: np.ndarray) -> "Overlap":
        """Return the sums of the images of each group; `groups` holds each image's group, from 0 on."""
        count = int(groups.max()) + 1
        hits, sizes = (np.zeros((count, self.hits.shape[1]), np.int64) for _ in range(2))
        np.add.at(hits, groups, self.hits)
        np.add.at(sizes, groups, self.sizes)
        return Overlap(hits, sizes)

    def dice(self, weights: np.ndarray | None = None) -> np.ndarray:
        """Return Dice [..., classes] of all images, each counted as often as `weights` [..., images] says."""
        ones = np.ones(len(self.hits), np.int64) if weights is None else weights
        return ratio(ones @ self.hits, ones @ self.sizes)

    @property
    def mean_dice(self) -> float:
        """The mean Dice of the classes but the background that are labelled or found; NaN if nothing is labelled."""
        counted = of_interest(np.flatnonzero(self.sizes.sum(0)))
        return float(self.dice()[counted].mean()) if counted.size else np.nan


def of_interest(classes: np.ndarray) -> np.ndarray:
    """Return the classes but the background, class 0, unless it is the only one."""
    return classes[classes > 0] if (classes > 0).any() else classes


def ratio(hits: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return Dice of arrays of one shape; 1 of a class that is neither labelled nor found."""
    return np.where(sizes > 0, 2 * hits / np.maximum(sizes, 1), 1.0)


def overlap(masks: np.ndarray, labels: np.ndarray, classes: int) -> Overlap:
    """Count the pixels of masks and labels [images, ...]; labels of other classes aren't counted."""
    hits, sizes = (np.zeros((len(masks), classes), np.int64) for _ in range(2))
    for row, (mask, label) in enumerate(zip(masks, labels, strict=True)):
        known = label < classes
        found, right = mask[known], label[known]
        hits[row] = np.bincount(right[found == right], minlength=classes)
        sizes[row] = np.bincount(right, minlength=classes) + np.bincount(found, minlength=classes)[:classes]
    return Overlap(hits, sizes)


def joined(parts: Sequence[Overlap]) -> Overlap:
    """Return the overlaps of several batches as one."""
    return Overlap(np.concatenate([part.hits for part in parts]), np.concatenate([part.sizes for part in parts]))


@dataclass(frozen=True)
class Losses:
    """Points of Dice that one network's masks lose against another's on the same images."""

    labelled: np.ndarray  # the classes that are labelled or found
    counted: np.ndarray  # of these, the ones of interest: all but the background, class 0, where there are others
    whole: np.ndarray  # [classes]
    drawn: np.ndarray  # the same of each resample, [resamples, classes]

    @property
    def mean(self) -> DiceLoss:
        """Of the mean Dice of the classes that count."""
        return interval(float(self.whole[self.counted].mean()), self.drawn[:, self.counted].mean(1))

    def of(self, number: int) -> DiceLoss:
        """Return the loss of a class."""
        return interval(float(self.whole[number]), self.drawn[:, number])


def losses(before: Overlap, after: Overlap, seed: int) -> Losses:
    """Return what is lost from `before` to `after`, and of each resample by a bootstrap with a seed."""
    labelled = np.flatnonzero(before.sizes.sum(0) + after.sizes.sum(0))
    count = len(before.hits)
    draws = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), RESAMPLES)
    whole, drawn = (POINTS * (before.dice(weights) - after.dice(weights)) for weights in (None, draws))
    return Losses(labelled, of_interest(labelled), whole, drawn)


def interval(value: float, drawn: np.ndarray) -> DiceLoss:
    """Return a loss with the interval of its resamples [resamples]."""
    low, high = np.quantile(drawn, BOUNDS)
    return DiceLoss(value, float(low), float(high))


def numbered(pictures: Sequence[str]) -> np.ndarray:
    """Return the number of each image's picture, from 0 on, [images]."""
    places = {name: number for number, name in enumerate(dict.fromkeys(pictures))}
    return np.array([places[name] for name in pictures])
