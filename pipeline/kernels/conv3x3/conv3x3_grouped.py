"""3×3 convolution in groups of several channels, padding 1, stride 1, by `conv3x3_triton`.

The idea: groups of 2 to 32 channels are too narrow for a matrix product, and a block of 64 channels is exactly wide
enough for one. So the weights of as many groups as fill a block lie on the diagonal of a block's, with zeros beside
them, and a tile of 64 output channels reads the 64 input channels of its block alone. That multiplies 64 / width times
as much as is asked for, and as a share of a dense convolution 64 / channels.
"""

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

BLOCK = 64  # channels of a tile
OWN_FOLDS = FOLDS - {"head"}


def block_of(width: int) -> int:
    """How many input channels a tile of 64 output channels reads, for groups of so many; 0 where none are enough."""
    return BLOCK if BLOCK % width == 0 else width if width % BLOCK == 0 else 0


def pack(weight: Tensor) -> Tensor:
    """A grouped convolution's weight [channels, width, 3, 3] as [9, channels, block].

    An output channel's block begins at the multiple of the block's channels below it; beside its group's are zeros.
    """
    outer, width = weight.shape[:2]
    block = block_of(width)
    channel = torch.arange(outer, device=weight.device)
    begins = channel // width * width % block
    columns = begins[:, None] + torch.arange(width, device=weight.device)
    taps = conv3x3.pack(weight)
    packed = taps.new_zeros(len(taps), outer, block)
    return packed.scatter_(2, columns.expand(len(taps), -1, -1), taps)


def reference(x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs) -> None:
    """What `conv3x3_grouped` computes, in plain PyTorch and fp32, on any device.

    Args:
        x: [N, H, W, channels].
        weight: [9, channels, block].
        epilogue: as of `conv3x3.reference`, without a head.
        outputs: as of `conv3x3.reference`.
    """
    _, outer, block = weight.shape
    lacking = -outer % block  # channels of the last block that there aren't
    taps = functional.pad(weight.float(), (0, 0, 0, lacking)).reshape(3, 3, -1, block).permute(2, 3, 0, 1)
    whole = functional.pad(x.float(), (0, lacking)).permute(0, 3, 1, 2)
    sums = functional.conv2d(whole, taps, padding=1, groups=len(taps) // block)[:, :outer]
    store_reference(epilogue.of(sums.permute(0, 2, 3, 1)), epilogue, outputs)


def conv3x3_grouped(
    x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs, tile: conv3x3_triton.Tile | None = None
) -> None:
    """The convolution of x through the epilogue, written into `outputs`.

    Args:
        x: [N, H, W, channels], fp16 or fp8, a channel slice of a wider tensor at will.
        weight: [9, channels, block] of x's dtype, from `pack`, with a block of a multiple of 64 channels.
        epilogue: as of `conv3x3.conv3x3`, without a head.
        outputs: as of `conv3x3.conv3x3`.
        tile: one of `candidates`; the first of them without.

    Raises:
        ValueError: a shape, dtype or stride is not as above.
    """
    block = weight.shape[-1]
    if weight.shape[1:-1] != x.shape[3:] or block % BLOCK:
        raise ValueError(f"weight must be [9, {x.shape[3]}, a multiple of {BLOCK}], got {list(weight.shape)}")
    operands = Operands(x, weight, epilogue, outputs)
    check_operands(operands, OWN_FOLDS, block)
    tile = tile or next(candidates(x, weight, epilogue))
    if tile.out != BLOCK:
        raise ValueError(f"a tile must have {BLOCK} channels, which read one block, got {tile.out}")
    conv3x3_triton.launch(operands, tile)


def candidates(x: Tensor, weight: Tensor, epilogue: Epilogue) -> Iterator[conv3x3_triton.Tile]:
    """The tiles worth measuring for x [N, H, W, channels] and weight [9, channels, block], the likeliest first."""
    for tile in conv3x3_triton.candidates(x, BLOCK, statistics=epilogue.statistics):
        yield replace(tile, depth=min(tile.depth, weight.shape[-1]))


def by_library(x: Tensor, parameters: LibraryParameters, ends: Ends) -> Tensor:
    """The same of x [N, channels, H, W] by weight [channels, width, 3, 3], and what follows: [N, channels, H, W]."""
    weight = parameters.weight
    x = x.to(weight.dtype, memory_format=torch.channels_last)
    return convolution(x, parameters, ends, padding=(1, 1), groups=len(weight) // weight.shape[1])


def flops(shape: tuple[int, ...], outer: int) -> float:
    """What is multiplied for an input [batch, channels, height, width], zeros among it: 64 channels for each."""
    batch, _, *size = shape
    return flops_of(9)((batch, BLOCK, *size), outer)


def _accepts(layer: LayerDescription) -> bool:
    ungrouped = replace(layer, groups=1)
    width = layer.inner // layer.groups
    own = layer.kind == "conv2d" and layer.inner == layer.outer and layer.groups > 1 and width > 1
    return own and ungrouped.is_square(3, 1, 1) and layer.suits_bulk_copies and block_of(width) > 0


OP: KernelOp = KernelOp(
    name="conv3x3_grouped",
    accepts=_accepts,
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
    same_channels=True,
)
