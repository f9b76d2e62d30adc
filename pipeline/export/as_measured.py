"""Whether what is taken out of a finished run is what the run measured: its options, its batch, the net's own answer.

A record may have been edited, and the code of a net, of which no digest is kept, has often been worked on since.
"""

import math
from pathlib import Path

import numpy as np
import torch
from torch import nn

from pipeline.compiler.agreement import classes
from pipeline.compiler.batch import Batch
from pipeline.compiler.network_calls import without_tf32
from pipeline.config.request_error import RequestError
from pipeline.inputs.datasets import middle_plane
from pipeline.records.content_digest import data_digest
from pipeline.records.request import REFERENCE_FIRST
from pipeline.records.run_record import RunRecord
from pipeline.report.gallery import mask_of

MOST_MOVED = 0.02  # share of an image's pixels: four times what the widest tolerance of conf/stage lets a stage move
MOST_OFF = 0.01  # of the spread of its answer, beyond twice the net's own noise: another device's sums lie below
LEAST_SPREAD = 0.1  # of the values


def check_net(folder: Path, run: RunRecord, net: nn.Module, batch: Batch) -> None:
    """That the net answers the run's first sample as it did in the run, which has kept some values of that answer.

    A mask alone may hide another net: where both find one class, as random weights nearly do, it is the same. Of an
    older run it is all that there is. Where neither is there, or the data aren't the same, nothing is checked.

    Args:
        folder: of the run.
        run: its record.
        net: in fp32, as the record makes it.
        batch: the run's first, on the net's device.

    Raises:
        ModelError: the net can't answer it.
        RequestError: it answers otherwise.
    """
    from pipeline.worker.net_call import Net, called  # and so what only a net that is built needs
    from pipeline.worker.reference import load_first

    first = load_first(folder / REFERENCE_FIRST)
    picture = mask_of(folder, "reference", 0) if run.config.task.has_masks else None
    if (first is None and picture is None) or data_has_changed(run):
        return
    name = run.config.model.target or run.config.model.file
    with without_tf32():
        answer = called(Net(type(net).__name__, net, batch, run.config.task))
    if not isinstance(answer, torch.Tensor):
        raise RequestError(f"{name}: it gave a tensor in the run, and now {type(answer).__name__}")
    known = run.reference
    noise = known.repeat_relative_l2 + known.batch_relative_l2 if known else 0.0
    other = (
        other_values(first, answer, MOST_OFF + 2 * noise)
        if first is not None
        else other_mask(np.asarray(picture), answer)
    )
    if other:
        raise RequestError(
            f"{name}: it gives {other} than in the run: the net's code, its options or the images' normalisation are "
            f"others than were measured; measure again: {run.command}"
        )


def other_values(kept: torch.Tensor, answer: torch.Tensor, allowed: float) -> str:
    """What is another than it was, in a clause; empty where the first sample's answer is what it was.

    Args:
        kept: some values of it, from the run.
        answer: the net's to the first batch now, [batch, …].
        allowed: distance, of the spread of the kept.
    """
    from pipeline.worker.reference import some_values

    found = some_values(answer[0])
    off = apart(found, kept) if found.shape == kept.shape else math.inf
    return "" if off <= allowed else f"the run's first sample another answer ({off:.2g} of its spread apart)"


def apart(found: torch.Tensor, kept: torch.Tensor) -> float:
    """How far values [channels, values] lie from those kept, by the spread of these about each channel's mean.

    A class that outdoes all others everywhere is far from 0: relative L2 would be small whatever the image. Where
    there is little spread, a tenth of the values' own size counts in its place.
    """
    spread = (kept - kept.mean(1, keepdim=True)).norm()
    scale = float(torch.maximum(spread, LEAST_SPREAD * kept.norm()))
    off = float((found - kept).norm())
    return 0.0 if off == 0 else off / scale if scale else math.inf


def other_mask(kept: np.ndarray, answer: torch.Tensor) -> str:
    """Likewise, by the mask [height, width] that the run has drawn of the first image."""
    from pipeline.worker.mask_images import PALETTE

    found = middle_plane(classes(answer)[0].cpu().numpy(), axes=2) % len(PALETTE)
    moved = 1.0 if found.shape != kept.shape else float(np.mean(found != kept))
    return "" if moved <= MOST_MOVED else f"{100 * moved:.3g} % of the run's first image another class"


def data_has_changed(run: RunRecord) -> bool:
    """Whether the run's own images or labels are others by now."""
    data = run.config.data
    return bool(run.data_sha256) and run.data_sha256 != data_digest([data.path, data.labels])
