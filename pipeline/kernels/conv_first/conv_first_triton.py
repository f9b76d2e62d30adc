"""The network's first convolution of `conv_first` in plain Triton, which any GPU and the interpreter run.

The idea: TMA can't load rows of 6 bytes, so each program gathers its pixels' windows with plain loads, most of which
the L1 answers, and multiplies them 16 entries at a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from pipeline.kernels.common.epilogue import Epilogue, check_blocks
from pipeline.kernels.common.nhwc import descriptor, multiprocessors, next_power_of_two, stride_of
from pipeline.kernels.common.program import on_grid
from pipeline.kernels.common.triton_epilogue import finish, rounded, store_statistics


class Operands(NamedTuple):
    """The arguments of `conv_first.conv_first`; volumes are [N / D, in, D, H, W], of whose slices the N outputs are."""

    image: Tensor
    weight: Tensor
    epilogue: Epilogue
    out: Tensor
    statistics: Tensor | None = None

    @property
    def stride(self) -> int:
        """Of the convolution, 1 or 2: the output's size tells it."""
        return stride_of(self.image.shape[-2:], self.out.shape[1:3])

    @property
    def deep(self) -> int:
        """Return how many slices a window reaches over: 3 of volumes, else 1."""
        return 3 if self.image.ndim == 5 else 1

    @property
    def slices(self) -> int:
        """Of each volume; 1 of images."""
        return self.image.shape[2] if self.deep == 3 else 1


def margin(window: int) -> int:
    """Return how many columns left of its pixel a packed window begins: its padding, made even for loads of pairs."""
    return window // 2 + window // 2 % 2


def span(window: int) -> int:
    """Return how many columns a packed window has: a power of two."""
    return next_power_of_two(window + window // 2 % 2)


@dataclass(frozen=True)
class Tile:
    """A cut of the work: a tile of `rows` × `cols` output pixels and all or `out` of the output channels."""

    kernel: ClassVar[str] = "conv_first_triton"
    rows: int
    cols: int
    out: int
    warps: int = 4
    programs: int = 4  # per multiprocessor
    stages: int = 1


@triton.jit
def _conv_first_triton(
    image, weight, out_boxes, scale, bias, statistics, height, width, channels, tiles_y, tiles_x, tiles_out, tiles,
    slices, DEEP: tl.constexpr, IN: tl.constexpr, WINDOW: tl.constexpr, SPAN: tl.constexpr, LEFT: tl.constexpr,
    STRIDE: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, OUT: tl.constexpr, ACTIVATION: tl.constexpr,
    SLOPE: tl.constexpr,
):  # fmt: skip
    """Read image [N, IN, H, W], or with DEEP = 3 volumes [N / slices, IN / 3, slices, H, W]."""
    PIXELS: tl.constexpr = ROWS * COLS
    ENTRIES: tl.constexpr = IN * WINDOW * SPAN
    pixel = tl.arange(0, PIXELS)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0)):
        o0 = tile % tiles_out * OUT
        place = tile // tiles_out
        x0 = place % tiles_x * COLS
        y0 = place // tiles_x % tiles_y * ROWS
        number = place // tiles_x // tiles_y
        channel = o0 + tl.arange(0, OUT)
        source = image + (number // slices).to(tl.int64) * (IN // DEEP) * slices * height * width
        acc = tl.zeros((PIXELS, OUT), tl.float32)
        for step in tl.static_range((ENTRIES + 15) // 16):
            entry = step * 16 + tl.arange(0, 16)
            line = entry // SPAN
            row = ((y0 + pixel // COLS) * STRIDE)[:, None] + (line % WINDOW - WINDOW // 2)[None, :]
            col = ((x0 + pixel % COLS) * STRIDE)[:, None] + (entry % SPAN - LEFT)[None, :]
            seen = (row >= 0) & (row < height) & (col >= 0) & (col < width) & (entry < ENTRIES)[None, :]
            plane = line // WINDOW
            if DEEP == 3:
                near = number % slices + plane // (IN // DEEP) - 1
                seen = seen & ((near >= 0) & (near < slices))[None, :]
                plane = plane % (IN // DEEP) * slices + near
            window = tl.load(source + (plane[None, :] * height + row) * width + col, mask=seen, other=0.0)
            known = (entry < ENTRIES)[:, None] & (channel < channels)[None, :]
            taps = tl.load(weight + entry[:, None] * channels + channel[None, :], mask=known, other=0.0)
            acc = tl.dot(window.to(tl.float16), taps, acc)
        y = finish(acc, scale, bias, channel, channels, ACTIVATION, SLOPE, False)
        if statistics is not None:
            store_statistics(
                y, statistics, number, y0, x0, (height - 1) // STRIDE + 1, (width - 1) // STRIDE + 1, channel, channels,
                ROWS, COLS, False,
            )  # fmt: skip
        out_boxes.store([number, y0, x0, o0], rounded(y, out_boxes.dtype).reshape(1, ROWS, COLS, OUT))


def launch(operands: Operands, tile: Tile) -> None:
    """Queue the convolution of a checked image."""
    image, weight, epilogue, out, statistics = operands
    check_blocks(epilogue, tile.rows, tile.cols)
    height, width = image.shape[-2:]
    batch, out_height, out_width, outer = out.shape
    inner, window, span, _ = weight.shape
    tiles_y, tiles_x, tiles_out = -(-out_height // tile.rows), -(-out_width // tile.cols), -(-outer // tile.out)
    tiles = batch * tiles_y * tiles_x * tiles_out
    on_grid(_conv_first_triton, min(tiles, multiprocessors(image.device) * tile.programs))(
        image, weight, descriptor(out, [1, tile.rows, tile.cols, tile.out]), epilogue.scale, epilogue.bias, statistics,
        height, width, outer, tiles_y, tiles_x, tiles_out, tiles, operands.slices, DEEP=operands.deep, IN=inner,
        WINDOW=window, SPAN=span, LEFT=margin(window), STRIDE=operands.stride, ROWS=tile.rows, COLS=tile.cols,
        OUT=tile.out, **epilogue.constants, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


def candidates(outer: int, *, statistics: bool) -> Iterator[Tile]:
    """Yield tiles worth measuring for `outer` output channels, likeliest first."""
    out = min(128, max(16, next_power_of_two(outer)))
    yield Tile(8, 16, out)
    if not statistics:
        yield Tile(4, 32, out)
        yield Tile(2, 32, out, programs=8)
