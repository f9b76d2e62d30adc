"""A run as every renderer needs it: each stage with its figures, computed once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from pipeline.analysis.bottleneck import Bottleneck, bottleneck_of
from pipeline.analysis.layer_figures import LayerFigures, layers_of
from pipeline.analysis.roofline import Roofline, roofline_of
from pipeline.devices.kinds import is_cuda
from pipeline.records.run_record import RunRecord, RunWarning, StageRecord
from pipeline.records.samples import Pair
from pipeline.stats.intervals import (
    Estimate,
    Latency,
    Outcome,
    Ratio,
    Unresolved,
    between_run_std,
    composed,
    latency,
    outcome_of,
    ratio,
    seconds_per_call,
    unresolved,
)
from pipeline.stats.ranking import Ranking, best_for, break_even_images, rankable, ranking, setup_seconds
from pipeline.stats.warnings import run_warnings, stage_warnings

FEW, MANY = 100, 10_000_000  # images, for which the best stage is named
TAIL_MARGIN = 1.10  # p99s of some hundred calls within this factor of each other count as equal

Place = Literal["winner", "tie", ""]
Given = TypeVar("Given")
Taken = TypeVar("Taken")


@dataclass(frozen=True)
class Compared:
    """A stage against the two baselines; None where there is nothing to compare."""

    ratio: Ratio | None = None  # to the baseline
    outcome: Outcome | None = None  # of a ranked stage
    second_ratio: Ratio | None = None  # to the second baseline
    second_outcome: Outcome | None = None
    unresolved: Unresolved | None = None  # why the ratio is not resolved


@dataclass(frozen=True)
class StageSummary:
    """One stage and all figures that its record gives; None where it gives none."""

    stage: StageRecord
    compared: Compared
    seconds: Estimate | None  # per call, interleaved with the baseline
    sustained_seconds: float | None  # per call at full load, called back to back with nothing else on the device
    images_per_second: float | None  # at full load
    latency: Latency | None
    host_latency: Latency | None
    joules_per_image: float | None
    setup_seconds: float | None
    break_even: float | None  # images; None for never, and where it isn't ranked
    ranked: bool
    place: Place
    roofline: Roofline | None
    bottleneck: Bottleneck
    layers: list[LayerFigures] = field(default_factory=list)  # none where its profile doesn't show them
    warnings: list[RunWarning] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The stage's."""
        return self.stage.name

    @property
    def ratio(self) -> Ratio | None:
        """To the baseline."""
        return self.compared.ratio

    @property
    def pace(self) -> float | None:
        """Seconds per call at full load where that was measured, otherwise interleaved with the baseline."""
        return self.sustained_seconds or (self.seconds.value if self.seconds else None)

    @property
    def status(self) -> str:
        """The stage's status; of one that is ok and not ranked, that."""
        unranked = self.stage.status == "ok" and not self.ranked
        return ("not ranked" if self.stage.pairs else "not measured") if unranked else self.stage.status

    @property
    def peak_bytes(self) -> int | None:
        """What the device sees of the process; the allocator's peak where it says nothing, on a CPU the resident peak."""
        memory = self.stage.memory
        return (memory.process_bytes or memory.allocated_peak_bytes or memory.host_peak_bytes) if memory else None


@dataclass(frozen=True)
class RunSummary:
    """A run and what follows from it."""

    run: RunRecord
    ranking: Ranking
    stages: list[StageSummary]
    warnings: list[RunWarning]
    baseline_seconds: Estimate | None  # per call, over all ranked stages' samples of it
    best_for_few: str | None
    best_for_many: str | None
    best_for_service: str | None

    def stage(self, name: str | None) -> StageSummary | None:
        """The stage called `name`; None for a baseline that was no stage of its own."""
        return next((stage for stage in self.stages if stage.name == name), None)

    @property
    def winner(self) -> StageSummary | None:
        """The fastest stage whose answer is right."""
        return self.stage(self.ranking.winner)

    @property
    def ranked(self) -> list[StageSummary]:
        """The ranked stages, in the ladder's order."""
        return [stage for stage in self.stages if stage.ranked]

    @property
    def on_gpu(self) -> bool:
        """Whether the run is known to have used a GPU."""
        return self.run.environment is not None and is_cuda(self.run.environment.device)


def summarize(run: RunRecord) -> RunSummary:
    """All figures that the renderers show. Costs a bootstrap for each stage beside the second baseline."""
    order = ranking(run)
    second = next((stage for stage in run.stages if stage.name == run.second_baseline and rankable(stage)), None)
    spread = between_run_std(run.aa_pairs)
    stages = [_stage(run, stage, order, compared(stage, second, order, spread)) for stage in run.stages]
    return RunSummary(
        run=run,
        ranking=order,
        stages=stages,
        warnings=run_warnings(run),
        baseline_seconds=baseline_seconds(run, order),
        best_for_few=best_for(run, FEW),
        best_for_many=best_for(run, MANY),
        best_for_service=_best_for_service(stages, order.winner),
    )


def baseline_seconds(run: RunRecord, order: Ranking) -> Estimate | None:
    """The baseline's time per call over the samples of every ranked stage."""
    pairs = [pair for stage in run.stages if is_ranked(stage, order) for pair in stage.pairs]
    return seconds_per_call(pairs, "baseline") if pairs else None


def is_ranked(stage: StageRecord, order: Ranking) -> bool:
    """Whether the ranking holds this stage."""
    return stage.name in order.ratios and rankable(stage)


def compared(stage: StageRecord, second: StageRecord | None, order: Ranking, spread: float) -> Compared:
    """The stage's ratios to both baselines; outcomes are for ranked stages alone.

    Args:
        stage: the stage.
        second: the second baseline's record, if it may be ranked.
        order: of the run.
        spread: the between-run standard deviation.
    """
    if not stage.pairs:
        return Compared()
    first = ratio(stage.pairs, spread)
    other: list[Pair] = second.pairs if second and second.name != stage.name else []
    to_second = composed(stage.pairs, other, spread) if other else None
    if not is_ranked(stage, order):
        return Compared(first, None, to_second)
    outcome = outcome_of(first, order.effect)
    return Compared(
        ratio=first,
        outcome=outcome,
        second_ratio=to_second,
        second_outcome=outcome_of(to_second, order.effect) if to_second else None,
        unresolved=unresolved(first, order.effect) if outcome == "not resolved" else None,
    )


def _stage(run: RunRecord, stage: StageRecord, order: Ranking, comparison: Compared) -> StageSummary:
    interleaved = seconds_per_call(stage.pairs).value if stage.pairs else None
    sustained = _sustained(run, stage)
    pace = sustained or interleaved
    roofline, ranked = roofline_of(run, stage), is_ranked(stage, order)
    layers = layers_of(run, stage, roofline.element_bytes) if roofline else []
    return StageSummary(
        stage=stage,
        compared=comparison,
        seconds=seconds_per_call(stage.pairs) if stage.pairs else None,
        sustained_seconds=sustained,
        images_per_second=run.batch_size / pace if pace else None,
        latency=known(latency, stage.latencies),
        host_latency=known(latency, stage.host_latencies),
        joules_per_image=stage.energy.joules / stage.energy.images if stage.energy and stage.energy.images else None,
        setup_seconds=setup_seconds(stage) if stage.build_seconds is not None else None,
        break_even=break_even_images(stage, run) if ranked else None,
        ranked=ranked,
        place="winner" if stage.name == order.winner else "tie" if stage.name in order.ties else "",
        roofline=roofline,
        bottleneck=bottleneck_of(run, stage, layers, interleaved, pace),
        layers=layers,
        warnings=stage_warnings(stage, run.settings.data.batch_size),
    )


def _sustained(run: RunRecord, stage: StageRecord) -> float | None:
    """Seconds per call of the stretch at full load, in which the energy was measured."""
    energy = stage.energy
    return energy.seconds / energy.images * run.batch_size if energy and energy.images else None


def known(compute: Callable[[Sequence[Given]], Taken], series: Sequence[Given]) -> Taken | None:
    """What `compute` makes of a series; None of an empty one."""
    return compute(series) if series else None


def _best_for_service(stages: Sequence[StageSummary], winner: str | None) -> str | None:
    """The stage with the least p99 once it is built and warm; the winner, if its own is hardly longer."""
    tails = {stage.name: stage.latency.p99 for stage in stages if stage.ranked and stage.latency}
    if not tails:
        return winner
    least = min(tails, key=lambda name: tails[name])
    return winner if winner in tails and tails[winner] <= TAIL_MARGIN * tails[least] else least
