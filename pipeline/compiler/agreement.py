"""The distance between two answers, and the refusal of a candidate that doesn't compute the network."""

import math
from collections.abc import Callable

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
    if math.isinf(error):
        raise WrongAnswerError(wrong)
    exact = in_fp32()
    ours, theirs = distance(answer, exact), distance(plain, exact)
    if not (math.isfinite(theirs) and ours <= min(AS_NEAR * theirs, FURTHEST)):
        raise WrongAnswerError(f"{wrong}, and {ours:.3g} off those in fp32, from which {by}'s are {theirs:.3g}")


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
