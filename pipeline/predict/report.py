"""The outcome of every case, the lines of progress, the rate, and predict.json."""

import resource
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from pipeline.errors import plural
from pipeline.predict.profile import Rate
from pipeline.records.disk import write_json

MANIFEST = "predict.json"
FORMAT = 1  # of predict.json
TOLD_EVERY = 5.0  # seconds between two lines of progress


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

    def summary(self) -> str:
        """Return the counts in one line."""
        kept = f", {self.kept} were there" if self.kept else ""
        failed = f", {plural(len(self.failed), self.sample)} without" if self.failed else ""
        return f"{plural(self.made, self.product)} made{kept}{failed}"

    def write(self, path: Path, made_of: dict[str, object], made_by: str, *, finished: bool) -> None:
        """Write predict.json: what the masks are made of, and which cases have none."""
        told = {"format": FORMAT, "finished": finished, "made_of": made_of, "identity": made_by}
        words = {"product": self.product, "sample": self.sample}
        counts = {"made": self.made, "kept": self.kept, "failed": self.failed}
        self.profiles = [self.rate.profile()]
        rate = {"masks_per_second": self.rate.per_second, "profile": self.profiles[0]}
        memory = {"memory_mib": {"network_loaded": self.loaded_mib, "peak": peak_mib()}}
        write_json(told | words | counts | rate | memory, path)


class Progress:
    """Tells every few seconds how many cases are settled."""

    def __init__(self, cases: int, say: Callable[[str], object], now: Callable[[], float]) -> None:
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
