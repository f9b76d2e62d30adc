"""A run as every renderer needs it: each stage with its figures, computed once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from pipeline.analysis.bottleneck import Bottleneck, bottleneck_of
from pipeline.analysis.headline import (
    Compared,
    compared,
    host_ratio,
    is_ranked,
    sustained_seconds,
)
from pipeline.analysis.layer_figures import LayerFigures, layers_of
from pipeline.analysis.objectives import Choice, choice_of, order_under
from pipeline.analysis.payback import ChangeOver, Doubt, Line, best_at, break_even, change_overs
from pipeline.analysis.recommendations.command import retyped
from pipeline.analysis.roofline import Roofline, roofline_of
from pipeline.devices.kinds import is_cuda
from pipeline.records.data_words import IMAGES, Words
from pipeline.records.plan import Plan
from pipeline.records.run_record import RunRecord, RunWarning, StageRecord
from pipeline.records.tasks import SEGMENTATION, Task
from pipeline.stats.drift import drifts_of, is_unfair
from pipeline.stats.intervals import Estimate, Latency, Ratio, between_run_std, latency, seconds_per_call
from pipeline.stats.ranking import Ranking, ranking, seconds_per_image
from pipeline.stats.warnings import run_warnings, stage_warnings

THOROUGH = Plan()  # its defaults are conf/measure/thorough.yaml's
FEW, MANY = 100, 10_000_000  # images, for which the best stage is named
TAIL_MARGIN = 1.10  # p99s of some hundred calls within this factor of each other count as equal

Place = Literal["winner", "tie", ""]
Given = TypeVar("Given")
Taken = TypeVar("Taken")


@dataclass(frozen=True)
class StageSummary:
    """One stage and all figures that its record gives; None where it gives none."""

    stage: StageRecord
    compared: Compared
    seconds: Estimate | None  # per call, interleaved with the baseline; on a GPU at full load
    sustained_seconds: float | None  # per call at full load on a GPU; None where nothing was measured so
    images_per_second: float | None  # at full load
    latency: Latency | None
    host_latency: Latency | None
    joules_per_image: float | None
    setup_seconds: float | None
    break_even: float | None  # images; None for never, where it isn't ranked, and in doubt
    ranked: bool
    place: Place
    roofline: Roofline | None
    bottleneck: Bottleneck
    layers: list[LayerFigures] = field(default_factory=list)  # none where its profile doesn't show them
    warnings: list[RunWarning] = field(default_factory=list)
    masks_judged: bool = True  # False with random weights, whose masks mean nothing, and of a net without masks
    task: Task = SEGMENTATION
    host_ratio: float | None = None  # host to host: the baseline's p50 over this stage's; None where that drifted
    break_even_doubt: Doubt | None = None  # why the record can't say when its set-up has paid for itself
    words: Words = IMAGES  # for the run's data

    @property
    def name(self) -> str:
        """The stage's."""
        return self.stage.name

    def __repr__(self) -> str:
        return f"StageSummary({self.name!r}: {self.stage.status})"

    @property
    def ratio(self) -> Ratio | None:
        """To the headline baseline: autocast on a GPU, eager on a CPU."""
        return self.compared.ratio

    @property
    def eager_ratio(self) -> Ratio | None:
        """To eager fp32."""
        return self.compared.eager_ratio

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
        """What the stage takes: its process as a GPU sees it, the resident peak on a CPU; None where nobody knows."""
        memory = self.stage.memory
        if memory is None:
            return None
        return memory.host_peak_bytes if memory.allocated_peak_bytes is None else memory.process_bytes


@dataclass(frozen=True)
class Since:
    """What changed since an earlier run that asked the same.

    Attributes:
        folder: the earlier run's, by its own name.
        started_at: of the earlier run, ISO 8601.
        measured: how many stages both runs measured.
        regressed, improved: the stages that are slower or broken, and those that are faster or right again.
        resolved: whether the noise leaves anything to be told of those that both measured.
    """

    folder: str
    started_at: str
    measured: int
    regressed: list[str]
    improved: list[str]
    resolved: bool = True


@dataclass(frozen=True)
class RunSummary:
    """A run and what follows from it."""

    run: RunRecord
    ranking: Ranking
    stages: list[StageSummary]
    warnings: list[RunWarning]
    baseline: str  # that the headline ratios are to; may be no stage of its own
    change_overs: list[ChangeOver]  # the best stage, set-up included, from how many images on; none in doubt
    doubt: Doubt | None  # why the record can't say which stage is best for how many images
    best_for_service: str | None
    since: Since | None = None  # an earlier run; None where none is known
    choice: Choice | None = None  # by what the winner was chosen, where more was asked for than speed

    def __repr__(self) -> str:
        return f"RunSummary({', '.join(stage.name for stage in self.stages)}; winner {self.ranking.winner})"

    def stage(self, name: str | None) -> StageSummary | None:
        """The stage called `name`; None for a baseline that was no stage of its own."""
        return next((stage for stage in self.stages if stage.name == name), None)

    @property
    def measure_again(self) -> str:
        """The user's command, to measure longer."""
        thorough = THOROUGH.gpu_sampling_seconds if self.on_gpu else THOROUGH.sampling_seconds
        short = (self.run.settings.measure.sampling_seconds or 0.0) < thorough
        return retyped(self.run.command, "measure=thorough" if short else "measure.trials=3")

    @property
    def best_for_few(self) -> str | None:
        """The stage that has finished a hundred images first, set-up included."""
        return best_at(self.change_overs, FEW)

    @property
    def best_for_many(self) -> str | None:
        """The stage that has finished ten million images first."""
        return best_at(self.change_overs, MANY)

    @property
    def winner(self) -> StageSummary | None:
        """The best stage whose answer is right: the fastest, unless something else was asked for."""
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
    """All figures that the renderers show. Costs a bootstrap for each stage that is compared through another's."""
    order = ranking(run)
    lines, spread = lines_of(run), between_run_std(run.aa_pairs)
    stages = [_stage(run, stage, order, compared(run, stage, order, spread), lines) for stage in run.stages]
    doubt = doubt_of_all(run, order)
    choice = choice_of(run, stages)
    order = order_under(run, order, choice)
    stages = [replace(stage, place=_place(stage.name, order)) for stage in stages]
    candidates = [stage for stage in stages if choice is None or stage.name in choice.held]
    ties = {order.winner, *order.ties} if order.winner else set()
    settled = [
        line
        for name, line in lines.items()
        if (order.outcomes[name] != "not resolved" or name == run.baseline) and (choice is None or name in choice.held)
    ]
    return RunSummary(
        run=run,
        ranking=order,
        stages=stages,
        warnings=run_warnings(run),
        baseline=run.baseline,
        change_overs=[] if doubt else change_overs(settled, frozenset(ties), order.noise.least),
        doubt=doubt,
        best_for_service=_best_for_service(candidates, order.winner) if order.winner else None,
        choice=choice,
    )


def _place(name: str, order: Ranking) -> Place:
    return "winner" if name == order.winner else "tie" if name in order.ties else ""


def lines_of(run: RunRecord) -> dict[str, Line]:
    """Set-up and seconds per image of each ranked stage, and of the baselines.

    The seconds are the baseline's divided by the ratio to it, so that a drift favours no stage.
    """
    known_stages = {stage.name: stage for stage in run.stages}
    found = {}
    for name, interleaved in seconds_per_image(run).items():
        stage = known_stages.get(name)
        found[name] = Line(name, stage.setup_seconds if stage else 0.0, interleaved)
    return found


def doubt_of_all(run: RunRecord, order: Ranking) -> Doubt | None:
    """Why nothing can be said that depends on the seconds of several stages."""
    if is_unfair(run.drift) or any(is_unfair(drift) for stage in run.stages for drift in drifts_of(stage.pairs)):
        return "baseline drifted"
    return None if order.winner else "not resolved"


def _stage(
    run: RunRecord, stage: StageRecord, order: Ranking, comparison: Compared, lines: dict[str, Line]
) -> StageSummary:
    interleaved = seconds_per_call(stage.pairs) if stage.pairs else None
    sustained = sustained_seconds(run, stage)
    pace = sustained or (interleaved.value if interleaved else None)
    roofline, ranked = roofline_of(run, stage), is_ranked(stage, order)
    layers = layers_of(run, stage, roofline) if roofline else []
    doubt = _doubt(run, stage, comparison)
    return StageSummary(
        stage=stage,
        compared=comparison,
        seconds=interleaved,
        sustained_seconds=sustained,
        images_per_second=run.batch_size / pace if pace else None,
        latency=known(latency, stage.latencies),
        host_latency=known(latency, stage.host_latencies),
        joules_per_image=stage.energy.joules / stage.energy.images if stage.energy and stage.energy.images else None,
        setup_seconds=stage.setup_seconds if stage.build_seconds is not None else None,
        break_even=_break_even(run, stage, comparison, lines) if ranked and doubt is None else None,
        ranked=ranked,
        place=_place(stage.name, order),
        roofline=roofline,
        bottleneck=bottleneck_of(run, stage, layers, interleaved.value if interleaved else None, pace),
        layers=layers,
        warnings=stage_warnings(stage, run.settings.data.batch_size),
        masks_judged=run.settings.model.trained and run.settings.task.has_masks,
        task=run.settings.task,
        host_ratio=None if doubt == "baseline drifted" else host_ratio(run, stage),
        break_even_doubt=doubt if ranked else None,
        words=run.words,
    )


def _doubt(run: RunRecord, stage: StageRecord, comparison: Compared) -> Doubt | None:
    if any(is_unfair(drift) for drift in (run.drift, *drifts_of(stage.pairs))):
        return "baseline drifted"
    itself = stage.name == run.baseline
    return "not resolved" if comparison.outcome == "not resolved" and not itself else None


def _break_even(run: RunRecord, stage: StageRecord, comparison: Compared, lines: dict[str, Line]) -> float | None:
    baseline = lines.get(run.baseline)
    if baseline is None or stage.name not in lines:
        return None
    return break_even(lines[stage.name], baseline, comparison.outcome == "same" or stage.name == baseline.name)


def known(compute: Callable[[Sequence[Given]], Taken], values: Sequence[Given]) -> Taken | None:
    """What `compute` makes of the values; None where there are none."""
    return compute(values) if values else None


def _best_for_service(stages: Sequence[StageSummary], winner: str | None) -> str | None:
    """The stage with the least p99 once it is built and warm; the winner, if its own is hardly longer or unknown."""
    tails = {stage.name: stage.latency.p99 for stage in stages if stage.ranked and stage.latency}
    if winner not in tails:  # such as a baseline that is no stage of its own
        return winner
    least = min(tails, key=lambda name: tails[name])
    return winner if tails[winner] <= TAIL_MARGIN * tails[least] else least
