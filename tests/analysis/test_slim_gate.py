"""The gate: what passes, what doesn't, and what is said beside it."""

import numpy as np
import pytest

from pipeline.analysis.slim_gate import Verdict, judge
from pipeline.stats.dice import overlap

SIDE = 40


def labels(images: int = 30, seed: int = 0) -> np.ndarray:
    """Draw labels [images, side, side]: half background, then two large classes and a small one."""
    random = np.random.default_rng(seed)
    return random.choice(4, (images, SIDE, SIDE), p=[0.5, 0.25, 0.23, 0.02]).astype(np.uint8)


def worsened(right: np.ndarray, share: float, seed: int, only: int | None = None) -> np.ndarray:
    """Return masks in which a share of the pixels, or of one class's, is background."""
    hit = np.random.default_rng(seed).random(right.shape) < share
    return np.where(hit if only is None else hit & (right == only), 0, right).astype(np.uint8)


def verdict(full: np.ndarray, slim: np.ndarray, right: np.ndarray, limit: float = 1.0, **given: object) -> Verdict:
    pictures = [f"picture {at}" for at in range(len(right))]
    known = {"pictures": pictures, "limit": limit, "seed": 0, "against": "labels", **given}
    return judge(overlap(full, right, 4), overlap(slim, right, 4), **known)  # type: ignore[arg-type]


def test_an_equal_student_passes_unless_images_are_few() -> None:
    right = labels()
    found = verdict(worsened(right, 0.1, 1), worsened(right, 0.101, 1), right)
    assert found.passed
    assert found.loss.low <= found.loss.points <= found.loss.high < 1
    assert found.told.startswith("passed: Dice 0.9")
    assert "points gained (loss, 95 %: -" in verdict(worsened(right, 0.4, 1), worsened(right, 0.1, 1), right).told
    right = labels(images=4)
    assert verdict(right, right, right).reason == "4 held-out images can't tell; give 10 or more"


def test_a_student_that_is_wrong_on_one_class_fails() -> None:
    """Its mean Dice alone would pass."""
    right = labels()
    found = verdict(worsened(right, 0.1, 1), worsened(worsened(right, 0.1, 1), 0.25, 2, only=3), right, limit=6.0)
    assert found.loss.high < 6.0
    assert not found.passed
    assert found.worst_class == 3
    assert found.reason.startswith("class 3 may lose")
    assert found.told.startswith("not passed: class 3 may lose")


def test_a_loss_that_the_images_can_not_tell_from_a_large_one_fails() -> None:
    """One image in twelve is lost: the mean is within the limit, and its upper bound isn't."""
    right = labels(images=12)
    slim = right.copy()
    slim[0] = worsened(right[0], 0.3, 1)
    found = verdict(right, slim, right, limit=2.0)
    assert found.loss.points < 2.0 < found.loss.high
    assert not found.passed
    assert found.reason.startswith("its Dice may lose")
    assert found.worst_images[0] == 0
    assert found.worst_decile > found.loss.points


@pytest.mark.parametrize(
    ("share", "against", "note"),
    [
        (0.6, "labels", "the full network itself is bad here"),
        (0.1, "the full network's masks", "agreement with the full network"),
    ],
)
def test_a_doubt_about_what_is_compared_is_told(share: float, against: str, note: str) -> None:
    right = labels()
    masks = worsened(right, share, 1)
    found = verdict(masks, masks, right, against=against)
    assert found.passed
    assert [text for text in found.notes if note in text]
    assert ("Dice against" in found.told) == (against != "labels")


def test_windows_of_few_pictures_are_told() -> None:
    right = labels()
    found = verdict(right, right, right, pictures=["one picture"] * len(right))
    assert found.notes == ["the images are windows of 1 picture: others may lose more"]
