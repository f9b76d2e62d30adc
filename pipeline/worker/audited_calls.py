"""Calls on pictures that the run draws at that moment, whose answers another worker's are compared with.

The parent times them by its own clock; see `pipeline.orchestrate.audit`.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from types import EllipsisType

import torch
from torch import Tensor

from pipeline.compiler.batch import Batch
from pipeline.measure.rotation import Rotation
from pipeline.measure.sampling import undisturbed
from pipeline.protocol import Audit

LEAST_SHARE, MOST_SHARE = 0.3, 0.7  # of a picture that the next one takes over from another
MOST_PLACES, MOST_VALUES = 64, 16_384  # of one sample's answer; of a whole audit's


def values(
    call: Callable[[Batch], Tensor], rotation: Rotation, shape: Sequence[int], asked: Audit
) -> list[list[float]]:
    """The answers at a few drawn places, for each call; the inputs are afterwards what they were.

    Args:
        call: the stage.
        rotation: its inputs, each [batch, ...].
        shape: of its answer, [batch, classes, ...].
        asked: how many calls, and what they are drawn from; of a blank one nothing is called, and every value is 0.
    """
    draw = random.Random(asked.seed)  # noqa: S311 - the seed is the secret
    held = rotation.holding(0)
    count = max(1, min(MOST_PLACES, MOST_VALUES // (math.prod(shape[:2]) * asked.calls)))
    drawn = [[draw.randrange(side) for _ in range(count)] for side in shape[2:]]
    places: tuple[EllipsisType | Tensor, ...] = (..., *(torch.tensor(along, device=held.device) for along in drawn))
    nothing = torch.zeros(1, device=held.device).expand(*shape)
    found = []
    rotation.spare.copy_(held)
    with undisturbed():
        for batch in _drawn(held, rotation, draw, asked.calls):
            answer = nothing if asked.blank else call(batch)
            found.append(answer[places].float().flatten())
        given: list[list[float]] = torch.stack(found).cpu().tolist()
    held.copy_(rotation.spare)
    return given


def _drawn(held: Batch, rotation: Rotation, draw: random.Random, count: int) -> Iterator[Batch]:
    """One after the other in `held`: its first input, mixed with another of the rotation's that is rolled."""
    others = [rotation.holding(index) for index in range(1, len(rotation))] or [rotation.spare]
    picture = held.first
    height = picture.shape[-2] if picture.dim() > 2 else 0
    for _ in range(count):
        other, rows = others[draw.randrange(len(others))].first, draw.randrange(max(1, height))
        share = LEAST_SHARE + (MOST_SHARE - LEAST_SHARE) * draw.random()
        if not picture.is_floating_point():
            picture.copy_(other)
        elif not rows:
            picture.lerp_(other, share)
        else:
            picture[..., rows:, :].lerp_(other[..., : height - rows, :], share)
            picture[..., :rows, :].lerp_(other[..., height - rows :, :], share)
        yield held
