"""The goal of a run: `task.*`, `accuracy.*`, `objective` and `subject_to`, checked across keys."""

import math
import re
from collections.abc import Mapping
from typing import Any, get_args

from pipeline.config.conversion import converted
from pipeline.config.data_request import TENSORS
from pipeline.config.request_error import RequestError, shown
from pipeline.errors import nearest
from pipeline.records.goals import OF_TASK, AccuracyLimits, Constraint, FigureName, Goal, Objective, Task, TaskName
from pipeline.records.request import DataSpec

SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "min": 60.0}
BYTES = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
INSTEAD: dict[TaskName, str] = {
    "segmentation": "accuracy.min_agreement, the share of pixels that keep their class",
    "regression": "accuracy.min_psnr, dB against the fp32 network's answers",
    "diffusion": "accuracy.max_final_error",
}
FEW_POINTS = 0.05  # of Dice: a limit up to this was probably meant as a share of 1
LABELS: dict[TaskName, str] = {  # for a limit that needs labels
    "segmentation": "data.labels=masks/",
    "regression": "data=tensors data.labels=NAME, a tensor of the file",
}
UNITS: dict[str, dict[str, float]] = {
    "throughput": {"images/s": 1.0, "/s": 1.0},
    **dict.fromkeys(("time", "p50", "p90", "p99", "host_p50", "host_p99", "setup"), SECONDS),
    "memory": BYTES,
    "energy": {"J": 1.0, "mJ": 1e-3, "J/image": 1.0, "mJ/image": 1e-3},
    "cost": {"": 1.0},
}
SHAPE = re.compile(r"\s*([A-Za-z_]\w*)\s*(<=|>=|<|>)\s*(\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+)\s*(\S*)\s*")
EXAMPLE = "expected FIGURE, <, <=, > or >=, a number and its unit, such as memory<8GiB or p99<20ms"


def read_goal(objective: object, subject_to: object, price: float | None) -> Goal:
    """Return the goal by which the winner is chosen; `price` is that of a GPU's hour."""
    kind: Any = Objective
    chosen: Objective = converted(objective, kind, "objective")
    texts = converted([subject_to] if isinstance(subject_to, str) else subject_to, list[str], "subject_to")
    goal = Goal(chosen, [constraint(text) for text in texts])
    for low in (part for part in goal.subject_to if part.sign.startswith(">")):
        for high in (part for part in goal.subject_to if part.sign.startswith("<") and part.figure == low.figure):
            both = low.sign == ">=" and high.sign == "<="
            if low.limit > high.limit or (low.limit == high.limit and not both):
                raise RequestError(f"subject_to: {low.text!r} and {high.text!r}: no {low.figure} can keep both")
    costly = chosen == "cost" or any(part.figure == "cost" for part in goal.subject_to)
    if costly and price is None:
        what = "objective=cost" if chosen == "cost" else "subject_to: cost"
        raise RequestError(f"{what}: name the price of an hour of the device, such as report.gpu_hour_price=3.5")
    return goal


def points_note(limits: AccuracyLimits) -> str:
    """Return a note if the limit on Dice is so small that a share of 1 may be meant; else an empty text."""
    drop = limits.max_dice_drop or 0.0
    if not 0 < drop <= FEW_POINTS:
        return ""
    share, points = f"{drop / 100:.10f}".rstrip("0"), f"{drop * 100:.6g}"
    return (
        f"note: accuracy.max_dice_drop={drop:g} is in points, {share} of 1; "
        f"accuracy.max_dice_drop={points} is {drop:g} of 1"
    )


def constraint(text: str) -> Constraint:
    """Return a bound such as "p99<20ms" with its limit in seconds, bytes, joules, images a second or cost."""
    found = SHAPE.fullmatch(text)
    if found is None:
        raise RequestError(f"subject_to: {shown(text)!r}: {EXAMPLE}")
    name, sign, number, unit = found.groups()
    names = get_args(FigureName)
    if name not in names:
        hint = "; accuracy.max_dice_drop, min_dice and min_agreement bound the answer" if "dice" in name else ""
        raise RequestError(f"subject_to: {shown(text)!r}: no figure {name!r}{hint}; {nearest(name, names)}")
    units = UNITS[name]
    if unit not in units:
        wrong = f"no unit of {name} is {unit!r}" if unit else f"{name} needs a unit"
        expected = nearest(unit, [each for each in units if each]) if any(units) else "it takes none"
        raise RequestError(f"subject_to: {shown(text)!r}: {wrong}; {expected}")
    limit = float(number) * units[unit]
    if not 0 < limit < math.inf:
        raise RequestError(f"subject_to: {shown(text)!r}: expected a number above 0")
    return Constraint(name, sign, limit, text.strip())  # type: ignore[arg-type]


def read_accuracy(
    value: Mapping[str, object], labelled: bool, trained: bool, task: TaskName = "segmentation"
) -> AccuracyLimits:
    """Return the limits that every stage's answer must keep; answers of random weights (not `trained`) mean nothing."""
    limits = converted(value, AccuracyLimits, "accuracy")
    for name in limits.asked:
        if name not in OF_TASK[task]:
            raise RequestError(f"accuracy.{name}: task={task} is not judged by it; it takes {', '.join(OF_TASK[task])}")
    if limits.asked and not trained:
        first = next(iter(limits.asked))
        raise RequestError(
            f"accuracy.{first}: without trained weights the answers mean nothing; add model.checkpoint=FILE, or "
            "model.trained=true if the network's own code loads them"
        )
    if limits.need_labels and not labelled:
        first = limits.need_labels[0]
        raise RequestError(f"accuracy.{first}: there are no labels; name them ({LABELS[task]}), or use {INSTEAD[task]}")
    if limits.replace_flipped_share and task != "segmentation":
        raise RequestError(f"accuracy.replace_flipped_share: task={task} has no pixels that could change their class")
    if limits.replace_flipped_share and not limits.asked:
        raise RequestError("accuracy.replace_flipped_share: set a limit to replace it, such as accuracy.max_dice_drop")
    return limits


def check_task(task: Task, data: DataSpec) -> None:
    """Raise RequestError if the task cannot be judged on the data."""
    if task.name == "diffusion" and data.name != TENSORS:
        raise RequestError(
            f"task=diffusion: data={data.name} gives one input, and a denoising loop needs a second one; add "
            "data=tensors data.path=inputs.safetensors"
        )
    if task.name != "segmentation" and data.labels and data.name != TENSORS:
        raise RequestError(
            f"data.labels={data.labels}: task={task.name} is not judged by masks; leave it out, or give the right "
            "answers as a tensor: data=tensors"
        )
    if task.name == "diffusion" and data.labels:
        raise RequestError(f"data.labels={data.labels}: task=diffusion is judged by its own loop in fp32; leave it out")
