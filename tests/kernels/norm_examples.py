"""Maps, their statistics and norms, for the tests of the kernels that norm."""

import torch
from torch import Tensor

from pipeline.kernels import norm_pass
from pipeline.kernels.common.activation import Activation
from pipeline.kernels.common.block_statistics import blocks_of, statistics_of
from pipeline.kernels.common.epilogue import Epilogue, Outputs
from pipeline.kernels.conv3x3.conv3x3_operands import Operands
from pipeline.kernels.merged_statistics import Norm
from pipeline.kernels.norm_pass import NormPass, Tile
from tests.kernels.examples import DEVICE, poisoned, values

LEAKY = Activation("leaky_relu", 0.1)


def normed(
    size: tuple[int, ...], phases: int = 1, ends: bool = True, group_width: int = 1
) -> tuple[Tensor, Tensor, NormPass]:
    """A map [N, H, W, C] far from zero in a part of the channels of a wider one, its statistics, and a norm of it.

    Neighbouring channels lie around different means, as those of a group do.
    """
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
    if tile is None:
        norm_pass.reference(x, counted, how, out)
    else:
        norm_pass.norm_pass(x, counted, how, out, tile)
    assert wide[..., : x.shape[3]].float().isnan().all()
    return out


def convolution(
    size: tuple[int, ...], outer: int, group_width: int = 1, *, adds: bool = False
) -> tuple[Operands, Tensor, NormPass]:
    """A convolution of a norm of a map [N, H, W, in], with outputs of NaN; it may add a part of a wider map."""
    x, counted, how = normed(size, group_width=group_width)
    residual = values(*size[:3], 2 * outer)[..., outer:] if adds else None
    epilogue = Epilogue(bias=values(outer, dtype=torch.float32), residual=residual, statistics=True)
    whole = torch.full((size[0], blocks_of(*size[1:3]), 2, outer), torch.nan, device=DEVICE)
    outputs = Outputs(poisoned(*size[:3], outer), statistics=whole)
    return Operands(x, values(9, outer, size[3]) * 0.1, epilogue, outputs), counted, how
