"""3×3×3 convolution of volumes, padding 1, stride 1, with bias and activation, by the kernels of the 3×3 convolution.

The idea: a slice of the answer is the sum of three 3×3 convolutions, of the slice itself and its two neighbours. The
kernels of `conv3x3` walk over three times the taps, then; a box that lies before the first slice or behind the last is
one of zeros, as TMA fills it. Slices lie one below the other, as `conv3x3_operands` says, so that norms, residuals and
concatenations take a volume for an image.

With 32 output channels half of a product's 64 rows would be empty. Two neighbouring slices share them then: together
they read four slices, of which each needs three, so that three quarters of the products count instead of a half.
"""

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.kernels import conv3x3
from pipeline.kernels.common.epilogue import Epilogue, Outputs, store_reference
from pipeline.kernels.common.kernel_op import Ends, KernelOp, LibraryParameters, flops_of
from pipeline.kernels.common.library import ended
from pipeline.kernels.conv3x3 import conv3x3_gluon, conv3x3_triton
from pipeline.kernels.conv3x3.conv3x3_operands import FOLDS_OF_VOLUMES, STACKED


def pack(weight: Tensor) -> Tensor:
    """Return a weight [out, in, 3, 3, 3] as [27, out, in], in the order of the kernels."""
    return weight.permute(2, 3, 4, 0, 1).reshape(27, *weight.shape[:2]).contiguous()


def stacked(weight: Tensor) -> Tensor:
    """Return a packed weight [27, out, in], out at most 32, as [36, 64, in], which computes two slices at once.

    Four slices are read. The first three make one output slice, in the first 8 of each 16 rows; the last three make the
    other, in the last 8. All other weights are zero.
    """
    _, outer, inner = weight.shape
    both = weight.new_zeros(4, 9, STACKED // 8, 2, 8, inner)
    taps = weight.new_zeros(3, 9, STACKED, inner)
    taps[:, :, :outer] = weight.unflatten(0, (3, 9))
    both[:3, :, :, 0] = both[1:, :, :, 1] = taps.unflatten(2, (-1, 8))
    return both.flatten(2, 4).flatten(0, 1)


def unstacked(weight: Tensor, outer: int) -> Tensor:
    """Return the weight [27, out, in] of which `stacked` made [36, 64, in]; return any other unchanged."""
    if len(weight) == 27:
        return weight
    both: Tensor = weight.unflatten(1, (-1, 2, 8))
    return both[:27, :, 0].flatten(1, 2)[:, :outer]


def reference(x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs) -> None:
    """Compute `conv3x3.conv3x3` of volumes, in plain PyTorch and fp32, on any device.

    Args:
        x: [N, D · H, W, in].
        weight: [27, out, in], or [36, 64, in] from `stacked`.
        epilogue: scale, bias and slopes [out], a residual [N, D · H, W, out], and D as `slices`.
        outputs: out [N, D · H, W, out], statistics [N, blocks, 2, out].
    """
    weight = unstacked(weight, len(weight[0]) if epilogue.bias is None else len(epilogue.bias))
    taps = weight.float().reshape(3, 3, 3, *weight.shape[1:]).permute(3, 4, 0, 1, 2)
    volumes = x.float().permute(0, 3, 1, 2).unflatten(2, (epilogue.slices, -1))
    sums = functional.conv3d(volumes, taps, padding=1).flatten(2, 3).permute(0, 2, 3, 1)
    store_reference(epilogue.of(sums), epilogue, outputs)


def by_library(x: Tensor, parameters: LibraryParameters, ends: Ends) -> Tensor:
    """Run the library and the epilogue on x [N, in, D · H, W], weight [out, in, 3, 3, 3]: [N, out, D · H, W]."""
    volumes = x.to(parameters.weight.dtype, memory_format=torch.channels_last).unflatten(2, (ends.slices, -1))
    return ended(functional.conv3d(volumes, *parameters, padding=1).flatten(2, 3), ends)


OP: KernelOp = KernelOp(
    name="conv3x3x3",
    accepts=None,
    reference=reference,
    launch=conv3x3.conv3x3,
    candidates=conv3x3.candidates,
    library=by_library,
    flops=flops_of(27),
    tile_types=(conv3x3_triton.Tile, conv3x3_gluon.Tile),
    pack=pack,
    weight_shape=lambda inner, outer: (outer, inner, 3, 3, 3),
    out_axis=1,
    tap_axis=0,
    folds=FOLDS_OF_VOLUMES,
)
