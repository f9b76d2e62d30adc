"""The task, the tolerances and limits that answers must keep, and the goal that chooses the winner."""

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Annotated, Literal

from msgspec import Meta

from pipeline.records.data_words import IMAGES, Words
from pipeline.records.samples import Accuracy

TaskName = Literal["segmentation", "regression", "diffusion"]
Schedule = Literal["linear", "scaled_linear", "cosine"]
Prediction = Literal["epsilon", "sample", "v_prediction"]


@dataclass(frozen=True)
class Task:
    """The task of the network and its options."""

    # Segmentation: logits of classes, judged by masks; regression: values, judged by their distance; diffusion: noise
    # or its equivalent, judged by one step and by a denoising loop.
    name: TaskName = "segmentation"
    # Regression: largest minus smallest value, for the PSNR; None: that of the fp32 network's answers.
    data_range: Annotated[float, Meta(gt=0)] | None = None
    steps: Annotated[int, Meta(ge=1, le=1000)] = 10  # diffusion: of the denoising loop
    timestep: str = "timestep"  # diffusion: the input of the network that takes the loop's time step
    schedule: Schedule = "scaled_linear"  # diffusion: of the noise over the 1000 steps of training
    prediction: Prediction = "epsilon"  # diffusion: the quantity that the network predicts

    @property
    def has_masks(self) -> bool:
        """The answers are classes, so that masks, Dice and changed pixels are defined."""
        return self.name == "segmentation"


SEGMENTATION = Task()

MOST_DIGITS = 9


def beyond(value: float, limit: float, digits: int) -> str:
    """Return a figure with `digits` digits, or with more if they are needed to put it on its side of its limit."""
    above, shown = value - limit, float(f"{limit:g}")
    while digits < MOST_DIGITS and above and (float(f"{value:.{digits}g}") - shown) * above <= 0:
        digits += 1
    return f"{value:.{digits}g}"


Objective = Literal["throughput", "latency", "memory", "energy", "cost"]
FigureName = Literal[
    "throughput",  # images a second at steady state
    "time",  # seconds per call at steady state
    "p50",  # seconds of single calls, device to device
    "p90",
    "p99",
    "host_p50",  # with the copies from and to host memory
    "host_p99",
    "memory",  # bytes: GPU memory of the process, peak resident memory on a CPU
    "energy",  # joules an image
    "cost",  # of a million images, in the user's currency
    "setup",  # seconds of build and first call
]
Points = Annotated[float, Meta(ge=0, le=100)]
Share = Annotated[float, Meta(ge=0, le=1)]
Limit = Annotated[float, Meta(ge=0, le=1000)]
Sign = Literal["<", "<=", ">", ">="]
COMPARED = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
POINTS = 100.0  # of Dice in 1
NEED_LABELS = ("max_dice_drop", "min_dice", "max_psnr_drop")
NEEDS = {  # why a limit without need of labels has no figure
    "min_agreement": "the answers are not classes",
    "min_psnr": "the task is not regression",
    "max_final_error": "the task is not diffusion",
}
OF_TASK: dict[TaskName, tuple[str, ...]] = {  # the limits that are defined
    "segmentation": ("max_dice_drop", "min_dice", "min_agreement"),
    "regression": ("min_psnr", "max_psnr_drop"),
    "diffusion": ("max_final_error",),
}


@dataclass(frozen=True)
class Constraint:
    """A bound on one of a stage's figures."""

    figure: FigureName
    sign: Sign
    limit: float  # in the unit of the figure
    text: str  # as the user typed it

    def admits(self, value: float) -> bool:
        """Return whether a figure keeps the bound."""
        return bool(COMPARED[self.sign](value, self.limit))


@dataclass(frozen=True)
class Goal:
    """The objective of the winner, and the bounds that it must keep."""

    objective: Objective = "throughput"
    subject_to: list[Constraint] = field(default_factory=list)


@dataclass(frozen=True)
class Tolerance:
    """The distance from fp32 that a stage may have, and the reason."""

    relative_l2: Annotated[float, Meta(ge=0)]
    flipped_share: Annotated[float, Meta(ge=0)]
    reason: str


@dataclass(frozen=True)
class AccuracyLimits:
    """The limits on the answers of every stage, besides its tolerance; None: no limit."""

    max_dice_drop: Points | None = None  # points of Dice lost by the worst class: 0.5 is 0.005
    min_dice: Share | None = None  # of the worst class, 0 to 1
    min_agreement: Share | None = None  # share of pixels with the fp32 network's class, 0 to 1
    min_psnr: Limit | None = None  # regression: dB against the fp32 network's answers
    max_psnr_drop: Limit | None = None  # regression: dB lost against the truth
    max_final_error: Limit | None = None  # diffusion: relative L2 of the final latents
    replace_flipped_share: bool = False  # these replace flipped_share of the tolerances

    @property
    def asked(self) -> dict[str, float]:
        """The limits that are set, by key."""
        limits = {part.name: getattr(self, part.name) for part in fields(self) if part.name.startswith(("max", "min"))}
        return {name: value for name, value in limits.items() if value is not None}

    @property
    def need_labels(self) -> list[str]:
        """The set limits that need labels."""
        return [name for name in self.asked if name in NEED_LABELS]

    def missed(self, found: Accuracy, words: Words = IMAGES) -> str:
        """Return the limit that an answer misses, with its figure, in a line; empty if it keeps all."""
        lines = {
            "max_dice_drop": (3, "its worst class loses {} points of Dice, {:g} allowed"),
            "min_dice": (4, "its worst class has a Dice of {}, {:g} asked for"),
            "min_agreement": (6, f"{{}} of the {words.points} keep their class, {{:g}} asked for"),
            "min_psnr": (4, "its PSNR is {} dB, {:g} asked for"),
            "max_psnr_drop": (3, "it loses {} dB of PSNR, {:g} allowed"),
            "max_final_error": (3, "its final latents are {} off (relative L2), {:g} allowed"),
        }
        for name, limit in self.asked.items():
            value = accuracy_figure(name, found)
            if value is None:
                return f"accuracy.{name} is not defined: {NEEDS.get(name, 'there are no labels')}"
            if not (value <= limit if name.startswith("max") else value >= limit):
                digits, line = lines[name]
                return f"{line.format(beyond(value, limit, digits), limit)} (accuracy.{name})"
        return ""

    def excess(self, found: Accuracy) -> float:
        """Return the largest ratio of an answer's figure to its limit: at most 1 keeps it, infinite is unknown."""
        ratios, least = [0.0], math.ulp(0.0)
        for name, limit in self.asked.items():
            value = accuracy_figure(name, found)
            if value is None:
                return math.inf
            ratios.append(value / max(limit, least) if name.startswith("max") else limit / max(value, least))
        return max(ratios)


def accuracy_figure(name: str, found: Accuracy) -> float | None:
    """Return the figure that a limit is on; None if it is not defined, such as without labels."""
    if name in OF_VALUES:
        return OF_VALUES[name](found)
    if found.dice is None or found.reference_dice is None:
        return None
    if name == "min_dice":
        return min(found.dice)
    return POINTS * max(exact - own for own, exact in zip(found.dice, found.reference_dice, strict=True))


def psnr(found: Accuracy) -> float | None:
    """Return the PSNR against the fp32 network's answers in dB: infinite if equal, None for other tasks."""
    if found.psnr is None and found.flipped_share is None and found.step_errors is None and not found.relative_l2:
        return math.inf
    return found.psnr


def psnr_drop(found: Accuracy) -> float | None:
    """Return the dB that an answer loses against the truth; None without a truth."""
    if found.truth_psnr is None or found.reference_truth_psnr is None:
        return None
    return found.reference_truth_psnr - found.truth_psnr


OF_VALUES: dict[str, Callable[[Accuracy], float | None]] = {
    "min_agreement": lambda found: None if found.flipped_share is None else round(1.0 - found.flipped_share, 12),
    "min_psnr": psnr,
    "max_psnr_drop": psnr_drop,
    "max_final_error": lambda found: found.final_error,
}


def judge(
    accuracy: Accuracy, tolerance: Tolerance, trained: bool = True, words: Words = IMAGES
) -> tuple[Literal["ok", "inaccurate"], str]:
    """Return the status, and the worst reason if it is not ok; without trained weights only logits count."""
    if accuracy.nan_share == 1:
        healthy = " (their mask looks like a healthy empty one)" if accuracy.flipped_share is not None else ""
        return "inaccurate", f"all {_answers(accuracy)} are NaN or infinite{healthy}"
    if accuracy.nan_share > 0:
        return "inaccurate", f"{100 * accuracy.nan_share:.3g} % of the {_answers(accuracy)} are NaN or infinite"
    if trained and accuracy.one_class:
        return "inaccurate", f"every {words.point} is of one class, where the reference finds more"
    if not accuracy.relative_l2 <= tolerance.relative_l2:
        off, allowed = accuracy.relative_l2, tolerance.relative_l2
        shown = beyond(off, allowed, 2)
        return "inaccurate", f"{_answers(accuracy)} differ by {shown} (relative L2), {allowed:g} allowed"
    if trained and accuracy.flipped_share is not None and not accuracy.flipped_share <= tolerance.flipped_share:
        most = 100 * tolerance.flipped_share
        shown = beyond(100 * accuracy.flipped_share, most, 3)
        return "inaccurate", f"{shown} % of the {words.points} change their class, {most:.3g} % allowed"
    return "ok", ""


def _answers(accuracy: Accuracy) -> str:
    """Return the name of the answers: logits if masks follow from them."""
    return "values" if accuracy.flipped_share is None else "logits"
