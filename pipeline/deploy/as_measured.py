"""Whether what is taken out of a finished run is what the run measured: its options, its batch, the net's own answer.

A record may have been edited, and the code of a net, of which no digest is kept, has often been worked on since.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from models.datasets import middle_plane
from pipeline.config.data_request import GIB
from pipeline.config.load import checked_options
from pipeline.config.request_error import RequestError
from pipeline.measure.accuracy import classes
from pipeline.measure.batch import Batch
from pipeline.records.content_digest import data_digest
from pipeline.records.run_record import RunRecord, StageRecord
from pipeline.report.gallery import mask_of

MOST_MOVED = 0.02  # share of an image's pixels: four times what the widest tolerance of conf/stage lets a stage move
BYTES = 4  # of a value in fp32


def check_options(stage: StageRecord) -> None:
    """That the stage's recorded options are such as its `build` takes.

    Raises:
        RequestError: one isn't; the line names it.
    """
    checked_options(stage.options, stage.target, stage.name)


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


def check_net(folder: Path, run: RunRecord, net: nn.Module, batch: Batch) -> None:
    """That the net answers the run's first image as it did in the run, whose mask lies in the run's folder.

    Where that mask isn't there, or the image isn't the same, nothing is checked.

    Args:
        folder: of the run.
        run: its record.
        net: in fp32, as the record makes it.
        batch: the run's first, on the net's device.

    Raises:
        ModelError: the net can't answer it.
        RequestError: it answers otherwise.
    """
    from pipeline.worker.mask_images import PALETTE  # and so what only a net that is built needs
    from pipeline.worker.net_call import Net, called

    picture = mask_of(folder, "reference", 0) if run.settings.task.has_masks else None
    if picture is None or data_has_changed(run):
        return
    kept = np.asarray(picture)
    answer = called(Net(type(net).__name__, net, batch, run.settings.task))
    if not isinstance(answer, torch.Tensor):
        raise RequestError(f"{run.settings.model.target}: it gave logits in the run, and now {type(answer).__name__}")
    found = middle_plane(classes(answer)[0].cpu().numpy(), axes=2) % len(PALETTE)
    moved = 1.0 if found.shape != kept.shape else float(np.mean(found != kept))
    if moved > MOST_MOVED:
        raise RequestError(
            f"{run.settings.model.target}: it gives {100 * moved:.3g} % of the run's first image another class than in "
            f"the run: the net's code, its options or the images' normalisation are others than were measured; "
            f"measure again: {run.command}"
        )


def data_has_changed(run: RunRecord) -> bool:
    """Whether the run's own images or labels are others by now."""
    data = run.settings.data
    return bool(run.data_sha256) and run.data_sha256 != data_digest([data.path, data.labels])
