"""The 3×3 convolution of `conv3x3` with nine boxes a tile: plain Triton, and the operands of all its kernels.

The idea: an implicit matrix product over NHWC. For each of the nine taps TMA loads the box of pixels that the tap
sees: what lies outside the image arrives as zeros, so the border costs no address arithmetic. The output channels are
the rows of the product and the pixels its columns: with 64 channels wgmma reads half as much shared memory so. And a
product whose first operand is boxes was wrong now and then (`docs/kernels.md`, "Traps").

A volume [N, D, H, W, channels] is given as its slices one below the other, [N, D · H, W, channels], the same memory.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from pipeline.kernels.common.activation import larger
from pipeline.kernels.common.block_statistics import COLS, ROWS
from pipeline.kernels.common.capability import gluon_barred
from pipeline.kernels.common.epilogue import Epilogue, Outputs, check_blocks, check_convolution, check_epilogue
from pipeline.kernels.common.nhwc import depth_of, descriptor, multiprocessors, next_power_of_two, shared_bytes
from pipeline.kernels.common.program import DEPENDENT, BoxTile, by_slice, on_grid
from pipeline.kernels.common.triton_epilogue import finish, rounded, store_statistics

FOLDS = frozenset({"pool", "head", "slopes", "residual", "statistics"})
FOLDS_OF_VOLUMES = FOLDS - {"pool", "head"}
FOLDS_OF_TWO_SLICES = FOLDS_OF_VOLUMES - {"residual"}
STACKED = 32  # output channels of each of two slices that share a product's 64 rows
OUT_OF_PARTS = 32  # channels of a program that adds
BLOCK = 64  # channels of a tile of a convolution in groups


class Operands(NamedTuple):
    """The arguments of `conv3x3.conv3x3`; the weight of volumes has 27 or 125 taps or, stacked, 36 or 150."""

    x: Tensor
    weight: Tensor
    epilogue: Epilogue
    outputs: Outputs

    @property
    def window(self) -> int:
        """Return how many rows, columns, and of volumes slices, the window has: 3 or 5."""
        return 5 if self.weight.shape[0] in (125, 150) else 3

    @property
    def deep(self) -> int:
        """Return how many slices a tile reads: 1 of images, 3 or 5 of volumes, one more for two slices at a time."""
        return self.weight.shape[0] // self.window**2

    @property
    def at_a_time(self) -> int:
        """Return how many slices of a volume a tile makes."""
        return 2 if self.deep % 2 == 0 else 1

    @property
    def outer(self) -> int:
        """Return how many output channels there are."""
        bias = self.epilogue.bias
        return self.weight.shape[1] if bias is None or self.at_a_time == 1 else len(bias)

    @property
    def height(self) -> int:
        """Of an image, or of each slice of a volume."""
        return self.x.shape[1] // self.epilogue.slices

    @property
    def edge(self) -> int:
        """Rows and columns of zeros around x: half a window; 0 where what is made of an image is two rows smaller."""
        made, height = self.outputs, self.x.shape[1]
        if self.deep > 1 or self.epilogue.dilation > 1:
            return self.window // 2
        if made.out is None and made.pooled is not None:
            return int(made.pooled.shape[1] != height // 2 - 1)
        rows = made.out.shape[1] if made.out is not None else height if made.logits is None else made.logits.shape[2]
        return int(rows != height - 2)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of what is made of an image, or of each slice of a volume."""
        less = self.window - 1 - 2 * self.edge
        return self.height - less, self.x.shape[2] - less

    @property
    def source(self) -> Tensor:
        """The input: x [N, H, W, in], or the volumes [N, D, H, W, in] in the same memory."""
        return self.x if self.deep == 1 else self.x.unflatten(1, (self.epilogue.slices, self.height))

    def tiles(self, rows: int, cols: int, out: int) -> tuple[int, int, int]:
        """Return how many tiles cover height, width and channels; raise ValueError where one can't do what is asked."""
        outer = self.weight.shape[1]
        if self.epilogue.head is not None and outer > out:
            raise ValueError(f"a head on {outer} channels doesn't fit a tile of {out}")
        check_blocks(self.epilogue, rows, cols)
        height, width = self.size
        return -(-height // rows), -(-width // cols), -(-outer // out)


def check_operands(operands: Operands, of_images: Collection[str] = FOLDS, window: int | None = None) -> None:
    """Raise ValueError where an operand isn't as `conv3x3.conv3x3` says; a weight of groups has a `window` of x."""
    x, weight, epilogue, outputs = operands
    outer, slices, taps = operands.outer, epilogue.slices, len(weight)
    stacked = taps in (36, 150) and outer <= STACKED
    rows = 2 * STACKED if stacked else weight.shape[1]
    check_convolution(x, weight, (taps if stacked or taps in (27, 125) else 9, rows, window or x.shape[3]))
    if x.shape[1] % slices or slices % operands.at_a_time or (slices > 1 and operands.deep == 1):
        raise ValueError(f"x must have {slices} slices of one height and a weight of volumes, got {list(x.shape)}")
    if epilogue.statistics and slices > 1 and operands.height % ROWS:
        raise ValueError(f"statistics of a volume need slices of a multiple of {ROWS} rows, got {operands.height}")
    folds = {1: of_images, 3: FOLDS_OF_VOLUMES, 5: FOLDS_OF_VOLUMES}.get(operands.deep, FOLDS_OF_TWO_SLICES)
    height, width = operands.size
    check_epilogue(epilogue, outputs, (len(x), slices * height, width, outer), folds)


def check_groups(name: str, weight: Tensor, x: Tensor) -> None:
    """Raise ValueError, which begins with `name`, unless a weight of groups is of x's channels, in whole blocks."""
    if weight.shape[1:-1] != x.shape[3:] or weight.shape[-1] % BLOCK:
        raise ValueError(f"{name} must be [9, {x.shape[3]}, a multiple of {BLOCK}], got {list(weight.shape)}")


RESERVED_BYTES = 1024  # of shared memory: barriers


@dataclass(frozen=True)
class Tile(BoxTile):
    """A cut of the work: a tile of `rows` × `cols` pixels and `out` channels, `depth` input channels a step."""

    kernel: ClassVar[str] = "conv3x3_triton"


@triton.jit
def _finished(
    acc, image, y0, x0, o0, out_boxes, pooled_boxes, scale, bias, slopes, residual_boxes, residual_scale, statistics,
    height, width, channels, ROWS: tl.constexpr, COLS: tl.constexpr, ACTIVATION: tl.constexpr, SLOPE: tl.constexpr,
):  # fmt: skip
    """Return y [OUT, pixels] of a tile's sums acc, having stored all that is made of it but logits."""
    OUT: tl.constexpr = acc.shape[0]
    PIXELS: tl.constexpr = ROWS * COLS
    channel = o0 + tl.arange(0, OUT)
    added = None
    if residual_boxes is not None:
        held = residual_boxes.load([image, y0, x0, o0]).reshape(PIXELS, OUT).to(tl.float32) * residual_scale
        added = held.T
    y = finish(acc, scale, bias, channel, channels, ACTIVATION, SLOPE, True, slopes, added)
    if out_boxes is not None:
        stored = rounded(y, out_boxes.dtype)
        out_boxes.store([image, y0, x0, o0], stored.T.reshape(1, ROWS, COLS, OUT))
    if pooled_boxes is not None:
        pairs = y.reshape(OUT, ROWS // 2, 2, COLS // 2, 2)  # both ways they lie in one thread's registers
        pooled = tl.reduce(tl.reduce(pairs, 4, larger), 2, larger).reshape(OUT, PIXELS // 4)
        small = rounded(pooled, pooled_boxes.dtype)
        pooled_boxes.store([image, y0 // 2, x0 // 2, o0], small.T.reshape(1, ROWS // 2, COLS // 2, OUT))
    if statistics is not None:
        store_statistics(y, statistics, image, y0, x0, height, width, channel, channels, ROWS, COLS, True)
    return y


@triton.jit
def _conv3x3_triton(
    x_boxes, weight_boxes, out_boxes, pooled_boxes, scale, bias, head_weight, head_bias, logits, slopes, residual_boxes,
    residual_scale, statistics, height, width, channels, tiles_y, tiles_x, tiles_out, tiles, slices, dilation,
    DEEP: tl.constexpr, GROUPED: tl.constexpr, IN: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    OUT: tl.constexpr, DEPTH: tl.constexpr, CLASSES: tl.constexpr, ACTIVATION: tl.constexpr, SLOPE: tl.constexpr,
    WINDOW: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """Read x [N, H, W, IN] or, with DEEP > 1, [N, slices, H, W, IN]; GROUPED, IN channels about a tile's own."""
    PIXELS: tl.constexpr = ROWS * COLS
    STEPS: tl.constexpr = (IN + DEPTH - 1) // DEPTH
    pixel = tl.arange(0, PIXELS)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0)):
        # Blocks of output channels come one after another: they read the same pixels, which are then in L2.
        o0 = tile % tiles_out * OUT
        place = tile // tiles_out
        x0 = place % tiles_x * COLS
        y0 = place // tiles_x % tiles_y * ROWS
        image = place // tiles_x // tiles_y
        begin = o0 - (IN - OUT) // 2 if GROUPED else 0
        acc = tl.zeros((OUT, PIXELS), tl.float32)
        for step in tl.range(WINDOW * WINDOW * DEEP * STEPS):
            tap = step // STEPS
            c0 = step % STEPS * DEPTH
            if DEEP == 1:
                y, x = y0 + (tap // 3 - EDGE) * dilation, x0 + (tap % 3 - EDGE) * dilation
                box = x_boxes.load([image, y, x, begin + c0]).reshape(PIXELS, DEPTH)
            else:
                z, y = image % slices + tap // (WINDOW * WINDOW) - EDGE, y0 + tap // WINDOW % WINDOW - EDGE
                x = x0 + tap % WINDOW - EDGE
                box = x_boxes.load([image // slices, z, y, x, c0]).reshape(PIXELS, DEPTH)
            taps = weight_boxes.load([tap, o0, c0]).reshape(OUT, DEPTH)
            acc = tl.dot(taps, box.T, acc)
        channel = o0 + tl.arange(0, OUT)
        y = _finished(
            acc, image, y0, x0, o0, out_boxes, pooled_boxes, scale, bias, slopes, residual_boxes, residual_scale,
            statistics, height, width, channels, ROWS, COLS, ACTIVATION, SLOPE,
        )  # fmt: skip
        if CLASSES > 0:
            row, col = y0 + pixel // COLS, x0 + pixel % COLS
            inside = (row < height) & (col < width)
            for label in tl.static_range(CLASSES):
                mix = tl.load(head_weight + label * channels + channel, mask=channel < channels, other=0.0)
                logit = tl.sum(y * mix[:, None], axis=0)
                plane = logits + (image * CLASSES + label).to(tl.int64) * height * width
                tl.store(plane + row * width + col, logit + tl.load(head_bias + label), mask=inside)


def launch(operands: Operands, tile: Tile, *, grouped: bool = False) -> None:
    """Queue the convolution of checked operands; of groups the weight has the input channels around a tile's own."""
    x, weight, epilogue, outputs = operands
    if operands.at_a_time > 1:
        raise ValueError("plain Triton makes one slice at a time; give the weight [27 or 125, out, in]")
    tiles_y, tiles_x, tiles_out = operands.tiles(tile.rows, tile.cols, tile.out)
    tiles = len(x) * epilogue.slices * tiles_y * tiles_x * tiles_out
    whole, half = [1, tile.rows, tile.cols, tile.out], [1, tile.rows // 2, tile.cols // 2, tile.out]
    source = operands.source
    ones = [1] * (source.ndim - 3)
    out, residual = by_slice(outputs.out, epilogue.slices), by_slice(epilogue.residual, epilogue.slices)
    on_grid(_conv3x3_triton, min(tiles, multiprocessors(x.device) * tile.programs))(
        descriptor(source, [*ones, tile.rows, tile.cols, tile.depth]), descriptor(weight, [1, tile.out, tile.depth]),
        descriptor(out, whole), descriptor(outputs.pooled, half), epilogue.scale, epilogue.bias,
        *(epilogue.head or (None, None)), outputs.logits, epilogue.slopes, descriptor(residual, whole),
        epilogue.residual_unit, outputs.statistics, *operands.size, weight.shape[1], tiles_y, tiles_x, tiles_out, tiles,
        epilogue.slices, epilogue.dilation, DEEP=operands.deep, WINDOW=operands.window, EDGE=operands.edge,
        GROUPED=grouped, IN=weight.shape[2], CLASSES=0 if epilogue.head is None else len(epilogue.head.bias),
        **tile.constants, **epilogue.constants,
    )  # fmt: skip


@triton.jit(do_not_specialize=["residual_scale", "height", "width", "tiles_y", "tiles_x"])
def _conv3x3_parts(
    sums, out_boxes, pooled_boxes, scale, bias, slopes, residual_boxes, residual_scale, statistics, height, width,
    tiles_y, tiles_x, CHANNELS: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    OUT: tl.constexpr, ACTIVATION: tl.constexpr, SLOPE: tl.constexpr, WAITS: tl.constexpr,
):  # fmt: skip
    """Read sums [PARTS · images, height, width, CHANNELS] fp32."""
    o0, place = tl.program_id(0) * OUT, tl.program_id(1)
    image, y0, x0 = place // tiles_x // tiles_y, place // tiles_x % tiles_y * ROWS, place % tiles_x * COLS
    pixel, channel = tl.arange(0, ROWS * COLS), o0 + tl.arange(0, OUT)
    row, col = y0 + pixel // COLS, x0 + pixel % COLS
    inside = ((row < height) & (col < width))[:, None] & (channel < CHANNELS)[None, :]
    if WAITS:
        gdc_wait()
    acc = tl.zeros((ROWS * COLS, OUT), tl.float32)
    step = (tl.num_programs(1) // (tiles_x * tiles_y)).to(tl.int64) * height * width * CHANNELS
    at = sums + ((image.to(tl.int64) * height + row) * width + col)[:, None] * CHANNELS + channel[None, :]
    for part in tl.static_range(PARTS):
        acc += tl.load(at + part * step, mask=inside, other=0.0)
    if WAITS:
        gdc_launch_dependents()
    _finished(
        acc.T, image, y0, x0, o0, out_boxes, pooled_boxes, scale, bias, slopes, residual_boxes, residual_scale,
        statistics, height, width, CHANNELS, ROWS, COLS, ACTIVATION, SLOPE,
    )  # fmt: skip


def add_parts(operands: Operands, sums: Tensor, parts: int, *, dependent: bool) -> None:
    """Write the sum of `parts` maps [parts · N, H, W, out], fp32 contiguous, through the epilogue into the outputs."""
    _, _, epilogue, outputs = operands
    tiles_y, tiles_x, tiles_out = operands.tiles(ROWS, COLS, OUT_OF_PARTS)
    whole, half = [1, ROWS, COLS, OUT_OF_PARTS], [1, ROWS // 2, COLS // 2, OUT_OF_PARTS]
    out, residual = by_slice(outputs.out, epilogue.slices), by_slice(epilogue.residual, epilogue.slices)
    images = len(sums) * epilogue.slices // parts
    on_grid(_conv3x3_parts, tiles_out, images * tiles_y * tiles_x)(
        sums, descriptor(out, whole), descriptor(outputs.pooled, half), epilogue.scale, epilogue.bias, epilogue.slopes,
        descriptor(residual, whole), epilogue.residual_unit, outputs.statistics, *operands.size, tiles_y, tiles_x,
        CHANNELS=operands.outer, PARTS=parts, ROWS=ROWS, COLS=COLS, OUT=OUT_OF_PARTS, WAITS=dependent,
        num_warps=4, **epilogue.constants, **DEPENDENT if dependent else {},
    )  # fmt: skip


def candidates(x: Tensor, outer: int, *, head: bool = False, statistics: bool = False) -> Iterator[Tile]:
    """Yield tiles worth measuring, likeliest first, with as many stages as fit beside what is stored."""
    room, size = shared_bytes(x.device) - RESERVED_BYTES, x.element_size()
    for tile in _shapes(x, outer, head=head, statistics=statistics):
        pixels = tile.rows * tile.cols
        stored = pixels * tile.out * 2 * 5 // 4 if gluon_barred() is None else 0  # bytes, in fp16
        fitting = (room - stored) // ((pixels + tile.out) * tile.depth * size)
        yield replace(tile, stages=max(2, min(tile.stages, fitting)))


def _shapes(x: Tensor, outer: int, *, head: bool, statistics: bool) -> Iterator[Tile]:
    depth = depth_of(x)
    if outer <= 64 or head:
        out = max(64, next_power_of_two(outer))
        yield Tile(16, 32, out, min(depth, 64))
        yield Tile(16, 16, out, min(depth, 64), warps=4, programs=2)
        yield Tile(8, 16, out, depth, warps=4, programs=2)
        return
    yield Tile(16, 16, 128, depth)
    yield Tile(8, 32, 128, depth)
    yield Tile(8, 16, 128, depth)
    if outer >= 256:
        yield Tile(8, 16, 256, depth)
    if not statistics:
        yield Tile(8, 8, 128, depth, warps=4, stages=4, programs=2)
