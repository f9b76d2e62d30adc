"""The steps of `conv3x3_gluon`: what its loading warp brings, and the products of its groups of warps."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from pipeline.kernels.common.dependent_launch import let_the_next_begin, wait_for_those_before
from pipeline.kernels.common.tma import load_box, view


@gluon.jit
def place(tile, tiles_y, tiles_x, tiles_out, ROWS: gl.constexpr, COLS: gl.constexpr, OUT: gl.constexpr):
    """Image, first row, first column and first channel of a tile; blocks of channels come one after another."""
    spot = tile // tiles_out
    return spot // tiles_x // tiles_y, spot // tiles_x % tiles_y * ROWS, spot % tiles_x * COLS, tile % tiles_out * OUT


@gluon.jit
def load_boxes(
    boxes, last_rows, weight_boxes, residual_boxes, pixels, weights, staging, bars, geometry,
    DEEP: gl.constexpr, ROWS: gl.constexpr, COLS: gl.constexpr, OUT: gl.constexpr, DEPTH: gl.constexpr,
    BOXES: gl.constexpr, TAPS: gl.constexpr, HELD: gl.constexpr, GROUPS: gl.constexpr, PAIRED: gl.constexpr,
    RESIDUAL: gl.constexpr, EARLY: gl.constexpr,
):  # fmt: skip
    """The loading warp: for each tile, chunk of channels and horizontal shift one tall box and its three weights.

    A tile's residual comes after its boxes: it is needed last, and its buffers are those that the group's tile before
    is stored from. Where `EARLY` the first weights are on their way before the kernel before this one is done.
    """
    box_full, box_empty, tap_full, _, _, added_full, added_empty = bars
    tiles_y, tiles_x, tiles_out, tiles, chunks, slices = geometry
    dtype: gl.constexpr = boxes.dtype
    BYTES: gl.constexpr = DEPTH * dtype.primitive_bitwidth // 8
    STEP: gl.constexpr = 16 if PAIRED else 1
    LOADED: gl.constexpr = 1 if EARLY else 0
    TOGETHER: gl.constexpr = 2 if DEEP == 4 else 1  # slices
    if not EARLY:
        wait_for_those_before()
    if TAPS == 0:
        mbarrier.expect(tap_full.index(0), HELD * OUT * BYTES)
        block = gl.program_id(0) % tiles_out * OUT // STEP
        for tap in range(9 * DEEP):
            for chunk in range(chunks):
                held = view(weights.index(tap * chunks + chunk), dtype, weight_boxes.block_shape, weight_boxes.layout)
                load_box(weight_boxes, [tap, block, 0, 0, chunk * DEPTH], tap_full.index(0), held)
    elif EARLY:
        _load_taps(weight_boxes, weights, bars, 0, 0, gl.program_id(0) % tiles_out * OUT // STEP, 0, OUT * BYTES, TAPS)
    if EARLY:
        wait_for_those_before()
    turn = 0
    count = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        image, y0, x0, o0 = place(tile, tiles_y, tiles_x, tiles_out, ROWS, COLS, OUT)
        for deep in gl.static_range(DEEP):
            for chunk in range(chunks):
                for shift in range(3):
                    slot = turn % BOXES
                    full = box_full.index(slot)
                    mbarrier.wait(box_empty.index(slot), (turn // BOXES & 1) ^ 1)
                    mbarrier.expect(full, (ROWS + 2) * COLS * BYTES)
                    first = view(pixels.index(slot * (ROWS + 2)), dtype, boxes.block_shape, boxes.layout)
                    rest = view(pixels.index(slot * (ROWS + 2) + ROWS), dtype, last_rows.block_shape, last_rows.layout)
                    left, c0 = x0 + shift - 1, chunk * DEPTH
                    if DEEP == 1:
                        load_box(boxes, [image, y0 - 1, left, c0], full, first)
                        load_box(last_rows, [image, y0 + ROWS - 1, left, c0], full, rest)
                    else:
                        volume, z = image // slices, image % slices * TOGETHER + deep - 1
                        load_box(boxes, [volume, z, y0 - 1, left, c0], full, first)
                        load_box(last_rows, [volume, z, y0 + ROWS - 1, left, c0], full, rest)
                    if TAPS > 0:  # noqa: SIM102 - known when compiling, the next is not
                        if turn >= LOADED:
                            tap = 9 * deep + shift
                            _load_taps(weight_boxes, weights, bars, turn, tap, o0 // STEP, c0, OUT * BYTES, TAPS)
                    turn += 1
        if RESIDUAL is not None:
            group = count % GROUPS
            ready = added_full.index(group)
            mbarrier.wait(added_empty.index(group), (count // GROUPS & 1) ^ 1)
            mbarrier.expect(ready, ROWS * COLS * OUT * residual_boxes.dtype.primitive_bitwidth // 8)
            for part in gl.static_range(4):
                quarter = staging.index(4 * group + part)
                held = view(quarter, RESIDUAL, residual_boxes.block_shape, residual_boxes.layout)
                load_box(residual_boxes, [image, y0 + part * (ROWS // 4), x0, o0], ready, held)
            count += 1
    let_the_next_begin()


@gluon.jit
def _load_taps(
    boxes, weights, bars, turn, tap, block, c0, BYTES: gl.constexpr, TAPS: gl.constexpr
):  # fmt: skip
    """The weights of three vertical taps, the first of them `tap`, each of so many bytes, once there is room."""
    _, _, full, empty, _, _, _ = bars
    for down in gl.static_range(3):
        spot = (3 * turn + down) % TAPS
        mbarrier.wait(empty.index(spot), ((3 * turn + down) // TAPS & 1) ^ 1)
        mbarrier.expect(full.index(spot), BYTES)
        held = view(weights.index(spot), boxes.dtype, boxes.block_shape, boxes.layout)
        load_box(boxes, [tap + 3 * down, block, 0, 0, c0], full.index(spot), held)


@gluon.jit
def products(
    acc, pixels, weights, bars, count, chunks, GROUP: gl.constexpr, DEEP: gl.constexpr,
    ROWS: gl.constexpr, COLS: gl.constexpr, DEPTH: gl.constexpr, BOXES: gl.constexpr, TAPS: gl.constexpr,
    GROUPS: gl.constexpr,
):  # fmt: skip
    """A tile's sums [out, pixels] on top of acc, by one group of warps; the tile is the program's `count`-th."""
    box_full, box_empty, tap_full, tap_empty, pingpong, _, _ = bars
    dtype: gl.constexpr = pixels.dtype
    turn = count * 3 * DEEP * chunks
    # A barrier tells this phase from the one before, not from the one before that: a group that ran ahead of the
    # other would take an old box for its own. So the other's loads have arrived before this one's are waited for.
    if GROUPS == 2:
        mbarrier.wait(pingpong.index(GROUP), (count // 2 & 1) ^ (1 - GROUP))
    for deep in gl.static_range(DEEP):
        for chunk in range(chunks):
            for across in gl.static_range(3):
                mbarrier.wait(box_full.index(turn % BOXES), turn // BOXES & 1)
                for down in gl.static_range(3):
                    if TAPS == 0:
                        taps = weights.index((9 * deep + 3 * down + across) * chunks + chunk)
                    else:
                        spot = (3 * turn + down) % TAPS
                        mbarrier.wait(tap_full.index(spot), (3 * turn + down) // TAPS & 1)
                        taps = weights.index(spot)
                    rows = pixels.index(turn % BOXES * (ROWS + 2) + down)
                    seen = view(rows, dtype, [ROWS * COLS, DEPTH], pixels.layout)
                    acc = warpgroup_mma(taps, seen.permute((1, 0)), acc, is_async=True)
                    # Once only this tap's product is on its way, the one before it is done with its weights, and the
                    # first of a box shows that the box before is done with.
                    acc = warpgroup_mma_wait(1, deps=(acc,))
                    started = deep + chunk + across + down > 0
                    if TAPS > 0:
                        mbarrier.arrive(tap_empty.index((3 * turn + down + TAPS - 1) % TAPS), count=1, pred=started)
                    if down == 0:
                        mbarrier.arrive(box_empty.index((turn + BOXES - 1) % BOXES), count=1, pred=started)
                turn += 1
    if GROUPS == 2:
        mbarrier.arrive(pingpong.index(1 - GROUP), count=1)
    acc = warpgroup_mma_wait(0, deps=(acc,))
    if TAPS > 0:
        mbarrier.arrive(tap_empty.index((3 * turn - 1) % TAPS), count=1)
    mbarrier.arrive(box_empty.index((turn - 1) % BOXES), count=1)
    return acc
