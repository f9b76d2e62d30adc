"""How many GPUs a service needs for a target rate at a target p99: a queue, simulated with the measured latencies."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import floor

import numpy as np

from pipeline.analysis.summary import Digest, Row
from pipeline.records.run_record import StageRecord
from pipeline.report import formatting as words
from pipeline.report.sections.ladder_section import Cell, Table

SEED = 0
ARRIVALS = 20_000  # per trial: 200 of them lie beyond the p99
SETTLING = ARRIVALS // 10  # the first ones find an empty queue, and are not counted
MOST_GPUS = 10_000  # to carry the load
SPARE = 64  # so many times what would do with a batch for each image: there hardly anyone waits
RATE, TAIL = "report.target_images_per_second", "report.target_p99_ms"
MODEL = (
    "A queue, simulated: single images arrive at random (a Poisson stream), each GPU gets an equal share, drawn at "
    "random. Dynamic batching: a free GPU takes whatever waits, up to the batch of {batch}; a part batch costs as a "
    "full one, since only the full one was measured. A batch lasts as long as one drawn from the {series}. "
    f"One batch at a time, copies not hidden; {ARRIVALS:,} images a trial, seed {SEED}. The network and the "
    "decoding of images come on top, and a tail that the run's few calls didn't see is not in it."
)


@dataclass(frozen=True)
class Service:
    """What one GPU does: so many images at most per batch, in so many seconds, as measured."""

    batch: int
    seconds: Sequence[float]

    @property
    def seconds_per_image(self) -> float:
        """Of full batches, back to back."""
        return float(np.mean(self.seconds)) / self.batch


@dataclass(frozen=True)
class Target:
    """What the service must hold."""

    images_per_second: float
    p99_seconds: float


@dataclass(frozen=True)
class Trial:
    """One simulated GPU; the times are seconds from an image's arrival to its mask."""

    load: float  # share of what it could do with full batches
    images_per_batch: float
    p50: float
    p99: float


@dataclass(frozen=True)
class Fleet:
    """The GPUs that hold a target, or none and why; `note` also says what to try."""

    gpus: int | None
    trial: Trial | None
    note: str = ""


@dataclass(frozen=True)
class Section:
    """What the report shows; no table without targets."""

    title: str
    note: str
    table: Table | None = None


def sojourns(arrivals: Sequence[float], services: Sequence[float], batch: int) -> tuple[list[float], int]:
    """Seconds from each arrival to the end of its batch, and how many batches there were.

    Args:
        arrivals: in seconds, rising.
        services: seconds of the first, second, ... batch; as many as arrivals are enough.
        batch: the most images that one batch takes.
    """
    found: list[float] = []
    first, free, batches = 0, 0.0, 0
    for service in services:
        if first == len(arrivals):
            break
        start = max(free, arrivals[first])
        after = bisect_right(arrivals, start, first, min(first + batch, len(arrivals)))
        free = start + service
        batches += 1
        found += [free - arrival for arrival in arrivals[first:after]]
        first = after
    return found, batches


def simulate(service: Service, images_per_second: float) -> Trial:
    """One GPU at this rate. The same random numbers at every rate, so that trials differ by the rate alone."""
    draw = np.random.default_rng(SEED)
    arrivals = (np.cumsum(draw.exponential(size=ARRIVALS)) / images_per_second).tolist()
    services = draw.choice(np.asarray(service.seconds), size=ARRIVALS).tolist()
    found, batches = sojourns(arrivals, services, service.batch)
    p50, p99 = np.percentile(found[SETTLING:], [50, 99]).round(9)  # sums of seconds hold no finer digits
    load = images_per_second * service.seconds_per_image
    return Trial(load, ARRIVALS / batches, float(p50), float(p99))


def fleet(service: Service, target: Target) -> Fleet:
    """The fewest GPUs that hold the target.

    Fewer than the load bound (rate times seconds per image) can't keep up. From there the p99 falls with every GPU,
    so the fewest are found by halving.
    """
    alone = float(np.percentile(service.seconds, 99))
    if alone > target.p99_seconds:
        return Fleet(None, None, f"not reachable: one batch alone takes {words.seconds(alone)} at its p99")
    least = floor(target.images_per_second * service.seconds_per_image) + 1
    if least > MOST_GPUS:
        return Fleet(None, None, f"more than {MOST_GPUS:,} GPUs for the load alone: not simulated")
    most = SPARE * (floor(target.images_per_second * float(np.mean(service.seconds))) + 1)
    trials = {gpus: simulate(service, target.images_per_second / gpus) for gpus in (least, most)}
    if trials[most].p99 > target.p99_seconds:
        return Fleet(None, None, f"not with {most:,} either, each idle for {words.share(1 - 1 / SPARE)} of the time")

    def holds(gpus: int) -> bool:
        if gpus not in trials:
            trials[gpus] = simulate(service, target.images_per_second / gpus)
        return trials[gpus].p99 <= target.p99_seconds

    gpus = least + bisect_left(range(least, most), True, key=holds)
    empty = gpus > 1 and trials[gpus].images_per_batch < service.batch / 2
    return Fleet(gpus, trials[gpus], "mostly empty batches: measure a smaller data.batch_size" if empty else "")


def measured(stage: StageRecord, batch: int) -> Service | None:
    """The stage's latencies with the copies from and to the host, or without where only those are there."""
    series = stage.host_latencies or stage.latencies
    return Service(batch, series) if series else None


def section(found: Digest) -> Section:
    """The targets' section of a run's report: GPUs for each ranked stage, or the knobs to set."""
    device = found.run.environment.device if found.run.environment else "cuda"
    title = "GPUs for the target" if device == "cuda" else "Machines like this for the target"
    knobs = found.run.config.get("report") or {}
    rate, tail = (knobs.get(key.partition(".")[2]) for key in (RATE, TAIL))
    if rate is None or tail is None:
        missing = words.listed([key for key, value in ((RATE, rate), (TAIL, tail)) if value is None])
        hint = f"python -m pipeline.report RUN {RATE}=500 {TAIL}=50"
        return Section(title, f"Set {missing}, and how many it takes stands here. No new run is needed: {hint}.")
    target = Target(float(rate), float(tail) / 1e3)
    rows = [row for row in found.rows if row.ranked]
    without_copies = any(not row.stage.host_latencies for row in rows)
    series = f"measured latencies{', without copies where those with copies are missing' * without_copies}"
    asked = f"{words.significant(target.images_per_second)} images/s at a p99 of {words.seconds(target.p99_seconds)}."
    return Section(title, f"{asked} {MODEL.format(batch=found.run.batch_size, series=series)}", _table(found, target))


def _table(found: Digest, target: Target) -> Table:
    price = found.gpu_hour_price
    titles = [
        ("stage", ""),
        ("GPUs", "the fewest that hold the target"),
        ("load", "share of what they could do with full batches"),
        ("images a batch", "on average, simulated"),
        ("p50 ms", "simulated, from an image's arrival to its mask"),
        ("p99 ms", "simulated"),
    ]
    titles += [("an hour", f"all of them, at {price:g} an hour each")] if price is not None else []
    rows = [_cells(row, found.run.batch_size, target, price) for row in found.rows if row.ranked]
    return Table([*titles, ("note", "")], rows)


def _cells(row: Row, batch: int, target: Target, price: float | None) -> list[Cell]:
    service = measured(row.stage, batch)
    needed = fleet(service, target) if service else Fleet(None, None, "unknown: no latencies on record")
    trial, gpus = needed.trial, needed.gpus
    cells = [
        Cell(words.clean(row.name)),
        Cell(f"{gpus:,}", gpus) if gpus else Cell(words.NOTHING),
        *(_trial_cells(trial) if trial else [Cell(words.NOTHING)] * 4),
    ]
    if price is not None:
        cells.append(Cell(words.significant(gpus * price), gpus * price) if gpus else Cell(words.NOTHING))
    return [*cells, Cell(needed.note, needed.note)]


def _trial_cells(trial: Trial) -> list[Cell]:
    return [
        Cell(words.share(trial.load), trial.load),
        Cell(words.significant(trial.images_per_batch, 2), trial.images_per_batch),
        Cell(words.milliseconds(trial.p50), trial.p50),
        Cell(words.milliseconds(trial.p99), trial.p99),
    ]
