"""Notes on how a request differs from the training of a network of nnU-Net or MONAI.

The format of plans is that of nnunetv2, documentation/explanation_plans_files.md.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.config.data_request import VOLUME, words_for_kind
from pipeline.config.request_error import RequestError, shown
from pipeline.errors import ImageError, plural
from pipeline.inputs.folders import files_in
from pipeline.inputs.formats import NIFTI, spacing_of, suffix_in
from pipeline.records.request import RunConfig

PRESET, PLANS, DATASET = "nnunet", "plans.json", "dataset.json"
SCHEMES = {"CTNormalization": "ct", "ZScoreNormalization": "zscore", "RGBTo01Normalization": "unit"}
FIGURES = {"low": "percentile_00_5", "high": "percentile_99_5", "mean": "mean", "std": "std"}  # of the foreground
REVERSED = [2, 1, 0]
NO_ENSEMBLE = "is for nnU-Net's predictor, which averages mirrored windows and folds: this program runs one net, once"
MONAI = "monai"
MONAI_NOTE = (
    "MONAI reads NIfTI as [x, y, z], and this run gives the network [z, y, x]: data.axes=xyz is MONAI's order; "
    "its Orientation, Spacing and sliding windows are not done here"
)
SPACING_APART = 0.01  # relative
DIGITS = 6  # of a figure on the command line


def training_notes(request: RunConfig, volumes: Sequence[Path] | None = None) -> list[str]:
    """Return notes on how inputs differ from those that a network of nnU-Net or MONAI was trained on.

    Args:
        request: of the run.
        volumes: files; None: those of `data.path`.
    """
    if volumes is None and request.data.name == VOLUME:
        try:
            volumes = files_in(request.data.path, volumes=True)[0]
        except ImageError:  # the worker refuses the folder
            volumes = None
    nifti = [path for path in volumes or () if suffix_in([NIFTI], path)]
    if request.model.name == MONAI and nifti and request.data.contract.axes == "zyx":
        return [MONAI_NOTE]
    note = plans_note(request, nifti)
    return [note] if note else []


def plans_note(request: RunConfig, volumes: Sequence[Path] = ()) -> str:
    """Return a note with the options that the plans of `model.options.plans` need, and with what no option does.

    The worker refuses a file that is not nnU-Net's.
    """
    asked_for = request.model.options.get("plans")
    if request.model.name != PRESET or not asked_for:
        return ""
    folder = Path(str(asked_for))
    try:
        plans = json.loads((folder / PLANS).read_text(encoding="utf-8"))
        found = configured(plans["configurations"], str(request.model.options.get("configuration")))
        groups: list[Mapping[str, object]] = [_normalisation(plans, found), _patch(found), _axes(plans, request)]
        lacking = [*_without_form(plans, found), *_other_spacing(plans, found, volumes), NO_ENSEMBLE]
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return ""
    own = _own(request)
    apart = [group for group in groups if any(_shown(value) != _shown(own.get(key)) for key, value in group.items())]
    asked = " ".join(f"data.{key}={_shown(value)}" for group in apart for key, value in group.items())
    now = " ".join(f"data.{key}={_shown(own[key])}" for group in apart for key in group if own.get(key) is not None)
    now = now or f"{words_for_kind(request.data.name).samples} of their own size"
    clauses = [f"says {asked}; this run has {now}"] * bool(apart) + lacking
    return f"{folder / PLANS} {'; it '.join(clauses)}"


def check_regions(request: RunConfig) -> None:
    """Raise RequestError if the dataset's labels are regions, whose logits nnU-Net thresholds one by one."""
    asked_for = request.model.options.get("plans")
    if request.model.name != PRESET or not asked_for or not request.task.has_masks:
        return
    path = Path(str(asked_for)) / DATASET
    try:
        labels: dict[str, object] = json.loads(path.read_text(encoding="utf-8"))["labels"]
        regions = [name for name, value in labels.items() if isinstance(value, list) and len(value) > 1]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return
    if regions:
        raise RequestError(
            f"{path}: its label {shown(regions[0])} is a region of several classes, whose logits nnU-Net thresholds "
            "one by one; masks here take the largest logit; task=regression judges the logits"
        )


def _own(request: RunConfig) -> dict[str, object]:
    """Return the request's values of the options that plans also set."""
    contract, data = request.data.contract, request.data
    size = list(data.sides) if data.height else data.size
    own: dict[str, object] = {"normalize": contract.normalize, "size": size, "depth": data.depth or data.size}
    figures = {key: list(each) if len(each) > 1 else each[0] for key in FIGURES if (each := getattr(contract, key))}
    return own | figures | {"axes": contract.axes}


def _without_form(plans: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Return clauses on what the plans do to images and this program does not."""
    schemes, order = found["normalization_schemes"], list(plans.get("transpose_forward", [0, 1, 2]))
    others = [name for name in dict.fromkeys(schemes) if name not in SCHEMES]
    clauses = [f"names {', '.join(map(str, others))}, which this program does not have: data=tensors takes its result"]
    clauses = clauses * bool(others)
    if len(set(schemes)) > 1:
        clauses.append(f"normalises channels by {', '.join(schemes)}; this run has one rule for all")
    if any(found.get("use_mask_for_norm") or []):
        clauses.append("takes mean and std of the voxels that are not 0 (use_mask_for_norm); this run takes all")
    if order not in ([0, 1, 2], REVERSED):
        clauses.append(f"turns the axes (transpose_forward {order}); this run leaves them: masks will be wrong")
    return clauses


def _axes(plans: Mapping[str, Any], request: RunConfig) -> dict[str, object]:
    """Return `axes` of volumes if the plans keep or reverse the order of axes; else an empty dict."""
    order = list(plans.get("transpose_forward", [0, 1, 2]))
    if request.data.name != VOLUME or order not in ([0, 1, 2], REVERSED):
        return {}
    return {"axes": "xyz" if order == REVERSED else "zyx"}


def _other_spacing(plans: Mapping[str, Any], found: Mapping[str, Any], volumes: Sequence[Path]) -> list[str]:
    """Return a clause on volumes of another spacing than the plans', to which nnU-Net resamples them."""
    planned, order = found.get("spacing"), plans.get("transpose_forward", [0, 1, 2])
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
    if kind != "ct":
        return {"normalize": kind}
    measured = plans["foreground_intensity_properties_per_channel"]
    figures: dict[str, object] = {"normalize": kind}
    for key, name in FIGURES.items():
        each = [float(measured[str(channel)][name]) for channel in range(len(schemes))]
        figures[key] = each if len(each) > 1 else each[0]
    return figures


def _patch(found: Mapping[str, Any]) -> dict[str, object]:
    """Return `size` of a patch, and `depth` of one with equal height and width."""
    *depth, height, width = map(int, found["patch_size"])
    if height != width:
        return {"size": [*depth, height, width]}
    return {"size": height, **({"depth": depth[0]} if depth else {})}


def _shown(value: object) -> str:
    """Return a value as it is typed."""
    if isinstance(value, list):
        return f"[{','.join(map(_shown, value))}]"
    return f"{value:.{DIGITS}g}" if isinstance(value, float) else str(value)
