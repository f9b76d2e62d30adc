"""The accuracy of a stage's answers: figures beside their limits, and the images that they are of, for every task."""

import math
from collections.abc import Callable, Sequence

from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary
from pipeline.errors import plural
from pipeline.records.data_words import IMAGES, Words
from pipeline.records.goals import POINTS, Task, TaskName, psnr, psnr_drop
from pipeline.records.run_record import StageRecord
from pipeline.records.samples import Accuracy, DiceLoss, ImageSet
from pipeline.report import WORDS
from pipeline.report.formatting import listed, method, share, significant, two
from pipeline.report.tables import Column, explained, number

NOT_JUDGED_WHY: dict[str, str] = WORDS["accuracy"]["not_judged_why"]
LEAST_DECIBELS = 1e-3
LEAST_POINTS = 0.01  # of Dice, that are told
NONE_LOST = f"no class loses {LEAST_POINTS:g} points of Dice"
Figure = Column[StageSummary]


def of_answers(title: str, read: Callable[[Accuracy], float | None], csv: str, least: float = 0.0) -> Figure:
    """Return a column of answers that are no masks; values nearer to 0 than `least` are shown as 0, being rounding."""

    def figure(stage: StageSummary) -> float | None:
        return read(stage.stage.accuracy) if stage.stage.accuracy else None

    return number(title, figure, lambda value: decibels(0.0 if abs(value) < least else value), csv)


ERROR = of_answers("relative L2", lambda made: made.relative_l2, "relative_l2")
OF_TASK: dict[TaskName, list[Figure]] = {
    "segmentation": [],
    "regression": explained("accuracy", [
        ERROR,
        of_answers("PSNR dB", psnr, "psnr_db"),
        of_answers("PSNR dB, truth", lambda made: made.truth_psnr, "truth_psnr_db"),
        of_answers("dB lost", psnr_drop, "psnr_drop_db", LEAST_DECIBELS),
    ]),
    "diffusion": explained(
        "accuracy", [ERROR, of_answers("final error", lambda made: made.final_error, "final_relative_l2")]
    ),
}  # fmt: skip


def decibels(value: float | None) -> str:
    """Return a PSNR, without its unit."""
    return "–" if value is None else "∞" if math.isinf(value) else significant(value)


def _said_of_values(found: Accuracy, task: Task) -> str:
    """Return what the figures say besides the error of one call; empty where there is no more."""
    if task.name == "diffusion" and found.final_error is not None:
        steps = len(found.step_errors or [])
        return f"; after {steps} steps of its own denoising the latents are {two(found.final_error)} off"
    if task.name != "regression":
        return ""
    text = f"; PSNR {decibels(psnr(found))} dB against fp32"
    if found.truth_psnr is not None and found.reference_truth_psnr is not None:
        own, exact = decibels(found.truth_psnr), decibels(found.reference_truth_psnr)
        text += f", {own} dB against what is right (fp32 network {exact} dB)"
    return text


def right_in_all(summary: RunSummary) -> str:
    """Return the winner's accuracy; without a winner that of the stage furthest off, for all candidates."""
    if summary.winner:
        return right(summary.winner)
    candidates = [stage for stage in summary.ranked if stage.name != summary.baseline]
    if not candidates:
        return ""

    def share_of_limit(stage: StageSummary) -> float:
        found, limit = stage.stage.accuracy, stage.stage.spec.tolerance
        changed = found.flipped_share if found and not stage.unjudged else None
        pairs = ((found.relative_l2 if found else 0.0, limit.relative_l2), (changed or 0.0, limit.flipped_share))
        return max(value / most if most else 0.0 for value, most in pairs)

    worst = max(candidates, key=share_of_limit)
    if len(candidates) == 1:
        return f"{method(worst.name)}: {right(worst)}"
    names = listed([method(stage.name) for stage in candidates])
    return f"{names} keep their limits. Worst of them, {method(worst.name)}: {right(worst).removeprefix('Yes: ')}"


def right(stage: StageSummary) -> str:
    """Return the accuracy beside its limits, and on which images; of masks that are not judged why."""
    found, limit = stage.stage.accuracy, stage.stage.spec.tolerance
    if found is None:
        return "Not checked."
    logits = f"relative L2 {two(found.relative_l2)} (limit {two(limit.relative_l2)})"
    answer = "Yes" if stage.stage.status == "ok" else "No"
    judged = judged_on(stage.stage, stage.words)
    if stage.task.has_masks and stage.unjudged:
        return f"{NOT_JUDGED_WHY[stage.unjudged]} The logits alone: {answer.lower()}, {logits}, {judged}."
    if stage.task.has_masks:
        changed = f"{share(found.flipped_share)} of {stage.words.points} change class"
        text = f"{answer}: {changed} (limit {share(limit.flipped_share)}), {logits}"
        if found.dice and found.reference_dice:
            text += f"; {dice_by_class(found, found.class_lost)}"
        if found.dice_lost:
            text += f"; {points_lost(found.dice_lost)}"
    else:
        text = f"{answer}: {logits}{_said_of_values(found, stage.task)}"
    text = f"{text}, {judged}."
    if found.nan_share > 0:  # it and masks of one class look like healthy empty masks
        what = "answers" if found.flipped_share is None else "logits"
        text += f" {share(found.nan_share)} of its {what} are NaN or infinite."
    empty = " Its masks have one class only, where the reference has more: an empty (black) mask."
    return text + empty if found.one_class else text


def judged_on(stage: StageRecord, words: Words = IMAGES) -> str:
    """Return text such as "on 24 images (shifts or windows of 1 picture), none of them calibrated on"."""
    found, chosen = stage.accuracy, stage.calibration
    if found is None:
        return ""
    text = f"on {words.counted(found.images)}"
    if found.pictures is not None and found.pictures < found.images:
        text += f" ({words.made} of {plural(found.pictures, words.source)})"
    if chosen is not None:
        kept_apart = "none of them calibrated on"
        return f"{text}, {kept_apart if chosen.apart else f'which are {words.moved} of those calibrated on'}"
    return text


def calibrated_on(stage: StageRecord, words: Words = IMAGES) -> str:
    """Return where scales and choice of layers come from; empty where nothing was chosen by looking at images."""
    chosen = stage.calibration
    if chosen is None:
        return ""

    def of(found: ImageSet) -> str:  # such as "32 images of 4 pictures"
        pictures = f" of {plural(len(found.pictures), words.source)}" if found.pictures else ""
        return f"{words.counted(found.images)}{pictures}"

    text = f"scales from {of(chosen.scales)}" if chosen.scales.images else "each call scales its own values"
    if chosen.choice:
        text += f", layers chosen on {'other' if chosen.choice_apart else 'the same'} {of(chosen.choice)}"
    apart = f", all of them apart from the evaluation {words.samples}"
    return text + (apart if chosen.apart else f", {words.moved} of which are judged")


def points_lost(lost: DiceLoss) -> str:
    """Return text such as "mean Dice of the classes −0.012 points (95 %: −0.020 to −0.004)"."""
    figures = [f"{0.0 + round(-value, 3):+.3f}".replace("-", "−") for value in (lost.points, lost.high, lost.low)]
    return f"mean Dice of the classes {figures[0]} points (95 %: {figures[1]} to {figures[2]})"


def at_worst(found: Accuracy, words: Words) -> list[str]:
    """Return the image with the most changes, the Dice lost with its interval, and the class that loses most."""
    worst, lost = found.worst_flipped_share, []
    if found.dice and found.reference_dice:
        lost = [POINTS * (exact - own) for own, exact in zip(found.dice, found.reference_dice, strict=True)]
    said = [] if worst is None else [f"worst {words.sample} {share(worst)}"]
    said += [points_lost(found.dice_lost)] if found.dice_lost else []
    bounds = {at: loss.high for at, loss in enumerate(found.class_lost or []) if loss}
    if bounds:
        most = max(bounds, key=lambda at: bounds[at])
        said.append(f"class {most} loses at most {two(max(bounds[most], 0.0))} points (95 %)")
    elif lost:
        some = max(lost) >= LEAST_POINTS
        said.append(f"class {lost.index(max(lost))} loses {two(max(lost))} points of Dice" if some else NONE_LOST)
    return said


def dice_by_class(found: Accuracy, lost: Sequence[DiceLoss | None] | None = None) -> str:
    """Return text such as "Dice by class: class 0 0.9945 (fp32 network 0.9944), class 1 …"; none of absent classes."""
    each = []
    for at, (own, exact) in enumerate(zip(found.dice or [], found.reference_dice or [], strict=True)):
        if not found.has_class(at):
            continue
        loss = lost[at] if lost else None
        bound = f", loses at most {two(max(loss.high, 0.0))} points" if loss else ""
        each.append(f"class {at} {own:.4f} (fp32 network {exact:.4f}{bound})")
    return f"Dice by class: {', '.join(each)}"
