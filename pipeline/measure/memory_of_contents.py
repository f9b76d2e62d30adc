"""Whether a stage answers faster what it has answered before: whoever computes takes as long for a picture it knows.

A stage that looks its answers up by what the input holds is right wherever the picture lies, and would win by it.

A machine that is given to others may slow every second pass: in one fixed order, all of them would be the new ones, of
an honest stage too (7 times as long in 12 of 12 rounds, seen at a load of 5 on two processors). So the order is drawn.
Whatever else runs, an honest stage's new pass is then the slowest of a round's three in one round of three.

Before each pass the stage is called on the known pictures: a memory that holds no more than those would have lost them
to the new ones, and be as slow for either. It is called so before a pass that needs none of it as well, or what the
machine does in the rhythm of the calls would meet some orders more than others. And a pass goes through few pictures
several times: one that serves some of its calls alone has served some in every pass. One that holds some pictures alone
is told by those, each for itself.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice, repeat
from statistics import median
from typing import NamedTuple

from pipeline.measure.clock import Clock
from pipeline.measure.rotation import Rotation
from pipeline.measure.sampling import undisturbed
from pipeline.measure.timers import time_calls

# In so many of so many rounds new contents must take longer than both passes over known ones: chance, which gives one
# round of three, gives so many in 0.05 % at worst (binomial). Of a single picture in all rounds: 0.0002 %, for each of
# at most 64.
ROUNDS, SLOWER_ROUNDS = 12, 10
HONEST_ROUNDS = ROUNDS - SLOWER_ROUNDS + 1  # end it
SHARE = 0.10  # by which a new content may take longer than a repeated one
TURN_SECONDS, PASS_SECONDS = 0.2, 0.05  # at most of a turn through the pictures, at least of a pass of fewer calls
PASS_CALLS = 6  # make a pass, however short: whoever serves every fifth call serves a tenth of them or more, in each
ASKED_SECONDS = 60.0  # at most of what an honest stage is asked, as its phase has 600; a liar is asked four times that
PICTURE_RANK = 3  # of what has rows beside its samples
LEAST_ROWS = ROUNDS + 1  # of a picture that can be rolled to as many places
CHANCE = random.SystemRandom()


class Remembered(NamedTuple):
    """What repeated contents came to."""

    slower: float  # how many times as long new contents take, in the median round, or that picture's that tells most
    remembers: bool


def remembered(
    call: Callable[..., object],
    rotation: Rotation,
    clock: Clock,
    per_call_seconds: float,
    draw: random.Random = CHANCE,
) -> Remembered | None:
    """Time pictures that are new to the stage beside those of its samples: at most twelve rounds, or three honest ones.

    New are the rotation's own pictures, rolled by another number of rows in each turn; in the end they are as before.
    A round has one pass over new ones, and two over the known ones. Before each turn every buffer is written, so that
    all find the caches alike.

    Args:
        call: the stage.
        rotation: its inputs, which it has been called on.
        clock: of the device.
        per_call_seconds: of the stage, from which follows how many calls make a pass.
        draw: the order of each round's passes, and the picture that all begin with.

    Returns:
        None where the pictures have too few rows to be rolled to twelve places, or what is no picture has none; and
        where three rounds, which are 18 calls at least, would take more than a minute.
    """
    shape = rotation.spare.shape
    height = shape[-2] if len(shape) >= PICTURE_RANK else 0
    if height < LEAST_ROWS:
        return None
    calls = max(1, min(len(rotation), math.ceil(TURN_SECONDS / max(per_call_seconds, 1e-9))))
    wanted = min(math.ceil(PASS_SECONDS / max(calls * per_call_seconds, 1e-9)), math.ceil(PASS_CALLS / calls))
    turns, first = min(wanted, (height - 1) // ROUNDS), draw.randrange(len(rotation))
    if HONEST_ROUNDS * 3 * (turns + 1) * calls * per_call_seconds > ASKED_SECONDS:
        return None
    passes, places, rounds = _Passes(call, rotation, clock, calls, turns, first), _places(height), list[list[float]]()
    with undisturbed():
        while len(rounds) < ROUNDS and (not rounds or _telling(rounds)):
            rounds.append(passes.ratios(places, draw))
    told = _telling(rounds)
    return Remembered(max(map(median, told), default=median(whole for whole, *_ in rounds)), bool(told))


def _telling(rounds: list[list[float]]) -> list[tuple[float, ...]]:
    """Of the ratios of a whole pass and of each of its pictures, round by round, those that chance doesn't give."""
    whole, *pictures = zip(*rounds, strict=True)
    return [whole] * (_honest(whole) < HONEST_ROUNDS) + [one for one in pictures if not _honest(one)]


def _places(height: int) -> Iterator[int]:
    """Numbers of rows to roll by, none of them 0, nor the same within `height` − 1."""
    step = next(rows for rows in range(max(1, height // 5), height) if math.gcd(rows, height) == 1)
    return (number * step % height for number in count(1))


def _honest(ratios: Sequence[float]) -> int:
    return sum(found <= 1 + SHARE for found in ratios)


class _Passes(NamedTuple):
    """What a pass is: so many turns of so many calls each, the first of them on the `first` picture."""

    call: Callable[..., object]
    rotation: Rotation
    clock: Clock
    calls: int
    turns: int
    first: int

    def ratios(self, places: Iterator[int], draw: random.Random) -> list[float]:
        """Of a round: a pass over new pictures to the longer of two over the known, whole, and for each picture."""
        taken: dict[bool, list[list[float]]] = {True: [], False: []}
        for new in draw.sample([True, False, False], 3):
            taken[new].append(self.seconds(places if new else repeat(0)))
        return [new / max(known) for new, *known in zip(*taken[True], *taken[False], strict=True)]

    def seconds(self, places: Iterator[int]) -> list[float]:
        """Of a pass, in each of whose turns all pictures are rolled to the next place: whole, and for each picture."""
        self._turn(0)  # untimed: what it knows, it knows again
        each = [sum(calls) for calls in zip(*map(self._turn, islice(places, self.turns)), strict=True)]
        return [sum(each), *each]

    def _turn(self, rows: int) -> list[float]:
        """Seconds of each call, while every picture is rolled down by so many rows, or by none."""
        self.rotation.roll(rows)
        self.rotation.end_on(self.first, 1)
        batches = [self.rotation.next() for _ in range(self.calls)]
        self.clock.synchronize()
        taken = [max(time_calls(self.call, [batch], self.clock)[0], 1e-9) for batch in batches]
        self.rotation.roll(-rows % self.rotation.spare.shape[-2])
        return taken
