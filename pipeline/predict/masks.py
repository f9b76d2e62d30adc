"""Masks blended from the answers of all windows over a pixel, and classes and scores of logits.

The blending is nnU-Net's (Isensee et al., Nature Methods 18, 203-211, 2021). The logits of a voxel are the mean over
all windows that hold it, weighted by a Gaussian about the window's centre. Its standard deviation is an eighth of the
window's side. The largest mean is the class; of values, the means are the answer.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from pipeline.config.data_request import GIB
from pipeline.devices.host import free_memory_bytes
from pipeline.errors import ImageError
from pipeline.inputs.input_contract import InputContract
from pipeline.predict.mask_files import EIGHT_BITS
from pipeline.predict.sources import Makes
from pipeline.predict.windows import Span

SIGMA = 1 / 8  # of a window's side
BYTES_OF_A_SUM, BYTES_OF_A_CHOICE = 4, 12  # fp32 of each class; fp32 and int64 of the largest


def class_indices(logits: Tensor, axes: int) -> np.ndarray:
    """Return the classes of `class_tensor`, uint8 up to 256 classes, else uint16."""
    classes = class_tensor(logits, axes)
    return classes.cpu().numpy().astype(np.uint8 if classes.dtype == torch.uint8 else np.uint16, copy=False)


def class_tensor(logits: Tensor, axes: int) -> Tensor:
    """Return the classes [batch, height, width] of logits [batch, classes, height, width]; of volumes likewise.

    They are uint8 up to 256 classes, else of a wider type. A single channel is cut at 0.
    """
    if logits.ndim < axes:
        return logits
    if logits.shape[1] == 1:
        return (logits[:, 0] > 0).to(torch.uint8)
    # Two cores of an EPYC take 29 ns a voxel of 3 classes, argmax 113, with the same choice among equals (torch 2.12).
    chosen = logits.max(1).indices if logits.is_cpu else logits.argmax(1)
    return chosen.to(torch.uint8 if logits.shape[1] <= EIGHT_BITS else torch.int32)


def scores_of(logits: Tensor, axis: int) -> Tensor:
    """Return the softmax of logits, fp32, over the axis of the classes, or the sigmoid of a single class; fp16."""
    return (logits.softmax(axis) if logits.shape[axis] > 1 else logits.sigmoid()).half()


class Blended:
    """A volume's mask by the weighted mean of the answers of all windows over a voxel.

    Windows are added in the order of their first side. So the sums span the planes of one window: planes before a
    window that begins further on are complete, and are decided at once.
    """

    takes = "values"

    def __init__(
        self, sides: Sequence[int], size: Sequence[int], along: Sequence[Sequence[Span]], named: str, makes: Makes
    ) -> None:
        self.sides = tuple(sides)
        self.named = named
        self.makes = makes
        self.covered = tuple(slice(0, min(part)) for part in zip(sides, size, strict=True))
        weights = torch.ones((), dtype=torch.float64)
        for side in size:  # the product of the weights along each side
            weights = weights[..., None] * weights_along(side)
        self.weights = weights.float()[self.covered]
        self.totals = [total_weights(*part) for part in zip(along, size, sides, strict=True)]
        self.settled = 0  # number of decided planes
        self.sums = torch.zeros(0)
        self.mask = np.zeros(0, np.uint8)

    def add(self, place: Sequence[Span], answer: np.ndarray) -> None:
        """Add a window's logits, or values, [classes, depth, height, width]."""
        if not self.sums.numel():
            self.take_memory(answer.shape[0])
        first, *others = place
        self.settle(first.start)
        part = torch.from_numpy(answer)[:, *self.covered]
        here = [slice(span.start, span.start + length) for span, length in zip(others, part.shape[2:], strict=True)]
        self.sums[:, :, *here].addcmul_(part, self.weights)

    def take_memory(self, classes: int) -> None:
        """Allocate the sums [classes, planes of a window, height, width] and the mask."""
        of_classes = np.uint8 if classes <= EIGHT_BITS else np.uint16
        kind = np.dtype({"values": np.float32, "scores": np.float16}.get(self.makes, of_classes))
        shape = (*self.sides, classes) if self.makes != "classes" and classes > 1 else self.sides
        planes = (self.weights.shape[0], *self.sides[1:])
        needed = math.prod(planes) * (BYTES_OF_A_SUM * classes + (0 if self.makes == "values" else BYTES_OF_A_CHOICE))
        needed += math.prod(shape) * kind.itemsize
        if needed > (free := free_memory_bytes()):
            shown, of = "×".join(map(str, self.sides)), "×".join(map(str, planes))
            kinds = "channels" if self.makes == "values" else "classes"
            raise ImageError(
                f"{self.named}: {shown} in {classes} {kinds}: the sums over {of} "
                f"at a time and the answer take {needed / GIB:.4g} GiB, and {free / GIB:.4g} GiB of memory are free"
            )
        self.sums = torch.zeros(classes, *planes)
        self.mask = np.zeros(shape, kind)

    def settle(self, end: int) -> None:
        """Decide the planes before `end`, and move the other sums to the front."""
        done, planes = end - self.settled, self.sums.shape[1]
        if not done:
            return
        depth, height, width = self.totals
        means = self.sums[:, :done].div_(depth[self.settled : end, None, None]).div_(height[:, None]).div_(width)
        if self.makes == "classes":
            self.mask[self.settled : end] = class_indices(means[None], 5)[0]
        else:
            values = scores_of(means, 0) if self.makes == "scores" else means
            self.mask[self.settled : end] = (values.movedim(0, -1) if len(values) > 1 else values[0]).numpy()
        for at in range(0, planes - done, done):  # in pieces, without a second copy
            piece = self.sums[:, at + done : at + 2 * done]
            self.sums[:, at : at + piece.shape[1]] = piece
        self.sums[:, planes - done :] = 0
        self.settled = end

    def finished(self) -> np.ndarray:
        """Return the mask [depth, height, width], or the values, several of a voxel last, after the last window."""
        self.settle(self.sides[0])
        self.sums = torch.zeros(0)  # other volumes need the memory
        return self.mask


def weights_along(side: int) -> Tensor:
    """Return the weights [side], fp64, along a window's side: 1 at side // 2, nnU-Net's middle."""
    off = (torch.arange(side, dtype=torch.float64) - side // 2) / (SIGMA * side)
    return torch.exp(-0.5 * off**2)


def total_weights(windows: Sequence[Span], size: int, length: int) -> Tensor:
    """Return the sum [length], fp32, of the weights of all windows along one side."""
    total, weights = torch.zeros(length, dtype=torch.float64), weights_along(size)[:length]
    for span in windows:
        total[span.start : span.start + len(weights)] += weights
    return total.float()


def by_whole(volume: np.ndarray, contract: InputContract) -> InputContract:
    """Return the contract that normalises a window as the same region of the whole normalised volume.

    "zscore" takes the mean and the standard deviation of the whole volume, as nnU-Net does before it cuts windows
    (Isensee et al., Nature Methods 18, 203-211, 2021); the other rules are the same for any part.
    """
    if contract.normalize != "zscore":
        return contract
    scale = contract.scale or 1.0
    means, stds = [], []
    for channel in range(volume.shape[-1]):
        plane = torch.from_numpy(volume[..., channel])
        std, mean = torch.std_mean(plane, correction=0)
        means.append(float(mean) / scale)
        stds.append(float(std) / scale if plane.amax() > plane.amin() else 1.0)  # one value alone becomes 0
    return replace(contract, normalize="own", mean=tuple(means), std=tuple(stds))
