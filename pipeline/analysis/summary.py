"""A run as every renderer needs it: each stage with its figures, and what follows from all of them."""

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipeline.analysis.objectives import FIGURE_OF, READERS, TAILS, Choice, choice_of, needed_calls, order_under
from pipeline.analysis.roofline import reached_peaks
from pipeline.analysis.stage_summary import Doubt, Line, Place, StageSummary, stage_summary
from pipeline.command_line import worded
from pipeline.config.request_error import RequestError
from pipeline.records.goals import Goal
from pipeline.records.plan import Plan
from pipeline.records.request import ModelSpec, RunConfig
from pipeline.records.run_record import RunRecord, RunWarning
from pipeline.stats.intervals import drifts_of, is_unfair
from pipeline.stats.ranking import Ranking, ranking, seconds_per_image
from pipeline.stats.warnings import run_warnings

SOON, LONG = 60, 200  # seconds of single calls: the least to ask for, and from which their phase needs a longer limit
THOROUGH = Plan()  # its defaults are conf/measure/thorough.yaml's
LEFT_OUT = ("hydra.run.dir", "hydra.sweep.dir", "resume", "resume_despite")  # of a command that is typed anew
CONFIG_FLAGS = ("--config-dir", "-cd", "--config-path", "-cp")  # of Hydra's, each with a word behind it or a "="
ChangeOver = tuple[str, float]  # a stage, and from how many images on it is the best
TAIL_MARGIN = 1.10  # latencies within this factor of each other count as equal


@dataclass(frozen=True)
class Since:
    """Changes since an earlier run that asked the same."""

    folder: str  # the earlier run's, by its own name
    started_at: str  # of the earlier run, ISO 8601
    measured: int  # how many stages both runs measured
    regressed: list[str]  # the stages that are slower or broken
    improved: list[str]  # those that are faster or right again
    resolved: bool = True  # whether the noise leaves anything to be told of those that both measured


@dataclass(frozen=True)
class RunSummary:
    """A run and what follows from it."""

    run: RunRecord
    ranking: Ranking
    image_seconds: dict[str, float]  # of each ranked stage, the baseline's divided by the ratio
    stages: list[StageSummary]
    warnings: list[RunWarning]
    change_overs: list[ChangeOver]  # the best stage, set-up included, from how many images on; none in doubt
    doubt: Doubt | None  # why the record can't say which stage is best for how many images
    best_for_service: str | None
    since: Since | None = None  # an earlier run; None where none is known
    choice: Choice | None = None  # by what the winner was chosen, where more was asked for than speed

    def __repr__(self) -> str:
        return f"RunSummary({', '.join(stage.name for stage in self.stages)}; winner {self.ranking.winner})"

    def stage(self, name: str | None) -> StageSummary | None:
        """Return the stage called `name`; None for a baseline that was no stage of its own."""
        return next((stage for stage in self.stages if stage.name == name), None)

    @property
    def baseline(self) -> str:
        """The stage that the ratios are to; it may be no stage of its own."""
        return self.run.baseline

    @property
    def measure_again(self) -> str:
        """The user's command, to measure longer."""
        thorough = THOROUGH.gpu.sampling_seconds if self.on_gpu else THOROUGH.sampling_seconds
        short = self.run.config.plan.sampling_seconds < thorough
        return retyped(self.run.command, "measure=thorough" if short else "measure.trials=3")

    @property
    def measure_tails(self) -> str:
        """The user's command with as many single calls as the bounds need; empty where they were made."""
        paces = [stage.latency for stage in self.ranked if stage.latency]
        fastest = min((each.p50 for each in paces), default=0.0)
        made = max((each.calls for each in paces), default=0)
        enough = made >= needed_calls(self.run.config.goal)
        return "" if enough else with_calls(self.run.config, self.run.command, fastest)

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
        """True if the run is known to have used a GPU."""
        return self.run.environment is not None and self.run.environment.device == "cuda"


def summarize(run: RunRecord) -> RunSummary:
    """Compute all figures that the renderers show. Each stage compared through another's costs a bootstrap."""
    order = ranking(run)
    image_seconds = seconds_per_image(run, order)
    setups = {stage.name: stage.setup_seconds for stage in run.stages}
    lines = {name: Line(name, setups.get(name, 0.0), seconds) for name, seconds in image_seconds.items()}
    peaks = reached_peaks(run)
    stages = [stage_summary(run, stage, order, lines, peaks) for stage in run.stages]
    doubt: Doubt | None = None if order.winner else "not resolved"
    drifts = [run.drift, *(drift for stage in run.stages for drift in drifts_of(stage.pairs))]
    if any(map(is_unfair, drifts)):
        doubt = "baseline drifted"
    choice = choice_of(run, stages)
    order = order_under(run, order, choice)
    places: dict[str, Place] = {**dict.fromkeys(order.ties, "tie"), order.winner or "": "winner"}
    stages = [replace(stage, place=places.get(stage.name, "")) for stage in stages]
    candidates = [stage for stage in stages if choice is None or stage.name in choice.held]
    ties = frozenset({order.winner, *order.ties}) if order.winner else frozenset()
    settled = [
        line
        for name, line in lines.items()
        if (order.outcomes[name] != "not resolved" or name == run.baseline) and (choice is None or name in choice.held)
    ]
    return RunSummary(
        run=run,
        ranking=order,
        image_seconds=image_seconds,
        stages=stages,
        warnings=run_warnings(run),
        change_overs=[] if doubt else change_overs(settled, ties, order.noise.least),
        doubt=doubt,
        best_for_service=_best_for_service(candidates, order.winner) if order.winner else None,
        choice=choice,
    )


def change_overs(lines: Sequence[Line], ties: frozenset[str], effect: float) -> list[ChangeOver]:
    """Return the stage that finishes first, set-up included, by number of images, from one image on.

    There is no change-over among `ties`; for any other a stage must be faster by the share `effect`.
    """
    if not lines:
        return []
    now, at = min(lines, key=lambda line: line.setup_seconds + line.image_seconds), 1.0
    found = [(now.name, at)]
    while True:
        met: list[tuple[float, float, Line]] = []
        for line in lines:  # that are lower in the long run, by enough to tell
            if not {line.name, now.name} <= ties and line.image_seconds * (1 + effect) <= now.image_seconds:
                images = (line.setup_seconds - now.setup_seconds) / (now.image_seconds - line.image_seconds)
                met.append((max(at, images), line.image_seconds, line))
        if not met:
            return found
        at, _, now = min(met, key=lambda each: each[:2])
        found = [*(found if found[-1][1] < at else found[:-1]), (now.name, at)]


def winner_of(run: RunRecord) -> str | None:
    """Return the name of the stage that the run's goal names; None if it names none."""
    if run.finished or not run.stages:
        return run.winner
    if run.config.goal == Goal():
        name = ranking(run).winner
        return name if any(stage.name == name for stage in run.stages) else None
    winner = summarize(run).winner
    return winner.name if winner else None


def _best_for_service(stages: Sequence[StageSummary], winner: str) -> str:
    """Return the stage with the least p99, else p50, once it is built and warm; the winner, if its own is close."""
    timed = {stage.name: stage.latency for stage in stages if stage.ranked and stage.latency}
    if winner not in timed:  # such as a baseline that is no stage of its own
        return winner
    known = all(each.p99 for each in timed.values())
    paces = {name: each.p99 if known and each.p99 else each.p50 for name, each in timed.items()}
    least = min(paces, key=lambda name: paces[name])
    return winner if paces[winner] <= TAIL_MARGIN * paces[least] else least


def to_be_least(summary: RunSummary) -> float:
    """Return the objective's figure of the winner, else of the first in the ranking; infinite where unknown.

    In SI units and the user's currency; of the throughput seconds per image.
    """
    stage = summary.winner or next((each for each in summary.ranked if each.name == summary.ranking.order[0]), None)
    name = FIGURE_OF[summary.run.config.goal.objective]
    value = READERS[name](summary.run, stage) if stage else None
    if not value:
        return math.inf
    return 1 / value if name == "throughput" else value


def with_calls(config: RunConfig, command: str, fastest: float = 0.0) -> str:
    """Return the command with as many single calls as the goal's bounds need; `fastest` is seconds of one."""
    calls = needed_calls(config.goal)
    seconds = max(SOON, math.ceil(config.plan.latency_seconds), math.ceil(2 * calls * fastest))
    words = [f"measure.latency_calls={calls}", f"measure.latency_seconds={seconds}"]
    words += [f"measure.limits.latencies={seconds + LONG}"] if seconds > LONG else []
    return retyped(command, *words)


def check_calls(config: RunConfig, command: str, made: int | None = None) -> None:
    """Raise RequestError if a bound is on a tail that too few single calls tell: those `made`, else those asked for."""
    calls, needed = config.plan.latency_calls if made is None else made, needed_calls(config.goal)
    if calls < needed:
        bounds = ", ".join(each.text for each in config.goal.subject_to if each.figure in TAILS)
        there = f"measure.latency_calls is {calls}" if made is None else f"this run made {calls}"
        why = f"it takes {needed} single calls of a stage, {there}"
        raise RequestError(f"subject_to={bounds}: {why}; measure them: {with_calls(config, command)}")


def retyped(command: str, *overrides: str) -> str:
    """Return the user's command with these overrides instead of those of the same key.

    The run's folder and the run that it resumed are left out. A new stage replaces the old one with its options.
    """
    try:
        typed = shlex.split(command)[3:]
    except ValueError:
        typed = []
    keys, before = [_key(override) for override in overrides], ["", *typed]
    of_config = [
        word
        for flag, word in zip(before, typed, strict=False)
        if flag in CONFIG_FLAGS or word.partition("=")[0] in CONFIG_FLAGS
    ]
    stage = next((override.removeprefix("stage=") for override in overrides if override.startswith("stage=")), "")
    own = f"stage.rungs.{stage}."  # options of that stage in a list of stages
    kept = []
    for word in typed:
        if word in of_config or not ("=" in word or word.startswith("~")):
            continue
        if stage and word.startswith(own):
            kept.append(word.replace(own, "stage."))
        elif not (_key(word) in (*keys, *LEFT_OUT) or ("stage" in keys and _key(word).startswith("stage."))):
            kept.append(word)
    kept = [word for word in kept if _key(word) not in keys]
    sweep = ["-m"] if any("," in word for word in kept) and {"-m", "--multirun"} & set(typed) else []
    return shlex.join(["python", "-m", "pipeline", *sweep, *of_config, *kept, *overrides])


def _key(override: str) -> str:
    """Return what an override sets, adds or removes; of `+stage@stage.rungs.xla=xla` the place, `stage.rungs.xla`."""
    return override.split("=", 1)[0].lstrip("+~").rpartition("@")[2]


def command_with(run: RunRecord, spec: ModelSpec) -> str:
    """Return the line that runs the ladder on another network as the run did: on its data, with its stages."""
    typed = [word for word in shlex.split(run.command) if not word.lstrip("+~").startswith("model")]
    words = ["model=custom", f"model.target={spec.target}", f"model.checkpoint={spec.checkpoint}"]
    words += [f"+model.options.{key}={worded(value)}" for key, value in spec.options.items()]
    for key in ("output", "upsample_logits"):
        if (value := getattr(spec, key)) is not None:
            words.append(f"model.{key}={value}")
    return retyped(shlex.join(typed), *words)
