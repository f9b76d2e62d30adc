"""A note on how the plans of a trained nnU-Net differ from the request.

The format is that of nnunetv2, documentation/explanation_plans_files.md.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config.data_request import words_for_kind
from pipeline.config.request_error import RequestError, shown
from pipeline.records.request import RunConfig

PRESET, PLANS, DATASET = "nnunet", "plans.json", "dataset.json"
SCHEMES = {"CTNormalization": "ct", "ZScoreNormalization": "zscore", "RGBTo01Normalization": "unit"}
FIGURES = {"low": "percentile_00_5", "high": "percentile_99_5", "mean": "mean", "std": "std"}  # of the foreground
DIGITS = 6  # of a figure on the command line


def plans_note(request: RunConfig) -> str:
    """Return a note with the options that the plans of `model.options.plans` need; an empty text if all are set.

    The worker refuses a file that is not nnU-Net's.
    """
    asked_for = request.model.options.get("plans")
    if request.model.name != PRESET or not asked_for:
        return ""
    folder = Path(str(asked_for))
    try:
        plans = json.loads((folder / PLANS).read_text(encoding="utf-8"))
        found = configured(plans["configurations"], str(request.model.options.get("configuration")))
        groups: list[Mapping[str, object]] = [_normalisation(plans, found), _patch(found)]
        lacking = _without_form(found, squares=request.data.size is not None)
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return ""
    own = _own(request)
    apart = [group for group in groups if any(_shown(value) != _shown(own.get(key)) for key, value in group.items())]
    asked = " ".join(f"data.{key}={_shown(value)}" for group in apart for key, value in group.items())
    now = " ".join(f"data.{key}={_shown(own[key])}" for group in apart for key in group if own.get(key) is not None)
    now = now or f"{words_for_kind(request.data.name).samples} of their own size"
    clauses = [f"says {asked}; this run has {now}"] * bool(apart) + lacking
    return f"note: {folder / PLANS} {'; it '.join(clauses)}" if clauses else ""


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
    own: dict[str, object] = {"normalize": contract.normalize, "size": data.size, "depth": data.depth or data.size}
    return own | {key: each[0] for key in FIGURES if (each := getattr(contract, key))}


def _without_form(found: Mapping[str, Any], *, squares: bool) -> list[str]:
    """Return clauses on what the plans do to images and this program does not."""
    others = [name for name in dict.fromkeys(found["normalization_schemes"]) if name not in SCHEMES]
    clauses = [f"names {', '.join(map(str, others))}, which this program does not have: data=tensors takes its result"]
    masked = "takes mean and std of the voxels that are not 0 (use_mask_for_norm); this run takes those of all"
    patch = "×".join(map(str, found["patch_size"]))
    oblong = f"has patches of {patch}, and data.size gives squares: data=tensors takes windows of that shape"
    clauses = clauses * bool(others) + [masked] * any(found.get("use_mask_for_norm") or [])
    return clauses + [oblong] * (squares and not _patch(found))


def configured(known: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a configuration, merged with the one that it inherits from."""
    found = dict(known[name])
    above = found.get("inherits_from")
    return {**configured({key: part for key, part in known.items() if key != name}, above), **found} if above else found


def _normalisation(plans: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, object]:
    """Return `normalize` of the first channel, with the figures of CT; an empty dict for an unknown scheme."""
    kind = SCHEMES.get(found["normalization_schemes"][0])
    if kind != "ct":
        return {"normalize": kind} if kind else {}
    measured = plans["foreground_intensity_properties_per_channel"]["0"]
    return {"normalize": kind, **{key: float(measured[name]) for key, name in FIGURES.items()}}


def _patch(found: Mapping[str, Any]) -> dict[str, int]:
    """Return `size` and `depth` of a patch with equal height and width; else an empty dict."""
    *depth, height, width = map(int, found["patch_size"])
    return {"size": height, **({"depth": depth[0]} if depth else {})} if height == width else {}


def _shown(value: object) -> str:
    """Return a value as it is typed."""
    return f"{value:.{DIGITS}g}" if isinstance(value, float) else str(value)
