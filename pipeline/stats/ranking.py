"""The fastest stage and its ties, or why no stage is named."""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from statistics import median

from pipeline.records.run_record import RunRecord, StageRecord
from pipeline.records.samples import Pair
from pipeline.stats import intervals
from pipeline.stats.intervals import ITSELF, Estimate, Ratio, inverse, seconds_per_call, steady_ratio
from pipeline.stats.outcomes import Noise, Outcome, Unresolved, minimum_detectable_effect, range_of
from pipeline.stats.warnings import SIDES, clocks_disagree

HOST_FILLS = 0.9  # of an unprofiled call, that the host's own work takes at the least where the GPU waits for it
# Idle shares worth a word; the second of samples whose clock was lowered, as profiled kernels may run at another.
IDLE_WORTH_NAMING, IDLE_THROTTLED = 0.1, 0.15


@dataclass(frozen=True)
class Ranking:
    """The order of the stages that are right and were measured, the baseline included."""

    # the fastest of those whose ratio is resolved; None where no stage is usable, or none may be named
    winner: str | None
    ties: list[str]  # the stages that tie with the winner: the intervals do not separate them
    order: list[str]  # all of them, fastest first, by their ratio to the baseline; the winner leads
    ratios: dict[str, Ratio]  # of each, to the baseline
    outcomes: dict[str, Outcome]  # of each, against the baseline
    noise: Noise  # of the run; no difference within it is claimed
    # why usable stages have no winner among them; None where there is one, or no usable stage
    unresolved: Unresolved | None = None


def rankable(stage: StageRecord) -> bool:
    """Return whether the stage may be ranked: its answer is right, it was measured, and its clocks agree."""
    return stage.usable and any(pair.blocks for pair in stage.pairs) and clocks_disagree(stage.pairs) is None


def throttled(pairs: Sequence[Pair]) -> bool:
    """Return whether the device lowered its clock in a sample of either side, by its power limit too."""
    return any(sample.throttle_reasons for side in SIDES for sample in intervals.samples_of(pairs, side))


def least_idle(is_throttled: bool) -> float:
    """Return the idle share from which a GPU's kernels are said to leave time."""
    return IDLE_THROTTLED if is_throttled else IDLE_WORTH_NAMING


def waiting_share(stage: StageRecord) -> float | None:
    """Return the share of an unprofiled call in which the GPU waits: 0 if it isn't CPU-bound, None if not known.

    CPU-bound: the host's own work fills the call, and kernels don't; the profiler alone makes the host slower.
    """
    split = stage.explained.split
    measured = any(pair.blocks for pair in stage.pairs)
    if split is None or split.device_seconds is None or split.wall_seconds <= 0 or not measured:
        return None
    call = seconds_per_call(stage.pairs).value
    idle = 1 - split.device_seconds / call
    filled = split.launch_seconds + split.framework_seconds + split.interpreter_seconds >= HOST_FILLS * call
    return idle if filled and idle >= least_idle(throttled(stage.pairs)) else 0.0


def noise_and_ratios(run: RunRecord) -> tuple[Noise, dict[str, Ratio]]:
    """Return the run's noise, and each rankable stage's ratio to the baseline, whose own is 1 if it is no stage."""
    spread = intervals.between_run_std(run.aa_pairs)
    ratios = {stage.name: steady_ratio(stage.pairs, spread) for stage in run.stages if rankable(stage)}
    noise = Noise(minimum_detectable_effect(run.aa_pairs), ratios.get(run.baseline, ITSELF), spread)
    baseline_failed = any(stage.name == run.baseline and stage.status != "ok" for stage in run.stages)
    if ratios and not baseline_failed:
        ratios.setdefault(run.baseline, ITSELF)
    return noise, ratios


def ranking(run: RunRecord, among: Container[str] | None = None) -> Ranking:
    """Return the order of all stages, or of those `among` the names.

    The fastest stage that is resolved against the baseline leads, unless head-to-head samples show a faster one. A
    contender ties unless it is shown to be slower: by head-to-head samples if there are any, otherwise by disjoint
    intervals and the minimum detectable effect, or by samples that lie apart. No stage wins if none is shown to be
    faster than the baseline and an unresolved one may be.
    """
    noise, every = noise_and_ratios(run)
    ratios = {name: ratio for name, ratio in every.items() if among is None or name in among}
    outcomes = {name: noise.outcome(ratio) for name, ratio in ratios.items()}
    order = sorted(ratios, key=lambda name: -ratios[name].value)
    if not order:
        return Ranking(None, [], [], ratios, outcomes, noise)
    unresolved = (name for name in order if name != run.baseline and outcomes[name] == "not resolved")
    doubtful = next((name for name in unresolved if range_of(ratios[name])[1] > 1), None)
    if doubtful and "faster" not in outcomes.values():
        return Ranking(None, [], order, ratios, outcomes, noise, noise.unresolved(ratios[doubtful]))
    resolved = (name for name in order if outcomes[name] != "not resolved" or name == run.baseline)
    leader = next(resolved, order[0])  # without the baseline, all may be slower than it, and hardly so
    met = [pair for pair in run.head_to_head if pair.baseline == leader and pair.stage in ratios and pair.blocks]
    names = {pair.stage for pair in met}
    direct = {name: steady_ratio([pair for pair in met if pair.stage == name], noise.spread) for name in names}
    if leader != run.baseline and run.baseline in ratios:
        direct.setdefault(run.baseline, inverse(ratios[leader]))
    direct[leader] = ITSELF
    ahead = [name for name, ratio in direct.items() if noise.outcome(ratio) == "faster"]
    ahead = ahead or [name for name in order if _samples_apart(run, name, leader)]
    winner = max(ahead, key=lambda name: direct.get(name, ratios[name]).value, default=leader)
    order = [winner, *(name for name in order if name != winner)]
    ties = []
    for name in order[1:]:  # head to head where both have met the leader
        seen = direct if name in direct and winner in direct else ratios
        if not (noise.apart(seen[winner], seen[name]) or _samples_apart(run, winner, name)):
            ties.append(name)
    return Ranking(winner, ties, order, ratios, outcomes, noise)


def _samples_apart(run: RunRecord, fast: str, slow: str) -> bool:
    """Return whether every steady sample of one is shorter, neither is CPU-bound, and builds differ less."""
    times: dict[str, list[float]] = {}
    for stage in run.stages:
        steady = stage.name in (fast, slow) and rankable(stage) and all(pair.sustained for pair in stage.pairs)
        if steady and waiting_share(stage) == 0:
            times[stage.name] = [sample.per_call for sample in intervals.samples_of(stage.pairs, "stage")]
    far = len(times) == 2 and median(times[slow]) / median(times[fast]) > 1 + intervals.of_builds(fast, slow)
    return far and max(times[fast]) < min(times[slow])


def contenders(run: RunRecord) -> list[str]:
    """Return the stages whose ratios to the baseline do not separate them from the fastest, fastest first."""
    noise, every = noise_and_ratios(run)
    ratios = {name: ratio for name, ratio in every.items() if ratio is not ITSELF}
    return _unbeaten(sorted(ratios, key=lambda name: -ratios[name].value), ratios, noise)


def leaders(order: Ranking) -> list[str]:
    """Return the stages that none is shown to beat: the winner and its ties, or where none is named all such."""
    if order.winner:
        return [order.winner, *order.ties]
    return _unbeaten(order.order, order.ratios, order.noise)


def _unbeaten(order: list[str], ratios: dict[str, Ratio], noise: Noise) -> list[str]:
    """Return those that tie with the fastest that has an interval; all, where none has one."""
    first = next((name for name in order if ratios[name].bounded), None)
    return [name for name in order if first is None or not noise.apart(ratios[first], ratios[name])]


def baseline_seconds(run: RunRecord) -> Estimate | None:
    """Return the baseline's time per call over the samples of every rankable stage; None without any."""
    pairs = [pair for stage in run.stages if rankable(stage) for pair in stage.pairs]
    return seconds_per_call(pairs, "baseline") if pairs else None


def seconds_per_image(run: RunRecord, order: Ranking) -> dict[str, float]:
    """Return seconds per image of each ranked stage: the baseline's over the ratio, so that a drift favours none."""
    baseline = baseline_seconds(run)
    if baseline is None:
        return {}
    return {name: baseline.value / run.batch_size / ratio.value for name, ratio in order.ratios.items()}
