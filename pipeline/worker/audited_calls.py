"""Calls on pictures that the run draws at that moment, whose answers another worker's are compared with.

The parent times them by its own clock; see `pipeline.orchestrate.audit`.
"""

import random
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from pipeline.measure.rotation import Rotation
from pipeline.measure.sampling import undisturbed
from pipeline.protocol import Audit

LEAST_SHARE, MOST_SHARE = 0.3, 0.7  # of a picture that the next one takes over from another
MOST_PLACES, MOST_VALUES = 64, 16_384  # of one image's logits; of a whole audit's


def values(call: Callable[[Tensor], Tensor], rotation: Rotation, classes: int, asked: Audit) -> list[list[float]]:
    """The logits at a few drawn places, for each call; the pictures are afterwards what they were.

    Args:
        call: the stage; of a blank audit nothing is called, and every logit is 0.
        rotation: its inputs, [batch, channels, height, width].
        classes: of its answer.
        asked: how many calls, and what they are drawn from.
    """
    draw = random.Random(asked.seed)  # noqa: S311 - the seed is the secret
    held = rotation.holding(0)
    batch, _, height, width = held.shape
    count = max(1, min(MOST_PLACES, MOST_VALUES // (batch * classes * asked.calls)))
    rows, columns = (
        torch.tensor([draw.randrange(size) for _ in range(count)], device=held.device) for size in (height, width)
    )
    nothing = held.new_zeros((batch, classes, 1, 1)).expand(-1, -1, height, width)
    found = []
    rotation.spare.copy_(held)
    with undisturbed():
        for picture in _pictures(held, rotation, draw, asked.calls):
            answer = nothing if asked.blank else call(picture)
            found.append(answer[:, :, rows, columns].float().flatten())
        given: list[list[float]] = torch.stack(found).cpu().tolist()
    held.copy_(rotation.spare)
    return given


def _pictures(held: Tensor, rotation: Rotation, draw: random.Random, count: int) -> Iterator[Tensor]:
    """One after the other in `held`: what is there, mixed with another of the rotation's that is rolled."""
    others = [rotation.holding(index) for index in range(1, len(rotation))] or [rotation.spare]
    for _ in range(count):
        other, rows = others[draw.randrange(len(others))], draw.randrange(held.shape[-2])
        share = LEAST_SHARE + (MOST_SHARE - LEAST_SHARE) * draw.random()
        held[..., rows:, :].lerp_(other[..., : held.shape[-2] - rows, :], share)
        held[..., :rows, :].lerp_(other[..., held.shape[-2] - rows :, :], share)
        yield held
