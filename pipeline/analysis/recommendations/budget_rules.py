"""What to try with a budget of changed pixels, by which a stage chose the layers that keep more bits."""

from pipeline.analysis.recommendations.command import retyped
from pipeline.analysis.recommendations.recommendation import Figure, Recommendation
from pipeline.analysis.summary import RunSummary, StageSummary
from pipeline.records.run_record import StageRecord

# Of the limit on changed pixels: the images of the choice and of the verdict differ in it, by a quarter either way.
NEARLY_ALL, WITH_ROOM = 0.9, 0.8
WORTH_IT = 1.05  # times the budget: one that is hardly larger lets no layer go


def budget_of(stage: StageRecord) -> float | None:
    """The share of pixels that a stage was asked to keep to where it chose its layers; None where it chose none."""
    asked = stage.options.get("budget")
    chose = stage.calibration is not None and stage.calibration.choice is not None
    return asked if chose and isinstance(asked, float) and asked > 0 else None


def spend_the_budget(summary: RunSummary, winner: StageSummary) -> Recommendation | None:
    """Layers keep more bits than the limit on changed pixels asks for."""
    stage, budget = winner.stage, budget_of(winner.stage)
    kept = stage.calibration.kept if stage.calibration else None
    changed = stage.accuracy.flipped_share if stage.accuracy else None
    if budget is None or not kept or changed is None or stage.tolerance is None:
        return None
    larger = NEARLY_ALL * stage.tolerance.flipped_share
    if larger < WORTH_IT * budget or changed / budget > 1 or _values_bind(stage, changed / budget):
        return None
    figures: dict[str, Figure] = {
        "winner": winner.name, "kept": kept, "changed": changed, "limit": stage.tolerance.flipped_share,
        "budget": budget,
    }  # fmt: skip
    return Recommendation("larger budget", figures, _with_budget(summary, stage, larger))


def lower_the_budget(summary: RunSummary, winner: StageSummary) -> Recommendation | None:
    """A stage with fewer bits was refused, as more pixels changed than on the images of its choice."""
    for found in summary.stages:
        stage, budget = found.stage, budget_of(found.stage)
        changed = stage.accuracy.flipped_share if stage.accuracy else None
        if stage.status != "inaccurate" or budget is None or changed is None or stage.tolerance is None:
            continue
        if (limit := stage.tolerance.flipped_share) < changed:
            figures: dict[str, Figure] = {"stage": stage.name, "changed": changed, "limit": limit, "budget": budget}
            smaller = WITH_ROOM * budget * limit / changed
            return Recommendation("smaller budget", figures, _with_budget(summary, stage, smaller))
    return None


def _values_bind(stage: StageRecord, share: float) -> bool:
    """Whether the distance of the logits takes more of its own budget than the pixels do."""
    allowed = stage.options.get("error_budget")
    error = stage.accuracy.relative_l2 if stage.accuracy else 0.0
    return isinstance(allowed, float) and error > share * allowed


def _with_budget(summary: RunSummary, stage: StageRecord, budget: float) -> str:
    return retyped(summary.run.command, f"stage={stage.name}", f"stage.budget={budget:.2g}")
