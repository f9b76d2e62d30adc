"""Operands of the kernels of the phases, their checks, and their reference."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.kernels.common.block_statistics import ROWS
from pipeline.kernels.common.epilogue import Epilogue, Outputs, check_epilogue, store_reference, sums_of
from pipeline.kernels.common.nhwc import check, check_floats
from pipeline.kernels.common.program import by_slice
from pipeline.kernels.conv3x3.conv3x3_triton import BLOCK
from pipeline.kernels.polyphase.polyphase_compose import PHASES

FOLDS = frozenset({"statistics"})
# Of held taps that lie so that matrices share them, a block being one tap or zeros: from one matrix of a chunk of
# channels to the next, and of all of a chunk. The small map has four matrices for each offset; the full one three, and
# one block of zeros follows the last.
SMALL_PITCH, FULL_PITCH = 5, 4
SMALL_BLOCKS, FULL_BLOCKS = 4 * SMALL_PITCH, 3 * FULL_PITCH + 1
WINDOW, WIDER = 3, 4  # of a convolution with a stride; pix2pix, discriminators and Uformer halve a map by the wider


class Operands(NamedTuple):
    """The arguments of `polyphase.polyphase`, in one of three forms.

    With `small`: an up-sampling to twice its height and width, and beside it a 3×3 convolution of `full`, if there is
    one. With `full` alone: its 3×3 or 4×4 convolution of stride 2, padding 1; by 27 taps that of volumes of D slices,
    [N, D · H, W, skip], into [N, D' · H / 2, W / 2, out], where D' is D / `step`.
    """

    epilogue: Epilogue  # scale and bias [out], an activation, and statistics: of each phase, without a stride
    # out [N, 2 h, 2 w, out], or [N, H / 2, W / 2, out] of the strided convolution, may be a channel slice
    outputs: Outputs
    small: Tensor | None = None  # [N, h, w, in], fp16 or fp8; None for the strided convolution
    small_weight: Tensor | None = None  # [16, out, in] of its dtype
    full: Tensor | None = None  # [N, 2 h, 2 w, skip] of the same dtype; None for an up-sampling without a skip
    # [9, out, skip] of its dtype; [27, out, skip] of volumes; [16, out, skip] of a window of 4
    full_weight: Tensor | None = None
    # [3, 3, out] fp32, added to the bias in the output's first, inner and last rows × columns; [1, 1] is 0
    border: Tensor | None = None
    # whether small_weight is of a transposed window of 3: its taps (a, i) = (0, 0) and (b, j) = (0, 0) are 0
    window_of_3: bool = False
    step: int = 2  # of volumes, how many slices of `full` one of the answer is further: 2, or 1 of a stride of 1×2×2
    # whether `full_weight` is [9, out, window] of groups, as `conv3x3_grouped.pack` makes it; of a stride
    grouped: bool = False
    # of the convolution of `full`: 3, or 4 of one with a stride, which `polyphase_triton` alone runs
    window: int = WINDOW

    @property
    def strided(self) -> bool:
        """Return whether this is the convolution of stride 2."""
        return self.small is None

    @property
    def deep(self) -> int:
        """Return how many slices a tile reads: 3 of volumes, else 1."""
        return 1 if self.full_weight is None else len(self.full_weight) // self.window**2

    @property
    def made(self) -> int:
        """Return how many slices of the answer lie one below the other."""
        return 1 if self.deep == 1 else self.epilogue.slices // self.step

    @property
    def images(self) -> Tensor | None:
        """The full map, of volumes their slices [N · D, H, W, skip]: the same memory."""
        return by_slice(self.full, self.epilogue.slices)

    @property
    def sources(self) -> list[tuple[Tensor, Tensor]]:
        """The maps that exist, with their weights: small, full."""
        pairs = ((self.small, self.small_weight), (self.full, self.full_weight))
        return [(map_, weight) for map_, weight in pairs if map_ is not None and weight is not None]

    @property
    def outer(self) -> int:
        """Return how many output channels there are."""
        return self.sources[0][1].shape[1]

    @property
    def grid(self) -> tuple[int, int, int]:
        """Images, or slices of a strided convolution's answer, and rows and columns of one phase."""
        if self.small is not None:
            batch, height, width, _ = self.small.shape
            return batch, height, width
        batch, height, width, _ = self.sources[0][0].shape
        slices = self.epilogue.slices
        return batch * self.made, height // slices // 2, width // 2


def check_operands(operands: Operands) -> None:
    """Raise ValueError, which names it, where one of all that a kernel is given isn't as `Operands` says."""
    batch, height, width = operands.grid
    outer, dtype, slices = operands.outer, operands.sources[0][0].dtype, operands.epilogue.slices
    if operands.deep > 1 or slices > 1:
        _check_volumes(operands)
        batch = batch // operands.made
    if operands.grouped:
        _check_groups(operands)
    grown = (batch, 2 * height * slices, 2 * width)
    for name, taps, seen in (
        ("small", 16, (batch, height, width)),
        ("full", operands.window**2 * operands.deep, grown),
    ):
        map_, weight = getattr(operands, name), getattr(operands, f"{name}_weight")
        if map_ is None:
            continue
        check(name, map_, (*seen, map_.shape[3]))
        check(f"{name}_weight", weight, (taps, outer, weight.shape[2] if operands.grouped else map_.shape[3]))
        if map_.dtype != dtype or weight.dtype != dtype:
            raise ValueError(f"{name} and {name}_weight must have one dtype, {dtype}, got {map_.dtype}, {weight.dtype}")
    check_floats("border", operands.border, 3, 3, outer)
    out = (batch, height * operands.made, width) if operands.strided else grown
    check_epilogue(operands.epilogue, operands.outputs, (*out, outer), FOLDS)


def _check_volumes(operands: Operands) -> None:
    """Check that volumes are of pairs of slices, and these of pairs of blocks of rows and of pairs of columns."""
    full, slices, step = operands.full, operands.epilogue.slices, operands.step
    if full is None or not operands.strided or operands.deep != 3 or step not in (1, 2) or slices < 1 or slices % step:
        wanted = f"a multiple of {step} slices, a weight of 27 taps and no map beside it"
        raise ValueError(f"full must have {wanted}, got {slices} and {9 * operands.deep} taps")
    if full.shape[1] % (2 * ROWS * slices) or full.shape[2] % 2:
        wanted = f"{slices} slices of a multiple of {2 * ROWS} rows and an even number of columns"
        raise ValueError(f"full must have {wanted}, got {list(full.shape)}")


def _check_groups(operands: Operands) -> None:
    """Check that a weight of groups is of as many channels as the map, and its window of whole blocks of them."""
    full, weight = operands.full, operands.full_weight
    assert full is not None
    assert weight is not None
    if weight.shape[1:-1] != full.shape[3:] or weight.shape[2] % BLOCK:
        wanted = f"[9, as many as full's channels, a multiple of {BLOCK}]"
        raise ValueError(f"full_weight of groups must be {wanted}, got {list(weight.shape)}")


def spread_of(operands: Operands) -> int:
    """Return how many column phases the 64 rows of a product hold."""
    return 2 if operands.outer <= 32 and not operands.strided else 1


def split_of(operands: Operands) -> bool:
    """Return whether the groups of warps take half of a tile's rows each."""
    return operands.strided and operands.outer <= 64


def may_hold(operands: Operands) -> bool:
    """Return whether weights may stay in shared memory: of volumes it was never run, and no tap may be left out."""
    return operands.deep == 1 and not operands.window_of_3


def held_blocks(operands: Operands, depth: int) -> int:
    """Return how many blocks [64 / spread, depth] of taps stay, of a phase and a block of channels."""
    small, full = operands.small, operands.full
    small_chunks = 0 if small is None else -(-small.shape[3] // depth)
    full_chunks = 0 if full is None else -(-full.shape[3] // depth)
    if spread_of(operands) == 2:
        return SMALL_BLOCKS * small_chunks + FULL_BLOCKS * full_chunks
    return 4 * 2 * small_chunks + 3 * 3 * full_chunks * (2 if operands.strided and not split_of(operands) else 1)


def phases_of(small: Tensor, taps: Tensor) -> Tensor:
    """Return the four phases by 2×2 taps [16, out, in] of small [N, in, h, w], put together as [N, out, 2 h, 2 w]."""
    batch, inner, height, width = small.shape
    out = small.new_empty(batch, taps.shape[1], height, 2, width, 2)
    for phase, (a, b) in enumerate(PHASES):
        window = taps[4 * phase : 4 * phase + 4].permute(1, 2, 0).reshape(-1, inner, 2, 2)
        padded = functional.pad(small, (1 - b, b, 1 - a, a))
        out[:, :, :, a, :, b] = functional.conv2d(padded, window)
    return out.reshape(batch, -1, 2 * height, 2 * width)


def at_border(border: Tensor, height: int, width: int) -> Tensor:
    """Return what border [3, 3, out] adds to each pixel of an output of at least 2×2, as [out, height, width]."""
    lines = [(torch.arange(size, device=border.device), size - 1) for size in (height, width)]
    rows, columns = (1 + (line == last).long() - (line == 0).long() for line, last in lines)
    return border[rows[:, None], columns].permute(2, 0, 1)


def reference(operands: Operands) -> None:
    """Compute `polyphase.polyphase` in fp32 on any device, and store its outputs."""
    epilogue, sums = operands.epilogue, torch.zeros(())
    small, full = operands.small, operands.full
    if small is not None and operands.small_weight is not None:
        phases = phases_of(small.float().permute(0, 3, 1, 2), operands.small_weight.float())
        sums = phases.permute(0, 2, 3, 1)
    if full is not None and operands.full_weight is not None:
        stride = (operands.step, 2, 2) if operands.deep == 3 else 2 if operands.strided else 1
        sums = sums + sums_of(full, operands.full_weight, stride=stride, slices=epilogue.slices)
    if epilogue.scale is not None:
        sums = sums * epilogue.scale
    if epilogue.bias is not None:
        sums = sums + epilogue.bias
    if operands.border is not None:
        sums = sums + at_border(operands.border, *sums.shape[1:3]).permute(1, 2, 0)
    store_reference(epilogue.activation(sums), epilogue, operands.outputs)
