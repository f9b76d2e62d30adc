"""What every Triton kernel does with its fp32 accumulator before the store."""

import triton
import triton.language as tl

from pipeline.kernels.common.activation import larger


@triton.jit
def finish(
    acc, scale, bias, channel, channels,
    ACTIVATION: tl.constexpr, SLOPE: tl.constexpr, CHANNELS_FIRST: tl.constexpr,
):  # fmt: skip
    """ACTIVATION(acc · scale[o] + bias[o]) in fp32, for acc [out, pixels] or [pixels, out]; scale may be None.

    `channel` [out] holds the channel numbers; those beyond `channels` get 0 for both.
    """
    shift = tl.load(bias + channel, mask=channel < channels, other=0.0)
    if scale is not None:
        factor = tl.load(scale + channel, mask=channel < channels, other=0.0)
        acc = acc * (factor[:, None] if CHANNELS_FIRST else factor[None, :])
    acc = acc + (shift[:, None] if CHANNELS_FIRST else shift[None, :])
    return ACTIVATION(acc, SLOPE)


@triton.jit
def rounded(value, dtype: tl.constexpr):
    """The value, of any shape, as it is stored: fp8 saturates at ±448, fp16 overflows to infinity."""
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
