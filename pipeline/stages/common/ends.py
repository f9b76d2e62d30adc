"""Both ends of the path from an image to its mask in a network's graph, for the stages and exports that move them."""

import numpy as np
import torch
from torch import Tensor, nn

from models.image_batches import normaliser, table_of
from pipeline.compiler.ends import ByTable, Classes, Ends
from pipeline.inputs.input_contract import InputContract
from pipeline.stages.api import StageError, Workload

BYTE = np.dtype(np.uint8)
OPTIONS = ("uint8_in", "classes_out")


def ends_of(contract: InputContract, uint8_in: bool, classes_out: bool, axes: int, device: torch.device) -> Ends:
    """Return the ends that are asked for."""
    # On a GPU a division may be off by an ulp, where a table gives the very values of `to_batch`.
    before: nn.Module | None = None
    if uint8_in and device.type == "cuda" and contract.normalize != "zscore":
        before = ByTable(table_of(contract, device), reverses=contract.channel_order == "bgr")
    elif uint8_in:
        before = ByRule(contract, axes, device)
    return Ends(before, Classes() if classes_out else None)


def stage_ends(workload: Workload, uint8_in: bool, classes_out: bool) -> Ends:
    """Return a stage's ends; StageError, which names the option, where the workload has none."""
    if unfit := why_not(workload, uint8_in, classes_out):
        raise StageError(f"stage.{unfit[0]}=true: {unfit[1]}; leave it out", "unsupported")
    return ends_of(workload.contract, uint8_in, classes_out, len(workload.shape), workload.device)


def why_not(workload: Workload, uint8_in: bool, classes_out: bool) -> tuple[str, str] | None:
    """Return the option that a workload can't have, and why; None if it can have both."""
    kind = None if workload.images is None else workload.images.dtype
    if (uint8_in or classes_out) and workload.others:
        return OPTIONS[not uint8_in], "only for networks of images"
    if uint8_in and kind != BYTE:
        return OPTIONS[0], f"the run's inputs are {kind or 'tensors'}"
    return (OPTIONS[1], "the network answers with no classes") if classes_out and not workload.has_masks else None


class ByRule(nn.Module):
    """Normalisation by the contract's own arithmetic."""

    def __init__(self, contract: InputContract, axes: int, device: torch.device) -> None:
        super().__init__()
        self.rule = normaliser(contract, BYTE, axes, device)

    def forward(self, images: Tensor) -> Tensor:
        """Return a batch [batch, channels, height, width] in fp32 of images [batch, height, width, channels]."""
        return self.rule(images.float())
