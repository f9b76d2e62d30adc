"""3×3 convolution in groups of several channels, padding 1, stride 1 or 2, by `conv3x3_triton` and `polyphase_triton`.

The idea: most groups are too narrow for a matrix product, and 64 channels are exactly wide enough for one. So a tile of
64 output channels reads a window of input channels, those that its groups have, and zeros in the weights keep the
others out. Of groups whose width divides 64 the window is the tile's own; of 24 channels it has 128.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.kernels import conv3x3
from pipeline.kernels.common.epilogue import Epilogue, Outputs, store_reference, sums_of
from pipeline.kernels.common.kernel_op import KernelOp, LayerDescription, convolution
from pipeline.kernels.conv3x3 import conv3x3_triton
from pipeline.kernels.conv3x3.conv3x3_triton import BLOCK, FOLDS, Operands, check_groups, check_operands
from pipeline.kernels.polyphase import polyphase_triton

HALF_BLOCK = 32
OWN_FOLDS = FOLDS - {"head"}


def window_of(width: int) -> int:
    """Return how many input channels a tile reads for groups of `width`: a multiple of 64, equal on both sides."""
    beyond = width - math.gcd(width, BLOCK)
    return BLOCK + 2 * HALF_BLOCK * -(-beyond // HALF_BLOCK)


def pack(weight: Tensor) -> Tensor:
    """Return a grouped weight [channels, width, 3, 3] as [9, channels, window]; beside a group's are zeros."""
    outer, width = weight.shape[:2]
    window = window_of(width)
    channel = torch.arange(outer, device=weight.device)
    begins = channel // width * width - (channel // BLOCK * BLOCK - (window - BLOCK) // 2)
    place = torch.arange(window, device=weight.device) - begins[:, None]
    own = (place >= 0) & (place < width)
    taps = conv3x3.pack(weight)
    # By reading, not by scattering: within a graph of Inductor's it is then one kernel.
    return taps.gather(2, place.clamp(0, width - 1).expand(len(taps), -1, -1)).where(own, 0.0).contiguous()


def reference(x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs, *, stride: int = 1) -> None:
    """Compute `conv3x3_grouped`, or with a stride `grouped_strided`, in plain PyTorch and fp32, on any device."""
    _, outer, window = weight.shape
    beside = (window - BLOCK) // 2
    whole = functional.pad(x.float(), (beside, beside + -outer % BLOCK))
    parts = [
        sums_of(whole[..., begin : begin + window], weight[:, begin : begin + BLOCK], stride=stride)
        for begin in range(0, outer, BLOCK)
    ]
    store_reference(epilogue.of(torch.cat(parts, 3)), epilogue, outputs)


def conv3x3_grouped(x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs, tile: conv3x3_triton.Tile) -> None:
    """Write the convolution of x [N, H, W, channels], as `conv3x3`, by weight [9, channels, window] from `pack`."""
    check_groups("weight", weight, x)
    operands = Operands(x, weight, epilogue, outputs)
    check_operands(operands, OWN_FOLDS, weight.shape[-1])
    _check_tile(tile.out)
    conv3x3_triton.launch(operands, tile, grouped=True)


def candidates(x: Tensor, weight: Tensor, epilogue: Epilogue, *_: object) -> Iterator[conv3x3_triton.Tile]:
    """Yield tiles worth measuring for x [N, H, W, channels] and weight [9, channels, window], likeliest first."""
    for tile in conv3x3_triton.candidates(x, BLOCK, statistics=epilogue.statistics):
        yield replace(tile, depth=min(tile.depth, weight.shape[-1]))


def grouped_strided(
    x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs, tile: polyphase_triton.Tile
) -> None:
    """Write the convolution of stride 2, of even height and width; arguments: same as `conv3x3_grouped`."""
    operands = polyphase_triton.Operands(epilogue, outputs, full=x, full_weight=weight, grouped=True)
    polyphase_triton.check_operands(operands)
    _check_tile(tile.out)
    polyphase_triton.launch(operands, tile)


def strided_candidates(
    x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs
) -> Iterator[polyphase_triton.Tile]:
    """Yield tiles worth measuring for `grouped_strided`, likeliest first."""
    operands = polyphase_triton.Operands(epilogue, outputs, full=x[..., :BLOCK], full_weight=weight)
    for tile in polyphase_triton.candidates(operands):
        yield replace(tile, out=BLOCK)


def _check_tile(out: int) -> None:
    if out != BLOCK:
        raise ValueError(f"a tile must have {BLOCK} channels, whose window is one, got {out}")


def _accepts(layer: LayerDescription, *, stride: int) -> bool:
    """Return whether a layer has groups of several channels, as many out as in; with a stride on even sides."""
    ungrouped = replace(layer, groups=1)
    width = layer.inner // layer.groups
    own = layer.kind == "conv2d" and layer.inner == layer.outer and layer.groups > 1 and width > 1
    even = all(size % stride == 0 for size in layer.in_size)
    return own and even and ungrouped.is_square(3, stride, 1) and layer.suits_bulk_copies


# The width includes the zeros beside each group.
OP: KernelOp = replace(
    conv3x3.OP, name="conv3x3_grouped", accepts=partial(_accepts, stride=1), reference=reference,
    launch=conv3x3_grouped, candidates=candidates, width=BLOCK, tile_types=(conv3x3_triton.Tile,), pack=pack,
    folds=OWN_FOLDS,
)  # fmt: skip
STRIDED_OP: KernelOp = replace(
    OP, name="conv3x3_grouped_strided", accepts=partial(_accepts, stride=2), reference=partial(reference, stride=2),
    launch=grouped_strided, candidates=strided_candidates, library=partial(convolution, stride=2), taps=9 / 4,
    tile_types=(polyphase_triton.Tile,), folds=polyphase_triton.FOLDS, growth=0.5,
)  # fmt: skip
