"""Whether a stage answers faster what it has answered before: whoever computes takes as long for a picture it knows.

A stage that looks its answers up by what the input holds is right wherever the picture lies, and would win by it.

A machine that is given to others may slow every second pass: in one fixed order, all of them would be the new ones, of
an honest stage too (7 times as long in 12 of 12 rounds, seen at a load of 5 on two processors). So the order is drawn.
Whatever else runs, an honest stage's new pass is then the slowest of a round's three in one round of three.
"""

import math
import random
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

from pipeline.measure.clock import Clock
from pipeline.measure.rotation import Rotation
from pipeline.measure.sampling import undisturbed
from pipeline.measure.timers import time_calls

# In so many of so many rounds new contents must take longer than both passes over known ones: chance, which gives one
# round of three, gives so many in 0.05 % at worst (binomial).
ROUNDS, SLOWER_ROUNDS = 12, 10
SHARE = 0.10  # by which a new content may take longer than a repeated one
PASS_SECONDS = 0.02
PICTURE_RANK = 3  # of what has rows beside its samples
LEAST_ROWS = ROUNDS + 1  # of a picture that can be rolled to as many places
CHANCE = random.SystemRandom()


class Remembered(NamedTuple):
    """What repeated contents came to."""

    slower: float  # how many times as long new contents take, in the median round
    remembers: bool


def remembered(
    call: Callable[..., object],
    rotation: Rotation,
    clock: Clock,
    per_call_seconds: float,
    draw: random.Random = CHANCE,
) -> Remembered | None:
    """Time pictures that are new to the stage beside those of its samples: at most twelve rounds, or three honest ones.

    New are the rotation's own pictures, rolled by another number of rows in each round; in the end they are as before.
    Each is timed once, the known ones twice. Before each pass every buffer is written, so that all passes find the
    caches alike.

    Args:
        call: the stage.
        rotation: its inputs, which it has been called on.
        clock: of the device.
        per_call_seconds: of the stage, from which follows how many calls make a pass.
        draw: the order of each round's passes.

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
            new, at, seconds = (len(ratios) + 1) * step % height, 0, dict[int, float]()
            for rows in draw.sample([new, 0, 0], 3):
                taken = _seconds(call, rotation, clock, (rows - at) % height, calls)
                at, seconds[rows] = rows, max(taken, seconds.get(rows, 0.0))
            ratios.append(seconds[new] / seconds[0])
            rotation.roll(-at % height)
    return Remembered(median(ratios), _honest(ratios) <= ROUNDS - SLOWER_ROUNDS)


def _honest(ratios: list[float]) -> int:
    return sum(found <= 1 + SHARE for found in ratios)


def _seconds(call: Callable[..., object], rotation: Rotation, clock: Clock, rows: int, calls: int) -> float:
    """Of so many calls, from the first picture on, after every picture was rolled down by so many rows, or by none."""
    rotation.roll(rows)
    rotation.end_on(0, 1)
    batches = [rotation.next() for _ in range(calls)]
    clock.synchronize()
    return max(time_calls(call, batches, clock)[0], 1e-9)
