"""The net's first 3×3 convolution: reads the user's fp32 NCHW batch and writes NHWC.

The idea: with three channels the nine taps are 27 values a pixel, one step of a matrix product once padded to 32. TMA
can't load rows of 6 bytes, so each program gathers its pixels' windows with plain loads, most of which the L1 answers.
Cast and change of layout happen on the way: the image is read once and the wide output written once.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from pipeline.kernels.common.epilogue import Epilogue, Outputs, check_epilogue, required, store_reference
from pipeline.kernels.common.kernel_op import CHANNELS, KernelOp, LayerDescription
from pipeline.kernels.common.library import same_size_convolution
from pipeline.kernels.common.nhwc import descriptor, multiprocessors, next_power_of_two
from pipeline.kernels.common.triton_epilogue import finish, rounded

MOST_CHANNELS = 14  # 9 × 14 = 126 values a window: beyond 128 the gather is dearer than a padded copy
FOLDS = frozenset({"slopes"})


@dataclass(frozen=True)
class Tile:
    """How the work is cut: a tile of `rows` × `cols` pixels and all or `out` of the output channels."""

    rows: int
    cols: int
    out: int
    warps: int = 4
    programs: int = 4  # per multiprocessor
    stages: int = 3


def pack(weight: Tensor) -> Tensor:
    """A convolution's weight [out, in, 3, 3] as fp16 [window, out]: rows (3 r + s) · in + c, padded with zeros."""
    outer, inner = weight.shape[:2]
    packed = weight.new_zeros(max(16, next_power_of_two(9 * inner)), outer, dtype=torch.float16)
    packed[: 9 * inner] = weight.permute(2, 3, 1, 0).reshape(9 * inner, outer).half()
    return packed


def reference(image: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs) -> None:
    """What `conv3x3_first` computes, in plain PyTorch, on any device: inputs rounded to fp16, sums in fp32.

    Args:
        image: [N, in, H, W].
        weight: [window, out].
        epilogue: scale, bias and slopes [out].
        outputs: out [N, H, W, out].
    """
    inner = image.shape[1]
    taps = weight[: 9 * inner].float().reshape(3, 3, inner, -1).permute(3, 2, 0, 1)
    sums = functional.conv2d(image.half().float(), taps, padding=1).permute(0, 2, 3, 1)
    store_reference(epilogue.of(sums), epilogue, outputs)


@triton.jit
def _conv3x3_first(
    image, weight, out_boxes, scale, bias, slopes, height, width, channels, tiles_y, tiles_x, tiles_out, tiles,
    IN: tl.constexpr, WINDOW: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, OUT: tl.constexpr,
    ACTIVATION: tl.constexpr, SLOPE: tl.constexpr,
):  # fmt: skip
    """Image [N, IN, H, W] fp32 contiguous, weight [WINDOW, channels] fp16, out [N, H, W, channels] NHWC."""
    PIXELS: tl.constexpr = ROWS * COLS
    entry = tl.arange(0, WINDOW)
    tap, plane = entry // IN, entry % IN
    down, right = tap // 3 - 1, tap % 3 - 1
    pixel = tl.arange(0, PIXELS)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0)):
        o0 = tile % tiles_out * OUT
        place = tile // tiles_out
        x0 = place % tiles_x * COLS
        y0 = place // tiles_x % tiles_y * ROWS
        number = place // tiles_x // tiles_y
        channel = o0 + tl.arange(0, OUT)
        taps = tl.load(
            weight + entry[:, None] * channels + channel[None, :], mask=channel[None, :] < channels, other=0.0
        )
        row = (y0 + pixel // COLS)[:, None] + down[None, :]
        col = (x0 + pixel % COLS)[:, None] + right[None, :]
        seen = (row >= 0) & (row < height) & (col >= 0) & (col < width) & (entry < 9 * IN)[None, :]
        source = image + number.to(tl.int64) * IN * height * width
        window = tl.load(source + (plane[None, :] * height + row) * width + col, mask=seen, other=0.0)
        acc = tl.dot(window.to(tl.float16), taps)
        y = finish(acc, scale, bias, channel, channels, ACTIVATION, SLOPE, False, slopes)
        out_boxes.store([number, y0, x0, o0], rounded(y, out_boxes.dtype).reshape(1, ROWS, COLS, OUT))


def conv3x3_first(
    image: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs, tile: Tile | None = None
) -> None:
    """The convolution of the image through the epilogue, written into `outputs.out`: products in fp16, sums in fp32.

    Args:
        image: [N, in, H, W] fp32 contiguous, at most 14 channels.
        weight: [window, out] fp16, from `pack`.
        epilogue: scale, bias and slopes [out]; folds neither a pool nor a head.
        outputs: out [N, H, W, out] fp16 or fp8, a channel slice of a wider tensor at will.
        tile: one of `candidates`; the first of them without.

    Raises:
        ValueError: a shape, dtype or stride is not as above.
    """
    batch, inner, height, width = image.shape
    window, outer = weight.shape
    if image.dtype != torch.float32 or not image.is_contiguous() or inner > MOST_CHANNELS:
        raise ValueError(f"image must be contiguous float32 of at most {MOST_CHANNELS} channels, got {image.dtype}")
    if weight.dtype != torch.float16 or window != max(16, next_power_of_two(9 * inner)):
        raise ValueError(f"weight must come from pack, for {inner} channels, got {list(weight.shape)} {weight.dtype}")
    check_epilogue(epilogue, outputs, (batch, height, width, outer), FOLDS)
    _launch(image, weight, epilogue, required(outputs.out), tile or next(candidates(image, weight, epilogue)))


def _launch(image: Tensor, weight: Tensor, epilogue: Epilogue, out: Tensor, tile: Tile) -> None:
    """Queue the convolution of a checked image [N, in, H, W] into out [N, H, W, out]."""
    batch, inner, height, width = image.shape
    window, outer = weight.shape
    tiles_y, tiles_x, tiles_out = -(-height // tile.rows), -(-width // tile.cols), -(-outer // tile.out)
    tiles = batch * tiles_y * tiles_x * tiles_out
    _conv3x3_first[min(tiles, multiprocessors(image.device) * tile.programs),](
        image,
        weight,
        descriptor(out, [1, tile.rows, tile.cols, tile.out]),
        epilogue.scale,
        epilogue.bias,
        epilogue.slopes,
        height,
        width,
        outer,
        tiles_y,
        tiles_x,
        tiles_out,
        tiles,
        IN=inner,
        WINDOW=window,
        ROWS=tile.rows,
        COLS=tile.cols,
        OUT=tile.out,
        ACTIVATION=epilogue.activation.expression,
        SLOPE=epilogue.activation.slope,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


def candidates(_: Tensor, weight: Tensor, __: Epilogue) -> Iterator[Tile]:
    """The tiles worth measuring for weight [window, out] and any image [N, in, H, W], the likeliest first."""
    out = min(128, max(16, next_power_of_two(weight.shape[1])))
    yield Tile(4, 32, out)
    yield Tile(8, 16, out)
    yield Tile(2, 32, out, programs=8)
    yield Tile(2, 64, out, programs=6)
    yield Tile(8, 32, out, warps=8, programs=2)


def _accepts(layer: LayerDescription) -> bool:
    few = layer.inner <= MOST_CHANNELS and layer.outer % CHANNELS == 0
    return layer.kind == "conv2d" and layer.is_square(3, 1, 1) and layer.reads_image and few


def _flops(shape: tuple[int, ...], outer: int) -> float:
    batch, inner, height, width = shape
    return 2.0 * 9 * batch * height * width * inner * outer


OP: KernelOp[Tile] = KernelOp(
    name="conv3x3_first",
    accepts=_accepts,
    reference=reference,
    launch=conv3x3_first,
    candidates=candidates,
    library=same_size_convolution,
    flops=_flops,
    tile_types=(Tile,),
    pack=pack,
    weight_shape=lambda inner, outer: (outer, inner, 3, 3),
    out_axis=1,
    reads=frozenset({"fp32"}),
    folds=FOLDS,
    reads_image=True,
)
