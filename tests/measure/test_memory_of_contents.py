"""On a fake clock: pictures that are new are timed beside those of the samples, and whoever remembers is slower."""

import itertools
import random
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest
import torch

from pipeline.compiler.batch import Batch
from pipeline.measure.memory_of_contents import ROUNDS, remembered
from pipeline.measure.rotation import Rotation
from tests.fake_machine import FakeClock

CALL, LOOK_UP = 0.010, 0.001
Work = Callable[[int], float]


def pictures(height: int = 20, count: int = 3) -> Rotation:
    return Rotation([torch.rand(1, 1, height, 4) for _ in range(count)])


def remembering(clock: FakeClock, known: set[bytes], look_up: float) -> Callable[[Batch], None]:
    """A stage that computes what it hasn't seen, and looks up the rest."""

    def call(batch: Batch) -> None:
        clock.work(look_up if (key := batch.first.numpy().tobytes()) in known else CALL)
        known.add(key)

    return call


@pytest.mark.parametrize(
    ("look_up", "told"), [(LOOK_UP, True), (CALL / 1.15, True), (CALL / 1.05, False), (CALL, False)]
)
def test_a_repeated_picture_may_not_be_a_tenth_faster(look_up: float, told: bool) -> None:
    """10 ms for what is new; the reason's figure is the ratio."""
    clock, turns = FakeClock(), pictures()
    call = remembering(clock, set(), look_up)
    for _ in range(6):
        call(turns.next())
    found = remembered(call, turns, clock, look_up)
    assert found is not None
    assert found.remembers is told
    assert found.slower == pytest.approx(CALL / look_up)
    assert turns.changed() == []


def test_an_honest_stage_is_called_a_few_times_only() -> None:
    clock, calls = FakeClock(), []

    def call(batch: Batch) -> None:
        calls.append(batch)
        clock.work(CALL)

    found = remembered(call, pictures(), clock, CALL)
    assert found is not None
    assert not found.remembers
    assert len(calls) == 3 * 3 * 2 * 3  # rounds, passes, turns of which the first isn't timed, calls


@pytest.mark.parametrize(
    ("per_call", "count", "calls", "seconds"),
    [(0.0005, 64, 1152, 0.576), (0.005, 8, 144, 0.72), (0.005, 3, 81, 0.405), (0.1, 3, 36, 3.6), (3.0, 3, 18, 54.0)],
)
def test_an_honest_stage_is_asked_for_seconds(per_call: float, count: int, calls: int, seconds: float) -> None:
    """All of a few pictures, several times; fewer pictures where a call is long."""
    clock = FakeClock()
    found = remembered(lambda _: clock.work(per_call), pictures(64, count), clock, per_call)
    assert found is not None
    assert not found.remembers
    assert clock.events.count("call") == calls
    assert clock.wall == pytest.approx(seconds)


def test_calls_of_which_a_phase_holds_few_are_not_asked_for() -> None:
    """Eighteen are the least that an honest stage answers: of 3.4 s each they take more than a minute."""
    clock = FakeClock()
    assert remembered(lambda _: clock.work(3.4), pictures(64), clock, 3.4) is None
    assert clock.wall == 0


def test_every_new_picture_is_new() -> None:
    """Also where the height has many divisors."""
    for height in (13, 16, 24, 30, 64):
        clock, seen = FakeClock(), set[bytes]()
        turns = pictures(height)
        home = {buffer.first.numpy().tobytes() for buffer in (turns.next() for _ in range(3))}

        def call(batch: Batch, clock: FakeClock = clock, seen: set[bytes] = seen) -> None:
            seen.add(batch.first.numpy().tobytes())
            clock.work(CALL * (1 + len(seen)))

        found = remembered(call, turns, clock, 1.0)
        assert found is not None
        assert len(seen - home) in range(3, ROUNDS + 1)


MACHINES = {  # by the number of the call; a pass is a call that isn't timed, and one that is
    "scatters by 30 %": lambda draw, _: float(np.exp(0.3 * draw.standard_normal())),
    "stops a call for ten, as often as not": lambda draw, _: 1.0 + 10.0 * float(draw.random() < 0.5),
    "is slow at every second pass": lambda _, at: 1.0 + 6.0 * (at // 2 % 2),
    "is slow at every third pass": lambda _, at: 1.0 + 6.0 * (at // 2 % 3 == 0),
    "becomes slower": lambda _, at: 1.2**at,
    "is fast at first": lambda _, at: 7.0 if at // 2 % 3 else 1.0,
}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("begin", range(2))
def test_no_machine_accuses_an_honest_stage(machine: str, begin: int) -> None:
    """Two hundred times: chance gives 0.1, whatever the machine does while it is asked; one is one time in ten."""
    draw, order, told = np.random.default_rng(3), random.Random(4), 0
    turns = pictures(13)
    for _ in range(200):
        clock, at = FakeClock(), itertools.count(begin)
        work = partial(MACHINES[machine], draw)
        found = remembered(lambda _, c=clock, w=work, a=at: c.work(w(next(a))), turns, clock, 1.0, order)
        told += found is not None and found.remembers
    assert told <= 1


@pytest.mark.parametrize("machine", ["scatters by 30 %", "is slow at every third pass"])
def test_who_remembers_is_told_on_a_busy_machine_too(machine: str) -> None:
    """A look-up takes a hundredth of a call; nine in ten of a hundred are told."""
    draw, order, told = np.random.default_rng(3), random.Random(4), 0
    for _ in range(100):
        clock, turns, known, at = FakeClock(), pictures(13), set[bytes](), itertools.count()
        work = partial(MACHINES[machine], draw)

        def call(
            batch: Batch, c: FakeClock = clock, k: set[bytes] = known, w: Work = work, a: Iterator[int] = at
        ) -> None:
            c.work(w(next(a)) * (0.01 if (key := batch.first.numpy().tobytes()) in k else 1.0))
            k.add(key)

        for _ in range(3):
            call(turns.next())
        found = remembered(call, turns, clock, 1.0, order)
        told += found is not None and found.remembers
    assert told >= 90


class Forgetful:
    """Looks up the pictures that it was called on last, no more than `room` of them, and at every `apart`-th call only.

    Attributes:
        spared: the first so many of its pictures it never keeps.
    """

    def __init__(self, clock: FakeClock, room: int, apart: int = 1, spared: int = 0) -> None:
        self.clock, self.room, self.apart, self.spared = clock, room, apart, spared
        self.calls, self.kept, self.passed = 0, dict[bytes, None](), set[bytes]()

    def __call__(self, batch: Batch) -> None:
        """Takes a hundredth of the time for what it looks up."""
        self.calls += 1
        key = batch.first.numpy().tobytes()
        if len(self.passed) < self.spared:
            self.passed.add(key)
        known = key in self.kept and self.calls % self.apart == 0
        self.clock.work(LOOK_UP / 10 if known else CALL)
        if key not in self.passed:
            self.kept[key] = self.kept.pop(key, None)
        while len(self.kept) > self.room:
            self.kept.pop(next(iter(self.kept)))


@pytest.mark.parametrize("per_call", [CALL / 2, 0.05])
@pytest.mark.parametrize("room", [3, 4, 5, 6])
def test_who_forgets_the_known_for_new_ones_is_told_as_well(room: int, per_call: float) -> None:
    """Of three pictures; also where a pass is a single turn, as a turn takes a tenth of a second already."""
    assert all(_told(Forgetful(FakeClock(), room), per_call, seed) for seed in range(20))


@pytest.mark.parametrize(("apart", "spared"), [(2, 0), (3, 0), (5, 0), (1, 1), (1, 2)])
def test_who_serves_some_calls_or_pictures_alone_is_told_as_well(apart: int, spared: int) -> None:
    """Every fifth call is more than a tenth of a pass, and one picture of three is told by itself."""
    assert all(_told(Forgetful(FakeClock(), 99, apart, spared), CALL / 2, seed) for seed in range(20))


def _told(call: Forgetful, per_call: float, seed: int) -> bool:
    turns = pictures(64)
    for _ in range(30):
        call(turns.next())
    found = remembered(call, turns, call.clock, per_call, random.Random(seed))
    return found is not None and found.remembers


def test_a_long_call_is_asked_for_any_picture() -> None:
    """Where a turn through all would take too long, it begins with a drawn one, not always the first."""
    turns, asked = pictures(), set[bytes]()
    home = {buffer.first.numpy().tobytes() for buffer in (turns.next() for _ in range(3))}
    for seed in range(20):
        clock, seen = FakeClock(), set[bytes]()

        def call(batch: Batch, clock: FakeClock = clock, seen: set[bytes] = seen) -> None:
            seen.add(batch.first.numpy().tobytes())
            clock.work(1.0)

        remembered(call, turns, clock, 1.0, random.Random(seed))
        assert len(seen & home) == 1
        asked |= seen
    assert home <= asked


def test_who_remembers_one_picture_of_many_is_told_by_it() -> None:
    """Of twenty, which is less than a tenth of a pass; a stage that computes is accused by none of its pictures."""
    for seed in range(20):
        clock, turns = FakeClock(), Rotation([torch.rand(1, 1, 20, 4) for _ in range(20)])
        for call in (Forgetful(clock, 99, 1, 19), Forgetful(clock, 0)):
            for _ in range(40):
                call(turns.next())
            found = remembered(call, turns, clock, CALL, random.Random(seed))
            assert found is not None
            assert found.remembers is (call.room > 0)
            assert found.slower == pytest.approx(100 if call.room else 1)


def test_pictures_of_few_rows_say_nothing() -> None:
    assert remembered(lambda _: None, pictures(12), FakeClock(), CALL) is None
