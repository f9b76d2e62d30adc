"""3×3 convolution in groups of several channels, padding 1, stride 1, by `conv3x3_triton`.

The idea: most groups are too narrow for a matrix product, and 64 channels are exactly wide enough for one. So a tile of
64 output channels reads a window of input channels, those that its groups have, and zeros in the weights keep the
others out. Of groups whose width divides 64 the window is the tile's own 64 channels; of others it reaches over on
either side: of 24 channels it has 128. So window / width times as much is multiplied as is asked for, and as a share of
a dense convolution window / channels.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.kernels import conv3x3
from pipeline.kernels.common.epilogue import Epilogue, Outputs, store_reference
from pipeline.kernels.common.kernel_op import Ends, KernelOp, LayerDescription, LibraryParameters, flops_of
from pipeline.kernels.common.library import convolution
from pipeline.kernels.conv3x3 import conv3x3_triton
from pipeline.kernels.conv3x3.conv3x3_operands import FOLDS, Operands, check_operands

BLOCK, HALF_BLOCK = 64, 32  # channels of a tile
OWN_FOLDS = FOLDS - {"head"}


def window_of(width: int) -> int:
    """Return how many input channels a tile reads for groups of `width`: a multiple of 64, equal on both sides.

    Tiles begin at multiples of 64, groups at those of `width`: they are apart by a multiple of what divides both.
    """
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


def reference(x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs) -> None:
    """Compute `conv3x3_grouped` in plain PyTorch and fp32, on any device.

    Args:
        x: [N, H, W, channels].
        weight: [9, channels, window].
        epilogue: as of `conv3x3.reference`, without a head.
        outputs: as of `conv3x3.reference`.
    """
    store_reference(epilogue.of(sums_by_groups(x, weight)), epilogue, outputs)


def sums_by_groups(x: Tensor, weight: Tensor, stride: int = 1) -> Tensor:
    """Return the convolution of x [N, H, W, channels] by weight [9, channels, window], fp32 [N, H', W', channels]."""
    _, outer, window = weight.shape
    beside = (window - BLOCK) // 2
    taps = weight.float().reshape(3, 3, outer, window).permute(2, 3, 0, 1).split(BLOCK)
    whole = functional.pad(x.float(), (beside, beside + -outer % BLOCK)).permute(0, 3, 1, 2)
    begins = range(0, outer, BLOCK)
    parts = [
        functional.conv2d(whole[:, begin : begin + window], part, stride=stride, padding=1)
        for begin, part in zip(begins, taps, strict=True)
    ]
    return torch.cat(parts, 1).permute(0, 2, 3, 1)


def conv3x3_grouped(
    x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs, tile: conv3x3_triton.Tile | None = None
) -> None:
    """Write the convolution of x through the epilogue into `outputs`.

    Args:
        x: [N, H, W, channels], fp16 or fp8, may be a channel slice of a wider tensor.
        weight: [9, channels, window] of x's dtype, from `pack`, with a window of a multiple of 64 channels.
        epilogue: as of `conv3x3.conv3x3`, without a head.
        outputs: as of `conv3x3.conv3x3`.
        tile: one of `candidates`; the first of them without.

    Raises:
        ValueError: a shape, dtype or stride is not as above.
    """
    window = weight.shape[-1]
    if weight.shape[1:-1] != x.shape[3:] or window % BLOCK:
        raise ValueError(f"weight must be [9, {x.shape[3]}, a multiple of {BLOCK}], got {list(weight.shape)}")
    operands = Operands(x, weight, epilogue, outputs)
    check_operands(operands, OWN_FOLDS, window)
    tile = tile or next(candidates(x, weight, epilogue))
    if tile.out != BLOCK:
        raise ValueError(f"a tile must have {BLOCK} channels, whose window is one, got {tile.out}")
    conv3x3_triton.launch(operands, tile, grouped=True)


def candidates(x: Tensor, weight: Tensor, epilogue: Epilogue, *_: object) -> Iterator[conv3x3_triton.Tile]:
    """Yield tiles worth measuring for x [N, H, W, channels] and weight [9, channels, window], likeliest first."""
    for tile in conv3x3_triton.candidates(x, BLOCK, statistics=epilogue.statistics):
        yield replace(tile, depth=min(tile.depth, weight.shape[-1]))


def by_library(x: Tensor, parameters: LibraryParameters, ends: Ends, stride: int = 1) -> Tensor:
    """Run the library: x [N, channels, H, W], weight [channels, width, 3, 3] to [N, channels, H', W']."""
    weight = parameters.weight
    x = x.to(weight.dtype, memory_format=torch.channels_last)
    groups = len(weight) // weight.shape[1]
    return convolution(x, parameters, ends, stride=(stride, stride), padding=(1, 1), groups=groups)


def flops(shape: tuple[int, ...], outer: int) -> float:
    """Return the FLOPs for an input [batch, channels, height, width], zeros beside each group included: 64 channels."""
    batch, _, *size = shape
    return flops_of(9)((batch, BLOCK, *size), outer)


def has_groups(layer: LayerDescription, stride: int = 1) -> bool:
    """Return whether a layer is a 3×3 convolution of this stride in groups of several channels, as many out as in."""
    ungrouped = replace(layer, groups=1)
    width = layer.inner // layer.groups
    own = layer.kind == "conv2d" and layer.inner == layer.outer and layer.groups > 1 and width > 1
    return own and ungrouped.is_square(3, stride, 1) and layer.suits_bulk_copies


OP: KernelOp = KernelOp(
    name="conv3x3_grouped",
    accepts=has_groups,
    reference=reference,
    launch=conv3x3_grouped,
    candidates=candidates,
    library=by_library,
    flops=flops,
    tile_types=(conv3x3_triton.Tile,),
    pack=pack,
    weight_shape=lambda _, outer: (outer, 8, 3, 3),
    out_axis=1,
    tap_axis=0,
    folds=OWN_FOLDS,
)
