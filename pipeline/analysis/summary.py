"""A run as the renderers need it: every stage with its figures, taken from `pipeline.measure` and worked out once."""

from dataclasses import dataclass

from pipeline.config.plan import Plan
from pipeline.records.run_record import RunRecord, RunWarning, StageRecord
from pipeline.stats import warnings as noise
from pipeline.stats.intervals import (
    Estimate,
    Latency,
    Ratio,
    Word,
    between_run_std,
    composed,
    latency,
    ratio,
    resolves,
    seconds_per_call,
    verdict,
)
from pipeline.stats.ranking import Ranking, best_for, break_even_images, rankable, ranking, setup_seconds

FEW, MANY = 100, 10_000_000  # images, for which the best stage is named
TAIL_MARGIN = 1.10  # p99s of some hundred calls that are nearer than this count as equal


@dataclass(frozen=True)
class Row:
    """One stage and all figures that its records give; None where they give none."""

    stage: StageRecord
    ratio: Ratio | None  # to the baseline
    word: Word | None
    second: Ratio | None  # to the second baseline
    second_word: Word | None
    unresolved: str  # what would resolve the ratio
    seconds: Estimate | None  # per call
    sustained_seconds: float | None  # per call, called back to back with nothing else on the device
    images_per_second: float | None  # at full load
    latency: Latency | None
    host_latency: Latency | None
    joules_per_image: float | None
    setup_seconds: float | None
    break_even: float | None  # images; None for never, and where it isn't ranked
    ranked: bool
    place: str  # "winner", "tie" or ""
    warnings: list[RunWarning]

    @property
    def name(self) -> str:
        """The stage's."""
        return self.stage.name

    @property
    def pace(self) -> float | None:
        """Seconds per call at full load: alone where that was measured, else in turns."""
        return self.sustained_seconds or (self.seconds.value if self.seconds else None)

    @property
    def status(self) -> str:
        """The stage's status, or why one that is ok isn't ranked."""
        unranked = self.stage.status == "ok" and not self.ranked
        return ("not ranked" if self.stage.pairs else "not measured") if unranked else self.stage.status


@dataclass(frozen=True)
class Digest:
    """A run and what follows from it."""

    run: RunRecord
    ranking: Ranking
    rows: list[Row]
    warnings: list[RunWarning]
    baseline_seconds: Estimate | None  # per call, over all turns
    best_for_few: str | None
    best_for_many: str | None
    best_for_service: str | None
    gpu_hour_price: float | None

    def row(self, name: str | None) -> Row | None:
        """The stage called `name`; None for a baseline that was no stage of its own."""
        return next((row for row in self.rows if row.name == name), None)

    @property
    def winner(self) -> Row | None:
        """The fastest stage that is right."""
        return self.row(self.ranking.winner)

    @property
    def has_second(self) -> bool:
        """Whether the run measured the second baseline as a stage."""
        return any(row.second for row in self.rows)


def digest(run: RunRecord) -> Digest:
    """All that the renderers show, worked out once."""
    found = ranking(run)
    second = next((s for s in run.stages if s.name == run.second_baseline and rankable(s)), None)
    rows = [_row(run, stage, found, second) for stage in run.stages]
    pairs = [pair for row in rows if row.ranked for pair in row.stage.pairs]
    price = (run.config.get("report") or {}).get("gpu_hour_price")
    return Digest(
        run=run,
        ranking=found,
        rows=rows,
        warnings=_run_cautions(run),
        baseline_seconds=seconds_per_call(pairs, "baseline") if pairs else None,
        best_for_few=best_for(run, FEW),
        best_for_many=best_for(run, MANY),
        best_for_service=_best_for_service(rows, found.winner),
        gpu_hour_price=float(price) if isinstance(price, int | float) else None,
    )


def _row(run: RunRecord, stage: StageRecord, found: Ranking, second: StageRecord | None) -> Row:
    pairs = [pair for pair in stage.pairs if pair.blocks]
    ranked = stage.name in found.ratios and rankable(stage)
    spread = between_run_std(run.aa_pairs)
    to_first = ratio(pairs, spread) if pairs else None
    word = verdict(to_first, found.floor) if to_first else None
    other = second.pairs if second and second.name != stage.name else None
    to_second = composed(pairs, other, spread) if pairs and other else None
    each = seconds_per_call(pairs) if pairs else None
    energy = stage.energy
    alone = energy.seconds / energy.images * run.batch_size if energy and energy.images else None
    pace = alone or (each.value if each else None)
    return Row(
        stage=stage,
        ratio=to_first,
        word=word if ranked else None,
        second=to_second,
        second_word=verdict(to_second, found.floor) if to_second and ranked else None,
        unresolved=resolves(to_first, found.floor) if to_first and word == "not resolved" and ranked else "",
        seconds=each,
        sustained_seconds=alone,
        images_per_second=run.batch_size / pace if pace else None,
        latency=latency(stage.latencies) if stage.latencies else None,
        host_latency=latency(stage.host_latencies) if stage.host_latencies else None,
        joules_per_image=energy.joules / energy.images if energy and energy.images else None,
        setup_seconds=setup_seconds(stage) if stage.build_seconds is not None else None,
        break_even=break_even_images(stage, run) if ranked else None,
        ranked=ranked,
        place="winner" if stage.name == found.winner else "tie" if stage.name in found.ties else "",
        warnings=_stage_cautions(run, stage, noise.slower_alone(each.value, alone) if each else None),
    )


def _best_for_service(rows: list[Row], winner: str | None) -> str | None:
    """The least p99 of those built and warm; the winner, if its own is hardly longer."""
    tails = {row.name: row.latency.p99 for row in rows if row.ranked and row.latency}
    if not tails:
        return winner
    least = min(tails, key=lambda name: tails[name])
    return winner if winner in tails and tails[winner] <= TAIL_MARGIN * tails[least] else least


def _stage_cautions(run: RunRecord, stage: StageRecord, alone: RunWarning | None) -> list[RunWarning]:
    most_retries = (run.config.get("measure") or {}).get("most_retries", Plan.most_retries)
    seen = noise.warnings_of(stage.pairs, most_retries)
    rest = noise.unsteady(stage.warm_up) if stage.warm_up else None
    return _merged(stage.warnings, [*seen, *(part for part in (rest, alone) if part)])


def _run_cautions(run: RunRecord) -> list[RunWarning]:
    moved = noise.drifted(run.drift) if run.drift is not None else None
    shared = noise.shared_device(run.environment) if run.environment else None
    doubt = noise.reference_in_doubt(run.reference) if run.reference else None
    return _merged(run.warnings, [part for part in (doubt, moved, shared) if part])


def _merged(recorded: list[RunWarning], computed: list[RunWarning]) -> list[RunWarning]:
    """What was recorded, and what the samples show besides."""
    merged = list(recorded)
    for caution in computed:
        if all(caution.name != known.name for known in merged):
            merged.append(caution)
    return merged
