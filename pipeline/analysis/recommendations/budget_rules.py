"""What to try with a budget of changed pixels, by which a stage chose the layers that keep more bits."""

from pipeline.analysis.recommendations.command import retyped
from pipeline.analysis.recommendations.recommendation import Figure, Recommendation
from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary
from pipeline.records.run_record import StageRecord
from pipeline.records.samples import Accuracy

# Of the limit on changed pixels. Images of the choice and of the verdict differ in what changes: with a budget of
# 0.07 % the nets in docs/h200 change 0.028 to 0.081 % of the judged pixels.
NEARLY_ALL, WITH_ROOM = 0.9, 0.8
WORTH_IT = 1.05  # times the budget: one that is hardly larger lets no layer go


def budget_of(summary: RunSummary, found: StageSummary) -> float | None:
    """The share of pixels that a stage was asked to keep to where it chose its layers.

    None where it chose none, where masks aren't judged, or by the user's own limits in place of the tolerance's.
    """
    stage, asked = found.stage, found.stage.spec.options.get("budget")
    chose = stage.calibration is not None and stage.calibration.choice is not None
    if not chose or not found.masks_judged or summary.run.config.accuracy.asked:
        return None
    return asked if isinstance(asked, float) and asked > 0 else None


def spend_the_budget(summary: RunSummary, winner: StageSummary) -> Recommendation | None:
    """Layers keep more bits than the limit on changed pixels asks for."""
    stage, budget, accuracy = winner.stage, budget_of(summary, winner), winner.stage.accuracy
    kept = stage.calibration.kept if stage.calibration else None
    if budget is None or not kept or accuracy is None or accuracy.flipped_share is None:
        return None
    limit, share = stage.spec.tolerance.flipped_share, accuracy.flipped_share / budget
    larger = NEARLY_ALL * limit
    if larger < WORTH_IT * budget or share > 1 or _values_bind(stage, accuracy, share):
        return None
    figures: dict[str, Figure] = {"winner": winner.name, "kept": kept, "limit": limit, "budget": budget}
    return Recommendation(
        "larger budget", {**figures, "changed": accuracy.flipped_share}, _with_budget(summary, stage, larger)
    )


def lower_the_budget(summary: RunSummary, winner: StageSummary) -> Recommendation | None:
    """A stage with fewer bits was refused, as more pixels changed than on the images of its choice, and for no more."""
    for found in summary.stages:
        stage, budget, accuracy = found.stage, budget_of(summary, found), found.stage.accuracy
        if stage.status != "inaccurate" or budget is None or accuracy is None:
            continue
        changed, limit = accuracy.flipped_share or 0.0, stage.spec.tolerance.flipped_share
        if changed > limit and _right_otherwise(stage, accuracy):
            apart = stage.calibration is not None and stage.calibration.apart
            figures: dict[str, Figure] = {"stage": stage.name, "changed": changed, "limit": limit, "budget": budget}
            figures["apart"] = "other" if apart else None
            command = _with_budget(summary, stage, WITH_ROOM * budget * limit / changed)
            return Recommendation("smaller budget", figures, command)
    return None


def _right_otherwise(stage: StageRecord, accuracy: Accuracy) -> bool:
    near = accuracy.relative_l2 <= stage.spec.tolerance.relative_l2
    return near and not accuracy.nan_share and not accuracy.one_class


def _values_bind(stage: StageRecord, accuracy: Accuracy, share: float) -> bool:
    """Whether the distance of the logits takes more of its own budget than the pixels do of theirs."""
    allowed = stage.spec.options.get("error_budget")
    return isinstance(allowed, float | int) and accuracy.relative_l2 > share * allowed


def _with_budget(summary: RunSummary, stage: StageRecord, budget: float) -> str:
    """The user's command as it was, all rungs of a ladder included, but for the budget."""
    rung = f"rungs.{stage.name}." if summary.run.config.ladder else ""
    return retyped(summary.run.command, f"stage.{rung}budget={budget:.2g}")
