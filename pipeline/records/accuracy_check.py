"""Whether an answer is right by its figures: the worker that took them says so, and the run asks the figures again."""

from typing import Literal

from pipeline.records.data_words import IMAGES, Words
from pipeline.records.figure_beyond import beyond
from pipeline.records.goals import Tolerance
from pipeline.records.samples import Accuracy


def judge(
    accuracy: Accuracy, tolerance: Tolerance, trained: bool = True, words: Words = IMAGES
) -> tuple[Literal["ok", "inaccurate"], str]:
    """The status, and why it isn't ok: the worst cause first. Without trained weights only the logits are judged."""
    if accuracy.nan_share == 1:
        healthy = " (their mask looks like a healthy empty one)" if accuracy.flipped_share is not None else ""
        return "inaccurate", f"all {_answers(accuracy)} are NaN or infinite{healthy}"
    if accuracy.nan_share > 0:
        return "inaccurate", f"{_share(accuracy.nan_share)} of the {_answers(accuracy)} are NaN or infinite"
    if trained and accuracy.one_class:
        return "inaccurate", f"every {words.point} is of one class, where the reference finds more"
    if not accuracy.relative_l2 <= tolerance.relative_l2:
        off, allowed = accuracy.relative_l2, tolerance.relative_l2
        shown = beyond(off, allowed, 2)
        return "inaccurate", f"{_answers(accuracy)} differ by {shown} (relative L2), {allowed:g} allowed"
    if trained and accuracy.flipped_share is not None and not accuracy.flipped_share <= tolerance.flipped_share:
        flipped, most = 100 * accuracy.flipped_share, 100 * tolerance.flipped_share
        return (
            "inaccurate",
            f"{beyond(flipped, most, 3)} % of the {words.points} change their class, {most:.3g} % allowed",
        )
    return "ok", ""


def _answers(accuracy: Accuracy) -> str:
    """What the answers are called: logits where masks are made of them."""
    return "values" if accuracy.flipped_share is None else "logits"


def _share(value: float) -> str:
    return f"{100 * value:.3g} %"
