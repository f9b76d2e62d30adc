"""What every kernel does with its fp32 accumulator before the store."""

import triton
import triton.language as tl


@triton.jit
def larger(a, b):
    """The maximum that keeps a NaN, as torch's does."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def scale_shift(
    acc, alpha, beta, channel, channels, SCALED: tl.constexpr, RELU: tl.constexpr, CHANNELS_FIRST: tl.constexpr
):
    """act(acc · alpha[o] + beta[o]) in fp32, for acc [out, pixels] or [pixels, out].

    `channel` [out] holds the channel numbers; those beyond `channels` get 0 for both.
    """
    shift = tl.load(beta + channel, mask=channel < channels, other=0.0)
    if SCALED:
        scale = tl.load(alpha + channel, mask=channel < channels, other=0.0)
        acc = acc * (scale[:, None] if CHANNELS_FIRST else scale[None, :])
    acc = acc + (shift[:, None] if CHANNELS_FIRST else shift[None, :])
    if RELU:
        acc = larger(acc, 0.0)
    return acc


@triton.jit
def rounded(value, dtype: tl.constexpr):
    """The value as it is stored: fp8 saturates at ±448, fp16 overflows to infinity."""
    if dtype == tl.float8e4nv:
        value = tl.clamp(value, -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL)
    return value.to(dtype)


@triton.jit
def pooled_pairs(acc, ROWS: tl.constexpr, COLS: tl.constexpr, OUT: tl.constexpr, CHANNELS_FIRST: tl.constexpr):
    """2×2 maxima of a tile of ROWS × COLS pixels, as [out, pixels / 4] or [pixels / 4, out].

    With channels first a pair of columns lies in one thread's registers, and so do the two rows, hence no exchange.
    """
    if CHANNELS_FIRST:
        pairs = acc.reshape(OUT, ROWS // 2, 2, COLS // 2, 2)
        small = tl.reduce(tl.reduce(pairs, 4, larger), 2, larger).reshape(OUT, ROWS * COLS // 4)
    else:
        pairs = acc.reshape(ROWS // 2, 2, COLS // 2, 2, OUT)
        small = tl.reduce(tl.reduce(pairs, 3, larger), 1, larger).reshape(ROWS * COLS // 4, OUT)
    return small
