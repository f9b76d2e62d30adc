"""2×2×2 transposed convolution of volumes, stride 2, with bias and activation, by the kernels of `upconv2x2`.

Every voxel makes eight of the output, each from its own weight matrix: the four of `upconv2x2`, in each of two slices.
Slices lie one below the other, as `conv3x3.conv3x3_operands` says.
"""

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.kernels import upconv2x2
from pipeline.kernels.common.epilogue import Epilogue, Outputs, store_reference
from pipeline.kernels.common.kernel_op import Ends, KernelOp, LibraryParameters, flops_of
from pipeline.kernels.common.library import ended


def pack(weight: Tensor) -> Tensor:
    """Return a weight [in, out, 2, 2, 2] as [8, out, in]: entry 4 a + 2 i + j makes output pixel (i, j) of slice a."""
    return weight.permute(2, 3, 4, 1, 0).reshape(8, weight.shape[1], weight.shape[0]).contiguous()


def reference(x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs) -> None:
    """Compute `upconv2x2.upconv2x2` of volumes, in plain PyTorch and fp32, on any device.

    Args:
        x: [N, D · H, W, in].
        weight: [8, out, in].
        epilogue: scale, bias and slopes [out], and D as `slices`.
        outputs: out [N, 2 D · 2 H, 2 W, out].
    """
    taps = weight.float().reshape(2, 2, 2, *weight.shape[1:]).permute(4, 3, 0, 1, 2)
    volumes = x.float().permute(0, 3, 1, 2).unflatten(2, (epilogue.slices, -1))
    sums = functional.conv_transpose3d(volumes, taps, stride=2).flatten(2, 3).permute(0, 2, 3, 1)
    store_reference(epilogue.of(sums), epilogue, outputs)


def by_library(x: Tensor, parameters: LibraryParameters, ends: Ends) -> Tensor:
    """Run the library and the epilogue on x [N, in, D · H, W], weight [in, out, 2, 2, 2]: [N, out, 2 D · 2 H, 2 W]."""
    volumes = x.to(parameters.weight.dtype, memory_format=torch.channels_last).unflatten(2, (ends.slices, -1))
    return ended(functional.conv_transpose3d(volumes, *parameters, stride=2).flatten(2, 3), ends)


OP: KernelOp = KernelOp(
    name="upconv2x2x2",
    accepts=None,
    reference=reference,
    launch=upconv2x2.upconv2x2,
    candidates=upconv2x2.candidates,
    library=by_library,
    flops=flops_of(8),
    tile_types=upconv2x2.OP.tile_types,
    pack=pack,
    weight_shape=lambda inner, outer: (inner, outer, 2, 2, 2),
    out_axis=1,
    folds=upconv2x2.FOLDS,
    growth=2,
    growth_deep=2,
)
