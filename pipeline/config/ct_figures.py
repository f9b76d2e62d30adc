"""The figures of nnU-Net's normalisation for CT, measured on a folder of volumes."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from pipeline.config.request_error import RequestError
from pipeline.devices.host import memory_bytes
from pipeline.errors import ImageError
from pipeline.inputs.input_contract import InputContract, LabelRules
from pipeline.inputs.stain import UNLABELLED

PERCENTILES = (0.5, 99.5)
GIB = 2**30
BYTES_OF_A_VALUE = 12  # read as fp32, its label as int64
GIVEN = "give data.low, data.high, data.mean and data.std"
MOST_VALUES = 10**8  # of all volumes together, evenly spaced; nnU-Net samples at random


def measured(contract: InputContract, path: str | None, labels: str | None, rules: LabelRules) -> InputContract:
    """Return the contract with low, high, mean and std of the foreground.

    The foreground is the voxels of classes above 0; without labels all voxels.

    Raises:
        RequestError: a file cannot be read, memory is too small, or a channel has one value only.
    """
    try:
        check_memory(path)
        parts = list(foreground(path, labels, contract, rules))
    except ImageError as error:
        raise RequestError(str(error)) from None
    values = np.concatenate(parts).astype(np.float64) / (contract.scale or 1.0)
    low, high = np.percentile(values, PERCENTILES, axis=0)
    if not (low < high).all():
        raise RequestError(
            f"data.normalize=ct: the foreground of {labels or path} has one value only, {low.min():g}; {GIVEN}"
        )
    least, most, mean, std = (tuple(map(float, each)) for each in (low, high, values.mean(0), values.std(0)))
    return replace(contract, low=least, high=most, mean=mean, std=std)


def check_memory(path: str | None) -> None:
    """Check that the volumes of a folder fit into memory together.

    Raises:
        RequestError: they do not; the line gives the figure.
        ImageError: same as `pipeline.inputs.folders.files_in`.
    """
    from pipeline.inputs.folders import values_in

    needed, memory = BYTES_OF_A_VALUE * values_in(path, volumes=True), memory_bytes()
    if needed > memory:
        shown = f"{needed / GIB:.4g} GiB and this machine has {memory / GIB:.4g}"
        raise RequestError(f"data.path={path}: its volumes take {shown}; {GIVEN}")


def foreground(
    path: str | None, labels: str | None, contract: InputContract, rules: LabelRules
) -> Iterator[np.ndarray]:
    """Yield the foreground values [voxels, channels] of each volume; all values if no label is above 0.

    Raises:
        ImageError: same as `pipeline.inputs.folders.folder_samples`.
    """
    from pipeline.inputs.folders import folder_samples

    named, _ = folder_samples(path, labels, contract, rules, volumes=True)
    masks = [None if each.label is None else (each.label > 0) & (each.label != UNLABELLED) for each in named]
    some = any(mask is not None and mask.any() for mask in masks)
    for each, mask in zip(named, masks, strict=True):
        if mask is not None and mask.shape != each.image.shape[:-1]:
            raise ImageError(f"{each.source}: its labels have another size than the volume")
        chosen = each.image[mask] if some and mask is not None else each.image.reshape(-1, contract.channels)
        yield chosen[:: max(1, -(-len(chosen) * len(named) // MOST_VALUES))]
