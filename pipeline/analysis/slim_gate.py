"""The gate of a slim network: its loss of Dice on held-out images, with a 95 % interval."""

from dataclasses import dataclass, field

import numpy as np

from pipeline.errors import plural
from pipeline.records.goals import POINTS
from pipeline.records.samples import DiceLoss
from pipeline.stats.dice import LEAST_IMAGES, Overlap, losses, numbered, ratio

CLASS_TIMES = 1.5  # a class may lose that many times the limit of the mean: with fewer pixels, its interval is wider
POOR = 0.7  # Dice of a full network below which its masks are hardly worth keeping
DECILE = 0.1


@dataclass(frozen=True)
class Verdict:
    """The gate's answer."""

    against: str  # "labels", or "the full network's masks" where there are none
    images: int  # that the interval is of: pictures, or windows of fewer pictures
    full: float  # mean Dice of the full network, 0 to 1
    slim: float  # the slim network's
    loss: DiceLoss  # of the mean
    by_class: dict[int, DiceLoss]  # of each class that is labelled or found
    worst_class: int  # that may lose most
    worst_decile: float  # points that the worst tenth of the images loses on average
    worst_images: list[int]  # numbers of the images that lose most
    limit: float  # points that the mean may lose
    class_limit: float  # points that a class may lose
    reason: str  # why the slim network doesn't pass; empty if it does
    notes: list[str] = field(default_factory=list)  # doubts about what is compared

    @property
    def passed(self) -> bool:
        """The slim network loses no more than is allowed."""
        return not self.reason

    @property
    def told(self) -> str:
        """The answer in a line."""
        named = "Dice" if self.against == "labels" else f"Dice against {self.against}"
        loss, worst = self.loss, self.by_class[self.worst_class]
        figures = (
            f"{named} {self.slim:.4f}, full network {self.full:.4f}: {change(loss.points)} "
            f"(loss, 95 %: {loss.low:+.3f} to {loss.high:+.3f}, {self.limit:g} allowed) on "
            f"{plural(self.images, 'image')}; class {self.worst_class}: {change(worst.points)} (loss up to "
            f"{worst.high:+.3f}); the worst tenth of the images: {change(self.worst_decile)}"
        )
        return f"passed: {figures}" if self.passed else f"not passed: {self.reason}; {figures}"


def change(lost: float) -> str:
    """Return lost points of Dice in words; fewer than 0 are gained."""
    return f"{abs(lost):.3f} points {'gained' if lost < 0 else 'lost'}"


def judge(full: Overlap, slim: Overlap, pictures: list[str], limit: float, seed: int, against: str) -> Verdict:
    """Judge a slim network, which may lose `limit` points, by both networks' overlaps with the same labels.

    `pictures` names what each image is a window of, and `against` what the masks are compared with.
    """
    names = set(pictures)
    by_picture = len(names) >= LEAST_IMAGES
    units = [part.pooled(numbered(pictures)) if by_picture else part for part in (full, slim)]
    count, lost = len(units[0].hits), losses(units[0], units[1], seed)
    loss, counted, by_class = lost.mean, lost.counted, {int(at): lost.of(at) for at in lost.labelled}
    worst = max(by_class, key=lambda at: by_class[at].high)

    def lost_points(before: Overlap, after: Overlap) -> np.ndarray:
        fell: np.ndarray = (ratio(before.hits, before.sizes) - ratio(after.hits, after.sizes))[:, counted].mean(1)
        return POINTS * fell

    each, of_units = lost_points(full, slim), lost_points(*units)
    order = np.argsort(-each, kind="stable")
    before, after = (float(part.dice()[counted].mean()) for part in units)
    tenth = -float(np.sort(-of_units)[: max(1, round(DECILE * count))].mean())
    class_limit, high, reason = CLASS_TIMES * limit, by_class[worst].high, ""
    if count < LEAST_IMAGES:
        reason = f"{plural(count, 'held-out image')} can't tell; give {LEAST_IMAGES} or more"
    elif loss.high >= limit:
        reason = f"its Dice may lose {loss.high:.3f} points, {limit:g} allowed"
    elif high >= class_limit:
        reason = f"class {worst} may lose {high:.3f} points, {class_limit:g} allowed for one class"
    notes = [] if by_picture else [f"the images come from {plural(len(names), 'picture')}: others may lose more"]
    if against != "labels":
        notes.append("there are no labels: this is agreement with the full network, which may be wrong itself")
    elif before < POOR:
        notes.append(f"the full network itself is bad here (Dice {before:.3f}): to lose nothing against it says little")
    worst_images = order[:8].tolist()
    return Verdict(
        against, count, before, after, loss, by_class, worst, tenth, worst_images, limit, class_limit, reason, notes
    )
