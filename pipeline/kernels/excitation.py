"""Squeeze-and-excitation: from the sums of a map's blocks to a factor for each image and channel, in one kernel.

The layer that writes the map sums it, and the layer that reads it multiplies by the factors where it loads them. Left
between are two products of a few hundred kilobytes: a program has an image, and keeps the narrow layer in registers.
Source: Hu, Shen and Sun, Squeeze-and-Excitation Networks, 2018: gate(W2 · activation(W1 · mean + b1) + b2).
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from pipeline.kernels.common.activation import Activation
from pipeline.kernels.common.block_statistics import COLS, ROWS, blocks_of, merged
from pipeline.kernels.common.nhwc import check_matrix, check_pixels, check_vector, next_power_of_two
from pipeline.kernels.common.program import on_grid

GATES = {"sigmoid": functional.sigmoid, "hardsigmoid": functional.hardsigmoid}
MOST_INNER = 128  # channels of the narrow layer
MOST_WEIGHTS, MOST_SUMS = 32768, 8192  # values that a program has at once


class Excitation(NamedTuple):
    """The two layers between the mean and the factors."""

    reduce: Tensor  # weight [inner, channels] of the first
    reduce_bias: Tensor  # [inner] fp32
    expand: Tensor  # weight of the second, transposed: [inner, channels], of the same type
    expand_bias: Tensor  # [channels] fp32
    activation: Activation  # between them
    gate: str  # after them, one of `GATES`


def reference(statistics: Tensor, size: tuple[int, int], phases: int, layers: Excitation) -> Tensor:
    """Compute the factors [N, channels] in fp32, in plain PyTorch, on any device; arguments: same as `excitation`."""
    mean, _ = merged(statistics, *size, phases)
    hidden = layers.activation(functional.linear(mean, layers.reduce.float(), layers.reduce_bias))
    factors: Tensor = GATES[layers.gate](functional.linear(hidden, layers.expand.float().T, layers.expand_bias))
    return factors


@triton.jit
def _excitation(
    statistics, reduce, reduce_bias, expand, expand_bias, factors, height, width, entries, CHANNELS: tl.constexpr,
    INNER: tl.constexpr, PADDED: tl.constexpr, PHASES: tl.constexpr, LINES: tl.constexpr, EACH: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, ACTIVATION: tl.constexpr, SLOPE: tl.constexpr, HARD: tl.constexpr,
):  # fmt: skip
    """Read statistics [N, entries, 2, CHANNELS] of phases of height × width; write factors [N, CHANNELS]."""
    image = tl.program_id(0)
    line, narrow = tl.arange(0, LINES), tl.arange(0, PADDED)
    across = (width + COLS - 1) // COLS
    hidden = tl.load(reduce_bias + narrow, mask=narrow < INNER, other=0.0)
    for first in tl.range(0, CHANNELS, EACH):
        channel = first + tl.arange(0, EACH)
        total = tl.zeros((LINES, EACH), tl.float32)
        for start in tl.range(0, entries, LINES):
            entry = start + line
            block = entry % (entries // (PHASES * PHASES))
            rows = tl.minimum(height - block // across * ROWS, ROWS)
            cols = tl.minimum(width - block % across * COLS, COLS)
            at = statistics + ((image * entries + entry).to(tl.int64) * 2 * CHANNELS)[:, None] + channel[None, :]
            inside = (entry < entries)[:, None] & (channel < CHANNELS)[None, :]
            total += tl.load(at, mask=inside, other=0.0) * (rows * cols).to(tl.float32)[:, None]
        mean = tl.sum(total, axis=0) / (PHASES * PHASES * height * width)
        known = (narrow < INNER)[:, None] & (channel < CHANNELS)[None, :]
        weight = tl.load(reduce + narrow[:, None] * CHANNELS + channel[None, :], mask=known, other=0.0)
        hidden += tl.sum(weight.to(tl.float32) * mean[None, :], axis=1)
    hidden = ACTIVATION(hidden, SLOPE)
    for first in tl.range(0, CHANNELS, EACH):
        channel = first + tl.arange(0, EACH)
        known = (narrow < INNER)[:, None] & (channel < CHANNELS)[None, :]
        weight = tl.load(expand + narrow[:, None] * CHANNELS + channel[None, :], mask=known, other=0.0)
        y = tl.sum(weight.to(tl.float32) * hidden[:, None], axis=0)
        y += tl.load(expand_bias + channel, mask=channel < CHANNELS, other=0.0)
        if HARD:
            y = tl.clamp(y * (1.0 / 6.0) + 0.5, 0.0, 1.0, propagate_nan=tl.PropagateNan.ALL)
        else:
            y = 1.0 / (1.0 + tl.exp(-y))
        tl.store(factors + image * CHANNELS + channel, y.to(factors.dtype.element_ty), mask=channel < CHANNELS)


def excitation(statistics: Tensor, size: tuple[int, int], phases: int, layers: Excitation) -> Tensor:
    """Return the factors [N, channels] in the weights' type of a map of `size`, from its statistics.

    There are at most 128 channels between the layers, whose activation has one slope; raises ValueError for others.
    """
    batch, entries, _, channels = statistics.shape
    check_pixels("the map of these statistics", size[0] * size[1])
    check_matrix("statistics", statistics, (batch, blocks_of(*size, phases), 2, channels))
    inner = len(layers.reduce)
    for name, weight in (("reduce", layers.reduce), ("expand", layers.expand)):
        if tuple(weight.shape) != (inner, channels) or inner > MOST_INNER or not weight.is_contiguous():
            shape = list(weight.shape)
            raise ValueError(
                f"{name} must be contiguous [at most {MOST_INNER}, {channels}], both the same, got {shape}"
            )
    check_vector("reduce_bias", layers.reduce_bias, inner)
    check_vector("expand_bias", layers.expand_bias, channels)
    if layers.gate not in GATES:
        raise ValueError(f"gate must be one of {', '.join(GATES)}, got {layers.gate}")
    factors = torch.empty(batch, channels, dtype=layers.expand.dtype, device=statistics.device)
    padded = max(4, next_power_of_two(inner))
    each = min(next_power_of_two(channels), MOST_WEIGHTS // padded)
    lines = min(next_power_of_two(entries), max(1, MOST_SUMS // each))
    on_grid(_excitation, batch)(
        statistics, *layers[:4], factors, size[0] // phases, size[1] // phases, entries,
        CHANNELS=channels, INNER=inner, PADDED=padded, PHASES=phases, LINES=lines, EACH=each, ROWS=ROWS, COLS=COLS,
        ACTIVATION=layers.activation.expression, SLOPE=layers.activation.slope, HARD=layers.gate == "hardsigmoid",
        num_warps=8,
    )  # fmt: skip
    return factors
