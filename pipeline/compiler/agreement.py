"""The distance between two answers, the refusal of a candidate that doesn't compute the network, and budgets.

A budget is the distance from full precision that fewer bits may cost. `filled` fills it from nothing with layers, as
errors of layers add up in squares: those of 42 single layers of diffusers' UNet2DModel in fp8 to 0.187 (relative L2),
all together are 0.19 off.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from pipeline.compiler.half import Precision

# How far a candidate may be from the same net without our kernels (relative L2): a wrong kernel is off by more in most
# nets. How right a stage must be is its tolerance, against fp32.
AGREES: dict[Precision | None, float] = {"fp16": 0.1, "tf32": 0.1, "fp8": 0.5}
# A network that multiplies its roundings is further from itself than that: smp's Unet with an untrained MobileOne is
# 0.38 from fp32 in fp16, by any compiler. There a candidate may be as far from fp32 as the plain network is, with this
# for the difference of two such draws; but no further than an answer can be that still says something: zeros are 1 off.
AS_NEAR, FURTHEST = 1.5, 0.6


class WrongAnswerError(Exception):
    """A candidate that doesn't compute the net."""


def check_agreement(
    answer: Tensor, plain: Tensor, in_fp32: Callable[[], Tensor], precision: Precision | None, by: str
) -> None:
    """Raise WrongAnswerError if an answer is far from the plain network's by `by`, and further from fp32's."""
    error = distance(answer, plain)
    if error <= AGREES[precision]:
        return
    wrong = f"its logits are {error:.3g} off those of the network by {by} (relative L2)"
    if math.isinf(error) and bool(plain.isfinite().all()):  # else torch rounds to infinity what a kernel keeps in fp32
        raise WrongAnswerError(wrong)
    exact = in_fp32()
    ours, theirs = distance(answer, exact), distance(plain, exact)
    if not ours <= (min(AS_NEAR * theirs, FURTHEST) if math.isfinite(theirs) else AGREES[precision]):
        raise WrongAnswerError(f"{wrong}, and {ours:.3g} off those in fp32, from which {by}'s are {theirs:.3g}")


def check_finite(answer: Tensor, in_fp32: Callable[[], Tensor]) -> None:
    """Raise WrongAnswerError if an answer overflows where fp32's doesn't."""
    if not answer.isfinite().all() and in_fp32().isfinite().all():
        raise WrongAnswerError("its logits are infinite or no numbers, and finite in fp32")


def distance(got: Tensor, want: Tensor) -> float:
    """Return ‖got − want‖ / ‖want‖ in fp64 where `want` is finite; infinite where just one of the two is finite."""
    got, want = got.double(), want.double()
    finite = want.isfinite()
    if not torch.equal(finite, got.isfinite()):
        return math.inf
    got, want = got.where(finite, 0.0), want.where(finite, 0.0)
    off, size = float((got - want).norm()), float(want.norm())
    return off / size if size else math.inf if off else 0.0


def classes(logits: Tensor) -> Tensor:
    """Return the classes [batch, height, width] in uint8: the largest logit's; of one channel, if it is above 0."""
    chosen = logits.max(1).indices if logits.shape[1] > 1 else logits[:, 0] > 0  # on a CPU argmax takes 5 times as long
    return chosen.to(torch.uint8)


Run = Callable[[Tensor], Tensor]
Given = TypeVar("Given")  # what a net is called with: a tensor, or a batch of several
NO_NUMBER = 1e12  # of the budget; finite, so that what a layer saves of it is a number


@dataclass(frozen=True)
class Spent:
    """The distance of a network from its full precision on some images."""

    flips: float  # share of pixels that change their class
    error: float  # relative L2 of the logits
    dice: float  # that the masks lose, in the class that loses most


@dataclass(frozen=True)
class Budget:
    """The allowed distance from full precision; fields as of `Spent`, 0 or more."""

    flips: float
    error: float
    dice: float = math.inf

    def __post_init__(self) -> None:
        for part in (self.flips, self.error, self.dice):
            if not part >= 0:
                raise ValueError(f"a budget must be 0 or more, got {part:g}")

    @property
    def of_masks(self) -> bool:
        """True if the answers' classes count, too."""
        return math.isfinite(min(self.flips, self.dice))

    @property
    def in_words(self) -> str:
        """Such as "budget of 0.05 of the answer (relative L2) and 0.0007 of the pixels"."""
        pixels = f" and {self.flips:g} of the pixels" if self.of_masks else ""
        return f"budget of {self.error:g} of the answer (relative L2){pixels}"

    def of_answers(self, masks: bool) -> "Budget":
        """Return the budget for a net whose answers are masks, or of its values alone: then no pixel has a class."""
        return self if masks else Budget(math.inf, self.error)

    def used(self, run: Callable[[Given], Tensor], batches: Sequence[Given], exact: list[Tensor]) -> float:
        """Return how much of the budget a net takes on batches with `exact` answers, of the part it takes most of."""
        return self.share(spent(run, batches, exact, masks=self.of_masks))

    def share(self, found: Spent) -> float:
        """Return the same of what is known to be spent; `NO_NUMBER` at most, as for an answer of NaN or infinities."""
        if not math.isfinite(found.error):
            return NO_NUMBER
        parts = ((found.flips, self.flips), (found.error, self.error), (found.dice, self.dice))
        return max(_part(spent, allowed) for spent, allowed in parts)


def _part(spent: float, allowed: float) -> float:
    if not spent:
        return 0.0
    return min(spent / allowed, NO_NUMBER) if allowed else NO_NUMBER


def spent(
    run: Callable[[Given], Tensor], batches: Sequence[Given], exact: list[Tensor], *, masks: bool = True
) -> Spent:
    """Return how far a network is from answers [batch, …]; the same NaN or infinity in both is right."""
    flips = error = size = 0.0
    overlaps = torch.zeros(2, 1, dtype=torch.int64)
    for batch, logits in zip(batches, exact, strict=True):
        given = run(batch).float()
        same = (given == logits) | (given.isnan() & logits.isnan())
        error += float((given - logits).masked_fill(same, 0.0).square().sum())
        size += float(logits.where(logits.isfinite(), 0.0).square().sum())
        if masks:
            mask, right = classes(given), classes(logits)
            flips += float((mask != right).float().mean()) / len(batches)
            overlaps = overlaps.to(mask.device) + overlap(mask, right, max(logits.shape[1], 2))
    return Spent(flips, math.sqrt(error / (size or 1.0)), dice_lost(overlaps))


def overlap(mask: Tensor, right: Tensor, count: int) -> Tensor:
    """For each of `count` classes: pixels in both masks, and pixels of one plus pixels of the other; [2, classes]."""
    both = torch.bincount(right[mask == right].flatten().long(), minlength=count)
    sizes = sum(torch.bincount(part.flatten().long(), minlength=count) for part in (mask, right))
    return torch.stack([both, torch.as_tensor(sizes)])


def dice_lost(overlaps: Tensor) -> float:
    """Return 1 − 2|A∩B|/(|A|+|B|) of the class that loses most; `overlaps` [2, classes] are sums of `overlap`."""
    both, sizes = overlaps.double()
    return float((1 - 2 * both / sizes.clamp(min=1)).where(sizes > 0, 0.0).max())


LEAST_USED = 1e-9  # of the budget: a layer may be exact
Unit = Sequence[str]


def filled(
    units: Sequence[Unit], cost: Callable[[list[str]], float], price: Callable[[list[str]], float]
) -> tuple[list[str], dict[str, float]]:
    """Return the layers that keep more bits so that the budget holds, and how much of it each takes alone.

     Those have fewer bits that save most for the square of what they take; the last of them go again while all together
    are over the budget, and others come that fit. All layers of a unit have fewer bits or none; `price` is what keeping
    takes.
    """
    if cost([]) <= 1:
        return [], {}

    def kept(fewer: Sequence[Unit]) -> list[str]:
        return [name for unit in units if unit not in fewer for name in unit]

    taken = [max(cost(kept([unit])), LEAST_USED) for unit in units]
    saved = [price(kept([])) - price(kept([unit])) for unit in units]
    worth = sorted(range(len(units)), key=lambda at: -saved[at] / taken[at] ** 2)
    order = [at for at in worth if saved[at] > 0]
    ways = [_fitting([first, *order], taken) for first in order]  # a large one may fit only where it comes first
    chosen = max(ways, key=lambda way: sum(saved[at] for at in way), default=[])

    def used(fewer: list[int]) -> float:
        return cost(kept([units[at] for at in fewer]))

    now = used(chosen)
    while now > 1 and chosen:
        chosen.pop()
        now = used(chosen)
    for at in [each for each in order if each not in chosen]:
        if now**2 + taken[at] ** 2 > 1:
            continue
        more = used([*chosen, at])
        if more <= 1:
            chosen, now = [*chosen, at], more
    alone = {name: amount for unit, amount in zip(units, taken, strict=True) for name in unit}
    return kept([units[at] for at in chosen]), alone


def _fitting(order: Sequence[int], taken: Sequence[float]) -> list[int]:
    fitting: list[int] = []
    for at in order:
        if at not in fitting and sum(taken[other] ** 2 for other in [*fitting, at]) <= 1:
            fitting.append(at)
    return fitting
