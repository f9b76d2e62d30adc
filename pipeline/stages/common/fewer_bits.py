"""Quantized stages: images for scales and choices, layers that keep their precision, and the check of the answer."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from pipeline.compiler.agreement import Budget, Run, spent
from pipeline.compiler.fp8_build import JUDGED_BATCHES, apart
from pipeline.errors import nearest, per_cent
from pipeline.records.run_record import Precision
from pipeline.records.samples import Calibration
from pipeline.stages.api import CalibrationImages, StageError, Workload

TRIED_AGAIN = 4  # layers at each step: trying all of some forty would take minutes


@dataclass(frozen=True)
class Judges:
    """Images for the scales, images for the choice of layers, and how far int8 may be from fp32 on the latter."""

    for_scales: list[Tensor]  # batches [batch, channels, height, width]
    for_choice: list[Tensor]  # likewise; others, if there are enough
    exact: list[Tensor]  # the fp32 network's logits [batch, classes, height, width] of `for_choice`
    budget: Budget  # to be kept
    left_out: tuple[int, ...]  # evaluation batches that serve here
    calibration: Calibration  # what the record keeps of it

    def used(self, run: Run) -> float:
        """Return the share of the budget that a network takes; 1 is all of it."""
        with torch.inference_mode():
            return self.budget.used(run, self.for_choice, self.exact)


def images_given(workload: Workload, for_scales: int) -> CalibrationImages:
    """Return `for_scales` images, or a few more, and some for the choice of layers behind them."""
    if for_scales < 0:
        raise ValueError(f"calibration_images={for_scales}: expected an integer ≥ 0")
    return workload.calibration(for_scales + JUDGED_BATCHES * workload.shape[0])


def calibration(given: CalibrationImages, for_scales: int, chose: bool, kept: list[str] | None = None) -> Calibration:
    """Return what the record keeps: the images of the scales (the first), those of the choice, and kept layers."""
    count = len(given.batches)
    alone = for_scales < count
    choice, end = (given.image_set(for_scales if alone else 0, count), kept) if chose else (None, None)
    scales = given.image_set(0, for_scales)
    return Calibration(scales, choice, choice_apart=alone or not chose, apart=given.independent, kept=end)


def judges(workload: Workload, images: int, keep: str | list[str], budget: Budget) -> Judges:
    """Return the images that a choice is made on, none of them an evaluation image if there are enough."""
    # A stage that scales each batch by itself asks for none; all images are then for the choice.
    given = images_given(workload, images)
    workload.progress(f"scales and sensitivity on {len(given.batches)} batches")
    sets = apart(given.batches) if images else ([], given.batches)
    for_scales, for_choice = ([batch.first for batch in part] for part in sets)
    with torch.inference_mode():
        exact = [workload.model(batch).float() for batch in for_choice]
    chosen_on = calibration(given, len(for_scales), chose=keep == "auto")
    budget = budget.of_answers(workload.has_masks)
    return Judges(for_scales, for_choice, exact, budget, given.left_out, chosen_on)


def layers_to_keep(
    asked: str | list[str], names: list[str], cost: Callable[[list[str]], float], option: str = "keep_fp32",
    bits: Precision = "int8",
) -> tuple[list[str], dict[str, float]]:  # fmt: skip
    """Return which of the layers `names` keep their precision, and what each saves of the budget, if measured."""
    # `cost` is the share of the budget that is used while some stay.
    if asked == "none":
        return [], {}
    if asked == "auto":
        kept, gains = keep_within(names, cost)
        if len(kept) == len(names):
            raise StageError(
                f"no layer can be {bits} within the budget; a larger one is set by stage.budget", "wrong answer"
            )
        if not gains:
            used = cost([])
            gains = {name: used - cost([name]) for name in names}
        return kept, gains
    wanted = [asked] if isinstance(asked, str) else list(asked)
    if strange := sorted(set(wanted) - set(names)):
        raise StageError(f"stage.{option}={strange[0]}: no such layer; {nearest(strange[0], names)}")
    return wanted, {}


def keep_within(names: list[str], cost: Callable[[list[str]], float]) -> tuple[list[str], dict[str, float]]:
    """Return the layers that keep more bits so that the budget holds, and what each saved when it was last tried.

    Each time the one is kept that saves most; after the first time only those few are tried that promised most. In the
    end those go again that the later ones made superfluous.
    """
    kept: list[str] = []
    gains: dict[str, float] = {}
    used = cost(kept)
    while used > 1 and len(kept) < len(names):
        rest = [name for name in names if name not in kept]
        promising = sorted(rest, key=lambda name: -_worth(gains.get(name, 0.0), used))
        tried = promising[:TRIED_AGAIN] if gains else rest
        left = {name: cost([*kept, name]) for name in tried}
        gains |= {name: used - after for name, after in left.items()}
        best = max(tried, key=lambda name: (_worth(gains[name], used), gains[name]))
        kept.append(best)
        used = left[best]
    for name in kept[:-1] if used <= 1 else ():  # the last was needed when it was chosen
        others = [other for other in kept if other != name]
        if cost(others) <= 1:
            kept = others
    return kept, gains


def _worth(gain: float, used: float) -> float:
    """Return what a layer saves of that which is over the budget; what it adds, where it saves nothing."""
    return min(gain, used - 1)


def passed(run: Run, by: Judges, bits: Precision = "int8") -> dict[str, float]:
    """Return how far a network with fewer bits is from fp32 on the images of the choice."""
    with torch.inference_mode():
        found = spent(run, by.for_choice, by.exact)
    allowed, images = by.budget, sum(len(batch) for batch in by.for_choice)
    if not allowed.share(found) <= 1:
        raise StageError(
            f"{bits} changes {per_cent(found.flips, 2)} of the pixels ({per_cent(allowed.flips, 2)} allowed), its "
            f"logits are off by {found.error:.2g} (relative L2, {allowed.error:g} allowed) and a class loses "
            f"{found.dice:.2g} of Dice against fp32 ({allowed.dice:g} allowed), on {images} images",
            "wrong answer",
        )
    return asdict(found)


def convolutions(net: nn.Module) -> list[str]:
    """Return the module paths of the convolutions, transposed ones included, in the order of the modules."""
    kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.ConvTranspose3d)
    return [name for name, part in net.named_modules() if isinstance(part, kinds)]


def layer_details(kept: Collection[str], gains: Mapping[str, float], off: Mapping[str, float]) -> dict[str, object]:
    """Return for the record which layers stay, their sensitivity, and the distance from fp32."""
    return {"kept": list(kept), "sensitivity": dict(gains), "off_fp32": dict(off)}
