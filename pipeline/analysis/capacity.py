"""The GPUs that a service needs for a target rate at a target p99: a queue, simulated with measured latencies."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import floor
from typing import Literal

import numpy as np

from pipeline.analysis.summary import RunSummary

SEED = 0
ARRIVALS = 20_000  # per simulation: 200 of them lie beyond the p99
WARM_UP = ARRIVALS // 10  # the first ones find an empty queue, and are not counted
MOST_GPUS = 10_000  # to carry the load
SPARE = 64  # times the GPUs that would do with a batch for each image: hardly an image waits there

Finding = Literal["", "batch too slow", "load too high", "tail too tight", "mostly empty batches", "no latencies"]


@dataclass(frozen=True)
class Service:
    """One GPU as measured: its largest batch, and the latencies of a batch."""

    batch: int
    seconds: Sequence[float]

    @property
    def seconds_per_image(self) -> float:
        """Of full batches, back to back."""
        return float(np.mean(self.seconds)) / self.batch


@dataclass(frozen=True)
class Simulation:
    """One simulated GPU; the times are seconds from an image's arrival to its mask."""

    load: float  # share of what it could do with full batches
    images_per_batch: float
    p50: float
    p99: float


@dataclass(frozen=True)
class Fleet:
    """The GPUs that hold a target, or none and why; the finding also says where the batch is too large."""

    gpus: int | None
    simulation: Simulation | None
    finding: Finding = ""
    figure: float = 0.0  # of the finding: seconds of a batch that is too slow, GPUs that were tried


def sojourns(arrivals: Sequence[float], services: Sequence[float], batch: int) -> tuple[np.ndarray, int]:
    """Return the seconds from each arrival (rising) to the end of its batch, and the number of batches."""
    ends: list[float] = []  # of the batches
    sizes: list[int] = []
    first, free, count = 0, 0.0, len(arrivals)
    for service in services:
        if first == count:
            break
        arrival, after = arrivals[first], first + 1
        start = free if free > arrival else arrival  # noqa: FURB136 - a call of max takes longer than the rest
        if batch > 1 and after < count and arrivals[after] <= start:
            after = bisect_right(arrivals, start, after, min(first + batch, count))
        free = start + service
        ends.append(free)
        sizes.append(after - first)
        first = after
    return np.repeat(ends, sizes) - np.asarray(arrivals[:first]), len(ends)


def simulate(service: Service, images_per_second: float) -> Simulation:
    """Simulate one GPU at this rate, with the same random numbers at every rate."""
    draw = np.random.default_rng(SEED)
    arrivals = (np.cumsum(draw.exponential(size=ARRIVALS)) / images_per_second).tolist()
    services = draw.choice(np.asarray(service.seconds), size=ARRIVALS).tolist()
    found, batches = sojourns(arrivals, services, service.batch)
    p50, p99 = np.percentile(found[WARM_UP:], [50, 99]).round(9)  # sums of seconds hold no finer digits
    return Simulation(images_per_second * service.seconds_per_image, ARRIVALS / batches, float(p50), float(p99))


def fleet(service: Service, rate: float, p99_seconds: float) -> Fleet:
    """Return the fewest GPUs that hold a rate of images a second with this tail; the p99 falls with every GPU."""
    slowest = float(np.percentile(service.seconds, 99))
    if slowest > p99_seconds:
        return Fleet(None, None, "batch too slow", slowest)
    least = floor(rate * service.seconds_per_image) + 1
    if least > MOST_GPUS:
        return Fleet(None, None, "load too high", MOST_GPUS)
    most = SPARE * (floor(rate * float(np.mean(service.seconds))) + 1)
    simulated = cache(lambda gpus: simulate(service, rate / gpus))
    if simulated(most).p99 > p99_seconds:
        return Fleet(None, None, "tail too tight", most)
    gpus = least + bisect_left(range(least, most), True, key=lambda gpus: simulated(gpus).p99 <= p99_seconds)
    empty = gpus > 1 and simulated(gpus).images_per_batch < service.batch / 2
    return Fleet(gpus, simulated(gpus), "mostly empty batches" if empty else "")


def fleets(summary: RunSummary) -> dict[str, Fleet]:
    """Return the fewest GPUs of each ranked stage that hold the target; none where a part of it isn't set."""
    asked, found = summary.run.config.report, {}
    if asked.target_images_per_second is None or asked.target_p99_ms is None:
        return {}
    for stage in summary.ranked:  # with the copies from and to the host where they were timed
        service = Service(summary.run.batch_size, stage.stage.host_latencies or stage.stage.latencies)
        target = asked.target_images_per_second, asked.target_p99_ms / 1e3
        found[stage.name] = fleet(service, *target) if service.seconds else Fleet(None, None, "no latencies")
    return found
