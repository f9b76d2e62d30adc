"""Bilinear upsampling by 2, corners not aligned, over NHWC.

The idea: an output pixel mixes four inputs with weights 9, 3, 3 and 1 sixteenths, the same four patterns everywhere but
at the border, where the index is clamped. The four reads hit the L2; what counts is that each line is written once. A
1×1 convolution after it commutes with it: run it before, on a quarter of the pixels.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from pipeline.kernels.common.epilogue import Epilogue, Outputs, required
from pipeline.kernels.common.kernel_op import KernelOp, LayerDescription
from pipeline.kernels.common.library import bilinear
from pipeline.kernels.common.nhwc import check_vector, store
from pipeline.kernels.common.triton_epilogue import rounded


@dataclass(frozen=True)
class Tile:
    """How the work is cut: `block` output elements a program; 1024 are 8 a thread in 4 warps, 16 bytes of fp16."""

    block: int = 1024


def reference(x: Tensor, _: Tensor, epilogue: Epilogue, outputs: Outputs) -> None:
    """What `upsample2x` computes, in plain PyTorch, on any device.

    Args:
        x: [N, H, W, C].
        epilogue: a scale [C].
        outputs: out [N, 2 H, 2 W, C].
    """
    scaled = epilogue.of(x.float()).permute(0, 3, 1, 2)
    store(functional.interpolate(scaled, scale_factor=2, mode="bilinear").permute(0, 2, 3, 1), required(outputs.out))


@triton.jit
def _upsample2x(
    x, out, height, width, channels, elements, x_image_stride, x_row_stride, x_pixel_stride,
    out_image_stride, out_row_stride, out_pixel_stride, scale, BLOCK: tl.constexpr,
):  # fmt: skip
    """Read x [N, H, W, channels], out [N, 2 H, 2 W, channels], channel stride 1."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    channel, pixel = at % channels, at // channels
    col, row, image = pixel % (2 * width), pixel // (2 * width) % (2 * height), pixel // (4 * width * height)
    # The nearer input has weight 3/4, its neighbour on the side of the output pixel 1/4.
    near_row, near_col = row // 2, col // 2
    far_row = tl.minimum(tl.maximum(near_row + 2 * (row % 2) - 1, 0), height - 1)
    far_col = tl.minimum(tl.maximum(near_col + 2 * (col % 2) - 1, 0), width - 1)
    source = x + image * x_image_stride + channel
    here = at < elements
    upper = 0.75 * tl.load(source + near_row * x_row_stride + near_col * x_pixel_stride, mask=here).to(tl.float32)
    upper += 0.25 * tl.load(source + near_row * x_row_stride + far_col * x_pixel_stride, mask=here).to(tl.float32)
    lower = 0.75 * tl.load(source + far_row * x_row_stride + near_col * x_pixel_stride, mask=here).to(tl.float32)
    lower += 0.25 * tl.load(source + far_row * x_row_stride + far_col * x_pixel_stride, mask=here).to(tl.float32)
    value = 0.75 * upper + 0.25 * lower
    if scale is not None:
        value = value * tl.load(scale + channel, mask=here)
    target = out + image * out_image_stride + row * out_row_stride + col * out_pixel_stride + channel
    tl.store(target, rounded(value, out.dtype.element_ty), mask=here)


def upsample2x(x: Tensor, _: Tensor, epilogue: Epilogue, outputs: Outputs, tile: Tile | None = None) -> None:
    """Write x at twice the height and width, scaled, rounded to the dtype of `outputs.out`.

    Args:
        x: [N, H, W, C] with channel stride 1, fp32, fp16 or fp8.
        epilogue: a scale [C], x's over `out`'s where either is fp8; no bias, activation, pool or head.
        outputs: out [N, 2 H, 2 W, C] with channel stride 1, fp32, fp16 or fp8.
        tile: how the work is cut.

    Raises:
        ValueError: a shape or stride is not as above, or the epilogue does more than scale.
    """
    batch, height, width, channels = x.shape
    out = required(outputs.out)
    if tuple(out.shape) != (batch, 2 * height, 2 * width, channels):
        raise ValueError(f"out must be {[batch, 2 * height, 2 * width, channels]}, got {list(out.shape)}")
    if x.stride(3) != 1 or out.stride(3) != 1:
        raise ValueError("x and out must have their channels side by side")
    if epilogue != Epilogue(scale=epilogue.scale):
        raise ValueError(f"the epilogue must only scale, got {epilogue.key}")
    if epilogue.scale is not None:
        check_vector("scale", epilogue.scale, channels)
    block = (tile or Tile()).block
    _upsample2x[triton.cdiv(out.numel(), block),](
        x, out, height, width, channels, out.numel(), *x.stride()[:3], *out.stride()[:3], epilogue.scale, BLOCK=block
    )


def candidates(_: Tensor, __: Tensor, ___: Epilogue) -> Iterator[Tile]:
    """The one way in which the work is cut, for any x [N, H, W, C]."""
    yield Tile()


def _accepts(layer: LayerDescription) -> bool:
    twice = layer.out_size == (2 * layer.in_size[0], 2 * layer.in_size[1])
    return layer.kind == "upsample_bilinear2d" and twice and not layer.align_corners and layer.suits_bulk_copies


def _flops(shape: tuple[int, ...], _: int) -> float:
    return 2.0 * 4 * 4 * math.prod(shape)  # four inputs mixed for each of four outputs


OP: KernelOp[Tile] = KernelOp(
    name="upsample2x",
    accepts=_accepts,
    reference=reference,
    launch=upsample2x,
    candidates=candidates,
    library=bilinear,
    flops=_flops,
    tile_types=(Tile,),
    growth=2,
)
