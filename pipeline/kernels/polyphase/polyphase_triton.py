"""The phases of `polyphase` in plain Triton, a box a tap, and the operands of all its kernels.

The idea: a tile is ROWS × COLS pixels of one phase, a part of the tile's number, so that one loop serves all four. The
rows and columns of the full map that a tap reads all have one parity: seen as [N, H / 2, W / 2, 2, ...] with the row's
parity as an offset in the last dimension they are a box like any other, zeros outside.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional
from triton.tools.tensor_descriptor import TensorDescriptor

from pipeline.kernels.common.block_statistics import ROWS
from pipeline.kernels.common.capability import fewest_rows
from pipeline.kernels.common.epilogue import Epilogue, Outputs, check_blocks, check_epilogue, store_reference, sums_of
from pipeline.kernels.common.nhwc import check, check_floats, depth_of, descriptor, multiprocessors, next_power_of_two
from pipeline.kernels.common.program import BoxTile, by_slice, on_grid
from pipeline.kernels.common.triton_epilogue import finish, rounded, store_statistics
from pipeline.kernels.conv3x3.conv3x3_triton import check_groups

FOLDS = frozenset({"statistics"})
PHASES = ((0, 0), (0, 1), (1, 0), (1, 1))
WINDOW, WIDER = 3, 4  # of a convolution with a stride; pix2pix, discriminators and Uformer halve a map by the wider


class Operands(NamedTuple):
    """The arguments of `polyphase.polyphase`, in one of three forms.

    With `small`: an up-sampling to twice its height and width, and beside it a 3×3 convolution of `full`, if there is
    one. With `full` alone: its 3×3 or 4×4 convolution of stride 2, padding 1; by 27 taps that of volumes of D slices,
    [N, D · H, W, skip], into [N, D' · H / 2, W / 2, out], where D' is D / `step`.
    """

    epilogue: Epilogue  # scale and bias [out], an activation, and statistics: of each phase, without a stride
    # out [N, 2 h, 2 w, out], or [N, H / 2, W / 2, out] of the strided convolution, may be a channel slice
    outputs: Outputs
    small: Tensor | None = None  # [N, h, w, in], fp16 or fp8; None for the strided convolution
    small_weight: Tensor | None = None  # [16, out, in] of its dtype
    full: Tensor | None = None  # [N, 2 h, 2 w, skip] of the same dtype; None for an up-sampling without a skip
    # [9, out, skip] of its dtype; [27, out, skip] of volumes; [16, out, skip] of a window of 4
    full_weight: Tensor | None = None
    # [3, 3, out] fp32, added to the bias in the output's first, inner and last rows × columns; [1, 1] is 0
    border: Tensor | None = None
    # whether small_weight is of a transposed window of 3: its taps (a, i) = (0, 0) and (b, j) = (0, 0) are 0
    window_of_3: bool = False
    step: int = 2  # of volumes, how many slices of `full` one of the answer is further: 2, or 1 of a stride of 1×2×2
    # whether `full_weight` is [9, out, window] of groups, as `conv3x3_grouped.pack` makes it; of a stride
    grouped: bool = False
    # of the convolution of `full`: 3, or 4 of one with a stride, which `polyphase_triton` alone runs
    window: int = WINDOW

    @property
    def strided(self) -> bool:
        """Return whether this is the convolution of stride 2."""
        return self.small is None

    @property
    def deep(self) -> int:
        """Return how many slices a tile reads: 3 of volumes, else 1."""
        return 1 if self.full_weight is None else len(self.full_weight) // self.window**2

    @property
    def made(self) -> int:
        """Return how many slices of the answer lie one below the other."""
        return 1 if self.deep == 1 else self.epilogue.slices // self.step

    @property
    def images(self) -> Tensor | None:
        """The full map, of volumes their slices [N · D, H, W, skip]: the same memory."""
        return by_slice(self.full, self.epilogue.slices)

    @property
    def sources(self) -> list[tuple[Tensor, Tensor]]:
        """The maps that exist, with their weights: small, full."""
        pairs = ((self.small, self.small_weight), (self.full, self.full_weight))
        return [(map_, weight) for map_, weight in pairs if map_ is not None and weight is not None]

    @property
    def outer(self) -> int:
        """Return how many output channels there are."""
        return self.sources[0][1].shape[1]

    @property
    def grid(self) -> tuple[int, int, int]:
        """Images, or slices of a strided convolution's answer, and rows and columns of one phase."""
        if self.small is not None:
            batch, height, width, _ = self.small.shape
            return batch, height, width
        batch, height, width, _ = self.sources[0][0].shape
        slices = self.epilogue.slices
        return batch * self.made, height // slices // 2, width // 2


def check_operands(operands: Operands) -> None:
    """Raise ValueError, which names it, where one of all that a kernel is given isn't as `Operands` says."""
    batch, height, width = operands.grid
    outer, dtype, slices = operands.outer, operands.sources[0][0].dtype, operands.epilogue.slices
    if operands.deep > 1 or slices > 1:
        _check_volumes(operands)
        batch = batch // operands.made
    if operands.grouped and operands.full is not None and operands.full_weight is not None:
        check_groups("full_weight", operands.full_weight, operands.full)
    grown = (batch, 2 * height * slices, 2 * width)
    sources = ("small", 16, (batch, height, width)), ("full", operands.window**2 * operands.deep, grown)
    for name, taps, seen in sources:
        map_, weight = getattr(operands, name), getattr(operands, f"{name}_weight")
        if map_ is None:
            continue
        check(name, map_, (*seen, map_.shape[3]))
        check(f"{name}_weight", weight, (taps, outer, weight.shape[2] if operands.grouped else map_.shape[3]))
        if map_.dtype != dtype or weight.dtype != dtype:
            raise ValueError(f"{name} and {name}_weight must have one dtype, {dtype}, got {map_.dtype}, {weight.dtype}")
    check_floats("border", operands.border, 3, 3, outer)
    out = (batch, height * operands.made, width) if operands.strided else grown
    check_epilogue(operands.epilogue, operands.outputs, (*out, outer), FOLDS)


def _check_volumes(operands: Operands) -> None:
    """Check that volumes are of pairs of slices, and these of pairs of blocks of rows and of pairs of columns."""
    full, slices, step = operands.full, operands.epilogue.slices, operands.step
    if full is None or not operands.strided or operands.deep != 3 or step not in (1, 2) or slices < 1 or slices % step:
        wanted = f"a multiple of {step} slices, a weight of 27 taps and no map beside it"
        raise ValueError(f"full must have {wanted}, got {slices} and {9 * operands.deep} taps")
    if full.shape[1] % (2 * ROWS * slices) or full.shape[2] % 2:
        wanted = f"{slices} slices of a multiple of {2 * ROWS} rows and an even number of columns"
        raise ValueError(f"full must have {wanted}, got {list(full.shape)}")


def phases_of(small: Tensor, taps: Tensor) -> Tensor:
    """Return the four phases by 2×2 taps [16, out, in] of small [N, in, h, w], put together as [N, out, 2 h, 2 w]."""
    batch, inner, height, width = small.shape
    out = small.new_empty(batch, taps.shape[1], height, 2, width, 2)
    for phase, (a, b) in enumerate(PHASES):
        window = taps[4 * phase : 4 * phase + 4].permute(1, 2, 0).reshape(-1, inner, 2, 2)
        padded = functional.pad(small, (1 - b, b, 1 - a, a))
        out[:, :, :, a, :, b] = functional.conv2d(padded, window)
    return out.reshape(batch, -1, 2 * height, 2 * width)


def at_border(border: Tensor, height: int, width: int) -> Tensor:
    """Return what border [3, 3, out] adds to each pixel of an output of at least 2×2, as [out, height, width]."""
    lines = [(torch.arange(size, device=border.device), size - 1) for size in (height, width)]
    rows, columns = (1 + (line == last).long() - (line == 0).long() for line, last in lines)
    return border[rows[:, None], columns].permute(2, 0, 1)


def reference(operands: Operands) -> None:
    """Compute `polyphase.polyphase` in fp32 on any device, and store its outputs."""
    epilogue, sums = operands.epilogue, torch.zeros(())
    small, full = operands.small, operands.full
    if small is not None and operands.small_weight is not None:
        phases = phases_of(small.float().permute(0, 3, 1, 2), operands.small_weight.float())
        sums = phases.permute(0, 2, 3, 1)
    if full is not None and operands.full_weight is not None:
        stride = (operands.step, 2, 2) if operands.deep == 3 else 2 if operands.strided else 1
        sums = sums + sums_of(full, operands.full_weight, stride=stride, slices=epilogue.slices)
    if operands.border is not None:  # added to each pixel where a residual is
        epilogue = replace(epilogue, residual=at_border(operands.border, *sums.shape[1:3]).permute(1, 2, 0))
    store_reference(epilogue.of(sums), epilogue, operands.outputs)


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
        pixel = tl.arange(0, PIXELS)
        y, x = (y0 + pixel // COLS) * EVERY + a, (x0 + pixel % COLS) * EVERY + b
        stored = (y < height)[None, :] & (x < width)[None, :] & inside[:, None]
        beside = None
        if border is not None:
            row = tl.where(y == 0, 0, tl.where(y == height - 1, 2, 1))
            column = tl.where(x == 0, 0, tl.where(x == width - 1, 2, 1))
            kind = (3 * row + column)[None, :] * channels + channel[:, None]
            beside = tl.load(border + kind, mask=stored, other=0.0)
        at_pixel = image.to(tl.int64) * image_step + y.to(tl.int64) * row_step + x * pixel_step
        active = finish(acc, scale, bias, channel, channels, ACTIVATION, SLOPE, True, None, beside)
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
