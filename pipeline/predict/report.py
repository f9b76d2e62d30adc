"""What has become of the cases: outcome, progress, predict.json, and the profile of the path from files to masks.

Three things work at the same time: workers, the thread that feeds the network, and the network. That which is busy for
the largest share of the time limits the rate.
"""

import math
import os
import resource
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from pipeline.errors import plural
from pipeline.records.disk import write_json
from pipeline.report.formatting import pace

MANIFEST = "predict.json"
FORMAT = 1  # of predict.json
TOLD_EVERY = 5.0  # seconds between two lines of progress
WAIT = "wait for answers"
# What workers do, in words for "... takes 3 of 4 workers", and what makes it faster.
PARTS: dict[str, tuple[str, str]] = {
    "read": ("reading {kind} files", "copy them to a faster disk"),
    "decode": ("decoding {kind}", "store {better}, or give {cores} for the network's rate"),
    "put together": ("putting masks together", "take {windows}, or give {cores} for the network's rate"),
    "encode": ("encoding masks", "{lighter}give {cores} for the network's rate"),
    "write": ("writing masks", "take a faster disk for --out"),
    "sync": ("syncing masks", "take a faster disk for --out"),
}
FEEDS = "assemble", "start", "hand out"  # what the thread that feeds the network does, but for waiting
OF_MAIN = {
    "network": ("the network, which works", "take a faster stage, or {gpus}"),
    "feeder": ("the thread that feeds the network, which works", "take a larger --batch, or {several}"),
    "decoder": ("the GPU's JPEG decoder, for which the network waits", "take {gpus}"),
}
BETTER = {"PNG": "JPEG or tiled TIFF", "JPG": "smaller images", "JPEG": "smaller images"}
SHORTEST = 0.5  # seconds from the first masks to the last: less says nothing


class Timer(threading.local):
    """The seconds of each thread by the part that it works on, of the main one since its process began."""

    def __init__(self) -> None:
        main = threading.current_thread() is threading.main_thread()
        self.part = "start Python" if main else WAIT
        self.since = time.perf_counter()
        if main:  # the 22nd figure is the clock tick at which the process was started
            ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
            self.since -= time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        self.seconds: dict[str, float] = {}

    def turn(self, part: str) -> str:
        """Begin a part; return the one before it."""
        now = time.perf_counter()
        self.seconds[self.part] = self.seconds.get(self.part, 0.0) + now - self.since
        before, self.part, self.since = self.part, part, now
        return before

    @contextmanager
    def within(self, part: str) -> Iterator[None]:
        """Count the time within for a part."""
        before = self.turn(part)
        try:
            yield
        finally:
            self.turn(before)

    def taken(self) -> dict[str, float]:
        """Return the seconds of each part since the last call."""
        self.turn(self.part)
        seconds, self.seconds = self.seconds, {}
        return seconds


def core_seconds() -> float:
    """Return the seconds of all cores in this process, and in those that it started and that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


TIMER = Timer()


class Rate:
    """The rate between the first masks and the last, and the time of all who work on them."""

    def __init__(self) -> None:
        self.first = self.last = (0.0, 0)  # times at which the first masks and the last had names, and masks by then
        self.workers, self.on_gpu, self.volumes, self.level = 1, False, False, 1.0  # level of compression
        self.kinds: Counter[str] = Counter()  # how often groups of files began with a suffix
        self.before: dict[str, float] = {}  # seconds of each part before the first answer
        self.began = self.cores_before = 0.0  # time of the first answer, and seconds of all cores by then
        self.network = 0.0  # seconds of the network's calls since then
        self.of_workers: Counter[str] = Counter()  # seconds of all workers by part
        self.of_feeder: dict[str, float] = {}  # of the thread that feeds the network, since the first answer

    def answered(self, seconds: float) -> None:
        """Count a call of the network; its first one, which may compile it, ends the start."""
        if self.began:
            self.network += seconds
            return
        self.began, self.cores_before, self.before = time.perf_counter(), core_seconds(), TIMER.taken()

    def made(self, number: int) -> None:
        """Count the masks that have got their names now."""
        self.last = time.perf_counter(), self.last[1] + number
        if not self.first[1]:
            self.first = self.last

    @property
    def per_second(self) -> float | None:
        """Masks per second, counted after the first masks; None if too little was made to tell."""
        seconds, masks = self.last[0] - self.first[0], self.last[1] - self.first[1]
        return masks / seconds if masks and seconds >= SHORTEST else None

    @property
    def seconds(self) -> float:
        """Seconds from the first answer to the last mask."""
        return self.last[0] - self.began if self.began else 0.0

    @property
    def busy(self) -> dict[str, float]:
        """Share of that time in which the network, the workers and the thread that feeds the network are busy."""
        worked = sum(self.of_workers[part] for part in PARTS)
        fed = sum(self.of_feeder.get(part, 0.0) for part in FEEDS)
        spent = {"network": self.network, "workers": worked / self.workers, "feeder": fed}
        spent["decoder"] = self.of_feeder.get("wait for the decoder", 0.0)
        return {who: min(1.0, seconds / (self.seconds or 1.0)) for who, seconds in spent.items()}

    @property
    def network_per_second(self) -> float | None:
        """Masks per second that the network would make if it never waited; None if unknown."""
        return self.per_second / share if self.per_second and (share := self.busy["network"]) else None

    @property
    def bottleneck(self) -> str:
        """Name of the part that limits the rate; empty without a rate, or if nobody's time is known."""
        if self.per_second is None or not self.began:
            return ""
        who = max(self.busy, key=self.busy.__getitem__)
        return max(PARTS, key=self.of_workers.__getitem__) if who == "workers" else who

    def advice(self) -> str:
        """Return what limits the rate and what to do, in a sentence with figures; empty if that isn't known."""
        if not (part := self.bottleneck):
            return ""
        what, cure = (PARTS | OF_MAIN)[part]
        gpus, several = ("more GPUs (--devices all)",) * 2 if self.on_gpu else ("a GPU", "several processes (--shard)")
        if part in OF_MAIN:
            return f"{what} {self.busy[part]:.0%} of the time: {cure.format(gpus=gpus, several=several)}"
        kind = self.kinds.most_common(1)[0][0].lstrip(".").upper() if self.kinds else "image"
        needed = self.workers * (self.network_per_second or 0.0) / (self.per_second or 1.0) * self.busy["workers"]
        cores = f"{math.ceil(needed)} cores" if self.on_gpu else f"it {several}"
        better = BETTER.get(kind, "files without compression")
        windows = "a larger --step" if self.volumes else "a smaller --overlap"
        lighter = "take --compression 1, or " if self.level > 1 else ""
        said = cure.format(better=better, cores=cores, windows=windows, lighter=lighter)
        taken = self.of_workers[part] / self.seconds
        return f"{what.format(kind=kind)}, which takes {taken:.1f} of {self.workers} workers: {said}"

    def told(self) -> str:
        """Return the rate and what limits it in one line; empty without a rate."""
        if self.per_second is None:
            return ""
        advice = self.advice()
        return f"{pace(self.per_second)} masks a second after the first{advice and f'; the limit is {advice}'}"

    def profile(self) -> dict[str, object]:
        """Return all figures as JSON values."""
        of_workers: dict[str, float] = {part: self.of_workers[part] for part in PARTS}
        of_workers[WAIT] = max(0.0, self.workers * self.seconds - sum(of_workers.values()))
        return {
            "masks_per_second": self.per_second,
            "network_per_second": self.network_per_second,
            "seconds": self.seconds,
            "busy": self.busy,
            "cores_used": (core_seconds() - self.cores_before) / self.seconds if self.seconds else None,
            "cores": len(os.sched_getaffinity(0)),
            "workers": self.workers,
            "seconds_of_workers": of_workers,
            "occupancy": {part: seconds / self.seconds for part, seconds in of_workers.items() if self.seconds},
            "seconds_of_feeder": self.of_feeder,
            "seconds_before_the_first_mask": self.before | {"write": max(0.0, self.first[0] - self.began)},
            "bottleneck": self.bottleneck,
            "advice": self.advice(),
        }


def peak_mib() -> int:
    """Return the largest resident memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


@dataclass
class Outcome:
    """The cases that are settled."""

    product: str = "mask"  # what is made of a case: "mask", or "answer" where the network gives values
    sample: str = "image"  # what a case is: "image" or "volume"
    made: int = 0  # number of cases whose mask was written now
    kept: int = 0  # number of cases whose mask was there already, made of the same by the same
    failed: dict[str, str] = field(default_factory=dict)  # of each case without a mask the reason, in one line
    rate: Rate = field(default_factory=Rate)  # at which masks were made
    largest: int = 0  # class of all grey PNGs that were made
    loaded_mib: int = field(default_factory=peak_mib)
    each: Callable[[list[str]], object] = len  # is told the names of cases whose masks were written
    profiles: list[dict[str, object]] = field(default_factory=list)  # of each process that made masks, as JSON values

    @property
    def done(self) -> int:
        """Number of settled cases."""
        return self.made + self.kept + len(self.failed)

    def add(self, found: Mapping[str, Any]) -> None:
        """Add the counts of another process, as its JSON has them."""
        self.product, self.sample = found["product"], found["sample"]
        self.made += found["made"]
        self.kept += found["kept"]
        self.failed |= found["failed"]

    def summary(self) -> str:
        """Return the counts in one line."""
        kept = f", {self.kept} were there" if self.kept else ""
        failed = f", {plural(len(self.failed), self.sample)} without" if self.failed else ""
        return f"{plural(self.made, self.product)} made{kept}{failed}"

    def write(self, path: Path, made_of: dict[str, object], made_by: str, *, finished: bool) -> None:
        """Write predict.json: what the masks are made of, and which cases have none."""
        told = {"format": FORMAT, "finished": finished, "made_of": made_of, "identity": made_by}
        told |= {name: getattr(self, name) for name in ("product", "sample", "made", "kept", "failed")}
        self.profiles = [self.rate.profile()]
        rate = {"masks_per_second": self.rate.per_second, "profile": self.profiles[0]}
        write_json(told | rate | {"memory_mib": {"network_loaded": self.loaded_mib, "peak": peak_mib()}}, path)


class Progress:
    """Tells every few seconds how many cases are settled."""

    def __init__(self, cases: int, say: Callable[[str], object], now: Callable[[], float]) -> None:
        self.cases, self.say, self.now = cases, say, now
        self.began = self.told = now()

    def tell(self, outcome: Outcome, within: str = "") -> None:
        """Tell the settled cases, pace and time left, if a line is due; `within` adds how far a large case is."""
        now = self.now()
        if now - self.told < TOLD_EVERY:
            return
        self.told, rate = now, outcome.made / (now - self.began)
        left = f", {timedelta(seconds=round((self.cases - outcome.done) / rate))} left" if rate else ""
        settled = f"{outcome.done} of {plural(self.cases, outcome.sample)}"
        self.say(f"{settled}, {pace(rate)} {outcome.product}s a second{left}{within}")
