"""2×2 transposed convolution, stride 2, with bias and activation in its epilogue.

Every input pixel makes four output pixels, each from its own weight matrix, and none overlap. Two kernels do it:
`upconv2x2_triton`, and `upconv2x2_gluon`, which is faster. The tile says which.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from pipeline.kernels.common.capability import reaching_views_barred
from pipeline.kernels.common.epilogue import Epilogue, Outputs, check_epilogue, required, store_reference
from pipeline.kernels.common.kernel_op import KernelOp, flops_of
from pipeline.kernels.common.library import transposed_convolution
from pipeline.kernels.common.nhwc import check, interpreted
from pipeline.kernels.upconv2x2 import upconv2x2_gluon, upconv2x2_triton

Tile = upconv2x2_triton.Tile | upconv2x2_gluon.Tile
FOLDS = frozenset({"slopes"})


def pack(weight: Tensor) -> Tensor:
    """Return a transposed weight [in, out, 2, 2] as [4, out, in]: entry 2 i + j makes output pixel (i, j)."""
    return weight.permute(2, 3, 1, 0).reshape(4, weight.shape[1], weight.shape[0]).contiguous()


def reference(x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs) -> None:
    """Compute `upconv2x2` in plain PyTorch and fp32, on any device.

    Args:
        x: [N, H, W, in].
        weight: [4, out, in].
        epilogue: scale, bias and slopes [out].
        outputs: out [N, 2 H, 2 W, out].
    """
    batch, height, width, _ = x.shape
    y = epilogue.of(torch.einsum("nhwc,koc->nhwko", x.float(), weight.float()))
    y = y.reshape(batch, height, width, 2, 2, -1).permute(0, 1, 3, 2, 4, 5)
    store_reference(y.reshape(batch, 2 * height, 2 * width, -1), epilogue, outputs)


def upconv2x2(x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs, tile: Tile | None = None) -> None:
    """Write the transposed convolution of x through the epilogue into `outputs.out`.

    Args:
        x: [N, H, W, in], fp16 or fp8; the images must follow each other without a gap.
        weight: [4, out, in] of x's dtype, from `pack`; of volumes [8, out, in], as `upconv2x2x2` says.
        epilogue: scale, bias and slopes [out]; folds neither a pool nor a head.
        outputs: out [N, 2 H, 2 W, out], may be a channel slice of a wider tensor.
        tile: one of `candidates`; the first of them without.

    Raises:
        ValueError: a shape, dtype or stride is not as above.
    """
    batch, height, width, inner = x.shape
    outer, deep = weight.shape[1], 2 if len(weight) == 8 else 1
    check("x", x, (batch, height, width, inner))
    check("weight", weight, (4 * deep, outer, inner))
    if height % (8 * epilogue.slices) if deep == 2 else epilogue.slices > 1:
        raise ValueError(f"x must have {epilogue.slices} slices of a multiple of 8 rows, got {list(x.shape)}")
    if weight.dtype != x.dtype:
        raise ValueError(f"weight must have x's dtype, {x.dtype}, got {weight.dtype}")
    check_epilogue(epilogue, outputs, (batch, 2 * deep * height, 2 * width, outer), FOLDS)
    out = required(outputs.out)
    for name, tensor in (("x", x), ("out", out)):
        if batch > 1 and tensor.stride(0) != tensor.shape[1] * tensor.stride(1):
            raise ValueError(f"{name}'s images must follow each other without a gap, got {list(tensor.stride())}")
    tile = tile or next(candidates(x, weight, epilogue))
    if isinstance(tile, upconv2x2_gluon.Tile):
        upconv2x2_gluon.launch(x, weight, epilogue, out, tile)
    else:
        upconv2x2_triton.launch(x, weight, epilogue, out, tile)


def candidates(x: Tensor, weight: Tensor, epilogue: Epilogue, *_: object) -> Iterator[Tile]:
    """Yield tiles worth measuring for x [N, H, W, in] and weight [4 or 8, out, in], likeliest first."""
    if reaching_views_barred() is None and not interpreted():
        yield from upconv2x2_gluon.candidates(x, x.shape[1] // epilogue.slices if len(weight) == 8 else 16)
    yield from upconv2x2_triton.candidates(x, weight.shape[1])


OP: KernelOp = KernelOp(
    name="upconv2x2",
    accepts=lambda layer: layer.kind == "conv_transpose2d" and layer.is_square(2, 2, 0) and layer.suits_bulk_copies,
    reference=reference,
    launch=upconv2x2,
    candidates=candidates,
    library=transposed_convolution,
    flops=flops_of(4),
    tile_types=(upconv2x2_triton.Tile, upconv2x2_gluon.Tile),
    pack=pack,
    weight_shape=lambda inner, outer: (inner, outer, 2, 2),
    out_axis=1,
    folds=FOLDS,
    growth=2,
)
