"""One stage with every figure that its record gives, computed once, and when its set-up has paid for itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pipeline.analysis.bottleneck import Bottleneck, bottleneck_of
from pipeline.analysis.roofline import LayerFigures, ReachedPeak, Roofline, layers_of, roofline_of
from pipeline.records.data_words import IMAGES, Words
from pipeline.records.goals import SEGMENTATION, Task
from pipeline.records.run_record import EAGER, Precision, RunRecord, RunWarning, StageRecord
from pipeline.stats import intervals
from pipeline.stats.outcomes import Outcome, Unresolved
from pipeline.stats.ranking import Ranking, rankable
from pipeline.stats.warnings import loop_seconds_per_call, stage_warnings

Place = Literal["winner", "tie", ""]
Doubt = Literal["not resolved", "baseline drifted"]  # the ratio; by so much that times of different moments mislead


@dataclass(frozen=True)
class Compared:
    """A stage against the baselines; None where there is nothing to compare."""

    ratio: intervals.Ratio | None = None  # to the baseline
    outcome: Outcome | None = None  # of a ranked stage, against the baseline
    eager_ratio: intervals.Ratio | None = None
    unresolved: Unresolved | None = None  # why the ratio is not resolved


@dataclass(frozen=True)
class StageSummary:
    """One stage and all figures that its record gives; None where it gives none."""

    stage: StageRecord
    compared: Compared
    seconds: intervals.Estimate | None  # per call, interleaved with the baseline
    sustained_seconds: float | None  # per call at steady state on a GPU; None where nothing was measured so
    images_per_second: float | None  # at steady state
    latency: intervals.Latency | None
    host_latency: intervals.Latency | None
    joules_per_image: float | None
    setup_seconds: float | None
    break_even: float | None  # images; None for never, where it isn't ranked, and in doubt
    ranked: bool
    place: Place
    roofline: Roofline | None
    bottleneck: Bottleneck
    layers: list[LayerFigures] = field(default_factory=list)  # none where its profile doesn't show them
    warnings: list[RunWarning] = field(default_factory=list)
    unjudged: str = ""  # why its masks are not judged
    task: Task = SEGMENTATION
    host_ratio: float | None = None  # host to host: the baseline's p50 over this stage's; None where that drifted
    break_even_doubt: Doubt | None = None  # why the record can't say when its set-up has paid for itself
    words: Words = IMAGES  # for the run's data

    @property
    def name(self) -> str:
        """The stage's name."""
        return self.stage.name

    def __repr__(self) -> str:
        return f"StageSummary({self.name!r}: {self.stage.status})"

    @property
    def ratio(self) -> intervals.Ratio | None:
        """The ratio to the baseline: autocast on a GPU, eager on a CPU."""
        return self.compared.ratio

    @property
    def eager_ratio(self) -> intervals.Ratio | None:
        """The ratio to eager fp32."""
        return self.compared.eager_ratio

    @property
    def pace(self) -> float | None:
        """Seconds per call at steady state where that was measured, otherwise interleaved with the baseline."""
        return self.sustained_seconds or (self.seconds.value if self.seconds else None)

    @property
    def status(self) -> str:
        """The stage's status; "not ranked" or "not measured" of one that is ok and not ranked."""
        unranked = self.stage.status == "ok" and not self.ranked
        return ("not ranked" if self.stage.pairs else "not measured") if unranked else self.stage.status

    @property
    def peak_bytes(self) -> int | None:
        """Memory of the process: on the GPU, or the resident peak on a CPU; None where it is unknown."""
        memory = self.stage.memory
        if memory is None:
            return None
        return memory.host_peak_bytes if memory.allocated_peak_bytes is None else memory.process_bytes


@dataclass(frozen=True)
class Line:
    """The time of a stage for n images: set-up + n × seconds per image."""

    name: str
    setup_seconds: float
    image_seconds: float


def stage_summary(
    run: RunRecord, stage: StageRecord, order: Ranking, lines: Mapping[str, Line],
    peaks: Mapping[Precision, ReachedPeak],
) -> StageSummary:  # fmt: skip
    """Compute all figures of one stage; its place is set when the winner is known.

    `lines` has each ranked stage and the baseline, `peaks` the most that anything reached in the run.
    """
    comparison, ranked = compared(run, stage, order), stage.name in order.ratios and rankable(stage)
    interleaved = intervals.seconds_per_call(stage.pairs) if stage.pairs else None
    sampled = [pair for pair in stage.pairs if pair.blocks]
    sustained = loop_seconds_per_call(stage, run.batch_size)
    if interleaved and sampled and all(pair.sustained for pair in sampled):
        sustained = interleaved.value
    pace = sustained or (interleaved.value if interleaved else None)
    roofline = roofline_of(run, stage, peaks)
    layers = layers_of(run, stage, roofline) if roofline else []
    doubt: Doubt | None = None
    if any(intervals.is_unfair(drift) for drift in (run.drift, *intervals.drifts_of(stage.pairs))):
        doubt = "baseline drifted"
    elif comparison.outcome == "not resolved" and stage.name != run.baseline:
        doubt = "not resolved"
    data = run.config.data
    few = "few of a folder" if data.path else "few pictures"
    few = "few of a labelled folder" if data.path and data.labels else few  # it is judged whole
    own, baseline, paid = lines.get(stage.name), lines.get(run.baseline), None
    if ranked and doubt is None and own and baseline:
        paid = break_even(own, baseline, comparison.outcome == "same" or stage.name == run.baseline)
    first = next((each.host_latencies for each in run.stages if each.name == run.baseline), run.baseline_host_latencies)
    both = first and stage.host_latencies and doubt != "baseline drifted"
    return StageSummary(
        stage=stage,
        compared=comparison,
        seconds=interleaved,
        sustained_seconds=sustained,
        images_per_second=run.batch_size / pace if pace else None,
        latency=intervals.latency(stage.latencies) if stage.latencies else None,
        host_latency=intervals.latency(stage.host_latencies) if stage.host_latencies else None,
        joules_per_image=stage.energy.joules / stage.energy.images if stage.energy and stage.energy.images else None,
        setup_seconds=stage.setup_seconds if stage.build_seconds is not None else None,
        break_even=paid,
        ranked=ranked,
        place="",
        roofline=roofline,
        bottleneck=bottleneck_of(run, stage, roofline, layers, interleaved.value if interleaved else None, pace),
        layers=layers,
        warnings=stage_warnings(stage, data.batch_size, None if run.unjudged else run.words, few),
        unjudged=run.unjudged,
        task=run.config.task,
        host_ratio=intervals.latency(first).p50 / intervals.latency(stage.host_latencies).p50 if both else None,
        break_even_doubt=doubt if ranked else None,
        words=run.words,
    )


def compared(run: RunRecord, stage: StageRecord, order: Ranking) -> Compared:
    """Return the stage's ratios; only ranked stages have an outcome."""
    if not any(pair.blocks for pair in stage.pairs):
        return Compared()
    ratio, outcome, why = order.ratios.get(stage.name), order.outcomes.get(stage.name), None
    if ratio is None or not rankable(stage):
        ratio, outcome = intervals.steady_ratio(stage.pairs, order.noise.spread), None
    elif outcome == "not resolved":
        why = order.noise.unresolved(ratio)
    if run.baseline == EAGER:
        return Compared(ratio, outcome, ratio, why)
    if stage.name == EAGER:
        return Compared(ratio, outcome, intervals.ITSELF, why)
    eager = next((each for each in run.stages if each.name == EAGER and rankable(each)), None)
    through = intervals.steady_composed(stage.pairs, eager.pairs, order.noise.spread) if eager else None
    return Compared(ratio, outcome, through, why)


def break_even(stage: Line, baseline: Line, alike: bool) -> float | None:
    """Return the images until the stage's set-up has paid for itself; 0 at once, None never."""
    extra = stage.setup_seconds - baseline.setup_seconds
    saved = 0.0 if alike else baseline.image_seconds - stage.image_seconds
    if saved <= 0:
        return None if extra > 0 or saved < 0 else 0.0
    return max(0.0, extra / saved)
