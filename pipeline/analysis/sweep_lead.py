"""Which job and stage of a sweep give the most samples a second, as far as its records show it.

Within a job the ranking tells, from interleaved samples. Jobs are runs of their own, minutes apart: their rates are
compared by intervals, which a baseline that drifted widens, and by the minimum detectable effect.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.analysis.summary import RunSummary
from pipeline.analysis.sweep_jobs import Job, rate_of
from pipeline.stats.intervals import Estimate
from pipeline.stats.outcomes import Unresolved
from pipeline.stats.ranking import leaders, ranking


@dataclass(frozen=True)
class Rate:
    """A stage of a job, the baseline included, with the samples that it takes a second at full load."""

    job: str
    stage: str
    batch: int
    found: Estimate
    effect: float  # the job's minimum detectable one

    def beats(self, other: "Rate") -> bool:
        """Whether this is shown to be the higher rate: the intervals are disjoint, and the effect is reached."""
        enough = other.found.value * (1 + max(self.effect, other.effect))
        return self.found.low > other.found.high and self.found.value >= enough


@dataclass(frozen=True)
class Lead:
    """The highest rate measured, and whether it is shown to be that.

    Attributes:
        first: the highest.
        contenders: those that aren't shown to be lower; where there is one, nothing is resolved.
        cause: why the first one's own job names no winner, and so nothing is resolved; None where it names one.
        measure_again: the user's command, to measure longer.
    """

    first: Rate
    contenders: list[Rate]
    cause: Unresolved | None
    measure_again: str

    @property
    def resolved(self) -> bool:
        """Whether the first may be named."""
        return not self.contenders and self.cause is None


def lead_of(jobs: Sequence[Job]) -> Lead | None:
    """Who leads over all jobs; None where nothing is ranked."""
    leading = [(job.summary, ahead) for job in jobs if job.summary and (ahead := _job_leaders(job.name, job.summary))]
    if not leading:
        return None
    summary, own = max(leading, key=lambda ahead: ahead[1].rates[0].found.value)
    first, *tied = own.rates
    others = [rate for _, ahead in leading if ahead is not own for rate in ahead.rates if not first.beats(rate)]
    return Lead(first, [*tied, *others], own.cause, summary.measure_again)


@dataclass(frozen=True)
class _JobLeaders:
    """Those of one job that none of it is shown to beat, the best first, and why none of them may be named."""

    rates: list[Rate]
    cause: Unresolved | None


def _job_leaders(job: str, summary: RunSummary) -> _JobLeaders | None:
    order, batch = ranking(summary.run), summary.run.batch_size  # by speed, whatever the winner was chosen by
    found = {name: rate_of(summary, name, order) for name in leaders(order)}
    rates = [Rate(job, name, batch, rate, order.noise.least) for name, rate in found.items() if rate]
    return _JobLeaders(rates, order.unresolved) if rates else None
