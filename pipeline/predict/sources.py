"""The predictor: what makes masks, how it is planned before it is built, and that of a bundle.

A bundle is loaded by its own load.py, without the measuring worker. The predictor of a run is in `run_source`.
"""

import argparse
import hashlib
import json
import math
import runpy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from pipeline.analysis.plans_note import PLANS
from pipeline.config.data_request import GIB
from pipeline.config.request_error import RequestError
from pipeline.devices.host import memory_bytes
from pipeline.errors import typed_line
from pipeline.export.bundle import bundle_digest, changed_files
from pipeline.export.contract import Contract
from pipeline.inputs.input_contract import Axes, InputContract, LabelRules
from pipeline.records.data_words import Words, words_for
from pipeline.records.disk import code_digest
from pipeline.records.request import ExportKind

Makes = Literal["classes", "values", "scores"]
Gives = Literal["logits", "classes", "values", "scores"]
PRODUCTS: dict[str, str] = {"values": "answer", "scores": "probability map"}
BYTES = 4  # of a value in fp32


def product_of(gives: Gives) -> str:
    """Return what is written of a case: a mask, an answer in values, or probabilities."""
    return PRODUCTS.get(gives, "mask")


@dataclass(frozen=True)
class Predictor:
    """A network that is ready to answer."""

    name: str  # of the stage
    run: Callable[[Tensor], Tensor]  # normalised fp32 batch to logits, which the next call may write over
    shape: tuple[int, ...]  # batch, channels, height and width that it takes, of volumes with a depth before
    device: torch.device  # of the batch
    contract: InputContract  # how an image becomes its input
    kind: np.dtype | None  # type of the images that it was measured on; None if unknown
    images_in: bool = False  # it takes images [batch, height, width, channels], uint8, instead of a normalised batch
    gives: Gives = "logits"  # scores: logits whose probabilities are written
    classes: int | None = None  # number of classes of a mask; None if unknown

    @property
    def makes(self) -> Makes:
        """Kind of what is written of its answers."""
        return "classes" if self.gives == "logits" else self.gives

    @property
    def words(self) -> Words:
        """Nouns for its data: images or volumes."""
        return words_for(len(self.shape) - 2)


@dataclass(frozen=True)
class Planned:
    """A predictor before its network is built: enough to check which masks are its own."""

    name: str  # of the stage
    words: Words  # nouns for its data
    any_size: bool  # it takes any height and width
    made_of: dict[str, Any]  # all that its answers depend on, as JSON values
    notes: list[str]  # for the user
    build: Callable[[], Predictor]  # builds or loads it; raises RequestError if that fails here
    gives: Gives = "logits"  # as in `Predictor`
    sides: tuple[int, ...] | None = None  # of its windows; None: images keep their size, which the network has
    labels: LabelRules | None = None  # the rules of the run's label files; None without any
    axes: Axes = "zyx"  # order of the axes of NIfTI volumes


def identity(made_of: dict[str, object]) -> str:
    """Return the SHA-256 of JSON values."""
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()


def check_batch(batch: int, sample: Sequence[int], memory: int) -> None:
    """Raise if a batch doesn't fit into memory, not counting the network's tensors."""
    if (needed := BYTES * batch * (each := math.prod(sample))) > memory:
        most = memory // (BYTES * each)
        raise RequestError(
            f"--batch {batch}: such a batch of windows takes {needed / GIB:.3g} GiB, and this machine has "
            f"{memory / GIB:.3g}; at most {most} fit, without the network's own tensors"
        )


def of_bundle(contract: Contract, asked: argparse.Namespace) -> Planned:
    """Plan the network of a bundle, whose own loader loads it; its files must be those that were exported."""
    folder: Path = asked.run
    if changed := changed_files(folder):
        cure = "not as exported, and nothing is loaded; remove what was added, or copy the bundle again"
        raise RequestError(f"{folder}: {', '.join(changed)}: {cure}")
    device, (batch, *further) = contract.measured.device, contract.batch_shape
    if asked.stage not in (None, contract.stage):
        raise RequestError(f"--stage {asked.stage}: the bundle holds {contract.stage} alone")
    if asked.device not in (None, "auto", device):
        raise RequestError(f"--device {asked.device}: exported for {device}; leave it out, or export a run made there")
    if asked.batch not in (None, batch) and "batch" not in contract.input.dynamic:
        cure = "predict from the run, or export --stage onnxruntime --dynamic batch"
        raise RequestError(f"--batch {asked.batch}: exported for {batch}; {cure}")
    size = asked.batch or batch
    check_batch(size, further, memory_bytes())
    unjudged = "no masks were judged: the weights are random, or model.trained=true was left out, or all are one class"
    nearest = "it gives classes, which can't be blended: of windows that overlap the nearest gives a voxel's"
    notes = [unjudged] if contract.makes_masks and not contract.masks_judged else []
    notes += [note for note in contract.notes if PLANS in note]
    notes += [nearest] if contract.classes_out and contract.takes_volumes else []

    exported = {"bundle": bundle_digest(folder), "stage": contract.stage, "weights_sha256": contract.weights_sha256}
    here = {"batch": size, "device": device, "code_sha256": code_digest(), "torch": str(torch.__version__)}
    kind = np.dtype(contract.image_type) if contract.image_type else None

    def build() -> Predictor:
        return Predictor(
            contract.stage, loaded(folder, contract.kind), (size, *further), torch.device(device),
            contract.normalisation, kind, contract.images_in, classes=contract.classes,
        )  # fmt: skip

    return Planned(
        name=contract.stage,
        words=contract.words,
        any_size="size" in contract.input.dynamic,
        made_of=exported | here,
        notes=notes,
        build=build,
        gives="values" if not contract.makes_masks else "classes" if contract.classes_out else "logits",
        sides=tuple(further[1:]),
        labels=contract.labels,
        axes=contract.normalisation.axes,
    )


def loaded(folder: Path, kind: ExportKind) -> Callable[[Tensor], Tensor]:
    """Load the bundle's network: a function from the input of its contract to logits or classes."""
    try:
        run: Callable[[Any], Any] = runpy.run_path(str(folder / "load.py"))["load"]()
    except Exception as error:  # a loader, or the library under it, may fail in any way
        raise RequestError(f"{folder}: it can't be loaded here: {typed_line(error)}") from error
    return (lambda batch: torch.from_numpy(run(batch.numpy()))) if kind == "onnx" else run
