"""Where masks come from: a predictor, what is known of it before it is built, and the predictor of a bundle.

A bundle's predictor is its own load.py: it needs no code of the measuring worker. That of a run is in `run_source`.
"""

import hashlib
import json
import math
import runpy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from pipeline.config.data_request import GIB
from pipeline.config.request_error import RequestError
from pipeline.devices.host import memory_bytes
from pipeline.errors import first_line
from pipeline.export.bundle import bundle_digest, changed_files
from pipeline.export.contract import Contract
from pipeline.inputs.input_contract import InputContract
from pipeline.records.data_words import Words, words_for
from pipeline.records.request import ExportKind

Gives = Literal["logits", "classes", "values"]
BYTES = 4  # of a value in fp32


def product_of(gives: Gives) -> str:
    """Return what is written of a case: a mask, or an answer in values."""
    return "answer" if gives == "values" else "mask"


@dataclass(frozen=True)
class Predictor:
    """A net that is ready to answer.

    Attributes:
        name: of the stage.
        run: takes [batch, channels, height, width], fp32, normalised, and gives logits [batch, classes, height, width],
            volumes with a depth before the height; the next call may write over them.
        shape: batch, channels, height and width that it takes, of volumes with a depth before.
        device: where.
        contract: how an image becomes its input.
        kind: the type of the images that it was measured on; None where nobody knows.
        images_in: it takes images [batch, height, width, channels], uint8, instead of a normalised batch.
        gives: logits, classes [batch, height, width], or values of volumes, of which no classes are made.
    """

    name: str
    run: Callable[[Tensor], Tensor]
    shape: tuple[int, ...]
    device: torch.device
    contract: InputContract
    kind: np.dtype | None
    images_in: bool = False
    gives: Gives = "logits"

    @property
    def words(self) -> Words:
        """What its data are called: images, or volumes."""
        return words_for(len(self.shape) - 2)

    @property
    def product(self) -> str:
        """What is written of a case."""
        return product_of(self.gives)


@dataclass(frozen=True)
class Planned:
    """What is known of a predictor before its net is built: enough to see whether masks that are there are its own.

    Attributes:
        name: of the stage.
        words: for its data.
        any_size: whether it takes other heights and widths, too.
        made_of: what its answers depend on, as JSON values.
        notes: what a user must know of it.
        build: makes it ready. Raises RequestError where it can't be built, or loaded, here.
        gives: logits, classes or values.
        sides: of its windows; None where only the net that is built tells them.
        sides_stay: where they are unknown: whether they are those of the masks that it made before.
    """

    name: str
    words: Words
    any_size: bool
    made_of: dict[str, Any]
    notes: list[str]
    build: Callable[[], Predictor]
    gives: Gives = "logits"
    sides: tuple[int, ...] | None = None
    sides_stay: bool = True


@dataclass(frozen=True)
class Wanted:
    """What the user chose of a run or a bundle; None takes the run's own.

    Attributes:
        stage: by its name; None takes the winner.
        device: "auto", "cpu" or "cuda".
        batch: images a call.
    """

    stage: str | None = None
    device: str | None = None
    batch: int | None = None


def identity(made_of: dict[str, object]) -> str:
    """SHA-256 of JSON values."""
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()


def check_batch(batch: int, sample: Sequence[int], memory: int) -> None:
    """That a batch fits into so many bytes; the net's own tensors come on top.

    Args:
        batch: windows a call.
        sample: channels and sides of one.
        memory: of the machine.

    Raises:
        RequestError: it doesn't.
    """
    if (needed := BYTES * batch * (each := math.prod(sample))) > memory:
        most = memory // (BYTES * each)
        raise RequestError(
            f"--batch {batch}: such a batch of windows takes {needed / GIB:.3g} GiB, and this machine has "
            f"{memory / GIB:.3g}; at most {most} fit, before the net's own tensors"
        )


def of_bundle(folder: Path, contract: Contract, wanted: Wanted) -> Planned:
    """The net of a bundle, to be loaded by its own loader, once its files are those that were exported.

    Raises:
        ContractError: the bundle's list of digests can't be read.
        RequestError: it has no such stage, or wasn't exported for this device or batch; a file isn't what it was;
            built: this machine can't run it.
    """
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
        gives=gives(contract),
        sides=tuple(further[1:]),
    )


def built(folder: Path, contract: Contract, shape: tuple[int, ...]) -> Predictor:
    """The bundle's net, loaded, for batches of that shape; errors as of `loaded`."""
    return Predictor(
        name=contract.stage,
        run=loaded(folder, contract.kind),
        shape=shape,
        device=torch.device(contract.measured.device),
        contract=contract.normalisation,
        kind=np.dtype(np.uint8) if contract.images_in else None,
        images_in=contract.images_in,
        gives=gives(contract),
    )


def gives(contract: Contract) -> Gives:
    """Return what the artefact of a bundle answers with."""
    if not contract.makes_masks:
        return "values"
    return "classes" if contract.classes_out else "logits"


def notes_of(contract: Contract) -> list[str]:
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
