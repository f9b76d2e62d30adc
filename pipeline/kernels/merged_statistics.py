"""Mean and variance of each channel of a map, merged from those of its blocks of pixels, in one kernel.

The idea: a program has eight channels of an image, 32 neighbouring bytes of each entry, and keeps a running mean and
squared deviations for as many blocks as it has rows, which it merges once at the end. Inductor makes three kernels of
the same sums, each with few programs, that wait for one another.
"""

import triton
import triton.language as tl
from torch import Tensor

from pipeline.kernels.common.block_statistics import COLS, ROWS, blocks_of
from pipeline.kernels.common.nhwc import check_matrix, next_power_of_two

CHANNELS, MOST_ROWS = 8, 1024  # of a program's values


@triton.jit
def _merged_statistics(
    statistics, mean_out, variance_out, height, width, entries,
    CHANNELS: tl.constexpr, PHASES: tl.constexpr, LINES: tl.constexpr, EACH: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Read statistics [N, entries, 2, CHANNELS] of phases of height × width; write mean, variance [N, CHANNELS]."""
    image = tl.program_id(0)
    channel = tl.program_id(1) * EACH + tl.arange(0, EACH)
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
    spread = tl.sum(squares + between * between * count[:, None], axis=0)
    tl.store(mean_out + image * CHANNELS + channel, merged, mask=channel < CHANNELS)
    tl.store(variance_out + image * CHANNELS + channel, spread / whole, mask=channel < CHANNELS)


def merge_statistics(statistics: Tensor, height: int, width: int, phases: int = 1) -> tuple[Tensor, Tensor]:
    """Mean and biased variance [N, out] of statistics [N, blocks, 2, out], as `block_statistics.merged` gives them.

    Args:
        statistics: fp32, contiguous.
        height: of the map, a multiple of `phases`.
        width: of the map, a multiple of `phases`.
        phases: as `block_statistics` has them.

    Raises:
        ValueError: statistics aren't as above.
    """
    batch, entries, _, channels = statistics.shape
    check_matrix("statistics", statistics, (batch, blocks_of(height, width, phases), 2, channels))
    mean, variance = (statistics.new_empty(batch, channels) for _ in range(2))
    lines = min(MOST_ROWS, max(16, next_power_of_two(entries)))
    _merged_statistics[batch, triton.cdiv(channels, CHANNELS)](
        statistics, mean, variance, height // phases, width // phases, entries,
        CHANNELS=channels, PHASES=phases, LINES=lines, EACH=CHANNELS, ROWS=ROWS, COLS=COLS,
        num_warps=8 if lines > 256 else 4,
    )  # fmt: skip
    return mean, variance
