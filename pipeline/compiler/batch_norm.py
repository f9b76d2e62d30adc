"""Folds a batch norm in eval mode into the convolution before it."""

from typing import NamedTuple

import torch
from torch import Tensor


class BatchNorm(NamedTuple):
    """What a batch norm knows in eval mode: each vector [channels]; without a scale it is 1, without a shift 0."""

    mean: Tensor
    variance: Tensor
    eps: float
    scale: Tensor | None = None
    shift: Tensor | None = None


def fold(weight: Tensor, bias: Tensor | None, norm: BatchNorm) -> tuple[Tensor, Tensor]:
    """The weight [out, in, k, k] and bias [out] of one convolution that does both; computed in float64, fp32 out.

    A weight of volumes has one more k.

    Source: γ (conv(x) + b − μ) / √(σ² + ε) + β, torch.nn.BatchNorm2d's own formula.
    """
    factor = torch.rsqrt(norm.variance.double() + norm.eps)
    factor = factor if norm.scale is None else factor * norm.scale
    moved = (-norm.mean.double() if bias is None else bias.double() - norm.mean) * factor
    moved = moved if norm.shift is None else moved + norm.shift
    return (weight.double() * factor.reshape(-1, *[1] * (weight.dim() - 1))).float(), moved.float()
