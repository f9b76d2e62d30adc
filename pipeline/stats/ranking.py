"""Which stage is fastest and which tie with it, or why no stage is named."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from pipeline.records.run_record import RunRecord, StageRecord
from pipeline.stats.drift import steady_ratio
from pipeline.stats.intervals import ITSELF, Ratio, between_run_std, inverse, seconds_per_call
from pipeline.stats.outcomes import Noise, Outcome, Unresolved, minimum_detectable_effect, range_of
from pipeline.stats.warnings import clocks_disagree


@dataclass(frozen=True)
class Ranking:
    """The order of the stages that are right and were measured, the baseline included.

    Attributes:
        winner: the fastest of those whose ratio is resolved; None where no stage is usable, or none may be named.
        ties: the stages that are not shown to be slower than the winner.
        order: all of them, fastest first, by their ratio to the baseline; the winner leads.
        ratios: of each, to the baseline.
        outcomes: of each, against the baseline.
        noise: of the run; no difference within it is claimed.
        unresolved: why usable stages have no winner among them; None where there is one, or no usable stage.
    """

    winner: str | None
    ties: list[str]
    order: list[str]
    ratios: dict[str, Ratio]
    outcomes: dict[str, Outcome]
    noise: Noise
    unresolved: Unresolved | None = None


def rankable(stage: StageRecord) -> bool:
    """Whether the stage may be ranked: its answer is right, it was measured, and its clocks agree."""
    return stage.usable and any(pair.blocks for pair in stage.pairs) and clocks_disagree(stage.pairs) is None


def ratios_of(run: RunRecord) -> dict[str, Ratio]:
    """Each rankable stage's ratio to the baseline; the baseline's own is 1 unless it was a stage as well."""
    spread = between_run_std(run.aa_pairs)
    found = {stage.name: steady_ratio(stage.pairs, spread) for stage in run.stages if rankable(stage)}
    if any(stage.name == run.baseline for stage in run.stages if stage.status != "ok"):
        return found
    return found if not found or run.baseline in found else {**found, run.baseline: ITSELF}


def noise_of(run: RunRecord) -> Noise:
    """What the run shows where there is nothing to see: its control pairs, and the baseline as a stage of its own."""
    spread = between_run_std(run.aa_pairs)
    own = next((stage for stage in run.stages if stage.name == run.baseline and rankable(stage)), None)
    itself = steady_ratio(own.pairs, spread) if own else ITSELF
    return Noise(minimum_detectable_effect(run.aa_pairs), itself, spread)


def ranking(run: RunRecord, among: AbstractSet[str] | None = None) -> Ranking:
    """The order of the stages, or of those `among` them.

    A contender ties with the fastest stage unless it is shown to be slower: by its head-to-head samples against that
    stage where there are any, otherwise by disjoint intervals whose values differ by at least the minimum detectable
    effect; what others' work may have done to a ratio counts with its interval. A contender that is faster head to head
    leads. What isn't resolved against the baseline leads nothing: the fastest stage that is resolved wins, unless that
    is the baseline itself and something may be faster than it.
    """
    noise = noise_of(run)
    ratios = {name: found for name, found in ratios_of(run).items() if among is None or name in among}
    outcomes = {name: noise.outcome(found) for name, found in ratios.items()}
    order = sorted(ratios, key=lambda name: -ratios[name].value)
    if not order:
        return Ranking(None, [], [], ratios, outcomes, noise)
    if doubtful := _doubtful(run, order, ratios, outcomes):
        return Ranking(None, [], order, ratios, outcomes, noise, noise.unresolved(ratios[doubtful]))
    resolved = (name for name in order if outcomes[name] != "not resolved" or name == run.baseline)
    leader = next(resolved, order[0])  # without the baseline, all may be slower than it, and hardly so
    direct = _direct(run, leader, ratios)
    ahead = [name for name, found in direct.items() if noise.outcome(found) == "faster"]
    winner = max(ahead, key=lambda name: direct[name].value, default=leader)
    order = [winner, *(name for name in order if name != winner)]
    ties = [name for name in order[1:] if not _slower(name, winner, direct, ratios, noise)]
    return Ranking(winner, ties, order, ratios, outcomes, noise)


def _doubtful(run: RunRecord, order: list[str], ratios: dict[str, Ratio], outcomes: dict[str, Outcome]) -> str | None:
    """The fastest stage that may be faster than the baseline and isn't resolved, where none is shown to be faster."""
    if "faster" in outcomes.values():
        return None
    open_ones = (name for name in order if name != run.baseline and outcomes[name] == "not resolved")
    return next((name for name in open_ones if range_of(ratios[name])[1] > 1), None)


def contenders(run: RunRecord) -> list[str]:
    """The stages whose ratios to the baseline do not separate them from the fastest, fastest first."""
    ratios = {name: found for name, found in ratios_of(run).items() if found is not ITSELF}
    return _unbeaten(sorted(ratios, key=lambda name: -ratios[name].value), ratios, noise_of(run))


def leaders(order: Ranking) -> list[str]:
    """The stages that none is shown to beat: the winner and its ties, or where none is named all such."""
    if order.winner:
        return [order.winner, *order.ties]
    return _unbeaten(order.order, order.ratios, order.noise)


def _unbeaten(order: list[str], ratios: dict[str, Ratio], noise: Noise) -> list[str]:
    """Those that aren't shown to be slower than the fastest that has an interval; all, where none has one."""
    first = next((name for name in order if ratios[name].bounded), None)
    return [name for name in order if first is None or not noise.apart(ratios[first], ratios[name])]


def _direct(run: RunRecord, leader: str, ratios: dict[str, Ratio]) -> dict[str, Ratio]:
    """Ratios to the leader from head-to-head samples, its own (1) included; every stage has met the baseline."""
    met = [pair for pair in run.head_to_head if pair.baseline == leader and pair.stage in ratios and pair.blocks]
    names, spread = {pair.stage for pair in met}, between_run_std(run.aa_pairs)
    found = {name: steady_ratio([pair for pair in met if pair.stage == name], spread) for name in names}
    if leader != run.baseline and run.baseline in ratios:
        found.setdefault(run.baseline, inverse(ratios[leader]))
    return {**found, leader: ITSELF}


def _slower(name: str, winner: str, direct: dict[str, Ratio], ratios: dict[str, Ratio], noise: Noise) -> bool:
    """Whether `name` is shown to be slower than `winner`: head to head with the leader where both have met it."""
    seen = direct if name in direct and winner in direct else ratios
    return noise.apart(seen[winner], seen[name])


def seconds_per_image(run: RunRecord) -> dict[str, float]:
    """Seconds per image of each ranked stage: the baseline's divided by the ratio, so that a drift favours no stage."""
    ratios = ratios_of(run)
    pairs = [pair for stage in run.stages if rankable(stage) for pair in stage.pairs]
    if not pairs:
        return {}
    baseline = seconds_per_call(pairs, "baseline").value / run.batch_size
    return {name: baseline / found.value for name, found in ratios.items()}
