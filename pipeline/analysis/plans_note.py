"""Notes on how a request differs from the training of a network of nnU-Net or MONAI.

The format of plans is that of nnunetv2, documentation/explanation_plans_files.md.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.config.data_request import VOLUME, as_typed, one_typed, words_for_kind
from pipeline.config.model_request import MONAI, NNUNET, document
from pipeline.config.request_error import RequestError, shown
from pipeline.errors import ImageError, plural
from pipeline.inputs.folders import files_in
from pipeline.inputs.formats import NIFTI, spacing_of
from pipeline.records.request import RunConfig

PLANS, DATASET = "plans.json", "dataset.json"
SCHEMES = {"CTNormalization": "ct", "ZScoreNormalization": "zscore", "RGBTo01Normalization": "unit"}
FIGURES = {"low": "percentile_00_5", "high": "percentile_99_5", "mean": "mean", "std": "std"}  # of the foreground
STRAIGHT, REVERSED = [0, 1, 2], [2, 1, 0]  # orders of axes
# Whatever a file that is not nnU-Net's leads to.
MALFORMED = (RequestError, ValueError, TypeError, KeyError, IndexError, AttributeError)
NO_ENSEMBLE = "is for nnU-Net's predictor, which averages mirrored windows and folds: this program runs one net, once"
MONAI_NOTE = (
    "MONAI reads NIfTI as [x, y, z], and this run gives the network [z, y, x]: data.axes=xyz is MONAI's order; "
    "its Orientation, Spacing and sliding windows are not done here"
)
SPACING_APART = 0.01  # relative


def training_notes(request: RunConfig, volumes: Sequence[Path] | None = None) -> list[str]:
    """Return notes on how inputs differ from those that a network of nnU-Net or MONAI was trained on."""
    if volumes is None and request.data.name == VOLUME:
        try:
            volumes = files_in(request.data.path, volumes=True)[0]
        except ImageError:  # the worker refuses the folder
            volumes = None
    nifti = [path for path in volumes or () if NIFTI.suffix(path)]
    if request.model.name == MONAI and nifti and request.data.contract.axes == "zyx":
        return [MONAI_NOTE]
    note = plans_note(request, nifti)
    return [note] if note else []


def plans_note(request: RunConfig, volumes: Sequence[Path] = ()) -> str:
    """Return a note with the options that the plans of `model.options.plans` need, and with what no option does."""
    folder = plans_folder(request)
    if folder is None:
        return ""
    try:
        plans = document(folder / PLANS)
        found = configured(plans["configurations"], str(request.model.options.get("configuration")))
        order = list(plans.get("transpose_forward", STRAIGHT))
        *depth, height, width = map(int, found["patch_size"])
        planned = _normalisation(plans, found) | {"size": height if height == width else [*depth, height, width]}
        if depth and height == width:
            planned["depth"] = depth[0]
        if request.data.name == VOLUME and order in (STRAIGHT, REVERSED):
            planned["axes"] = "xyz" if order == REVERSED else "zyx"
        lacking = [*_without_form(found, order), *_other_spacing(found, order, volumes), NO_ENSEMBLE]
    except MALFORMED:
        return ""
    contract, data = request.data.contract, request.data
    figures = {key: list(getattr(contract, key)) for key in FIGURES}
    size = list(data.sides) if data.height else data.size
    own: dict[str, object] = figures | {"normalize": contract.normalize, "axes": contract.axes}
    own |= {"size": size, "depth": data.depth or data.size}
    apart = [key for key, value in planned.items() if one_typed(value) != one_typed(own[key])]
    now = as_typed({key: own[key] for key in apart if own[key]})
    now = now or f"{words_for_kind(data.name).samples} of their own size"
    says = f"says {as_typed({key: planned[key] for key in apart})}; this run has {now}"
    return f"{folder / PLANS} {'; it '.join([says] * bool(apart) + lacking)}"


def plans_folder(request: RunConfig) -> Path | None:
    """Return the folder of a trained nnU-Net that the network is made by; None without one."""
    plans = request.model.options.get("plans") if request.model.name == NNUNET else None
    return Path(str(plans)) if plans else None


def check_regions(request: RunConfig) -> None:
    """Raise RequestError if the dataset's labels are regions, whose logits nnU-Net thresholds one by one."""
    folder = plans_folder(request)
    if folder is None or not request.task.has_masks:
        return
    try:
        labels: dict[str, object] = document(folder / DATASET)["labels"]
        regions = [name for name, value in labels.items() if isinstance(value, list) and len(value) > 1]
    except MALFORMED:
        return
    if regions:
        raise RequestError(
            f"{folder / DATASET}: its label {shown(regions[0])} is a region of several classes, whose logits nnU-Net "
            "thresholds one by one; masks here take the largest logit; task=regression judges the logits"
        )


def _without_form(found: Mapping[str, Any], order: list[int]) -> list[str]:
    """Return clauses on what the plans do to images and this program does not."""
    schemes = found["normalization_schemes"]
    others = [str(name) for name in dict.fromkeys(schemes) if name not in SCHEMES]
    clauses = {
        f"names {', '.join(others)}, which this program does not have: data=tensors takes its result": others,
        f"normalises channels by {', '.join(schemes)}; this run has one rule for all": len(set(schemes)) > 1,
        "takes mean and std of the voxels that are not 0 (use_mask_for_norm); this run takes all": any(
            found.get("use_mask_for_norm") or []
        ),
        f"turns the axes (transpose_forward {order}); this run leaves them: masks will be wrong": order
        not in (STRAIGHT, REVERSED),
    }
    return [clause for clause, holds in clauses.items() if holds]


def _other_spacing(found: Mapping[str, Any], order: list[int], volumes: Sequence[Path]) -> list[str]:
    """Return a clause on volumes of another spacing than the plans', to which nnU-Net resamples them."""
    planned = found.get("spacing")
    if not planned or len(planned) != len(order):
        return []
    stored = [planned[order.index(axis)] for axis in range(len(order))]
    known = {path: spacing for path in volumes if (spacing := spacing_of(path))}
    other = [path for path in known if not np.allclose(known[path], stored, rtol=SPACING_APART)]
    if not other:
        return []
    shown, here = ("×".join(f"{side:.3g}" for side in sides) for sides in (stored, known[other[0]]))
    count = plural(len(other), "volume")
    return [f"is for a spacing of {shown}; resample {count} of another, such as {other[0].name} of {here}"]


def configured(known: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a configuration, merged with the one that it inherits from."""
    found = dict(known[name])
    above = found.get("inherits_from")
    return {**configured({key: part for key, part in known.items() if key != name}, above), **found} if above else found


def _normalisation(plans: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, object]:
    """Return `normalize` with the figures of CT; an empty dict for an unknown scheme, or several."""
    schemes = found["normalization_schemes"]
    kind = SCHEMES.get(schemes[0])
    if len(set(schemes)) > 1 or kind is None:
        return {}
    planned: dict[str, object] = {"normalize": kind}
    if kind == "ct":
        channels = plans["foreground_intensity_properties_per_channel"]
        for key, name in FIGURES.items():
            planned[key] = [float(channels[str(channel)][name]) for channel in range(len(schemes))]
    return planned
