"""Whether a stage answers faster what it has answered before: whoever computes takes as long for a picture it knows.

A stage that looks its answers up by what the input holds is right wherever the picture lies, and would win by it.
"""

import math
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

from pipeline.measure.clock import Clock
from pipeline.measure.rotation import Rotation
from pipeline.measure.sampling import undisturbed
from pipeline.measure.timers import time_calls

ROUNDS, SLOWER_ROUNDS = (
    12,
    10,
)  # in so many of so many rounds new contents must take longer: chance gives 0.3 % at worst
SHARE = 0.10  # by which a new content may take longer than a repeated one
PASS_SECONDS = 0.02
PICTURE_RANK = 3  # of what has rows beside its samples
LEAST_ROWS = ROUNDS + 1  # of a picture that can be rolled to as many places


class Remembered(NamedTuple):
    """What repeated contents came to."""

    slower: float  # how many times as long new contents take, in the median round
    remembers: bool


def remembered(
    call: Callable[..., object], rotation: Rotation, clock: Clock, per_call_seconds: float
) -> Remembered | None:
    """Time pictures that are new to the stage beside those of its samples: at most twelve rounds, or three honest ones.

    New are the rotation's own pictures, rolled by another number of rows in each round; in the end they are as before.
    Before each pass every buffer is written, so that both passes find the caches alike.

    Args:
        call: the stage.
        rotation: its inputs, which it has been called on.
        clock: of the device.
        per_call_seconds: of the stage, from which follows how many calls make a pass.

    Returns:
        None where the pictures have too few rows to be rolled to twelve places, or what is no picture has none.
    """
    shape = rotation.spare.shape
    height = shape[-2] if len(shape) >= PICTURE_RANK else 0
    if height < LEAST_ROWS:
        return None
    step = next(rows for rows in range(max(1, height // 5), height) if math.gcd(rows, height) == 1)
    calls = max(1, min(len(rotation), math.ceil(PASS_SECONDS / max(per_call_seconds, 1e-9))))
    ratios: list[float] = []
    with undisturbed():
        while len(ratios) < ROUNDS and _honest(ratios) <= ROUNDS - SLOWER_ROUNDS:
            rows = (len(ratios) + 1) * step % height
            new = _seconds(call, rotation, clock, rows, calls)
            ratios.append(new / _seconds(call, rotation, clock, height - rows, calls))
    return Remembered(median(ratios), _honest(ratios) <= ROUNDS - SLOWER_ROUNDS)


def _honest(ratios: list[float]) -> int:
    return sum(found <= 1 + SHARE for found in ratios)


def _seconds(call: Callable[..., object], rotation: Rotation, clock: Clock, rows: int, calls: int) -> float:
    """Of so many calls, from the first picture on, after every picture was rolled down by so many rows."""
    rotation.roll(rows)
    rotation.end_on(0, 1)
    batches = [rotation.next() for _ in range(calls)]
    clock.synchronize()
    return max(time_calls(call, batches, clock)[0], 1e-9)
