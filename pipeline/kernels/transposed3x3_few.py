"""Transposed 3×3 convolution of stride 2 that doubles height and width, to at most four channels.

The idea: all four output pixels of an input pixel are columns of one product, 16 for four channels, so that the input
is multiplied where it lies, once for each of the four neighbours that the phases read. Only the channels that there are
get stored: memory is what takes the time, and TMA would move no fewer than eight.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import triton
import triton.language as tl
from torch import Tensor

from pipeline.kernels.common.epilogue import Epilogue, Outputs, check_few
from pipeline.kernels.common.kernel_op import CHANNELS_IN_FP8, KernelOp, LayerDescription
from pipeline.kernels.common.nhwc import depth_of, next_power_of_two
from pipeline.kernels.common.program import on_grid
from pipeline.kernels.common.triton_epilogue import rounded
from pipeline.kernels.polyphase import TRANSPOSED_3X3 as OF_MANY

MOST_OUT = 4


@dataclass(frozen=True)
class Tile:
    """A cut of the work: `pixels` of an input row a program, `depth` input channels a step."""

    kernel: ClassVar[str] = "transposed3x3_few"
    pixels: int
    depth: int
    warps: int = 4
    stages: int = 4


@triton.jit
def _transposed3x3_few(
    x, weight, out, scale, bias, x_image_stride, x_row_stride, x_pixel_stride,
    out_image_stride, out_row_stride, out_pixel_stride, height, width,
    IN: tl.constexpr, OUT: tl.constexpr, GROUP: tl.constexpr, PIXELS: tl.constexpr, DEPTH: tl.constexpr,
    ACTIVATION: tl.constexpr, SLOPE: tl.constexpr,
):  # fmt: skip
    """Read x [N, h, w, IN] and weight [16, OUT, IN]; write out [N, 2 h, 2 w, OUT]; columns go in GROUPs of a phase."""
    STEPS: tl.constexpr = (IN + DEPTH - 1) // DEPTH
    row, number = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    col = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    column = tl.arange(0, 16)
    a, b, channel = column // GROUP // 2, column // GROUP % 2, column % GROUP
    known = (a < 2) & (channel < OUT)
    image = x + number * x_image_stride
    acc = tl.zeros((PIXELS, 16), tl.float32)
    for step in tl.range(4 * STEPS):
        down, across = step // STEPS // 2, step // STEPS % 2
        entry = step % STEPS * DEPTH + tl.arange(0, DEPTH)
        y, at = row + down, col + across
        source = image + y * x_row_stride + (at * x_pixel_stride)[:, None] + entry[None, :]
        seen = tl.load(source, mask=((y < height) & (at < width))[:, None] & (entry < IN)[None, :], other=0.0)
        # Of phase (a, b) the tap that reads this neighbour, where there is one (`polyphase_compose`).
        i, j = down + 1 - a, across + 1 - b
        read = known & (i < 2) & (j < 2)
        place = ((8 * a + 4 * b + 2 * i + j) * OUT + channel) * IN
        taps = tl.load(weight + place[:, None] + entry[None, :], mask=read[:, None] & (entry < IN)[None, :], other=0.0)
        acc = tl.dot(seen, taps.T, acc)
    if scale is not None:
        acc = acc * tl.load(scale + channel, mask=known, other=0.0)[None, :]
    acc = acc + tl.load(bias + channel, mask=known, other=0.0)[None, :]
    acc = ACTIVATION(acc, SLOPE)
    target = (
        out + number * out_image_stride + ((2 * row + a) * out_row_stride + b * out_pixel_stride + channel)[None, :]
    )
    stored = (col < width)[:, None] & known[None, :]
    tl.store(target + (2 * col * out_pixel_stride)[:, None], rounded(acc, out.dtype.element_ty), mask=stored)


def transposed3x3_few(
    x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs, tile: Tile | None = None
) -> None:  # fmt: skip
    """Write the transposed convolution of x [N, h, w, in] through the epilogue into out [N, 2 h, 2 w, out].

    The weight is [16, out, in] from `polyphase.phase_taps`, at most 4 output channels; the epilogue has a scale, a bias
    and an activation. Values are fp16 or fp8.
    """
    batch, height, width, inner = x.shape
    outer = weight.shape[1]
    shape = (batch, 2 * height, 2 * width, outer)
    out = check_few(x, (weight, (16, outer, inner)), epilogue, outputs, (shape, ()))
    if outer > MOST_OUT:
        raise ValueError(f"weight must have at most {MOST_OUT} channels out, got {list(weight.shape)}")
    tile = tile or next(candidates(x))
    on_grid(_transposed3x3_few, triton.cdiv(width, tile.pixels), height, batch)(
        x, weight, out, epilogue.scale, epilogue.bias, *x.stride()[:3], *out.stride()[:3],
        height, width, IN=inner, OUT=outer, GROUP=next_power_of_two(outer), PIXELS=tile.pixels, DEPTH=tile.depth,
        **epilogue.constants,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


def candidates(x: Tensor, *_: object) -> Iterator[Tile]:
    """Yield tiles worth measuring for x [N, h, w, in], likeliest first."""
    depth = depth_of(x)
    yield Tile(128, depth)
    yield Tile(128, depth, stages=3)
    yield Tile(64, depth)
    yield Tile(256, depth, warps=8, stages=3)


def _accepts(layer: LayerDescription) -> bool:
    known = (layer.window, layer.stride, layer.padding, layer.dilation, layer.groups, layer.output_padding)
    square = known == ((3, 3), (2, 2), (1, 1), (1, 1), 1, (1, 1))
    return (
        layer.kind == "conv_transpose2d" and square and layer.outer <= MOST_OUT and layer.inner % CHANNELS_IN_FP8 == 0
    )


OP: KernelOp = replace(
    OF_MANY,
    name="transposed3x3_few",
    accepts=_accepts,
    launch=transposed3x3_few,
    candidates=candidates,
    tile_types=(Tile,),
    writes=frozenset({"fp16"}),
    folds=frozenset(),
    takes_second=False,
    phases=1,
    most_channels=(None, MOST_OUT),
)
