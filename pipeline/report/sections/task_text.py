"""What is said of answers that are no masks: those of regression and of diffusion."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from pipeline.records.goals import Task, TaskName, psnr, psnr_drop
from pipeline.records.samples import Accuracy
from pipeline.report.formatting import significant

LEAST_DECIBELS = 1e-3


@dataclass(frozen=True)
class Figure:
    """A figure by which a task's answers are judged.

    Attributes:
        title: above its column.
        help: what it means.
        csv: its name in results.csv, with its unit.
        read: takes it from a comparison; None where it isn't known.
        limit: of `accuracy`, that bounds it.
        least: what is nearer to 0 is shown as 0, being rounding.
    """

    title: str
    help: str
    csv: str
    read: Callable[[Accuracy], float | None]
    limit: str = ""
    least: float = 0.0

    def text(self, value: float | None) -> str:
        """The figure in three digits."""
        return decibels(0.0 if value is not None and abs(value) < self.least else value)


ERROR = Figure("relative L2", "of its answers against the fp32 net's", "", lambda found: found.relative_l2)
OF_TASK: dict[TaskName, list[Figure]] = {
    "segmentation": [],
    "regression": [
        ERROR,
        Figure("PSNR dB", "against the fp32 net's answers", "psnr_db", psnr, "min_psnr"),
        Figure("PSNR dB, truth", "against what is right", "truth_psnr_db", lambda found: found.truth_psnr),
        Figure("dB lost", "of PSNR against what is right", "psnr_drop_db", psnr_drop, "max_psnr_drop", LEAST_DECIBELS),
    ],
    "diffusion": [
        ERROR,
        Figure(
            "final error", "relative L2 of the latents that the denoising loop ends with, against the fp32 net",
            "final_relative_l2", lambda found: found.final_error, "max_final_error",
        ),
    ],
}  # fmt: skip


def decibels(value: float | None) -> str:
    """A PSNR, without its unit."""
    return "–" if value is None else "∞" if math.isinf(value) else significant(value)


def said_in_brief(found: Accuracy, task: Task) -> str:
    """Such as "PSNR 61.2 dB against fp32": what stands in the headline."""
    if task.name == "diffusion" and found.final_error is not None:
        return f"its final latents are {significant(found.final_error, 2)} off (relative L2)"
    if task.name == "regression":
        return f"PSNR {decibels(psnr(found))} dB against fp32"
    return f"relative L2 {significant(found.relative_l2, 2)}"


def said(found: Accuracy, task: Task) -> str:
    """What the figures come to besides the error of one call, after it; empty where there is no more."""
    if task.name == "diffusion" and found.final_error is not None:
        steps = len(found.step_errors or [])
        return f"; after {steps} steps of its own denoising the latents are {significant(found.final_error, 2)} off"
    if task.name != "regression":
        return ""
    text = f"; PSNR {decibels(psnr(found))} dB against fp32"
    if found.truth_psnr is not None and found.reference_truth_psnr is not None:
        own, exact = decibels(found.truth_psnr), decibels(found.reference_truth_psnr)
        text += f", {own} dB against what is right (fp32 net {exact} dB)"
    return text
