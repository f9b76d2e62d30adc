"""The loading warp of `polyphase_gluon`: which boxes of the maps and which taps each step of a tile reads."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from pipeline.kernels.common.tma import box_of, load_box, pair, reach, view

# Of held taps that lie so that matrices share them, a block being one tap or zeros: from one matrix of a chunk of
# channels to the next, and of all of a chunk. The small map has four matrices for each offset; the full one three, and
# one block of zeros follows the last.
SMALL_PITCH, FULL_PITCH = 5, 4
SMALL_BLOCKS, FULL_BLOCKS = 4 * SMALL_PITCH, 3 * FULL_PITCH + 1
# As a kernel reads them.
_SMALL, _FULL = gl.constexpr(SMALL_BLOCKS), gl.constexpr(FULL_BLOCKS)


@gluon.jit
def place(tile, geometry, ROWS: gl.constexpr, SPREAD: gl.constexpr, STRIDED: gl.constexpr, SPLIT: gl.constexpr):
    """Image, first row, first column, column phase and first channel of a tile; blocks of channels come first."""
    tiles_y, tiles_x, tiles_out, _, _, _ = geometry
    ACROSS: gl.constexpr = 1 if STRIDED else 2 // SPREAD
    BLOCK: gl.constexpr = 128 if STRIDED and not SPLIT else 64 // SPREAD
    spot = tile // tiles_out // ACROSS
    row = spot // tiles_x
    o0 = tile % tiles_out * BLOCK
    return row // tiles_y, row % tiles_y * ROWS, spot % tiles_x * 16, tile // tiles_out % ACROSS, o0


@gluon.jit
def shifts_of(phase, SPREAD: gl.constexpr, SPARSE: gl.constexpr):
    """Return the first horizontal offset of the small map that a tile reads, and how many: without zero taps."""
    unused = (1 if SPREAD == 2 else 1 - phase) if SPARSE else 0
    return unused, 1 + SPREAD - unused


@gluon.constexpr_function
def pitch_of(held: int, spread: int, pitch: int) -> int:
    """Return how many blocks it is from one matrix to the next: `pitch` where they are held and share blocks."""
    return pitch if held > 0 and spread == 2 else spread


@gluon.jit
def small_base(slot, step, HELD: gl.constexpr, SPREAD: gl.constexpr):
    """Return the block where the matrices of a step over the small map begin: in their slot, or among the held ones."""
    if HELD > 0 and SPREAD == 2:
        across = step % 3
        return step // 3 * _SMALL + gl.where(across == 1, 0, 2 + across // 2)
    return 4 * SPREAD * (step if HELD > 0 else slot)


@gluon.jit
def plane_base(
    slot, step, small_steps, plane: gl.constexpr, HELD: gl.constexpr, SPREAD: gl.constexpr, STRIDED: gl.constexpr,
    SPLIT: gl.constexpr,
):  # fmt: skip
    """As above of a step over the full map: without a stride both planes have the same three matrices."""
    if HELD > 0 and SPREAD == 2:
        return small_steps // 3 * _SMALL + step // 4 * _FULL + 3 - step % 4
    BLOCKS: gl.constexpr = 2 if STRIDED and not SPLIT else 1
    OWN: gl.constexpr = BLOCKS * plane if STRIDED else 0
    return SPREAD * (4 * small_steps + 3 * BLOCKS * step + OWN if HELD > 0 else 4 * slot)


@gluon.jit
def _load_taps(boxes, weights, block, tap, o0, c0, full, PAIRED: gl.constexpr):
    """One tap's weights [64 / SPREAD, DEPTH] into a block: a matrix, or half of one; zeros of a tap beyond the last."""
    held = view(weights.index(block), boxes.dtype, boxes.block_shape, boxes.layout)
    load_box(boxes, [tap, o0 // (16 if PAIRED else 1), 0, 0, c0], full, held)


@gluon.jit
def _load_small_taps(
    taps, weights, base, full, across, phase, o0, c0, SPREAD: gl.constexpr, SPARSE: gl.constexpr, PAIRED: gl.constexpr
):  # fmt: skip
    """For one horizontal offset the two vertical taps of either row phase, the matrices from a block on."""
    for matrix in gl.static_range(1 if SPARSE else 0, 4):
        for half in gl.static_range(SPREAD):
            j = across - half
            tap = 8 * (matrix // 2) + 4 * (phase + half) + 2 * (matrix % 2) + j
            tap = gl.where((j >= 0) & (j < 2), tap, 16)
            _load_taps(taps, weights, base + matrix * SPREAD + half, tap, o0, c0, full, PAIRED)


@gluon.jit
def _load_plane_taps(
    taps, weights, base, full, first_tap, across, plane: gl.constexpr, o0, c0,
    SPREAD: gl.constexpr, STRIDED: gl.constexpr, SPLIT: gl.constexpr, PAIRED: gl.constexpr,
):  # fmt: skip
    """For one horizontal tap the vertical ones that read the even or the odd rows, the matrices from a block on."""
    if STRIDED:
        for group in gl.static_range(1 if SPLIT else 2):
            for used in gl.static_range(1 + plane):
                tap = first_tap + (2 * used if plane == 1 else 1) * 3 + across
                matrix = base + (1 + plane) * group + used
                _load_taps(taps, weights, matrix, tap, o0 + 64 * group, c0, full, PAIRED)
    else:
        for down in gl.static_range(3):
            for half in gl.static_range(SPREAD):
                s = across - half
                tap = gl.where((s >= 0) & (s < 3), 3 * down + s, 9)
                _load_taps(taps, weights, base + down * SPREAD + half, tap, o0, c0, full, PAIRED)


@gluon.constexpr_function
def _small_tap(block: int) -> int:
    """Which tap of the small map lies in a block of a chunk: of each row phase a and vertical tap i five blocks.

    The offsets -1, 0 and 1 have (b0 j0, 0), (b0 j1, b1 j0) and (0, b1 j1); they lie as b0 j1, b1 j0, b0 j0, 0, b1 j1.
    """
    matrix, order = divmod(block, SMALL_PITCH)
    return 16 if order == 3 else 8 * (matrix // 2) + 2 * (matrix % 2) + (1, 4, 0, 0, 5)[order]


@gluon.constexpr_function
def _full_tap(block: int) -> int:
    """Which tap of the full map lies in a block: of each row of a window four, zeros, t2, t1 and t0."""
    row, order = divmod(block, FULL_PITCH)
    return 3 * row + 3 - order if order else 9


@gluon.jit
def _hold_shared(
    small_taps, full_taps, weights, held, small_chunks, full_chunks, o0, DEPTH: gl.constexpr, FULL: gl.constexpr,
    PAIRED: gl.constexpr,
):  # fmt: skip
    """Ask for all taps of both column phases, each once, so that those of a matrix lie one after the other."""
    for chunk in range(small_chunks):
        for block in gl.static_range(_SMALL):
            at = chunk * _SMALL + block
            _load_taps(small_taps, weights, at, _small_tap(block), o0, chunk * DEPTH, held, PAIRED)
    if FULL:
        for chunk in range(full_chunks):
            for block in gl.static_range(_FULL):
                at = small_chunks * _SMALL + chunk * _FULL + block
                _load_taps(full_taps, weights, at, _full_tap(block), o0, chunk * DEPTH, held, PAIRED)


@gluon.jit
def _hold_taps(
    small_taps, full_taps, weights, held, geometry, spot, DEEP: gl.constexpr, DEPTH: gl.constexpr, HELD: gl.constexpr,
    SPREAD: gl.constexpr, STRIDED: gl.constexpr, SPLIT: gl.constexpr, FULL: gl.constexpr, PAIRED: gl.constexpr,
):  # fmt: skip
    """Ask for all taps of a program's phase and block of channels, once; none of them may be left out."""
    _, _, _, _, small_chunks, full_chunks = geometry
    _, _, _, phase, o0 = spot
    mbarrier.expect(held.index(0), HELD * (64 // SPREAD) * DEPTH * weights.dtype.primitive_bitwidth // 8)
    if SPREAD == 2:
        _hold_shared(small_taps, full_taps, weights, held.index(0), small_chunks, full_chunks, o0, DEPTH, FULL, PAIRED)
    else:
        small_steps = 0 if STRIDED else small_chunks * 2
        for step in range(small_steps):
            _load_small_taps(
                small_taps, weights, 4 * step, held.index(0), step % 2, phase, o0, step // 2 * DEPTH, SPREAD,
                False, PAIRED,
            )  # fmt: skip
        for step in range(DEEP * full_chunks * 3 if FULL else 0):
            for plane in gl.static_range(2 if STRIDED else 1):
                _load_plane_taps(
                    full_taps, weights, plane_base(0, step, small_steps, plane, HELD, SPREAD, STRIDED, SPLIT),
                    held.index(0), 9 * (step // 3 // full_chunks), step % 3, plane, o0,
                    step // 3 % full_chunks * DEPTH, SPREAD, STRIDED, SPLIT, PAIRED,
                )  # fmt: skip


@gluon.jit
def _load_small(
    maps, pixels, weights, full, slot, spot, across, c0, awaits, ROWS: gl.constexpr, DEPTH: gl.constexpr,
    HELD: gl.constexpr, SPREAD: gl.constexpr, SPARSE: gl.constexpr, PAIRED: gl.constexpr,
):  # fmt: skip
    """For one horizontal offset a box of the small map, and its taps where they aren't held."""
    boxes, last_rows, taps = maps
    image, y0, x0, phase, o0 = spot
    dtype: gl.constexpr = boxes.dtype
    BOX: gl.constexpr = boxes.block_shape
    END: gl.constexpr = last_rows.block_shape
    LAYOUT: gl.constexpr = boxes.layout
    LOADED: gl.constexpr = 0 if HELD > 0 else (3 if SPARSE else 4)
    mbarrier.expect(full, ((ROWS + 2) * 16 + LOADED * 64) * DEPTH * dtype.primitive_bitwidth // 8)
    if HELD == 0:
        _load_small_taps(taps, weights, 4 * SPREAD * slot, full, across, phase, o0, c0, SPREAD, SPARSE, PAIRED)
    if awaits:
        gdc_wait()
    box = box_of(pixels, slot, ROWS + 2)
    first = reach(box, 0, ROWS, dtype, BOX, LAYOUT)
    rest = reach(box, ROWS, 2, dtype, END, LAYOUT)
    left = x0 + phase + across - 1
    load_box(boxes, [image, y0 - 1, left, c0], full, first)
    load_box(last_rows, [image, y0 + ROWS - 1, left, c0], full, rest)


@gluon.jit
def _load_plane(
    maps, pixels, weights, full, slot, spot, deep, slices, across, plane: gl.constexpr, c0, awaits,
    DEEP: gl.constexpr, STEP: gl.constexpr, ROWS: gl.constexpr, DEPTH: gl.constexpr, HELD: gl.constexpr,
    SPREAD: gl.constexpr, STRIDED: gl.constexpr, SPLIT: gl.constexpr, PAIRED: gl.constexpr,
):  # fmt: skip
    """For one horizontal tap a box of even or odd rows, of volumes of slice `deep` − 1, and taps that aren't held."""
    boxes, last_row, taps = maps[plane]
    image, y0, x0, phase, o0 = spot
    slice_read, first_tap = image, 0
    if DEEP == 3:
        # Before a volume's first slice there is nothing, nor after its last: TMA reads zeros before the map.
        beyond = (deep == 0) & (image % slices == 0)
        if STEP == 1:
            beyond = beyond | ((deep == 2) & (image % slices == slices - 1))
        slice_read = gl.where(beyond, -1, STEP * image + deep - 1)
        first_tap = 9 * deep
    dtype: gl.constexpr = boxes.dtype
    BOX: gl.constexpr = boxes.block_shape
    END: gl.constexpr = last_row.block_shape
    LAYOUT: gl.constexpr = boxes.layout
    LAST: gl.constexpr = 0 if STRIDED and plane == 0 else 1
    MATRICES: gl.constexpr = (1 if SPLIT else 2) * (1 + plane) if STRIDED else 3
    LOADED: gl.constexpr = 0 if HELD > 0 else MATRICES
    mbarrier.expect(full, ((ROWS + LAST) * 16 + LOADED * 64) * DEPTH * dtype.primitive_bitwidth // 8)
    if HELD == 0:
        _load_plane_taps(
            taps, weights, 4 * SPREAD * slot, full, first_tap, across, plane, o0, c0, SPREAD, STRIDED, SPLIT, PAIRED
        )
    if awaits:
        gdc_wait()
    at = phase + across + 1
    left = x0 + at // 2 - 1
    box = box_of(pixels, slot, ROWS + 2)
    first = reach(box, 0, ROWS, dtype, BOX, LAYOUT)
    load_box(boxes, [slice_read, y0 - plane, left, at % 2, c0], full, first)
    if LAST == 1:
        rest = reach(box, ROWS, 1, dtype, END, LAYOUT)
        load_box(last_row, [slice_read, y0 - plane + ROWS, left, at % 2, c0], full, rest)


@gluon.jit
def load(
    small, planes, pixels, weights, bars, geometry, slices, DEEP: gl.constexpr, STEP: gl.constexpr, ROWS: gl.constexpr,
    DEPTH: gl.constexpr, STAGES: gl.constexpr, HELD: gl.constexpr, SPREAD: gl.constexpr, STRIDED: gl.constexpr,
    SPLIT: gl.constexpr, SPARSE: gl.constexpr, FULL: gl.constexpr, PAIRED: gl.constexpr, EARLY: gl.constexpr,
):  # fmt: skip
    """Run the loading warp: for each tile load all boxes of the small map, then those of the full map's two planes."""
    box_full, box_empty, _, held = bars
    _, _, _, tiles, small_chunks, full_chunks = geometry
    if not EARLY:
        gdc_wait()
    if HELD > 0:
        spot = place(gl.program_id(0), geometry, ROWS, SPREAD, STRIDED, SPLIT)
        _hold_taps(
            small[2], planes[0][2], weights, held, geometry, spot,
            DEEP, DEPTH, HELD, SPREAD, STRIDED, SPLIT, FULL, PAIRED,
        )  # fmt: skip
    turn = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        spot = place(tile, geometry, ROWS, SPREAD, STRIDED, SPLIT)
        if not STRIDED:
            first, shifts = shifts_of(spot[3], SPREAD, SPARSE)
            for step in range(small_chunks * shifts):
                slot = turn % STAGES
                mbarrier.wait(box_empty.index(slot), (turn // STAGES & 1) ^ 1)
                _load_small(
                    small, pixels, weights, box_full.index(slot), slot, spot, first + step % shifts,
                    step // shifts * DEPTH, EARLY and turn == 0, ROWS, DEPTH, HELD, SPREAD, SPARSE, PAIRED,
                )  # fmt: skip
                turn += 1
        if FULL:
            for step in range(DEEP * full_chunks * (2 + SPREAD)):
                chunk = step // (2 + SPREAD)
                for plane in gl.static_range(2):
                    slot = turn % STAGES
                    mbarrier.wait(box_empty.index(slot), (turn // STAGES & 1) ^ 1)
                    _load_plane(
                        planes, pixels, weights, box_full.index(slot), slot, spot, chunk // full_chunks, slices,
                        step % (2 + SPREAD), plane, chunk % full_chunks * DEPTH, EARLY and turn == 0, DEEP, STEP,
                        ROWS, DEPTH, HELD, SPREAD, STRIDED, SPLIT, PAIRED,
                    )  # fmt: skip
                    turn += 1
    gdc_launch_dependents()


@gluon.jit
def _product(acc, box, weights, ROW: gl.constexpr, block, DEPTH: gl.constexpr):
    """Queue 64 rows of weights, from a block on, times a box's pixels, from a row on; await the product before it."""
    dtype: gl.constexpr = weights.dtype
    SHAPE: gl.constexpr = [acc.shape[1], DEPTH]
    TAPS: gl.constexpr = [64, DEPTH]
    LAYOUT: gl.constexpr = box[0].layout
    HELD: gl.constexpr = weights.layout
    seen = reach(box, ROW, acc.shape[1] // 16, dtype, SHAPE, LAYOUT)
    taps = weights.index(block)
    if weights.shape[1] < 64:
        taps = pair(weights, block, dtype, TAPS, HELD)
    acc = warpgroup_mma(taps, seen.permute((1, 0)), acc, is_async=True)
    return warpgroup_mma_wait(1, deps=(acc,))


@gluon.jit
def small_products(
    acc, pixels, weights, slot, base, empty, started, GROUP: gl.constexpr,
    ROWS: gl.constexpr, DEPTH: gl.constexpr, STAGES: gl.constexpr, PITCH: gl.constexpr, SPARSE: gl.constexpr,
):  # fmt: skip
    """Multiply matrices from a block on, PITCH blocks apart, with a box of the small map; release the box before."""
    FIRST: gl.constexpr = 1 if SPARSE and GROUP == 0 else 0
    box = box_of(pixels, slot, ROWS + 2)
    for down in gl.static_range(FIRST, 2):
        acc = _product(acc, box, weights, GROUP + down, base + (2 * GROUP + down) * PITCH, DEPTH)
        if down == FIRST:  # only this box's product is on its way: the one before is done with
            mbarrier.arrive(empty.index((slot + STAGES - 1) % STAGES), count=1, pred=started)
    return acc


@gluon.jit
def plane_products(
    acc, pixels, weights, slot, base, empty, started, plane: gl.constexpr, GROUP: gl.constexpr, ROWS: gl.constexpr,
    DEPTH: gl.constexpr, STAGES: gl.constexpr, PITCH: gl.constexpr, STRIDED: gl.constexpr, SPLIT: gl.constexpr,
):  # fmt: skip
    """Multiply matrices with a box of even or odd rows: of its own parity a row phase reads one tap, else two."""
    ALONE: gl.constexpr = plane == (0 if STRIDED else GROUP)
    TOP: gl.constexpr = GROUP * (ROWS // 2) if SPLIT else 0
    ROW: gl.constexpr = TOP + (plane if ALONE and not STRIDED else 0)
    OWN: gl.constexpr = 0 if SPLIT else (1 + plane) * GROUP
    FIRST: gl.constexpr = OWN if STRIDED else (1 if ALONE else 0)
    box = box_of(pixels, slot, ROWS + 2)
    acc = _product(acc, box, weights, ROW, base + FIRST * PITCH, DEPTH)
    mbarrier.arrive(empty.index((slot + STAGES - 1) % STAGES), count=1, pred=started)
    if not ALONE:
        SECOND: gl.constexpr = OWN + 1 if STRIDED else 2
        acc = _product(acc, box, weights, TOP + 1, base + SECOND * PITCH, DEPTH)
    return acc


@gluon.jit
def corrected(acc, ends, border, spot, shape, GROUP: gl.constexpr, SPREAD: gl.constexpr, PAIRED: gl.constexpr):
    """Acc [out, pixels] with the border's corrections: a phase has one row and one column at the image's border."""
    _, _, channels = ends
    y0, x0, phase, o0 = spot
    height, width = shape
    OUT: gl.constexpr = acc.shape[0]
    layout: gl.constexpr = acc.type.layout
    row = gl.arange(0, OUT, layout=gl.SliceLayout(1, layout))
    pixel = gl.arange(0, acc.shape[1], layout=gl.SliceLayout(0, layout))
    b = phase + row // (OUT // SPREAD)
    order = row % (OUT // SPREAD)
    channel = o0 + (order // 16 * 16 + order % 8 * 2 + order // 8 % 2 if PAIRED else order)
    inside = channel < channels
    by_row = gl.load(border + (6 * GROUP + 1) * channels + channel, mask=inside, other=0.0)
    by_column = gl.load(border + (3 + 2 * b) * channels + channel, mask=inside, other=0.0)
    by_both = gl.load(border + (6 * GROUP + 2 * b) * channels + channel, mask=inside, other=0.0)
    on_row = (y0 + pixel // 16 == GROUP * (height - 1)).expand_dims(0)
    on_column = (x0 + pixel % 16).expand_dims(0) == (b * (width - 1)).expand_dims(1)
    at_row = gl.where(on_column, by_both.expand_dims(1), by_row.expand_dims(1))
    elsewhere = gl.where(on_column, by_column.expand_dims(1), 0.0)
    return acc + gl.where(on_row, at_row, elsewhere)
