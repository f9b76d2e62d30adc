"""2×2 transposed convolution, stride 2, with bias and activation in its epilogue.

Every input pixel makes four output pixels, of volumes (`VOLUME_OP`) four in each of two slices, each from its own
weight matrix. A tile makes one of them of each of its pixels, and TMA stores it in a box of five dimensions; the tiles
of the others come next, and find the pixels in L2. In the Gluon kernel, which is faster, one warp loads, and two groups
of four take turns to multiply and to write.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from pipeline.kernels.common import gluon_epilogue
from pipeline.kernels.common.capability import fewest_rows, gluon_barred
from pipeline.kernels.common.epilogue import Epilogue, Outputs, check_convolution, check_epilogue, store_reference
from pipeline.kernels.common.gluon_epilogue import halves_of, load_channels, load_slopes, stage
from pipeline.kernels.common.kernel_op import KernelOp, transposed_convolution, volume_convolution
from pipeline.kernels.common.nhwc import depth_of, descriptor, interpreted, multiprocessors, next_power_of_two
from pipeline.kernels.common.program import DEPENDENT, BoxTile, on_grid
from pipeline.kernels.common.tma import arguments, barriers, boxes_of, load_box, store_box, view, weight_boxes_of
from pipeline.kernels.common.triton_epilogue import finish, rounded

FOLDS = frozenset({"slopes"})


@dataclass(frozen=True)
class Tile(BoxTile):
    """A cut of the work: `rows` × `cols` input pixels and `out` channels of one of their four output pixels."""

    kernel: ClassVar[str] = "upconv2x2_triton"


@dataclass(frozen=True)
class GluonTile:
    """A cut of the work: `rows` × `cols` input pixels, `depth` channels a step, `boxes` of them on their way."""

    kernel: ClassVar[str] = "upconv2x2_gluon"
    rows: int
    cols: int
    depth: int
    boxes: int


@triton.jit
def _upconv2x2(
    x_boxes, weight_boxes, out_boxes, scale, bias, slopes, channels, tiles_x, tiles_out, tiles, height,
    DEEP: tl.constexpr, IN: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, OUT: tl.constexpr,
    DEPTH: tl.constexpr, ACTIVATION: tl.constexpr, SLOPE: tl.constexpr,
):  # fmt: skip
    """Read x [N · H, W, IN], weight [4 · DEEP, channels, IN]; with DEEP = 2 each slice of `height` rows makes two."""
    PIXELS: tl.constexpr = ROWS * COLS
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0)):
        o0 = tile % tiles_out * OUT
        tap = tile // tiles_out % (4 * DEEP)
        place = tile // tiles_out // (4 * DEEP)
        y0, x0 = place // tiles_x * ROWS, place % tiles_x * COLS
        acc = tl.zeros((OUT, PIXELS), tl.float32)
        for step in tl.range((IN + DEPTH - 1) // DEPTH):
            box = x_boxes.load([y0, x0, step * DEPTH]).reshape(PIXELS, DEPTH)
            taps = weight_boxes.load([tap, o0, step * DEPTH]).reshape(OUT, DEPTH)
            acc = tl.dot(taps, box.T, acc)
        channel = o0 + tl.arange(0, OUT)
        y = rounded(finish(acc, scale, bias, channel, channels, ACTIVATION, SLOPE, True, slopes), out_boxes.dtype)
        if DEEP == 2:
            y0 += (y0 // height + tap // 4) * height
        out_boxes.store([y0, tap // 2 % 2, x0, tap % 2, o0], y.T.reshape(ROWS, 1, COLS, 1, OUT))


@gluon.jit
def _place(tile, tiles_x, tiles_out, CORNERS: gl.constexpr, ROWS: gl.constexpr, COLS: gl.constexpr):
    """First row, first column, output pixel 0 to 3 (of volumes: 7) and first channel of a tile."""
    block = tile % (CORNERS * tiles_out)
    spot = tile // (CORNERS * tiles_out)
    return spot // tiles_x * ROWS, spot % tiles_x * COLS, block // tiles_out, block % tiles_out * 64


@gluon.jit
def _load(
    x_boxes, weight_boxes, pixels, weights, full, empty, geometry, CORNERS: gl.constexpr, ROWS: gl.constexpr,
    COLS: gl.constexpr, DEPTH: gl.constexpr, BOXES: gl.constexpr, PAIRED: gl.constexpr,
):  # fmt: skip
    """Run the loading warp: for each tile and chunk of channels load a box of pixels and its weights."""
    tiles_x, tiles_out, tiles, chunks, _ = geometry
    dtype: gl.constexpr = x_boxes.dtype
    STEP: gl.constexpr = 16 if PAIRED else 1
    gdc_wait()
    turn = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        y0, x0, corner, o0 = _place(tile, tiles_x, tiles_out, CORNERS, ROWS, COLS)
        for chunk in range(chunks):
            slot = turn % BOXES
            ready = full.index(slot)
            mbarrier.wait(empty.index(slot), (turn // BOXES & 1) ^ 1)
            mbarrier.expect(ready, (ROWS * COLS + 64) * DEPTH * dtype.primitive_bitwidth // 8)
            box = view(pixels.index(slot), dtype, x_boxes.block_shape, x_boxes.layout)
            held = view(weights.index(slot), dtype, weight_boxes.block_shape, weight_boxes.layout)
            load_box(x_boxes, [y0, x0, chunk * DEPTH], ready, box)
            load_box(weight_boxes, [corner, o0 // STEP, 0, 0, chunk * DEPTH], ready, held)
            turn += 1
    gdc_launch_dependents()


@gluon.jit
def _multiply(
    GROUP: gl.constexpr, out_boxes, pixels, weights, staging, full, empty, pingpong, geometry, ends, slopes,
    CORNERS: gl.constexpr, ROWS: gl.constexpr, COLS: gl.constexpr, DEPTH: gl.constexpr, BOXES: gl.constexpr,
    ACTIVATION: gl.constexpr, SLOPE: gl.constexpr, SCALED: gl.constexpr, PAIRED: gl.constexpr, SLOPED: gl.constexpr,
):  # fmt: skip
    """Run a group of warps: make every other tile of this program, from the first product to the store."""
    tiles_x, tiles_out, tiles, chunks, height = geometry
    dtype: gl.constexpr = pixels.dtype
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, ROWS * COLS, 256 // dtype.primitive_bitwidth]
    )
    gdc_wait()
    count = GROUP * 1
    for tile in range(gl.program_id(0) + GROUP * gl.num_programs(0), tiles, 2 * gl.num_programs(0)):
        y0, x0, corner, o0 = _place(tile, tiles_x, tiles_out, CORNERS, ROWS, COLS)
        factor, shift = load_channels(ends, o0, SCALED, PAIRED, 64, layout)
        steep = load_slopes(slopes, ends[2], o0, PAIRED, 64, layout) if SLOPED else None
        acc = gl.zeros([64, ROWS * COLS], gl.float32, layout)
        turn = count * chunks
        # As in conv3x3_gluon: no group may run so far ahead that it takes an old box for its own.
        mbarrier.wait(pingpong.index(GROUP), (count // 2 & 1) ^ (1 - GROUP))
        for chunk in range(chunks):
            mbarrier.wait(full.index(turn % BOXES), turn // BOXES & 1)
            seen = pixels.index(turn % BOXES).permute((1, 0))
            acc = hopper.warpgroup_mma(weights.index(turn % BOXES), seen, acc, is_async=True)
            acc = hopper.warpgroup_mma_wait(1, deps=(acc,))
            mbarrier.arrive(empty.index((turn + BOXES - 1) % BOXES), count=1, pred=chunk > 0)
            turn += 1
        mbarrier.arrive(pingpong.index(1 - GROUP), count=1)
        acc = hopper.warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(empty.index((turn - 1) % BOXES), count=1)
        if CORNERS == 8:  # of a slice of the input the rows of two of the output's; a tile is within one
            y0 += (y0 // height + corner // 4) * height
        active = gluon_epilogue.activated(acc, factor, shift, SCALED, ACTIVATION, SLOPE, steep)
        halves = halves_of(gluon_epilogue.in_order(active, PAIRED))
        for half in gl.static_range(2):
            quarters = halves_of(halves[half])
            for slot in gl.static_range(2):
                buffer = staging.index(2 * GROUP + slot)
                stage(quarters[slot], buffer, out_boxes.dtype)
                box = view(buffer, out_boxes.dtype, out_boxes.block_shape, out_boxes.layout)
                row = y0 + (2 * half + slot) * (ROWS // 4)
                store_box(out_boxes, [row, corner // 2 % 2, x0, corner % 2, o0], box)
        count += 2
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["channels", "tiles_x", "tiles_out", "tiles", "chunks", "height"])
def _upconv2x2_gluon(
    x_boxes, weight_boxes, out_boxes, scale, bias, slopes, channels, tiles_x, tiles_out, tiles, chunks, height,
    CORNERS: gl.constexpr, ROWS: gl.constexpr, COLS: gl.constexpr, DEPTH: gl.constexpr, BOXES: gl.constexpr,
    ACTIVATION: gl.constexpr, SLOPE: gl.constexpr, SCALED: gl.constexpr, PAIRED: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Read x [N · H, W, in], weight [4, channels, in]; with 8 CORNERS each slice of `height` rows makes two."""
    dtype: gl.constexpr = x_boxes.dtype
    swizzled: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS * COLS, DEPTH], dtype)
    pixels = gl.allocate_shared_memory(dtype, [BOXES, ROWS * COLS, DEPTH], swizzled)
    weights = gl.allocate_shared_memory(dtype, [BOXES, 64, DEPTH], swizzled)
    out_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS * COLS // 4, 64], out_boxes.dtype)
    staging = gl.allocate_shared_memory(out_boxes.dtype, [4, ROWS * COLS // 4, 64], out_layout)
    full, empty, pingpong = barriers(BOXES), barriers(BOXES), barriers(2)
    hopper.fence_async_shared()
    geometry = (tiles_x, tiles_out, tiles, chunks, height)
    ends = (scale, bias, channels)
    slopes_or_any = bias if slopes is None else slopes
    to_multiply = (out_boxes, pixels, weights, staging, full, empty, pingpong, geometry, ends, slopes_or_any)
    to_load = (x_boxes, weight_boxes, pixels, weights, full, empty, geometry)
    MULTIPLY: gl.constexpr = (CORNERS, ROWS, COLS, DEPTH, BOXES, ACTIVATION, SLOPE, SCALED, PAIRED, slopes is not None)
    LOAD: gl.constexpr = (CORNERS, ROWS, COLS, DEPTH, BOXES, PAIRED)
    gl.warp_specialize([
        (_multiply, arguments((0,) + to_multiply, MULTIPLY)),
        (_multiply, arguments((1,) + to_multiply, MULTIPLY)),
        (_load, arguments(to_load, LOAD)),
    ], [num_warps, 4], [232, 40])  # fmt: skip


def pack(weight: Tensor) -> Tensor:
    """Return a transposed weight [in, out, 2, 2] as [4, out, in]: entry 2 i + j makes output pixel (i, j).

    One of volumes [in, out, 2, 2, 2] is [8, out, in]: entry 4 a + 2 i + j makes that of slice a.
    """
    return weight.flatten(2).permute(2, 1, 0).contiguous()


def reference(x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs) -> None:
    """Compute `upconv2x2` in plain PyTorch and fp32, on any device."""
    batch, height, width, _ = x.shape
    deep, slices = len(weight) // 4, epilogue.slices
    y = epilogue.of(torch.einsum("nhwc,koc->nhwko", x.float(), weight.float()))
    y = y.reshape(batch, slices, height // slices, width, deep, 2, 2, -1).permute(0, 1, 4, 2, 5, 3, 6, 7)
    store_reference(y.reshape(batch, deep * 2 * height, 2 * width, -1), epilogue, outputs)


def upconv2x2(x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs, tile: Tile | GluonTile) -> None:
    """Write the transposed convolution of x [N, H, W, in] through the epilogue into `outputs.out`, [N, 2 H, 2 W, out].

    Images follow each other without a gap. With a weight [8, out, in] of volumes the output is [N, 4 H, 2 W, out].
    """
    batch, height, width, inner = x.shape
    outer, deep = weight.shape[1], 2 if len(weight) == 8 else 1
    check_convolution(x, weight, (4 * deep, outer, inner))
    if height % (8 * epilogue.slices) if deep == 2 else epilogue.slices > 1:
        raise ValueError(f"x must have {epilogue.slices} slices of a multiple of 8 rows, got {list(x.shape)}")
    check_epilogue(epilogue, outputs, (batch, 2 * deep * height, 2 * width, outer), FOLDS)
    out = outputs.required
    for name, tensor in (("x", x), ("out", out)):
        if batch > 1 and tensor.stride(0) != tensor.shape[1] * tensor.stride(1):
            raise ValueError(f"{name}'s images must follow each other without a gap, got {list(tensor.stride())}")
    x, (above, beside) = x.reshape(batch * height, width, inner), out.stride()[1:3]
    pairs = out.as_strided((deep * len(x), 2, width, 2, outer), (2 * above, above, 2 * beside, beside, 1))
    channels = 64 if isinstance(tile, GluonTile) else tile.out
    tiles_x, tiles_out = -(-width // tile.cols), -(-outer // channels)
    tiles = -(-len(x) // tile.rows) * tiles_x * tiles_out * len(weight)
    ends = (epilogue.bias, epilogue.slopes, outer, tiles_x, tiles_out, tiles)
    box, programs = [tile.rows, tile.cols, tile.depth], multiprocessors(x.device)
    height //= epilogue.slices
    if isinstance(tile, Tile):
        on_grid(_upconv2x2, min(tiles, programs * tile.programs))(
            descriptor(x, box), descriptor(weight, [1, tile.out, tile.depth]),
            descriptor(pairs, [tile.rows, 1, tile.cols, 1, tile.out]), epilogue.scale, *ends, height,
            DEEP=len(weight) // 4, IN=inner, **tile.constants, **epilogue.constants,
        )  # fmt: skip
        return
    paired = weight.dtype == torch.float8_e4m3fn and outer % 16 == 0
    boxed, stored = [tile.rows * tile.cols, tile.depth], [tile.rows // 4, 1, tile.cols, 1, 64]
    on_grid(_upconv2x2_gluon, min(tiles, programs))(
        boxes_of(x, box, boxed), weight_boxes_of(weight, 64, boxed, paired),
        boxes_of(pairs, stored, [tile.rows * tile.cols // 4, 64]),  # a quarter of a tile
        epilogue.factors, *ends, -(-inner // tile.depth), height, CORNERS=len(weight), ROWS=tile.rows, COLS=tile.cols,
        DEPTH=tile.depth, BOXES=tile.boxes, SCALED=epilogue.scale is not None, PAIRED=paired, num_warps=4,
        **epilogue.constants, **DEPENDENT,
    )  # fmt: skip


def candidates(x: Tensor, weight: Tensor, epilogue: Epilogue, *_: object) -> Iterator[Tile | GluonTile]:
    """Yield tiles worth measuring for x [N, H, W, in], likeliest first; of volumes those within a slice."""
    depth, out = depth_of(x), min(128, max(fewest_rows(), next_power_of_two(weight.shape[1])))
    if gluon_barred() is None and not interpreted():
        if len(weight) == 4 or x.shape[1] // epilogue.slices % 16 == 0:
            yield GluonTile(16, 16, depth, 4)
        yield GluonTile(8, 16, depth, 6)
    yield Tile(8, 16, out, depth)
    yield Tile(8, 16, min(out, 64), depth, warps=4, programs=2)
    yield Tile(8, 8, out, depth, warps=4, programs=2)


OP: KernelOp = KernelOp(
    name="upconv2x2",
    accepts=lambda layer: layer.kind == "conv_transpose2d" and layer.is_square(2, 2, 0) and layer.suits_bulk_copies,
    reference=reference, launch=upconv2x2, candidates=candidates, library=transposed_convolution, taps=4,
    tile_types=(Tile, GluonTile), pack=pack, folds=FOLDS, growth=2,
)  # fmt: skip
VOLUME_OP: KernelOp = replace(
    OP, name="upconv2x2x2", accepts=None, taps=8, growth_deep=2,
    library=partial(volume_convolution, layer=functional.conv_transpose3d, stride=2, padding=0),
)  # fmt: skip
