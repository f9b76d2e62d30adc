"""3×3 convolution in groups of several channels, padding 1, stride 2, by `polyphase_triton`.

The idea is that of `conv3x3_grouped`: a tile of 64 output channels reads the input channels that its groups have, and
zeros in the weights keep the others out. The parity planes of the map are those of any stride of 2.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from torch import Tensor

from pipeline.kernels.common.epilogue import Epilogue, Outputs, store_reference
from pipeline.kernels.common.kernel_op import KernelOp, LayerDescription
from pipeline.kernels.conv3x3 import conv3x3_grouped
from pipeline.kernels.conv3x3.conv3x3_grouped import BLOCK
from pipeline.kernels.polyphase import polyphase_triton
from pipeline.kernels.polyphase.polyphase_operands import FOLDS, Operands, check_operands


def reference(x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs) -> None:
    """Compute the same in plain PyTorch and fp32, on any device.

    Args:
        x: [N, H, W, channels].
        weight: [9, channels, window].
        epilogue: scale and bias [channels], an activation, and statistics.
        outputs: out [N, H / 2, W / 2, channels], statistics [N, blocks, 2, channels].
    """
    store_reference(epilogue.of(conv3x3_grouped.sums_by_groups(x, weight, 2)), epilogue, outputs)


def grouped_strided(
    x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs, tile: polyphase_triton.Tile | None = None
) -> None:
    """Write the convolution of x through the epilogue into `outputs`.

    Args:
        x: [N, H, W, channels], fp16 or fp8, H and W even, may be a channel slice of a wider tensor.
        weight: [9, channels, window] of x's dtype, from `conv3x3_grouped.pack`.
        epilogue: as of `reference`.
        outputs: as of `reference`.
        tile: one of `candidates`; the first of them without.

    Raises:
        ValueError: a shape, dtype or stride is not as above.
    """
    operands = Operands(epilogue, outputs, full=x, full_weight=weight, grouped=True)
    check_operands(operands)
    tile = tile or next(candidates(x, weight, epilogue, outputs))
    if tile.out != BLOCK:
        raise ValueError(f"a tile must have {BLOCK} channels, whose window is one, got {tile.out}")
    polyphase_triton.launch(operands, tile)


def candidates(x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs) -> Iterator[polyphase_triton.Tile]:
    """Yield tiles worth measuring for x [N, H, W, channels] and weight [9, channels, window], likeliest first."""
    operands = Operands(epilogue, outputs, full=x[..., :BLOCK], full_weight=weight)
    for tile in polyphase_triton.candidates(operands):
        yield replace(tile, out=BLOCK)


def flops(shape: tuple[int, ...], outer: int) -> float:
    """Return the FLOPs for an input [batch, channels, height, width], zeros beside each group included: 64 channels."""
    return conv3x3_grouped.flops(shape, outer) / 4


def _accepts(layer: LayerDescription) -> bool:
    return conv3x3_grouped.has_groups(layer, 2) and all(size % 2 == 0 for size in layer.in_size)


OP: KernelOp = KernelOp(
    name="conv3x3_grouped_strided",
    accepts=_accepts,
    reference=reference,
    launch=grouped_strided,
    candidates=candidates,
    library=partial(conv3x3_grouped.by_library, stride=2),
    flops=flops,
    tile_types=(polyphase_triton.Tile,),
    pack=conv3x3_grouped.pack,
    weight_shape=lambda _, outer: (outer, 8, 3, 3),
    out_axis=1,
    tap_axis=0,
    folds=FOLDS,
    growth=0.5,
)
