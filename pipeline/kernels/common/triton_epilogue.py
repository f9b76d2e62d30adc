"""The epilogue of a Triton kernel: from the fp32 accumulator to the store."""

import triton
import triton.language as tl


@triton.jit
def finish(
    acc, scale, bias, channel, channels,
    ACTIVATION: tl.constexpr, SLOPE: tl.constexpr, CHANNELS_FIRST: tl.constexpr, slopes=None, residual=None,
):  # fmt: skip
    """ACTIVATION(acc · scale[o] + bias[o] + residual) in fp32, for acc [out, pixels] or [pixels, out]."""
    shift = tl.load(bias + channel, mask=channel < channels, other=0.0)
    if scale is not None:
        factor = tl.load(scale + channel, mask=channel < channels, other=0.0)
        acc = acc * (factor[:, None] if CHANNELS_FIRST else factor[None, :])
    acc = acc + (shift[:, None] if CHANNELS_FIRST else shift[None, :])
    if residual is not None:
        acc = acc + residual
    if slopes is not None:
        steep = tl.load(slopes + channel, mask=channel < channels, other=0.0)
        return ACTIVATION(acc, steep[:, None] if CHANNELS_FIRST else steep[None, :])
    return ACTIVATION(acc, SLOPE)


@triton.jit
def store_statistics(
    y, statistics, image, y0, x0, height, width, channel, channels,
    ROWS: tl.constexpr, COLS: tl.constexpr, CHANNELS_FIRST: tl.constexpr,
):  # fmt: skip
    """Statistics [N, blocks, 2, channels] of y [out, pixels] or [pixels, out]; only pixels inside the image count."""
    OUT: tl.constexpr = y.shape[0] if CHANNELS_FIRST else y.shape[1]
    rows = y.T if CHANNELS_FIRST else y
    parts = rows.reshape(ROWS // 8, 8, COLS // 16, 16, OUT).permute(0, 2, 1, 3, 4)
    parts = parts.reshape((ROWS // 8) * (COLS // 16), 128, OUT)
    block, pixel = tl.arange(0, (ROWS // 8) * (COLS // 16)), tl.arange(0, 128)
    top, left = y0 + block // (COLS // 16) * 8, x0 + block % (COLS // 16) * 16
    row, col = top[:, None] + (pixel // 16)[None, :], left[:, None] + (pixel % 16)[None, :]
    inside = ((row < height) & (col < width))[:, :, None]
    seen = tl.maximum(tl.sum(inside.to(tl.float32), axis=1), 1.0)
    mean = tl.sum(tl.where(inside, parts, 0.0), axis=1) / seen
    away = tl.where(inside, parts - mean[:, None, :], 0.0)
    entry = image * ((height + 7) // 8) * ((width + 15) // 16) + top // 8 * ((width + 15) // 16) + left // 16
    at = statistics + (entry.to(tl.int64) * 2 * channels)[:, None] + channel[None, :]
    stored = ((top < height) & (left < width))[:, None] & (channel < channels)[None, :]
    tl.store(at, mean, mask=stored)
    tl.store(at + channels, tl.sum(away * away, axis=1), mask=stored)


@triton.jit
def count_row(
    y, mean, squares, statistics, row, stored, col, height, width, channel, channels, COLS: tl.constexpr
):  # fmt: skip
    """Add y [COLS, out], if `stored`, to a block's mean and squared deviations (Welford, 1962); store its last."""
    place = (row + 8) % 8  # a row that isn't stored may lie above the image
    seen = (place + 1).to(tl.float32)
    new = place == 0
    before = tl.where(new, 0.0, mean)
    away = y - before
    after = before + away / seen
    spread = tl.where(new, 0.0, squares) + away * (y - after)
    if stored & ((place == 7) | (row == height - 1)):
        inside = (col < width)[:, None]
        pixels = tl.sum((col < width).to(tl.float32), axis=0)
        whole = tl.sum(tl.where(inside, after, 0.0), axis=0) / pixels
        between = after - whole[None, :]
        squared = tl.sum(tl.where(inside, spread + between * between * seen, 0.0), axis=0)
        at = statistics + row // 8 * ((width + COLS - 1) // COLS) * 2 * channels + channel
        tl.store(at, whole, mask=channel < channels)
        tl.store(at + channels, squared, mask=channel < channels)
    return after, spread


@triton.jit
def rounded(value, dtype: tl.constexpr):
    """Round a value of any shape to the stored type: fp8 saturates at ±448, fp16 overflows to infinity."""
    if dtype == tl.float8e4nv:
        value = tl.clamp(value, -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL)
    return value.to(dtype)
