"""What makes masks out of a bundle: its own load.py, which needs nothing of this project."""

import runpy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.config.request_error import RequestError
from pipeline.devices.host import memory_bytes
from pipeline.export import bundle_contract
from pipeline.export.as_measured import check_batch
from pipeline.export.bundle_sums import bundle_digest, changed_files
from pipeline.predict.predictor import Planned, Predictor, Wanted
from pipeline.records.bundle_kinds import ExportKind
from pipeline.records.error_line import first_line


def of_bundle(folder: Path, wanted: Wanted) -> Planned:
    """The net of a bundle, to be loaded by its own loader, once its files are those that were exported.

    Raises:
        ContractError: the bundle's contract, or its list of digests, can't be read.
        RequestError: it has no such stage, or wasn't exported for this device or batch; a file isn't what it was;
            built: this machine can't run it.
    """
    contract = bundle_contract.predicted_contract(folder)
    check_files(folder)
    device, (batch, *further) = contract.measured.device, contract.batch_shape
    if wanted.stage not in (None, contract.stage):
        raise RequestError(f"--stage {wanted.stage}: the bundle holds {contract.stage} alone")
    if wanted.device not in (None, "auto", device):
        raise RequestError(f"--device {wanted.device}: the bundle was exported for {device}")
    if wanted.batch not in (None, batch) and "batch" not in contract.input.dynamic:
        raise RequestError(f"--batch {wanted.batch}: exported for {batch}; export it with --dynamic batch")
    check_batch(wanted.batch or batch, further, memory_bytes())
    return Planned(
        name=contract.stage,
        words=contract.words,
        any_size="size" in contract.input.dynamic,
        made_of={
            "bundle": bundle_digest(folder),
            "stage": contract.stage,
            "weights_sha256": contract.weights_sha256,
            "batch": wanted.batch or batch,
            "device": device,
            "torch": torch.__version__,
        },
        notes=notes_of(contract),
        build=partial(built, folder, contract, (wanted.batch or batch, *further)),
        classes_out=contract.classes_out,
        gives_values=not contract.makes_masks,
        sides=tuple(further[1:]),
    )


def built(folder: Path, contract: bundle_contract.Contract, shape: tuple[int, ...]) -> Predictor:
    """The bundle's net, loaded, for batches of that shape; errors as of `loaded`."""
    return Predictor(
        name=contract.stage,
        run=loaded(folder, contract.kind),
        shape=shape,
        device=torch.device(contract.measured.device),
        contract=contract.normalisation,
        kind=np.dtype(np.uint8) if contract.images_in else None,
        images_in=contract.images_in,
        classes_out=contract.classes_out,
        gives_values=not contract.makes_masks,
    )


def notes_of(contract: bundle_contract.Contract) -> list[str]:
    """What a user must know of a bundle's masks, a line each."""
    notes = (
        []
        if contract.masks_judged or not contract.makes_masks
        else ["the net has random weights: its masks mean nothing"]
    )
    if contract.classes_out and contract.takes_volumes:
        notes.append("it gives classes, which can't be blended: of windows that overlap the nearest gives a voxel's")
    return notes


def check_files(folder: Path) -> None:
    """That a bundle's files are those that were exported.

    Raises:
        RequestError: they aren't; the line names them.
    """
    if changed := changed_files(folder):
        raise RequestError(f"{folder}: {', '.join(changed)}: not as exported, and nothing is loaded; export it again")


def loaded(folder: Path, kind: ExportKind) -> Callable[[Tensor], Tensor]:
    """The bundle's net, from what its contract takes to logits or classes.

    Raises:
        RequestError: a file isn't the one that was exported, or this machine can't run it.
    """
    check_files(folder)  # again: they may have changed since they were planned with
    try:
        run: Callable[[Any], Any] = runpy.run_path(str(folder / "load.py"))["load"]()
    except (ValueError, RuntimeError, ImportError, OSError, KeyError) as error:
        raise RequestError(f"{folder}: it can't be loaded here: {first_line(error)}") from error
    if kind == "onnx":
        return lambda batch: torch.from_numpy(run(batch.numpy()))
    return run
