"""A fake clock, and a fake machine whose noise is known: the injected faults stand on these."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from pipeline.measure.clock import Clock
from pipeline.orchestrate.interleave import interleave
from pipeline.records.goals import Tolerance
from pipeline.records.plan import Plan
from pipeline.records.run_record import RunRecord, StageRecord
from pipeline.records.samples import Accuracy, Block, Pair, Sample
from tests.made_up_request import asked, changed, spec

TOLERANCE = Tolerance(relative_l2=1e-3, flipped_share=1e-3, reason="a test's own")
SAMPLE_SECONDS = 0.02
CALLS = 10
DRAWN = 120  # samples at a time: a run of 30 blocks


class FakeClock(Clock):
    """Time passes only where a test lets it; everything done to the clock is kept in `events`."""

    def __init__(self) -> None:
        self.wall = 0.0
        self.queued = 0.0  # work that only a synchronisation waits for
        self.seen_by_events = 0.0
        self.events: list[str] = []
        self._first = self._second = 0.0

    def work(self, seconds: float, seen: float | None = None) -> None:
        """Queue work on the device; `seen` of it lies between the events on the current stream."""
        self.events.append("call")
        self.queued += seconds
        self.seen_by_events += seconds if seen is None else seen

    def now(self) -> float:
        self.events.append("now")
        return self.wall

    def synchronize(self) -> None:
        self.events.append("synchronize")
        self.wall += self.queued
        self.queued = 0.0

    def begin(self) -> None:
        self.events.append("begin")
        self._first = self.seen_by_events

    def end(self) -> None:
        self.events.append("end")
        self._second = self.seen_by_events

    def device_seconds(self) -> float | None:
        return self._second - self._first


@dataclass
class Machine:
    """Makes samples last as long as they would on a machine with these faults."""

    rng: np.random.Generator
    noise: float = 0.01  # standard deviation of a sample's log
    outliers: float = 0.05  # share of samples that take up to half as long again
    clock_changes: float = 0.0  # chance per sample that the clock steps between 1 and 0.97
    drift: float = 0.0  # over 120 samples, a run of 30 blocks
    second_place: float = 0.0  # how much slower the second of two samples is
    between_run_std: float = 0.0  # standard deviation of a process's own log factor
    neighbour_every: int = 0  # which samples a neighbour slows by 30 %
    neighbour_phase: int = 0
    halves_after: int | None = None  # the sample from which the clock is half as fast
    taken: int = 0
    clock_steps: int = 0
    _factors: list[float] = field(default_factory=list)  # of the samples to come, the next one last

    def seconds(self, nominal: float) -> float:
        if not self._factors:
            self._factors = self._further().tolist()[::-1]
        return nominal * self._factors.pop()

    def _further(self) -> np.ndarray:
        """What the faults make of one second in each of the next samples, drawn together as numpy is slow at one."""
        index = np.arange(self.taken, self.taken + DRAWN)
        self.taken += DRAWN
        seconds = np.exp(self.noise * self.rng.standard_normal(DRAWN))
        chance, longer = self.rng.random((2, DRAWN))
        seconds *= 1 + (chance < self.outliers) * 0.5 * longer
        if self.clock_changes:
            steps = self.clock_steps + np.cumsum(self.rng.random(DRAWN) < self.clock_changes)
            self.clock_steps = int(steps[-1])
            seconds /= np.where(steps % 2, 0.97, 1.0)
        seconds *= (1 + self.drift * index / 120) * (1 + self.second_place * (index % 2))
        if self.neighbour_every:
            seconds[index % self.neighbour_every == self.neighbour_phase] *= 1.3
        if self.halves_after is not None:
            seconds[index >= self.halves_after] *= 2
        return np.asarray(seconds)


PLAIN = vars(Sample(CALLS, 0.0, None))


class FakeSampler:
    def __init__(self, name: str, machine: Machine, seconds: float) -> None:
        self.name = name
        self._machine = machine
        self._seconds = seconds * float(np.exp(machine.between_run_std * machine.rng.standard_normal()))

    def sample(self) -> Sample:
        """The next one, made without `Sample.__init__`: the simulations take two million."""
        taken = Sample.__new__(Sample)
        vars(taken).update(PLAIN, seconds=self._machine.seconds(self._seconds))
        return taken


def sampling(
    machine: Machine, true_ratio: float, plan: Plan | None = None, name: str = "stage", a: str = "eager"
) -> Pair:
    """A stage that is `true_ratio` times as fast as its baseline, measured on the machine."""
    first = FakeSampler(a, machine, SAMPLE_SECONDS * true_ratio)
    second = FakeSampler(name, machine, SAMPLE_SECONDS)
    order = random.Random(int(machine.rng.integers(2**31)))
    return interleave(first, second, plan or Plan(), order, lambda: 0.0)


def pair_of(
    seconds: Callable[[int], tuple[float, float]],
    blocks: int = 30,
    a: str = "eager",
    b: str = "stage",
    **fields: object,
) -> Pair:
    """Blocks ABBA whose i-th baseline and stage samples last `seconds(i)`; `fields` go into each stage sample."""
    made = []
    for index in range(blocks):
        first, second = seconds(index)
        plain = Sample(CALLS, first, None)
        other = replace(Sample(CALLS, second, None), **fields)  # type: ignore[arg-type]
        made.append(Block("ABBA", (plain, plain), (other, other)))
    return Pair(a, b, made)


def steady_pair(true_ratio: float, spread: float = 0.002, **fields: object) -> Pair:
    """Thirty blocks whose log-ratios lie evenly within ± `spread` of the truth."""
    names = {key: str(fields.pop(key)) for key in ("a", "b") if key in fields}
    stretch = np.exp(np.linspace(-spread, spread, 30)).tolist()
    return pair_of(lambda i: (SAMPLE_SECONDS * true_ratio * stretch[i], SAMPLE_SECONDS), **names, **fields)  # type: ignore[arg-type]


def wide_pair(true_ratio: float, **names: str) -> Pair:
    """Thirty blocks whose ratios are by turns three times the truth, the truth, and a third of it: not resolved."""
    return pair_of(lambda i: (SAMPLE_SECONDS * true_ratio * 3.0 ** (1 - i % 3), SAMPLE_SECONDS), **names)  # type: ignore[arg-type]


ACCURACY = Accuracy(0.0, 0.0, 1.0, 0.0, None, 0.0, False, None, None, None, None, 3)


def stage_record(name: str, pair: Pair | None, **fields: object) -> StageRecord:
    """A stage that is right, with its pair, whatever that was called."""
    known = {"status": "ok", "accuracy": ACCURACY, "pairs": [replace(pair, stage=name)] if pair else [], **fields}
    return changed(StageRecord(spec(name, tolerance=TOLERANCE)), **known)


def run_record(stages: list[StageRecord], **fields: object) -> RunRecord:
    """A run of batch 2."""
    return RunRecord("", "", **{"config": asked(), "stages": stages, **fields})  # type: ignore[arg-type]
