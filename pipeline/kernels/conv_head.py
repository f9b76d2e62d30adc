"""The network's last convolution, 3×3 or 1×1 with up to 8 classes: reads NHWC and writes fp32 logits in NCHW.

In plain Triton the pixels of an image lie in one line, so that the logits of a class are stored in one go: 1×1 at the
pace of memory. 3×3 is faster by the kernel of `conv3x3_narrow`, its eight columns the classes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import triton
import triton.language as tl
from torch import Tensor

from pipeline.kernels.common import nhwc
from pipeline.kernels.common.capability import reaching_views_barred
from pipeline.kernels.common.epilogue import MOST_CLASSES, Epilogue, Outputs, sums_of
from pipeline.kernels.common.kernel_op import CHANNELS, KernelOp, LayerDescription
from pipeline.kernels.common.program import evenest, on_grid
from pipeline.kernels.common.triton_epilogue import finish
from pipeline.kernels.conv3x3 import OP as WINDOW
from pipeline.kernels.conv3x3 import conv3x3_narrow, pack

PROGRAMS = 4  # of the Gluon kernel on each multiprocessor


@dataclass(frozen=True)
class Tile:
    """A cut of the work: `pixels` of an image a program, `depth` input channels a step."""

    kernel: ClassVar[str] = "conv_head_triton"
    pixels: int
    depth: int
    warps: int = 4
    stages: int = 3


@dataclass(frozen=True)
class GluonTile(conv3x3_narrow.Tile):
    """A cut of the work by the kernel of `conv3x3_narrow`."""

    kernel: ClassVar[str] = "conv_head_gluon"


def reference(x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs) -> None:
    """Compute `conv_head` in plain PyTorch and fp32, on any device."""
    _required(outputs).copy_(epilogue.of(sums_of(x, weight)).permute(0, 3, 1, 2))


@triton.jit
def _conv_head_triton(
    x, weight, logits, scale, bias, x_image_stride, x_row_stride, x_pixel_stride, height, width,
    IN: tl.constexpr, SIDE: tl.constexpr, CLASSES: tl.constexpr, PIXELS: tl.constexpr, DEPTH: tl.constexpr,
    ACTIVATION: tl.constexpr, SLOPE: tl.constexpr,
):  # fmt: skip
    """Read x [N, H, W, IN] and weight [SIDE · SIDE, CLASSES, IN]; write logits [N, CLASSES, H, W] fp32."""
    STEPS: tl.constexpr = (IN + DEPTH - 1) // DEPTH
    number = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    label = tl.arange(0, 16)
    acc = tl.zeros((PIXELS, 16), tl.float32)
    for step in tl.range(SIDE * SIDE * STEPS):
        tap = step // STEPS
        channel = step % STEPS * DEPTH + tl.arange(0, DEPTH)
        row, col = pixel // width + tap // SIDE - SIDE // 2, pixel % width + tap % SIDE - SIDE // 2
        inside = (row >= 0) & (row < height) & (col >= 0) & (col < width)
        source = x + number * x_image_stride + row[:, None] * x_row_stride + col[:, None] * x_pixel_stride
        window = tl.load(source + channel[None, :], mask=inside[:, None] & (channel < IN)[None, :], other=0.0)
        known = (label < CLASSES)[:, None] & (channel < IN)[None, :]
        taps = tl.load(weight + (tap * CLASSES + label)[:, None] * IN + channel[None, :], mask=known, other=0.0)
        acc = tl.dot(window, taps.T, acc)
    y = finish(acc, scale, bias, label, CLASSES, ACTIVATION, SLOPE, False)
    plane = logits + (number * CLASSES + label)[None, :] * height * width
    tl.store(plane + pixel[:, None], y, mask=(pixel < height * width)[:, None] & (label < CLASSES)[None, :])


def conv_head(x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs, tile: Tile | GluonTile) -> None:
    """Write the convolution of x [N, H, W, in] by [1 or 9, classes, in] into logits [N, classes, H, W] fp32."""
    batch, height, width, inner = x.shape
    taps, classes = weight.shape[:2]
    if taps not in (1, 9) or classes > MOST_CLASSES:
        raise ValueError(f"weight must be [1 or 9, at most {MOST_CLASSES}, in], got {list(weight.shape)}")
    nhwc.check("x", x, (batch, height, width, inner))
    nhwc.check_counted("x", x)
    nhwc.check_few_programs("x's batch", batch)
    if weight.dtype != x.dtype or tuple(weight.shape) != (taps, classes, inner) or not weight.is_contiguous():
        raise ValueError(f"weight must be {[taps, classes, inner]} {x.dtype}, got {list(weight.shape)} {weight.dtype}")
    if epilogue.bias is None or epilogue.parts:
        raise ValueError(f"the epilogue must have a bias and fold nothing, got {epilogue.key}")
    nhwc.check_floats("bias", epilogue.bias, classes)
    nhwc.check_floats("scale", epilogue.scale, classes)
    logits = _required(outputs)
    nhwc.check_floats("logits", logits, batch, classes, height, width)
    if isinstance(tile, GluonTile):
        conv3x3_narrow.queue(x, weight, epilogue, outputs, tile, planar=True)
        return
    on_grid(_conv_head_triton, triton.cdiv(height * width, tile.pixels), batch)(
        x, weight, logits, epilogue.scale, epilogue.bias, *x.stride()[:3], height, width,
        IN=inner, SIDE=3 if taps == 9 else 1, CLASSES=classes, PIXELS=tile.pixels, DEPTH=tile.depth,
        **epilogue.constants, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


def _required(outputs: Outputs) -> Tensor:
    if outputs.logits is None or len(outputs.given) > 1:
        raise ValueError("logits must be given, and nothing else: this kernel writes nothing else")
    return outputs.logits


def candidates(x: Tensor, weight: Tensor, *_: object) -> Iterator[Tile | GluonTile]:
    """Yield tiles worth measuring for x [N, H, W, in] and weight [k · k, classes, in], likeliest first."""
    narrow = len(weight) == 9 and x.shape[3] <= conv3x3_narrow.MOST_IN
    if narrow and reaching_views_barred() is None and not nhwc.interpreted():
        for slots in (4, 3):
            for rows in evenest(x.shape[:3], nhwc.multiprocessors(x.device) * PROGRAMS):
                yield GluonTile(rows, 4, PROGRAMS, slots)
    else:
        for pixels in (128, 64, 256):
            yield Tile(pixels, nhwc.depth_of(x))


def accepts(layer: LayerDescription) -> bool:
    """Return whether the kernels take a layer: it keeps height and width, and has few classes."""
    square = layer.is_square(3, 1, 1) or layer.is_square(1, 1, 0)
    return layer.kind == "conv2d" and square and layer.outer <= MOST_CLASSES and layer.inner % CHANNELS == 0


OP: KernelOp = replace(
    WINDOW, name="conv_head", accepts=accepts, reference=reference, launch=conv_head, candidates=candidates,
    tile_types=(Tile, GluonTile), pack=pack, folds=frozenset(), writes=frozenset({"fp32"}), writes_logits=True,
)  # fmt: skip
