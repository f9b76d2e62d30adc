"""3×3 convolution, padding 1, stride 1, with bias, activation, max-pool and the 1×1 head in its epilogue.

Three kernels do it: `conv3x3_triton`; `conv3x3_gluon`, which is faster; and for few channels `conv3x3_narrow`. The tile
says which.
"""

from collections.abc import Iterator

from torch import Tensor
from torch.nn import functional

from pipeline.kernels.common.capability import gluon_barred, reaching_views_barred
from pipeline.kernels.common.epilogue import Epilogue, Outputs, store_reference
from pipeline.kernels.common.kernel_op import KernelOp, flops_of
from pipeline.kernels.common.library import same_size_convolution
from pipeline.kernels.common.nhwc import interpreted
from pipeline.kernels.conv3x3 import conv3x3_gluon, conv3x3_narrow, conv3x3_triton
from pipeline.kernels.conv3x3.conv3x3_operands import FOLDS, Operands, check_operands

Tile = conv3x3_triton.Tile | conv3x3_gluon.Tile | conv3x3_narrow.Tile


def pack(weight: Tensor) -> Tensor:
    """Return a weight [out, in, k, k] as [k · k, out, in], in the order of the kernels."""
    return weight.permute(2, 3, 0, 1).flatten(0, 1).contiguous()


def reference(x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs) -> None:
    """Compute `conv3x3` and `conv3x3_dilated` in plain PyTorch and fp32, on any device.

    Args:
        x: [N, H, W, in].
        weight: [9, out, in].
        epilogue: scale, bias and slopes [out], a residual [N, H, W, out], and what is folded.
        outputs: out [N, H, W, out], pooled [N, H // 2, W // 2, out], logits [N, classes, H, W], statistics
            [N, blocks, 2, out].
    """
    apart = epilogue.dilation
    taps = weight.float().reshape(3, 3, *weight.shape[1:]).permute(2, 3, 0, 1)
    sums = functional.conv2d(x.float().permute(0, 3, 1, 2), taps, padding=apart, dilation=apart).permute(0, 2, 3, 1)
    store_reference(epilogue.of(sums), epilogue, outputs)


def conv3x3(x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs, tile: Tile | None = None) -> None:
    """Write the convolution of x through the epilogue into `outputs`.

    Args:
        x: [N, H, W, in], fp16 or fp8, may be a channel slice of a wider tensor.
        weight: [9, out, in] of x's dtype, from `pack`; of volumes as `conv3x3x3` says, with their depth as the
            epilogue's `slices`.
        epilogue: scale, bias and slopes [out], a residual [N, H, W, out]; a head for at most 8 classes, and `out`
            channels that fit in one tile.
        outputs: out [N, H, W, out], pooled [N, H // 2, W // 2, out], logits [N, classes, H, W], statistics
            [N, blocks, 2, out], as the epilogue asks; `out` may be None where another is given.
        tile: one of `candidates`; the first of them without.

    Raises:
        ValueError: a shape, dtype or stride is not as above.
    """
    operands = Operands(x, weight, epilogue, outputs)
    check_operands(operands)
    tile = tile or next(candidates(*operands))
    if isinstance(tile, conv3x3_gluon.Tile):
        conv3x3_gluon.launch(operands, tile)
    elif isinstance(tile, conv3x3_narrow.Tile):
        conv3x3_narrow.launch(operands, tile)
    else:
        conv3x3_triton.launch(operands, tile)


def candidates(x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs) -> Iterator[Tile]:
    """Yield tiles worth measuring for x [N, H, W, in] and weight [9, 27 or 36, out, in], likeliest first.

    Where `conv3x3_gluon` can be built `conv3x3_triton` isn't tried: measured on an H200 with both on offer, it was
    chosen for none of the 17 convolutions of the classic net, in fp16 or fp8, at batch 1 or 8.
    """
    head, outer = epilogue.head is not None, weight.shape[1]
    by_gluon = gluon_barred() is None and not interpreted()
    if by_gluon and len(weight) == 9 and weight.is_contiguous() and conv3x3_narrow.suits(x, outer, epilogue):
        yield from conv3x3_narrow.candidates(x, outer, ends=bool(epilogue.parts))
    if by_gluon and reaching_views_barred() is None:
        yield from conv3x3_gluon.candidates(Operands(x, weight, epilogue, outputs))
    else:
        yield from conv3x3_triton.candidates(x, outer, head=head, statistics=epilogue.statistics)


OP: KernelOp = KernelOp(
    name="conv3x3",
    accepts=lambda layer: layer.kind == "conv2d" and layer.is_square(3, 1, 1) and layer.suits_bulk_copies,
    reference=reference,
    launch=conv3x3,
    candidates=candidates,
    library=same_size_convolution,
    flops=flops_of(9),
    tile_types=(conv3x3_triton.Tile, conv3x3_gluon.Tile, conv3x3_narrow.Tile),
    pack=pack,
    weight_shape=lambda inner, outer: (outer, inner, 3, 3),
    out_axis=1,
    tap_axis=0,
    folds=FOLDS,
)
