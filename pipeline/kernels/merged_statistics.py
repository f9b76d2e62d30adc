"""Mean and variance of each channel of a map, merged from those of its blocks of pixels, in one kernel.

The idea: a program has eight channels of an image, 32 neighbouring bytes of each entry, and keeps a running mean and
squared deviations for as many blocks as it has rows, which it merges once at the end. Inductor makes three kernels of
the same sums, each with few programs, that wait for one another. Of a volume there are so many blocks that as few
programs would take longer than the norm: bands of its rows are merged first, and then what these come to. Of a group
norm a program has whole groups: of wide ones there are few programs too, so that bands begin at fewer blocks.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from pipeline.kernels.common.block_statistics import COLS, ROWS, WIDEST_GROUP, blocks_of, fits_kernels
from pipeline.kernels.common.dependent_launch import DEPENDENT
from pipeline.kernels.common.nhwc import check_matrix, check_pixels, check_vector, next_power_of_two
from pipeline.kernels.common.program import on_grid

CHANNELS, MOST_ROWS = 8, 1024  # of a program's values
MOST_ENTRIES, MOST_BANDS = 4096, 64  # of an image that is merged at once, and bands of one that isn't


@triton.jit
def merged_blocks(
    statistics, image, channel, height, width, entries,
    CHANNELS: tl.constexpr, PHASES: tl.constexpr, LINES: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Mean and variance [channels] of an image, of statistics [N, entries, 2, CHANNELS] of phases of height × width."""
    EACH: tl.constexpr = channel.shape[0]
    line = tl.arange(0, LINES)
    across = (width + COLS - 1) // COLS
    mean, squares = tl.zeros((LINES, EACH), tl.float32), tl.zeros((LINES, EACH), tl.float32)
    count = tl.zeros((LINES,), tl.float32)
    for first in tl.range(0, entries, LINES):
        entry = first + line
        block = entry % (entries // (PHASES * PHASES))
        rows, cols = tl.minimum(height - block // across * ROWS, ROWS), tl.minimum(width - block % across * COLS, COLS)
        pixels = tl.where(entry < entries, rows * cols, 0).to(tl.float32)
        at = statistics + ((image * entries + entry).to(tl.int64) * 2 * CHANNELS)[:, None] + channel[None, :]
        inside = (entry < entries)[:, None] & (channel < CHANNELS)[None, :]
        away = tl.load(at, mask=inside, other=0.0) - mean
        share = pixels / tl.maximum(count + pixels, 1.0)
        squares += tl.load(at + CHANNELS, mask=inside, other=0.0) + away * away * (count * share)[:, None]
        mean += away * share[:, None]
        count += pixels
    whole = PHASES * PHASES * height * width
    merged = tl.sum(mean * count[:, None], axis=0) / whole
    between = mean - merged[None, :]
    return merged, tl.sum(squares + between * between * count[:, None], axis=0) / whole


@triton.jit
def over_groups(mean, variance, GROUP: tl.constexpr):
    """Mean and variance [channels] of each channel's group of GROUP neighbours, of the channels' own."""
    if GROUP > 1:
        GROUPS: tl.constexpr = mean.shape[0] // GROUP
        means = tl.reshape(mean, (GROUPS, GROUP))
        whole = tl.sum(means, axis=1)[:, None] / GROUP
        away = means - whole
        spread = tl.sum(tl.reshape(variance, (GROUPS, GROUP)) + away * away, axis=1)[:, None] / GROUP
        mean = tl.reshape(tl.broadcast_to(whole, (GROUPS, GROUP)), (GROUPS * GROUP,))
        variance = tl.reshape(tl.broadcast_to(spread, (GROUPS, GROUP)), (GROUPS * GROUP,))
    return mean, variance


@triton.jit
def norm_ends(weight, bias, channel, CHANNELS: tl.constexpr):
    """Load a norm's weight and bias [channels], 1 and 0 for None, before the wait for statistics."""
    gain, offset = tl.full(channel.shape, 1.0, tl.float32), tl.zeros(channel.shape, tl.float32)
    if weight is not None:
        gain = tl.load(weight + channel, mask=channel < CHANNELS, other=0.0)
    if bias is not None:
        offset = tl.load(bias + channel, mask=channel < CHANNELS, other=0.0)
    return gain, offset


@triton.jit
def factor_and_shift(mean, variance, ends, eps):
    """Return the factor and the shift [channels] of a norm, from `norm_ends`."""
    gain, offset = ends
    factor = gain / tl.sqrt(variance + eps)
    return factor, offset - mean * factor


@triton.jit
def _merged_statistics(
    statistics, weight, bias, eps, first_out, second_out, height, width, entries,
    CHANNELS: tl.constexpr, STEP: tl.constexpr, PHASES: tl.constexpr, LINES: tl.constexpr, EACH: tl.constexpr,
    GROUP: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Read statistics [N, entries, 2, CHANNELS] of phases of height × width; write two results [N, CHANNELS], by STEP.

    Mean and variance, or with `eps` a norm's factor and shift; each channel's are those of its GROUP of neighbours.
    """
    if DEPENDENT:
        # In this order, so that who comes after may read the map itself before it waits for what is merged here.
        gdc_wait()
        gdc_launch_dependents()
    image = tl.program_id(0)
    channel = tl.program_id(1) * EACH + tl.arange(0, EACH)
    ends = norm_ends(weight, bias, channel, CHANNELS)
    first, second = merged_blocks(
        statistics, image, channel, height, width, entries, CHANNELS, PHASES, LINES, ROWS, COLS
    )
    first, second = over_groups(first, second, GROUP)
    if eps is not None:
        first, second = factor_and_shift(first, second, ends, eps)
    tl.store(first_out + image * STEP + channel, first, mask=channel < CHANNELS)
    tl.store(second_out + image * STEP + channel, second, mask=channel < CHANNELS)


def merge_statistics(
    statistics: Tensor, height: int, width: int, phases: int = 1, *, group_width: int = 1, dependent: bool = False
) -> tuple[Tensor, Tensor]:
    """Mean and biased variance [N, out] of statistics [N, blocks, 2, out], as `block_statistics.merged` gives them.

    Args:
        statistics: fp32, contiguous.
        height: of the map, a multiple of `phases`.
        width: of the map, a multiple of `phases`.
        phases: as `block_statistics` has them.
        group_width: channels of a group, whose mean and variance each of them gets.
        dependent: whether the kernel may come before the one before it ends (`dependent_launch`).

    Raises:
        ValueError: statistics aren't as above, or the kernels have no such groups.
    """
    return _merge(statistics, (height, width), phases, Norm(group_width=group_width), dependent=dependent)


class Norm(NamedTuple):
    """The parameters of a norm.

    Attributes:
        weight: [out] fp32; None for 1.
        bias: [out] fp32; None for 0.
        eps: added to the variance; without it there is no norm.
        group_width: how many neighbouring channels are normed together; 1 is an instance norm.
    """

    weight: Tensor | None = None
    bias: Tensor | None = None
    eps: float | None = None
    group_width: int = 1


def norm_factors(
    statistics: Tensor, size: tuple[int, int], phases: int, norm: Norm, *, dependent: bool = False
) -> tuple[Tensor, Tensor]:
    """Return factor and shift [N, out] from a map's statistics: the norm is x · factor + shift.

    Args:
        statistics: [N, blocks, 2, out] fp32, contiguous.
        size: height and width of the map, multiples of `phases`.
        phases: as `block_statistics` has them.
        norm: with its eps.
        dependent: as in `merge_statistics`.

    Raises:
        ValueError: statistics, weight or bias aren't as above, or the kernels have no such groups.
    """
    return _merge(statistics, size, phases, norm, dependent=dependent)


def check_norm(statistics: Tensor, size: tuple[int, int], phases: int, norm: Norm) -> None:
    """Check statistics [N, blocks, 2, out] of a map of this size, and what a norm has beyond them.

    Raises:
        ValueError: one of them isn't as above; the text begins with its name.
    """
    batch, _, _, channels = statistics.shape
    check_pixels("the map of these statistics", size[0] * size[1])
    check_matrix("statistics", statistics, (batch, blocks_of(*size, phases), 2, channels))
    for name, vector in (("weight", norm.weight), ("bias", norm.bias)):
        if vector is not None:
            check_vector(name, vector, channels)
    if not fits_kernels(norm.group_width, channels):
        raise ValueError(
            f"group_width must be a power of two up to {WIDEST_GROUP} that divides {channels}, got {norm.group_width}"
        )


def _merge(
    statistics: Tensor, size: tuple[int, int], phases: int, norm: Norm, *, dependent: bool
) -> tuple[Tensor, Tensor]:
    check_norm(statistics, size, phases, norm)
    height, width = size
    batch, entries, _, channels = statistics.shape
    # Of memory of their own each: torch takes no two answers of an operation that share theirs.
    out = statistics.new_empty(batch, channels), statistics.new_empty(batch, channels)
    bands = bands_of(height, entries, norm.group_width) if phases == 1 else 1
    if bands > 1:
        parts = statistics.new_empty(batch, bands, 2, channels)
        banded = statistics.view(batch * bands, entries // bands, 2, channels)
        by_band = parts.view(batch * bands, 2, channels)
        _queue(
            banded,
            (height // bands, width),
            1,
            Norm(),
            (by_band[:, 0], by_band[:, 1]),
            (ROWS, COLS),
            dependent=dependent,
        )
        # Each is a block of one pixel now, whose squared deviation is its variance.
        _queue(parts, (bands, 1), 1, norm, out, (1, 1), dependent=dependent)
    else:
        _queue(statistics, size, phases, norm, out, (ROWS, COLS), dependent=dependent)
    return out


def bands_of(height: int, entries: int, group_width: int = 1) -> int:
    """Return into how many bands of equal height, of whole rows of blocks, a map is cut; 1 for no cut."""
    lines = height // ROWS
    if entries * max(CHANNELS, group_width) <= MOST_ENTRIES * CHANNELS or height % ROWS:
        return 1
    return next(bands for bands in range(min(MOST_BANDS, lines), 0, -1) if lines % bands == 0)


def _queue(
    statistics: Tensor,
    size: tuple[int, int],
    phases: int,
    norm: Norm,
    out: tuple[Tensor, Tensor],
    block: tuple[int, int],
    *,
    dependent: bool,
) -> None:
    """Queue the merging of statistics [N, entries, 2, channels] of blocks of this size into two of [N, channels]."""
    height, width = size
    batch, entries, _, channels = statistics.shape
    weight, bias, eps, group = norm
    each = max(CHANNELS, group)
    lines = min(MOST_ROWS * CHANNELS // each, max(16, next_power_of_two(entries)))
    on_grid(_merged_statistics, batch, triton.cdiv(channels, each))(
        statistics, weight, bias, eps, *out, height // phases, width // phases, entries,
        CHANNELS=channels, STEP=out[0].stride(0), PHASES=phases, LINES=lines, EACH=each, GROUP=group,
        ROWS=block[0], COLS=block[1], DEPENDENT=dependent, num_warps=8 if lines * each > 512 * CHANNELS else 4,
        **(DEPENDENT if dependent else {}),
    )  # fmt: skip
