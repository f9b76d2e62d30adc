"""An instance or group norm and the activation after it as a pass over a map, rounded to fp16 or fp8, in one kernel.

A program has the same few channels throughout: factor and shift stay in registers, and fp8's scale is in them. On a
small map it merges its channels' statistics itself; on others a kernel does so before (`merge_statistics`), of many
blocks in bands of rows first. Where the last 1×1 convolution alone reads the answer, its logits are stored instead.

Of squeeze-and-excitation one kernel makes a factor for each image and channel: gate(W2 · activation(W1 · mean + b1) +
b2) (Hu, Shen and Sun, Squeeze-and-Excitation Networks, 2018).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from pipeline.kernels.common import nhwc
from pipeline.kernels.common.activation import NONE, Activation
from pipeline.kernels.common.block_statistics import COLS, ROWS, WIDEST_GROUP, blocks_of, fits_kernels, merged
from pipeline.kernels.common.capability import gluon_barred
from pipeline.kernels.common.epilogue import MOST_CLASSES, Head
from pipeline.kernels.common.program import DEPENDENT, on_grid
from pipeline.kernels.common.triton_epilogue import rounded

CHANNELS, MOST_ROWS = 8, 1024  # of a merging program's values
MOST_ENTRIES, MOST_BANDS = 4096, 64  # of an image that is merged at once, and bands of one that isn't
WIDEST = WIDEST_GROUP  # channels of a pass's program: 128 bytes of a pixel
FEW = 64  # entries of statistics that each program of a pass may merge for itself


class Norm(NamedTuple):
    """The parameters of a norm."""

    weight: Tensor | None = None  # [out] fp32; None for 1
    bias: Tensor | None = None  # [out] fp32; None for 0
    eps: float | None = None  # added to the variance; without it there is no norm
    group_width: int = 1  # how many neighbouring channels are normed together; 1 is an instance norm


NO_NORM = Norm()


@dataclass(frozen=True)
class Tile:
    """A cut of the work."""

    kernel: ClassVar[str] = "norm_pass"
    values: int  # that a program has at once
    steps: int  # how many times; fewer where the map is smaller
    merges: bool  # whether each program merges the statistics of its channels, rather than a kernel before it


@dataclass(frozen=True)
class NormPass:
    """A pass: activation(norm(x)) / scale."""

    norm: Norm  # with its eps
    activation: Activation = NONE  # one without a slope for each channel
    scale: float = 1.0  # of the stored values, where they are fp8
    phases: int = 1  # of the statistics, as `block_statistics` has them
    head: Head | None = None  # a 1×1 convolution of the answer, whose logits are stored instead of it


@triton.jit
def merged_blocks(
    statistics, image, channel, height, width, entries, CHANNELS: tl.constexpr, PHASES: tl.constexpr,
    LINES: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Mean and variance [channels] of an image, of each channel's group of GROUP neighbours.

    They are made of statistics [N, entries, 2, CHANNELS] of phases of height × width.
    """
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
    variance = tl.sum(squares + between * between * count[:, None], axis=0) / whole
    if GROUP > 1:
        GROUPS: tl.constexpr = EACH // GROUP
        means = tl.reshape(merged, (GROUPS, GROUP))
        of_group = tl.sum(means, axis=1)[:, None] / GROUP
        apart = means - of_group
        spread = tl.sum(tl.reshape(variance, (GROUPS, GROUP)) + apart * apart, axis=1)[:, None] / GROUP
        merged = tl.reshape(tl.broadcast_to(of_group, (GROUPS, GROUP)), (EACH,))
        variance = tl.reshape(tl.broadcast_to(spread, (GROUPS, GROUP)), (EACH,))
    return merged, variance


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
    """Read statistics of phases of height × width; write mean and variance, or with `eps` factor and shift."""
    if DEPENDENT:
        # In this order, so that who comes after may read the map itself before it waits for what is merged here.
        gdc_wait()
        gdc_launch_dependents()
    image = tl.program_id(0)
    channel = tl.program_id(1) * EACH + tl.arange(0, EACH)
    ends = norm_ends(weight, bias, channel, CHANNELS)
    first, second = merged_blocks(
        statistics, image, channel, height, width, entries, CHANNELS, PHASES, LINES, ROWS, COLS, GROUP
    )
    if eps is not None:
        first, second = factor_and_shift(first, second, ends, eps)
    tl.store(first_out + image * STEP + channel, first, mask=channel < CHANNELS)
    tl.store(second_out + image * STEP + channel, second, mask=channel < CHANNELS)


@triton.jit
def _norm_pass(
    x, out, statistics, weight, bias, eps, first, second, unit, gain, height, width, entries, pixels, x_image_stride,
    x_pixel_stride, out_image_stride, out_pixel_stride, head, head_bias, CHANNELS: tl.constexpr, EACH: tl.constexpr,
    PIXELS: tl.constexpr, STEPS: tl.constexpr, MERGES: tl.constexpr, PHASES: tl.constexpr, LINES: tl.constexpr,
    GROUP: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, CLASSES: tl.constexpr, ACTIVATION: tl.constexpr,
    SLOPE: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Read x [N, pixels, CHANNELS], write ACTIVATION((x · factor + shift) · unit) · gain, or CLASSES of logits of it.

    Factor and shift are `first` and `second` [N, CHANNELS], or the program MERGES them from the statistics.
    """
    if DEPENDENT:
        gdc_launch_dependents()
        if MERGES:
            gdc_wait()
    # From the end: what the layer before wrote last is in the L2 cache still, and leaves it as the first is asked for.
    image = tl.num_programs(2) - 1 - tl.program_id(2)
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    channel = tl.program_id(1) * EACH + tl.arange(0, EACH)
    lines, target = x + image.to(tl.int64) * x_image_stride, out + image.to(tl.int64) * out_image_stride
    pixel, known = block * STEPS * PIXELS + tl.arange(0, PIXELS), (channel < CHANNELS)[None, :]
    # The first pixels are on their way while factor and shift are made, and then always the next ones. Who merges for
    # this kernel has waited for x; past the L1, which doesn't learn before a wait what other multiprocessors wrote.
    place = (pixel * x_pixel_stride)[:, None] + channel[None, :]
    value = tl.load(lines + place, mask=(pixel < pixels)[:, None] & known, other=0.0, cache_modifier=".cg")
    if MERGES:
        ends = norm_ends(weight, bias, channel, CHANNELS)
        mean, variance = merged_blocks(
            statistics, image, channel, height, width, entries, CHANNELS, PHASES, LINES, ROWS, COLS, GROUP
        )
        factor, shift = factor_and_shift(mean, variance, ends, eps)
    else:
        if DEPENDENT:
            gdc_wait()
        factor = tl.load(first + image * CHANNELS + channel, mask=channel < CHANNELS, other=0.0)
        shift = tl.load(second + image * CHANNELS + channel, mask=channel < CHANNELS, other=0.0)
    factor, shift = (factor * unit)[None, :], (shift * unit)[None, :]
    rows = ()
    for label in tl.static_range(CLASSES):
        rows = rows + (tl.load(head + label * CHANNELS + channel, mask=channel < CHANNELS, other=0.0)[None, :],)  # type: ignore[assignment]
    for step in tl.range(0, STEPS):
        after = pixel + PIXELS
        place = (after * x_pixel_stride)[:, None] + channel[None, :]
        ahead = tl.load(lines + place, mask=((after < pixels) & (step < STEPS - 1))[:, None] & known, other=0.0)
        y = ACTIVATION(value.to(tl.float32) * factor + shift, SLOPE)
        if gain is not None:
            y *= gain
        for label in tl.static_range(CLASSES):
            logit = tl.sum(y * rows[label], axis=1) + tl.load(head_bias + label)
            tl.store(target + label * pixels + pixel, logit, mask=pixel < pixels)
        if CLASSES == 0:
            place = (pixel * out_pixel_stride)[:, None] + channel[None, :]
            tl.store(target + place, rounded(y, out.dtype.element_ty), mask=(pixel < pixels)[:, None] & known)
        value, pixel = ahead, after


def check_norm(statistics: Tensor, size: tuple[int, int], phases: int, norm: Norm) -> None:
    """Raise ValueError unless a map of this size has these statistics [N, blocks, 2, out], and kernels such a norm."""
    batch, _, _, channels = statistics.shape
    nhwc.check_pixels("the map of these statistics", size[0] * size[1])
    nhwc.check_floats("statistics", statistics, batch, blocks_of(*size, phases), 2, channels)
    for name, vector in (("weight", norm.weight), ("bias", norm.bias)):
        nhwc.check_floats(name, vector, channels)
    if not fits_kernels(norm.group_width, channels):
        wanted = f"a power of two up to {WIDEST_GROUP} that divides {channels}"
        raise ValueError(f"group_width must be {wanted}, got {norm.group_width}")


def merge_statistics(
    statistics: Tensor, size: tuple[int, int], phases: int = 1, norm: Norm = NO_NORM, *, dependent: bool = False
) -> tuple[Tensor, Tensor]:
    """Return mean and biased variance [N, out] of a map of `size`, or with an eps a norm's factor and shift."""
    check_norm(statistics, size, phases, norm)
    height, width = size
    batch, entries, _, channels = statistics.shape
    # Of memory of their own each: torch takes no two answers of an operation that share theirs.
    out = statistics.new_empty(batch, channels), statistics.new_empty(batch, channels)
    bands = bands_of(height, entries, norm.group_width) if phases == 1 else 1
    block = (ROWS, COLS)
    if bands > 1:
        parts = statistics.new_empty(batch, bands, 2, channels)
        banded = statistics.view(batch * bands, entries // bands, 2, channels)
        by_band = parts.view(batch * bands, 2, channels)
        _merge(banded, (height // bands, width), NO_NORM, (by_band[:, 0], by_band[:, 1]), block, dependent=dependent)
        # Each is a block of one pixel now, whose squared deviation is its variance.
        statistics, size, block = parts, (bands, 1), (1, 1)
    _merge(statistics, size, norm, out, block, phases, dependent=dependent)
    return out


def bands_of(height: int, entries: int, group_width: int = 1) -> int:
    """Return into how many bands of equal height, of whole rows of blocks, a map is cut; 1 for no cut."""
    lines = height // ROWS
    if entries * max(CHANNELS, group_width) <= MOST_ENTRIES * CHANNELS or height % ROWS:
        return 1
    return next(bands for bands in range(min(MOST_BANDS, lines), 0, -1) if lines % bands == 0)


def _merge(
    statistics: Tensor, size: tuple[int, int], norm: Norm, out: tuple[Tensor, Tensor], block: tuple[int, int],
    phases: int = 1, *, dependent: bool,
) -> None:  # fmt: skip
    """Queue the merging of statistics [N, entries, 2, channels] of blocks of this size into two of [N, channels]."""
    height, width = size
    batch, entries, _, channels = statistics.shape
    weight, bias, eps, group = norm
    each = max(CHANNELS, group)
    lines = min(MOST_ROWS * CHANNELS // each, max(16, nhwc.next_power_of_two(entries)))
    on_grid(_merged_statistics, batch, triton.cdiv(channels, each))(
        statistics, weight, bias, eps, *out, height // phases, width // phases, entries, CHANNELS=channels,
        STEP=out[0].stride(0), PHASES=phases, LINES=lines, EACH=each, GROUP=group, ROWS=block[0], COLS=block[1],
        DEPENDENT=dependent, num_warps=8 if lines * each > 512 * CHANNELS else 4, **(DEPENDENT if dependent else {}),
    )  # fmt: skip


def norm_pass(x: Tensor, statistics: Tensor, how: NormPass, out: Tensor, tile: Tile) -> None:
    """Write a map after its norm and activation, or the logits of a head of it; raise ValueError naming what is wrong.

    X and out are [N, H, W, C] fp16 or fp8, rows of pixels after each other; out may be a channel slice, and with a
    head is [N, classes, H, W] fp32, contiguous. Statistics are x's [N, blocks, 2, C] fp32.
    """
    batch, height, width, channels = x.shape
    _check_map("x", x, x.shape)
    if how.head is None:
        _check_map("out", out, x.shape)
    else:
        mixes, shift = how.head
        if not may_head(len(shift), channels) or how.scale != 1.0:
            limits = f"at most {MOST_CLASSES} classes of {WIDEST} channels, and logits no scale"
            raise ValueError(f"head must have {limits}, got {len(shift)} of {channels} and {how.scale}")
        nhwc.check_floats("head's weight", mixes, len(shift), channels)
        nhwc.check_floats("head's bias", shift, len(shift))
        nhwc.check_floats("out", out, batch, len(shift), height, width)
        nhwc.check_pixels("the logits of an image", len(shift) * height * width)
    nhwc.check_few_programs("x's batch", batch)
    check_norm(statistics, (height, width), how.phases, how.norm)
    if how.norm.eps is None or how.activation.kind.by_channel:
        given = f"{how.activation} and {how.norm.eps}"
        raise ValueError(f"activation must be without a slope for each channel, after a norm with eps, got {given}")
    weight, bias, eps, group = how.norm
    dependent = gluon_barred() is None and not nhwc.interpreted()
    first = second = None
    if not tile.merges:
        first, second = merge_statistics(statistics, (height, width), how.phases, how.norm, dependent=dependent)
    each = min(WIDEST, max(16, nhwc.next_power_of_two(channels)))  # whole groups
    wide = max(1, tile.values // each)
    entries, pixels = statistics.shape[1], height * width
    steps = min(tile.steps, triton.cdiv(pixels, wide))
    unit = 1.0 / how.scale  # before the activation, or after it
    units = (unit, None) if how.activation.kind.homogeneous or unit == 1.0 else (1.0, unit)
    on_grid(_norm_pass, triton.cdiv(pixels, wide * steps), triton.cdiv(channels, each), batch)(
        x, out, statistics, weight, bias, eps, first, second, *units, height // how.phases, width // how.phases,
        entries, pixels, x.stride(0), x.stride(2), out.stride(0), out.stride(2), *(how.head or (None, None)),
        CHANNELS=channels, EACH=each, PIXELS=wide, STEPS=steps, MERGES=tile.merges, PHASES=how.phases,
        LINES=min(FEW, max(2, nhwc.next_power_of_two(entries))), GROUP=group, ROWS=ROWS, COLS=COLS,
        CLASSES=0 if how.head is None else len(how.head.bias), ACTIVATION=how.activation.kind.expression,
        SLOPE=how.activation.slope, DEPENDENT=dependent, **(DEPENDENT if dependent else {}),
    )  # fmt: skip


def may_head(classes: int, channels: int) -> bool:
    """Return whether a pass over this number of channels can make the logits of the classes."""
    return classes <= MOST_CLASSES and channels <= WIDEST


def _check_map(name: str, part: Tensor, shape: torch.Size) -> None:
    if part.shape != shape or part.dtype not in nhwc.STORED:
        raise ValueError(f"{name} must be {list(shape)} float16 or float8_e4m3fn, got {list(part.shape)} {part.dtype}")
    if part.stride(3) != 1 or part.stride(1) != shape[2] * part.stride(2):
        raise ValueError(f"{name} must have its channels side by side and its rows after each other")
    nhwc.check_counted(name, part)


def factors_reference(statistics: Tensor, size: tuple[int, int], phases: int, norm: Norm) -> tuple[Tensor, Tensor]:
    """Compute a norm's factor and shift [N, C] of a map of `size`, in plain PyTorch, on any device."""
    mean, variance = merged(statistics, *size, phases, norm.group_width)
    factor = (variance + (norm.eps or 0.0)).rsqrt() * (1.0 if norm.weight is None else norm.weight)
    return factor, (0.0 if norm.bias is None else norm.bias) - mean * factor


def reference(x: Tensor, statistics: Tensor, how: NormPass, out: Tensor) -> None:
    """Compute `norm_pass` of x [N, H, W, C] into out, in plain PyTorch and fp32, on any device."""
    factor, shift = factors_reference(statistics, (x.shape[1], x.shape[2]), how.phases, how.norm)
    y = how.activation(x.float() * factor[:, None, None] + shift[:, None, None])
    if how.head is None:
        nhwc.store(y / how.scale, out)
    else:
        out.copy_(functional.linear(y, how.head.weight, how.head.bias).permute(0, 3, 1, 2))


def candidates(statistics: Tensor) -> Iterator[Tile]:
    """Yield tiles worth measuring for a map with statistics [N, blocks, 2, C], likeliest first."""
    few = statistics.shape[1] <= FEW
    for merges in (True, False) if few else (False,):
        for values, steps in ((4096, 4), (4096, 1), (2048, 8)):
            yield Tile(values, steps, merges)


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


def excitation_reference(statistics: Tensor, size: tuple[int, int], phases: int, layers: Excitation) -> Tensor:
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
    """Return the factors [N, channels] in the weights' type of a map of `size`; at most 128 channels lie between."""
    batch, entries, _, channels = statistics.shape
    check_norm(statistics, size, phases, NO_NORM)
    inner = len(layers.reduce)
    for name, weight in (("reduce", layers.reduce), ("expand", layers.expand)):
        if tuple(weight.shape) != (inner, channels) or inner > MOST_INNER or not weight.is_contiguous():
            shape = list(weight.shape)
            raise ValueError(
                f"{name} must be contiguous [at most {MOST_INNER}, {channels}], both the same, got {shape}"
            )
    nhwc.check_floats("reduce_bias", layers.reduce_bias, inner)
    nhwc.check_floats("expand_bias", layers.expand_bias, channels)
    if layers.gate not in GATES:
        raise ValueError(f"gate must be one of {', '.join(GATES)}, got {layers.gate}")
    factors = torch.empty(batch, channels, dtype=layers.expand.dtype, device=statistics.device)
    padded = max(4, nhwc.next_power_of_two(inner))
    each = min(nhwc.next_power_of_two(channels), MOST_WEIGHTS // padded)
    lines = min(nhwc.next_power_of_two(entries), max(1, MOST_SUMS // each))
    on_grid(_excitation, batch)(
        statistics, *layers[:4], factors, size[0] // phases, size[1] // phases, entries,
        CHANNELS=channels, INNER=inner, PADDED=padded, PHASES=phases, LINES=lines, EACH=each, ROWS=ROWS, COLS=COLS,
        ACTIVATION=layers.activation.kind.expression, SLOPE=layers.activation.slope, HARD=layers.gate == "hardsigmoid",
        num_warps=8,
    )  # fmt: skip
    return factors
