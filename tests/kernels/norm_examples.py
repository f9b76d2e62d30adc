"""Maps, their statistics and norms, for the tests of the kernels that norm."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.kernels import norm_pass
from pipeline.kernels.common.activation import NONE, RELU, Activation
from pipeline.kernels.common.block_statistics import blocks_of, statistics_of
from pipeline.kernels.common.epilogue import Epilogue, Head, Outputs
from pipeline.kernels.conv3x3.conv3x3_triton import Operands
from pipeline.kernels.norm_pass import Norm, NormPass, Tile
from tests.kernels.examples import DEVICE, FP8, HALF, poisoned, values

LEAKY = Activation("leaky_relu", 0.1)


def head_of(classes: int, channels: int) -> Head:
    return Head(values(classes, channels, dtype=torch.float32), values(classes, dtype=torch.float32))


def normed(
    size: tuple[int, ...], phases: int = 1, ends: bool = True, group_width: int = 1
) -> tuple[Tensor, Tensor, NormPass]:
    """A map [N, H, W, C] far from zero in a part of the channels of a wider one, its statistics, and a norm of it."""
    batch, height, width, channels = size
    y = values(batch, height, width, channels, dtype=torch.float32) * 3 + 7 + torch.arange(channels, device=DEVICE) % 5
    wide = poisoned(batch, height, width, 2 * channels)
    wide[..., channels:] = y
    weight, bias = (values(channels, dtype=torch.float32) + part if ends else None for part in (1, 2))
    how = NormPass(Norm(weight, bias, 1e-5, group_width), LEAKY, phases=phases)
    return wide[..., channels:], statistics_of(y, phases), how


def stored(how: NormPass, x: Tensor, counted: Tensor, dtype: torch.dtype, tile: Tile | None) -> Tensor:
    """What a tile of the pass, or without one its reference, writes into a part of a wider map, and nothing beside."""
    wide = poisoned(*x.shape[:3], 2 * x.shape[3], dtype=dtype)
    out = wide[..., x.shape[3] :]
    if how.head is not None:
        out = torch.full((len(x), len(how.head.bias), *x.shape[1:3]), torch.nan, device=DEVICE)
    if tile is None:
        norm_pass.reference(x, counted, how, out)
    else:
        norm_pass.norm_pass(x, counted, how, out, tile)
    assert wide[..., : x.shape[3]].float().isnan().all()
    return out


@dataclass(frozen=True)
class After:
    """What comes after the sums of a convolution that norms what it reads: all that its operation lets through."""

    residual: torch.dtype | None = None
    statistics: bool = True
    activation: Activation = NONE


PLAIN_END = After()
# Each residual with and without sums, and each end that the layer after a norm may have.
AFTER = [
    *(After(residual, statistics) for residual in (None, HALF, FP8) for statistics in (True, False)),
    After(None, True, Activation("silu")),
    After(None, False, RELU),
    After(HALF, False, Activation("leaky_relu", 0.1)),
    After(FP8, True, Activation("gelu")),
]


def convolution(
    size: tuple[int, ...], outer: int, group_width: int = 1, after: After = PLAIN_END
) -> tuple[Operands, Tensor, NormPass]:
    x, counted, how = normed(size, group_width=group_width)
    residual = None if after.residual is None else values(*size[:3], 2 * outer, dtype=after.residual)[..., outer:]
    epilogue = Epilogue(
        bias=values(outer, dtype=torch.float32),
        activation=after.activation,
        residual=residual,
        residual_scale=0.5 if after.residual == FP8 else 1.0,
        statistics=after.statistics,
    )
    whole = torch.full((size[0], blocks_of(*size[1:3]), 2, outer), torch.nan, device=DEVICE)
    outputs = Outputs(poisoned(*size[:3], outer), statistics=whole if after.statistics else None)
    return Operands(x, values(9, outer, size[3]) * 0.1, epilogue, outputs), counted, how
