"""The phases of `polyphase` in plain Triton: a box a tap, of the small map or of a parity plane of the full one.

The idea: a tile is ROWS × COLS pixels of one phase, a part of the tile's number, so that one loop serves all four. The
rows and columns of the full map that a tap reads all have one parity: seen as [N, H / 2, W / 2, 2, ...] with the row's
parity as an offset in the last dimension they are a box like any other, zeros outside.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from pipeline.kernels.common.capability import fewest_rows
from pipeline.kernels.common.epilogue import check_blocks
from pipeline.kernels.common.nhwc import depth_of, descriptor, multiprocessors, next_power_of_two
from pipeline.kernels.common.program import BoxTile, by_slice, on_grid
from pipeline.kernels.common.triton_epilogue import rounded, store_statistics
from pipeline.kernels.polyphase.polyphase_operands import Operands


@dataclass(frozen=True)
class Tile(BoxTile):
    """A cut of the work: `rows` × `cols` pixels of a phase and `out` channels, `depth` input channels a step."""

    kernel: ClassVar[str] = "polyphase_triton"


@triton.jit
def _polyphase_triton(
    small_boxes, small_taps, full_boxes, full_taps, scale, bias, border, statistics, out, image_step, row_step,
    pixel_step, plane, height, width, channels, tiles_y, tiles_x, tiles_out, tiles, slices,
    DEEP: tl.constexpr, STEP: tl.constexpr, GROUPED: tl.constexpr, MASKED: tl.constexpr,
    SMALL: tl.constexpr, FULL: tl.constexpr, PHASES: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    OUT: tl.constexpr, DEPTH: tl.constexpr, ACTIVATION: tl.constexpr, SLOPE: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """Read small [N, h, w, SMALL] and full [N, 2 h, 2 w, FULL], store out [N, 2 h, 2 w, channels], or one phase.

    GROUPED, a tile reads FULL of full's channels, its own in the middle. With DEEP = 3 images are slices.
    """
    PIXELS: tl.constexpr = ROWS * COLS
    EVERY: tl.constexpr = 2 if PHASES == 4 else 1
    TAPS: tl.constexpr = WINDOW * WINDOW
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0)):
        o0 = tile % tiles_out * OUT
        phase = tile // tiles_out % PHASES
        place = tile // tiles_out // PHASES
        x0 = place % tiles_x * COLS
        y0 = place // tiles_x % tiles_y * ROWS
        image = place // tiles_x // tiles_y
        a, b = phase // 2, phase % 2
        acc = tl.zeros((OUT, PIXELS), tl.float32)
        if SMALL > 0:
            for step in tl.range(4 * ((SMALL + DEPTH - 1) // DEPTH)):
                tap, c0 = step % 4, step // 4 * DEPTH
                seen = small_boxes.load([image, y0 + a + tap // 2 - 1, x0 + b + tap % 2 - 1, c0])
                taps = small_taps.load([4 * phase + tap, o0, c0]).reshape(OUT, DEPTH)
                acc = tl.dot(taps, seen.reshape(PIXELS, DEPTH).T, acc)
        if FULL > 0:
            begin = o0 - (FULL - OUT) // 2 if GROUPED else 0
            for step in tl.range(TAPS * DEEP * ((FULL + DEPTH - 1) // DEPTH)):
                tap, c0 = step % (TAPS * DEEP), step // (TAPS * DEEP) * DEPTH
                down, across = a + tap // WINDOW % WINDOW + 1, b + tap % WINDOW + 1
                slice_read = image
                if DEEP == 3:
                    # Before a volume's first slice and after its last is nothing: TMA reads zeros before the map.
                    beyond = (tap < 9) & (image % slices == 0)
                    if STEP == 1:
                        beyond = beyond | ((tap >= 18) & (image % slices == slices - 1))
                    slice_read = tl.where(beyond, -1, STEP * image + tap // 9 - 1)
                at = [slice_read, y0 + down // 2 - 1, x0 + across // 2 - 1, across % 2, down % 2 * plane + begin + c0]
                seen = full_boxes.load(at).reshape(PIXELS, DEPTH)
                if MASKED:  # the last dimension goes on with what isn't the map's
                    entry = begin + c0 + tl.arange(0, DEPTH)
                    inside = (entry >= 0) & (entry < (channels if GROUPED else FULL))
                    seen = tl.where(inside[None, :], seen, tl.zeros_like(seen))
                taps = full_taps.load([tap, o0, c0]).reshape(OUT, DEPTH)
                acc = tl.dot(taps, seen.T, acc)
        channel = o0 + tl.arange(0, OUT)
        inside = channel < channels
        if scale is not None:
            acc = acc * tl.load(scale + channel, mask=inside, other=0.0)[:, None]
        acc = acc + tl.load(bias + channel, mask=inside, other=0.0)[:, None]
        pixel = tl.arange(0, PIXELS)
        y, x = (y0 + pixel // COLS) * EVERY + a, (x0 + pixel % COLS) * EVERY + b
        stored = (y < height)[None, :] & (x < width)[None, :] & inside[:, None]
        if border is not None:
            row = tl.where(y == 0, 0, tl.where(y == height - 1, 2, 1))
            column = tl.where(x == 0, 0, tl.where(x == width - 1, 2, 1))
            kind = (3 * row + column)[None, :] * channels + channel[:, None]
            acc = acc + tl.load(border + kind, mask=stored, other=0.0)
        at_pixel = image.to(tl.int64) * image_step + y.to(tl.int64) * row_step + x * pixel_step
        active = ACTIVATION(acc, SLOPE)
        if statistics is not None:
            store_statistics(
                active, statistics, image * PHASES + phase, y0, x0, height // EVERY, width // EVERY, channel, channels,
                ROWS, COLS, True,
            )  # fmt: skip
        value = rounded(active, out.dtype.element_ty)
        tl.store(out + at_pixel[None, :] + channel[:, None], value, mask=stored)


def launch(operands: Operands, tile: Tile) -> None:
    """Queue the phases of checked operands."""
    check_blocks(operands.epilogue, tile.rows, tile.cols)
    epilogue, out = operands.epilogue, by_slice(operands.outputs.required, operands.made)
    batch, height, width = operands.grid
    phases = 1 if operands.strided else 4
    tiles_y, tiles_x, tiles_out = -(-height // tile.rows), -(-width // tile.cols), -(-operands.outer // tile.out)
    tiles = batch * tiles_y * tiles_x * tiles_out * phases
    small, full, weights = operands.small, operands.images, [1, tile.out, tile.depth]
    seen = 0 if operands.full_weight is None else operands.full_weight.shape[2]
    beside = operands.grouped and (seen > tile.out or operands.outer % tile.out > 0)
    on_grid(_polyphase_triton, min(tiles, multiprocessors(out.device) * tile.programs))(
        descriptor(small, [1, tile.rows, tile.cols, tile.depth]), descriptor(operands.small_weight, weights),
        None if full is None else _planes(full, tile), descriptor(operands.full_weight, weights), epilogue.scale,
        epilogue.bias, operands.border, operands.outputs.statistics, out, *out.stride()[:3],
        0 if full is None else full.stride(1), *out.shape[1:], tiles_y, tiles_x, tiles_out, tiles, operands.made,
        DEEP=operands.deep, STEP=operands.step, GROUPED=operands.grouped,
        MASKED=beside or seen % tile.depth > 0, SMALL=0 if small is None else small.shape[3], FULL=seen, PHASES=phases,
        WINDOW=operands.window, **tile.constants, **epilogue.constants,
    )  # fmt: skip


def _planes(full: Tensor, tile: Tile) -> TensorDescriptor:
    """Full [N, H, W, skip] seen as [N, H / 2, W / 2, 2, ...]: the next row begins at `full.stride(1)` of the last."""
    batch, height, width, inner = full.shape
    image, row, pixel, _ = full.stride()
    shape = [batch, height // 2, width // 2, 2, row + inner]
    box = [1, tile.rows, tile.cols, 1, tile.depth]
    return TensorDescriptor(full, shape, [image, 2 * row, 2 * pixel, pixel, 1], box)


def candidates(operands: Operands) -> Iterator[Tile]:
    """Yield tiles worth measuring, likeliest first."""
    depth = max(depth_of(source) for source, _ in operands.sources)
    out = min(128, max(fewest_rows(), next_power_of_two(operands.outer)))
    yield Tile(8, 16, out, depth)
    yield Tile(8, 16, min(out, 64), depth, warps=4, programs=2)
    if not operands.epilogue.statistics:
        yield Tile(8, 8, out, depth, warps=4, programs=2)
