"""An instance or group norm, and the ReLU after it, applied to the pixels that a product is fed from registers with.

The idea: a norm's pass reads a map and writes it again, which takes longer than the arithmetic. A kernel that reads
pixels into registers can do it there, two fp16 values an instruction: (x − mean) · factor + shift, and the larger of
that and slope times it. The mean goes off first: where it is large beside the deviation, a shift of −mean · factor
would round to fp16 with an error as large as what is left.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from pipeline.kernels.common.quads import row_layout

HALF_MAX = gl.constexpr(65504.0)


class NormOnLoad(NamedTuple):
    """A norm of a kernel's input with what follows it: max(y, slope · y).

    Attributes:
        mean: of each image and channel, or the channel's group, [N, in] fp32.
        variance: the biased one of the same, [N, in] fp32.
        weight: [in] fp32; None for 1.
        bias: [in] fp32; None for 0.
        eps: added to the variance.
        slope: 0 for a ReLU, 1 for none, a leaky ReLU's between them.
    """

    mean: Tensor
    variance: Tensor
    weight: Tensor | None
    bias: Tensor | None
    eps: float
    slope: float

    @property
    def instructions(self) -> str:
        """The PTX that makes $0, two fp16 values, of x, mean, factor and shift, two values each."""
        slope = int(torch.tensor(self.slope, dtype=torch.float16).view(torch.int16)) & 0xFFFF
        return (
            "{ .reg .b32 y, z; sub.rn.f16x2 y, $1, $2; fma.rn.f16x2 y, y, $3, $4; "
            f"mov.b32 z, 0x{slope:04x}{slope:04x}; mul.rn.f16x2 z, y, z; max.NaN.f16x2 $0, y, z; }}"
        )


@gluon.jit
def _pairs(low, high):
    """Two values of each of two fp32 tensors as a word of two fp16 values, those of `low` in its lower half."""
    return gl.inline_asm_elementwise(
        "cvt.rn.f16x2.f32 $0, $2, $1;", "=r,f,f", [low, high], dtype=gl.int32, is_pure=True, pack=1
    )


@gluon.jit
def _ends(norm, eps, number, channel, CHANNELS: gl.constexpr):
    """Mean, factor and shift of channels of an image."""
    mean_at, variance_at, weight, bias = norm
    inside = channel < CHANNELS
    mean = gl.load(mean_at + number * CHANNELS + channel, mask=inside, other=0.0)
    factor = gl.rsqrt(gl.load(variance_at + number * CHANNELS + channel, mask=inside, other=1.0) + eps)
    shift = gl.zeros_like(mean)
    if weight is not None:
        factor *= gl.load(weight + channel, mask=inside, other=0.0)
    if bias is not None:
        shift = gl.load(bias + channel, mask=inside, other=0.0)
    return mean, gl.minimum(gl.maximum(factor, -HALF_MAX), HALF_MAX), shift


@gluon.jit
def load_norm(
    norm, eps, number, CHUNK: gl.constexpr, IN_WORDS: gl.constexpr, WORDS: gl.constexpr, NORM: gl.constexpr
):  # fmt: skip
    """Load what `normalised` takes for a chunk of channels of image `number`, two a word; nothing without NORM."""
    ends = ()
    if NORM is not None:
        layout: gl.constexpr = row_layout(WORDS // 4, WORDS, gl.num_warps())
        channel = 2 * (CHUNK * WORDS + gl.arange(0, WORDS, layout=gl.SliceLayout(0, layout)).expand_dims(0))
        low = _ends(norm, eps, number, channel, 2 * IN_WORDS)
        high = _ends(norm, eps, number, channel + 1, 2 * IN_WORDS)
        ends = (_pairs(low[0], high[0]), _pairs(low[1], high[1]), _pairs(low[2], high[2]))  # type: ignore[assignment]
    return ends


@gluon.jit
def normalised(words, ends, INSTRUCTIONS: gl.constexpr):
    """Words [pixels, WORDS] of two fp16 values each after the norm whose `ends` are [1, WORDS]."""
    mean, factor, shift = ends
    words, mean = gl.broadcast(words, mean)
    words, factor = gl.broadcast(words, factor)
    words, shift = gl.broadcast(words, shift)
    return gl.inline_asm_elementwise(
        INSTRUCTIONS, "=r,r,r,r,r", [words, mean, factor, shift], dtype=gl.int32, is_pure=True, pack=1
    )
