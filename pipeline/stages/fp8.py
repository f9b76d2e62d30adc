"""The net rewritten for the project's kernels in fp8 (e4m3): values stay in fp8 wherever a kernel reads them."""

import traceback
from collections.abc import Container, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from pipeline.compiler.batch import Batch
from pipeline.compiler.budget import Budget
from pipeline.compiler.calibrate import keep_for, largest
from pipeline.compiler.choose import untimed_library
from pipeline.compiler.exported_net import ExportedNet
from pipeline.compiler.fp8_values import layers_in_fp8, layers_of, left_to_inductor, quantisable, scales
from pipeline.compiler.fx_graph import WHOLE, layers
from pipeline.compiler.half import KeepFp32, layers_within, named_modules
from pipeline.devices.kinds import is_cuda
from pipeline.errors import InputError
from pipeline.kernels.common.capability import supported
from pipeline.measure.torch_device import vendor
from pipeline.stages.api import CalibrationImages, Runner, Skip, Workload
from pipeline.stages.common.earlier_build import Makers, digest_of, fastest_or_known, values_digest, without_fp8
from pipeline.stages.common.fewer_bits import apart, calibration, images_given
from pipeline.stages.common.inductor_search import Search
from pipeline.stages.common.net_candidate import Candidate, quoted, tuner_in
from pipeline.stages.common.rewritten_net import Rewritten, best_form
from pipeline.stages.common.what_ran import owned_up, with_kept


def build(
    workload: Workload,
    *,
    calibration_images: int = 32,
    keep_fp16: str | list[str] = "auto",
    budget: float = 7e-4,
    error_budget: float = 5e-2,
    tuning_folder: str | None = None,
    inductor_search: Search = "auto",
    keep_fp32: KeepFp32 = "auto",
) -> Runner:
    """Trace, rewrite, calibrate, decide what stays in fp16, measure each layer's candidates, capture.

    Args:
        workload: gives the net, and images for the scales and for the choice of layers: others than those that the
            answer is checked on, as far as there are any.
        calibration_images: how many images the scales come from.
        keep_fp16: names of layers, "none", or "auto": as many as it takes to stay within the budget.
        budget: for "auto", the share of pixels that may change their class against fp16.
        error_budget: for "auto", the relative L2 by which the logits may differ from fp16's.
        tuning_folder: keeps what was measured, for the next build; null is ~/.cache/unet-ladder.
        inductor_search: whether Inductor also times its choices, as `fused` does.
        keep_fp32: modules that stay in fp32, as of `half`.

    Raises:
        Skip: no CUDA GPU, or one without fp8 products or without what the kernels need.
        ValueError: a layer of `keep_fp16` isn't there, or a budget is negative.
        StageError: the net has no module of `keep_fp32`.
    """
    if not is_cuda(workload.device.type):
        raise Skip("the project's fp8 kernels need a CUDA GPU")
    allowed = Budget(budget, error_budget).of_answers(workload.has_masks)
    kept = named_modules(keep_fp32)
    best = partial(fastest_of_both, images=calibration_images, keep_fp16=keep_fp16, budget=allowed)
    runner = best_form(workload, tuner_in(tuning_folder), inductor_search, kept, partial(barred, workload), best)
    return owned_up(with_kept(runner, workload.model, kept), "fp8")


def barred(workload: Workload) -> None:
    """Raise Skip on a GPU without fp8 products or without what the kernels need."""
    if reason := supported(torch.cuda.get_device_capability(workload.device), torch.float8_e4m3fn, vendor()):
        raise Skip(reason)


def outside(keep_fp16: str | list[str], net: nn.Module, kept: Sequence[str]) -> str | list[str]:
    """The layers that are asked to stay in fp16, but for those within modules of the net that stay in fp32."""
    within = layers_within(net, kept)
    return [name for name in keep_fp16 if name not in within] if isinstance(keep_fp16, list) else keep_fp16


def fastest_of_both(rewritten: Rewritten, images: int, keep_fp16: str | list[str], budget: Budget) -> Runner:
    """The fastest candidate of those in fp16 and in fp8."""
    keep_fp16 = outside(keep_fp16, rewritten.workload.model, rewritten.kept)
    named_layers(rewritten.net, keep_fp16)
    makers, kept = without_fp8(rewritten), "nothing"
    stored: list[dict[str, float]] = [{}]
    if found := sensitivity_or_why(rewritten, images, keep_fp16, budget):
        makers, kept = makers | with_fp8(rewritten, found), f"kept in fp16: {found.kept}"
        stored.append(scales(rewritten.net, found.kept, found.seen))
    return fastest_or_known(rewritten, makers, kept, stored)


@dataclass(frozen=True)
class Sensitivity:
    """What the images say of a net in fp8.

    Attributes:
        given: the images.
        for_scales: how many of their batches, from the first, the scales come from.
        chose: whether the others said which layers stay in fp16.
        seen: the largest magnitude of every value, by its node's name.
        kept: the layers that stay in fp16.
        taken: how much of the budget a layer takes where it alone is in fp8.
    """

    given: CalibrationImages
    for_scales: int
    chose: bool
    seen: dict[str, float]
    kept: list[str]
    taken: dict[str, float]


def sensitivity(rewritten: Rewritten, images: int, keep_fp16: str | list[str], budget: Budget) -> Sensitivity:
    """Measured on calibration images, or known from an earlier build with the same weights, images and options."""
    net, workload = rewritten.net, rewritten.workload
    given = images_given(workload, images)
    for_scales, for_choice = apart(given.batches)
    looked_at = [part for batch in given.batches for part in batch]
    values = values_digest([*rewritten.plain.state_dict().values(), *looked_at])
    name = f"fp8 {digest_of(rewritten, [values, str(len(for_scales)), str(keep_fp16), str(budget)])}"
    known = rewritten.tuner.known(name)
    seen, kept, taken = (known.get(part) for part in ("seen", "kept", "taken"))
    if not (isinstance(seen, dict) and isinstance(kept, list) and isinstance(taken, dict)):
        workload.progress(f"scales and sensitivity on {len(given.batches)} batches")
        with torch.inference_mode(), untimed_library():
            seen = largest(net, for_scales)
            kept, taken = layers_to_keep(net, seen, for_choice, keep_fp16, budget)
        rewritten.tuner.keep(name, {"seen": seen, "kept": kept, "taken": taken})
    return Sensitivity(given, len(for_scales), keep_fp16 == "auto", seen, kept, taken)


def sensitivity_or_why(
    rewritten: Rewritten, images: int, keep_fp16: str | list[str], budget: Budget
) -> Sensitivity | None:
    """As `sensitivity`; None where no layer can be in fp8, or nobody can tell, which `refused` then says."""
    try:
        if not quantisable(rewritten.net):
            rewritten.refused["fp8"] = "none of its layers can read fp8"
            return None
        found = sensitivity(rewritten, images, keep_fp16, budget)
    except InputError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a net's operations make of their values
        traceback.print_exc()
        rewritten.refused["fp8"] = quoted(error)
        return None
    if layers_in_fp8(rewritten.net, scales(rewritten.net, found.kept, found.seen)):
        return found
    if not scales(rewritten.net, [], found.seen):
        rewritten.refused["fp8"] = "all that its layers could read in fp8 is infinite somewhere, or no number"
    elif found.chose:
        rewritten.refused["fp8"] = f"no layer can be in fp8 within the {budget.in_words}"
    else:
        rewritten.refused["fp8"] = "keep_fp16 leaves no layer that could be in it"
    return None


def with_fp8(rewritten: Rewritten, found: Sensitivity) -> Makers:
    """What builds the candidates in fp8."""
    return {
        "fp8": lambda: of_sensitivity(rewritten, found),
        "fp8, own norms": lambda: of_sensitivity(rewritten, found, own_norms=True),
    }


def of_sensitivity(rewritten: Rewritten, found: Sensitivity, *, own_norms: bool = False) -> Candidate | None:
    """The net with all values in fp8 that may be; None where no layer reads fp8, or as `Rewritten.candidate` says."""
    net = rewritten.net
    stored = scales(net, found.kept, found.seen)
    reading = layers_in_fp8(net, stored)
    if not reading:
        return None
    made = rewritten.candidate(stored, "fp8", in_fp16(rewritten, reading), own_norms=own_norms)
    if made is not None:
        made.name += f", {len(reading)} layers in fp8"
        made.calibration = calibration(found.given, found.for_scales, chose=found.chose, kept=found.kept)
        made.left_out = found.given.left_out
        made.details |= {"kept_fp16": found.kept, "sensitivity": found.taken}
        made.details |= {"stored_fp8": sorted(stored), "largest": found.seen}
    return made


def in_fp16(rewritten: Rewritten, reading: Container[str]) -> list[str]:
    """The layers but for those that read fp8, as the record calls them: "" where a product is no layer's.

    Inductor's are among them, and those that no call runs, as they read no input; a layer that another does with its
    own is as that one is.
    """
    net, known = rewritten.net, dict(layers(rewritten.workload.model))
    products = [name for name, part in known.items() if isinstance(part, WHOLE)]
    others = [name if name in known else "" for name in left_to_inductor(net)]
    found = dict.fromkeys([*products, *layers_of(net), *others])
    return [name for name in found if net.done_by(name) not in reading]


def layers_to_keep(
    net: ExportedNet, seen: dict[str, float], batches: Sequence[Tensor | Batch], asked: str | list[str], budget: Budget
) -> tuple[list[str], dict[str, float]]:
    """What is kept in fp16, and each layer's sensitivity where it was measured, by `keep_for`.

    Batches are [batch, channels, height, width], or all inputs of a net of several.
    """
    return keep_for(net, seen, batches, budget) if asked == "auto" else (named_layers(net, asked), {})


def named_layers(net: ExportedNet, asked: str | list[str]) -> list[str]:
    """The layers that an option names; none of "auto" and "none".

    Raises:
        ValueError: no such layer.
    """
    if asked in ("auto", "none"):
        return []
    names, known = [asked] if isinstance(asked, str) else list(asked), quantisable(net)
    if strange := sorted(set(names) - set(known)):
        raise ValueError(f"keep_fp16={strange[0]}: no such layer; choose among {', '.join(known)}")
    return names
