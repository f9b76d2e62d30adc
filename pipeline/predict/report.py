"""The outcome of every case, the lines of progress, the rate, and predict.json."""

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from pipeline.errors import plural
from pipeline.records.disk import write_json

MANIFEST = "predict.json"
FORMAT = 1  # of predict.json
TOLD_EVERY = 5.0  # seconds between two lines of progress


def peak_mib() -> int:
    """Return the largest resident memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


class Rate:
    """The rate between the first masks and the last, and where the calling thread spent its time.

    Attributes:
        seconds: of each part of the path: waiting for "reading", in the "network", in "assembling", waiting for
            "writing".
        first: time at which the first masks had their names, and their number.
        last: time at which the last masks had theirs, and the number of all.
        of_workers: seconds of all workers, by what they did.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(("reading", "network", "assembling", "writing"), 0.0)
        self.first = self.last = (0.0, 0)
        self.of_workers: dict[str, float] = {}

    @contextmanager
    def spent(self, part: str) -> Iterator[None]:
        """Count the time within as spent in a part."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[part] += time.perf_counter() - began

    def worked(self, seconds: dict[str, float]) -> None:
        """Count seconds of a worker in each part of its work."""
        for part, spent in seconds.items():
            self.of_workers[part] = self.of_workers.get(part, 0.0) + spent

    def made(self, number: int) -> None:
        """Count the masks that have got their names now."""
        now = time.perf_counter()
        self.last = now, self.last[1] + number
        if not self.first[1]:
            self.first = self.last

    @property
    def per_second(self) -> float | None:
        """Masks per second, counted after the first masks; None if all were finished at once."""
        seconds, masks = self.last[0] - self.first[0], self.last[1] - self.first[1]
        return masks / seconds if seconds and masks else None

    @property
    def shares(self) -> dict[str, float]:
        """Share of the calling thread's time in each part, the largest first."""
        total = sum(self.seconds.values()) or 1.0
        return {part: self.seconds[part] / total for part in sorted(self.seconds, key=self.seconds.__getitem__)[::-1]}

    def told(self) -> str:
        """Return the rate and the shares in one line; empty without a rate."""
        if self.per_second is None:
            return ""
        shares = ", ".join(f"{part} {share:.0%}" for part, share in self.shares.items() if share)
        return f"{self.per_second:,.3g} masks a second after the first{shares and f'; time by part: {shares}'}"


@dataclass
class Outcome:
    """The cases that are settled.

    Attributes:
        product: what is made of a case: "mask", or "answer" where the network gives values.
        sample: what a case is: "image" or "volume".
        made: number of cases whose mask was written now.
        kept: number of cases whose mask was there already, made of the same by the same.
        failed: of each case without a mask the reason, in one line.
        rate: at which masks were made.
        largest: class of all grey PNGs that were made.
        loaded_mib: largest resident memory of the process when the network was loaded.
        each: is told the names of cases whose masks were written.
    """

    product: str = "mask"
    sample: str = "image"
    made: int = 0
    kept: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    rate: Rate = field(default_factory=Rate)
    largest: int = 0
    loaded_mib: int = field(default_factory=peak_mib)
    each: Callable[[list[str]], object] = len

    @property
    def done(self) -> int:
        """Number of settled cases."""
        return self.made + self.kept + len(self.failed)

    def summary(self) -> str:
        """Return the counts in one line."""
        kept = f", {self.kept} were there" if self.kept else ""
        failed = f", {plural(len(self.failed), self.sample)} without" if self.failed else ""
        return f"{plural(self.made, self.product)} made{kept}{failed}"

    def write(self, path: Path, made_of: dict[str, object], made_by: str, *, finished: bool) -> None:
        """Write predict.json: what the masks are made of, and which cases have none.

        Args:
            path: of the file.
            made_of: all that the answers depend on.
            made_by: its digest, which the sidecars hold.
            finished: every case is settled.

        Raises:
            OSError: the disk is full or read-only.
        """
        told = {"format": FORMAT, "finished": finished, "made_of": made_of, "identity": made_by}
        words = {"product": self.product, "sample": self.sample}
        counts = {"made": self.made, "kept": self.kept, "failed": self.failed}
        rate = {"masks_per_second": self.rate.per_second, "shares": self.rate.shares}
        rate |= {"seconds_of_workers": self.rate.of_workers}
        memory = {"memory_mib": {"network_loaded": self.loaded_mib, "peak": peak_mib()}}
        write_json(told | words | counts | rate | memory, path)


class Progress:
    """Tells every few seconds how many cases are settled.

    Args:
        cases: how many there are.
        say: is told, in a line.
        now: gives seconds.
    """

    def __init__(self, cases: int, say: Callable[[str], None], now: Callable[[], float]) -> None:
        self.cases = cases
        self.say = say
        self.now = now
        self.began = self.told = now()

    def tell(self, outcome: Outcome, within: str = "") -> None:
        """Tell the settled cases, pace and time left, if a line is due; `within` adds how far a large case is."""
        now = self.now()
        if now - self.told < TOLD_EVERY:
            return
        self.told, pace = now, outcome.made / (now - self.began)
        left = f", {timedelta(seconds=round((self.cases - outcome.done) / pace))} left" if pace else ""
        settled = f"{outcome.done} of {plural(self.cases, outcome.sample)}"
        self.say(f"{settled}, {pace:.3g} {outcome.product}s a second{left}{within}")
