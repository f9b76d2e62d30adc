"""Whether a stage's answer is right: its figures beside their limits, and the images that they are of."""

from collections.abc import Sequence

from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary
from pipeline.errors import plural
from pipeline.records.data_words import IMAGES, Words
from pipeline.records.diagnostics import fault_text
from pipeline.records.run_record import StageRecord
from pipeline.records.samples import Accuracy, ImageSet
from pipeline.report.formatting import clean, listed, share, significant
from pipeline.report.sections import task_text

NOT_JUDGED_WHY = (
    "Its masks are not judged: without a checkpoint the net's weights count as random (model.checkpoint=FILE, or "
    "model.trained=true where its own code loads them)."
)


def right_in_all(summary: RunSummary) -> str:
    """The winner's accuracy; where no stage is one, that of the one that is furthest off, for all that could be."""
    if summary.winner:
        return right(summary.winner)
    candidates = [stage for stage in summary.ranked if stage.name != summary.baseline]
    if not candidates:
        return ""
    worst = max(candidates, key=_off)
    if len(candidates) == 1:
        return f"{clean(worst.name)}: {right(worst)}"
    names = listed([clean(stage.name) for stage in candidates])
    return f"{names} keep to their limits. The one that is furthest off, {clean(worst.name)}: {right(worst)}"


def _off(stage: StageSummary) -> float:
    """How far a stage's answer is from the net's, of what it may be, by the figure that is nearest to its limit."""
    found, limit = stage.stage.accuracy, stage.stage.spec.tolerance
    if found is None:
        return 0.0
    pairs = [(found.relative_l2, limit.relative_l2)]
    if stage.masks_judged and found.flipped_share is not None:
        pairs.append((found.flipped_share, limit.flipped_share))
    return max(value / most if most else 0.0 for value, most in pairs)


def right(stage: StageSummary) -> str:
    """The accuracy beside its limits, and on which images; masks of random weights are not judged."""
    found, limit = stage.stage.accuracy, stage.stage.spec.tolerance
    if found is None:
        return "Not checked."
    logits = f"relative L2 {significant(found.relative_l2, 2)} (limit {significant(limit.relative_l2, 2)})"
    answer = "Yes" if stage.stage.status == "ok" else "No"
    if not stage.task.has_masks:
        broken = oddities(found)
        text = f"{answer}: {logits}{task_text.said(found, stage.task)}, {judged_on(stage.stage, stage.words)}."
        return f"{text}{' ' + broken if broken else ''}"
    if not stage.masks_judged:
        return f"{NOT_JUDGED_WHY} The logits alone: {answer.lower()}, {logits}, {judged_on(stage.stage, stage.words)}."
    changed = f"{share(found.flipped_share)} of {stage.words.points} change class"
    text = f"{answer}: {changed} (limit {share(limit.flipped_share)}), {logits}"
    if found.dice and found.reference_dice:
        text += f"; {dice_by_class(found.dice, found.reference_dice)}"
    named = oddities(found)
    return f"{text}, {judged_on(stage.stage, stage.words)}.{' ' + named if named else ''}"


def precision_faults(stage: StageRecord) -> str:
    """Where half precision goes wrong in the net, and what was kept in fp32 for it; empty where nobody had to look."""
    return " ".join(
        f"{clean(fault_text(found))}{', kept in fp32' if found.kept else ''}." for found in stage.precision_faults
    )


def judged_on(stage: StageRecord, words: Words = IMAGES) -> str:
    """Such as "on 24 images (shifts or windows of 1 picture), none of them calibrated on"."""
    found, chosen = stage.accuracy, stage.calibration
    if found is None:
        return ""
    text = f"on {words.counted(found.images)}"
    if found.pictures is not None and found.pictures < found.images:
        text += f" ({words.made} of {plural(found.pictures, words.source)})"
    if chosen is not None:
        kept_apart = "none of them calibrated on"
        return f"{text}, {kept_apart if chosen.apart else f'which are {words.moved} of those calibrated on'}"
    return f"{text}; whether they were calibrated on is not on record" if stage.precision == "fp8" else text


def calibrated_on(stage: StageRecord, words: Words = IMAGES) -> str:
    """What the scales and the choice of layers come from; empty where nothing was chosen by looking at images."""
    chosen = stage.calibration
    if chosen is None:
        return ""
    text = (
        f"scales from {_image_set(chosen.scales, words)}" if chosen.scales.images else "each call scales its own values"
    )
    if chosen.choice:
        text += (
            f", layers chosen on {'other' if chosen.choice_apart else 'the same'} {_image_set(chosen.choice, words)}"
        )
    apart = f", all of them apart from the evaluation {words.samples}"
    return text + (apart if chosen.apart else f", {words.moved} of which are judged")


def _image_set(found: ImageSet, words: Words) -> str:
    """Such as "32 images of 4 pictures"."""
    samples = words.counted(found.images)
    return f"{samples} of {plural(len(found.pictures), words.source)}" if found.pictures else samples


def dice_by_class(dice: Sequence[float], reference: Sequence[float]) -> str:
    """Such as "Dice by class: class 0 0.9945 (fp32 net 0.9944), class 1 0.9804 (fp32 net 0.9801)"."""
    scores = enumerate(zip(dice, reference, strict=True))
    each = [f"class {number} {own:.4f} (fp32 net {exact:.4f})" for number, (own, exact) in scores]
    return f"Dice by class: {', '.join(each)}"


def oddities(found: Accuracy) -> str:
    """NaN logits and masks of one class, by name: they look like healthy empty masks."""
    parts = []
    if found.nan_share > 0:
        what = "answers" if found.flipped_share is None else "logits"
        parts.append(f"{share(found.nan_share)} of its {what} are NaN or infinite.")
    if found.one_class:
        parts.append("Its masks have one class only, where the reference has more: an empty (black) mask.")
    return " ".join(parts)
