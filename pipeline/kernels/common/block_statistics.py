"""Mean and squared deviations of a map by blocks of pixels, as an epilogue stores them, and what a norm makes of them.

A block has 8 × 16 pixels whatever the kernel's tile, so that the buffer's shape depends on the map's alone. Of a kernel
that makes a phase at a time they are pixels of one phase, every second row and column: `phases` is 2 then, else 1.
Blocks are merged by the formula of Chan, Golub and LeVeque (Updating formulae and a pairwise algorithm for computing
sample variances, 1979): no large sums of squares are subtracted, so a mean far from zero costs no precision.
"""

import torch
from torch import Tensor
from torch.nn import functional

ROWS, COLS = 8, 16  # pixels of a block
WIDEST_GROUP = 64  # channels that a kernel norms together, a power of two: one program's channels


def blocks_of(height: int, width: int, phases: int = 1) -> int:
    """Return how many blocks an image has: entries of `Outputs.statistics` [N, blocks, 2, out] for each image."""
    return phases**2 * -(-height // phases // ROWS) * -(-width // phases // COLS)


def statistics_of(y: Tensor, phases: int = 1) -> Tensor:
    """Return the statistics of y [N, H, W, out] in fp32: [N, blocks, 2, out], the mean and the squared deviations."""
    if phases > 1:
        each = [y[:, a::phases, b::phases] for a in range(phases) for b in range(phases)]
        return torch.cat([statistics_of(phase) for phase in each], 1)
    _, height, width, _ = y.shape
    down, across = -(-height // ROWS), -(-width // COLS)
    margin = (0, 0, 0, across * COLS - width, 0, down * ROWS - height)
    inside = functional.pad(torch.ones(1, height, width, 1, dtype=y.dtype, device=y.device), margin)
    parts, seen = (
        part.unflatten(1, (down, ROWS)).unflatten(3, (across, COLS)).transpose(2, 3).flatten(1, 2).flatten(2, 3)
        for part in (functional.pad(y, margin), inside)
    )
    mean = parts.sum(2, keepdim=True) / seen.sum(2, keepdim=True)
    squares = ((parts - mean) * seen).square().sum(2, keepdim=True)
    return torch.cat((mean, squares), 2)


def merged(statistics: Tensor, height: int, width: int, phases: int = 1, group_width: int = 1) -> tuple[Tensor, Tensor]:
    """Mean and biased variance [N, out] of an image, of statistics [N, blocks, 2, out]; or of each channel's group."""
    rows, cols = (
        (size // phases - length * torch.arange(-(-size // phases // length), device=statistics.device)).clamp(
            max=length
        )
        for size, length in ((height, ROWS), (width, COLS))
    )
    pixels = (rows[:, None] * cols[None, :]).flatten().float().repeat(phases**2)[:, None]  # of each block
    means, squares = statistics[:, :, 0], statistics[:, :, 1]
    mean = (means * pixels).sum(1) / (height * width)
    between = ((means - mean[:, None]).square() * pixels).sum(1)
    variance = (squares.sum(1) + between) / (height * width)
    if group_width == 1:
        return mean, variance
    of_groups = grouped(mean, variance, group_width)
    first, second = (part[:, :, None].expand(-1, -1, group_width).flatten(1) for part in of_groups)
    return first, second


def grouped(mean: Tensor, variance: Tensor, group_width: int) -> tuple[Tensor, Tensor]:
    """Mean and biased variance [N, groups] of groups of `group_width` neighbours, from the channels' [N, out]."""
    means, variances = mean.unflatten(1, (-1, group_width)), variance.unflatten(1, (-1, group_width))
    whole = means.mean(2)
    return whole, variances.mean(2) + (means - whole[:, :, None]).square().mean(2)


def fits_kernels(group_width: int, channels: int) -> bool:
    """Return whether kernels norm such groups: a power of two, at most `WIDEST_GROUP`, that divides all channels."""
    return group_width in (1 << power for power in range(WIDEST_GROUP.bit_length())) and channels % group_width == 0
