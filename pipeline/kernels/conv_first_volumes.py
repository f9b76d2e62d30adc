"""The first 3×3×3 convolution of a net for volumes, by the kernels of `conv_first`: reads the user's fp32 NCDHW batch.

The idea: with one channel the taps are 27 values a voxel, as many as those of a 3×3 window of three channels. A slice
and its two neighbours are those three, and which plane a gather reads is all the same to it.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.kernels import conv_first
from pipeline.kernels.common.block_statistics import ROWS
from pipeline.kernels.common.epilogue import Epilogue, Outputs
from pipeline.kernels.common.kernel_op import Ends, KernelOp, LibraryParameters, flops_of
from pipeline.kernels.common.library import ended
from pipeline.kernels.common.program import stored_by_slice


def pack(weight: Tensor) -> Tensor:
    """Return a weight [out, in, 3, 3, 3] as `conv_first.pack` has one of 3 · in channels."""
    return conv_first.pack(weight.transpose(1, 2).flatten(1, 2))


def beside_each_other(volumes: Tensor) -> Tensor:
    """Volumes [N, in, D, H, W] as images [N · D, 3 · in, H, W]: of each slice those before, at and after it."""
    padded = functional.pad(volumes, (0, 0, 0, 0, 1, 1))
    windows = padded.unfold(2, 3, 1).permute(0, 2, 5, 1, 3, 4)  # [N, D, 3, in, H, W]
    return windows.flatten(2, 3).flatten(0, 1).contiguous()


def reference(volumes: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs) -> None:
    """Compute `conv_first_volumes` in plain PyTorch, on any device: inputs rounded to fp16, sums in fp32.

    Args:
        volumes: [N, in, D, H, W].
        weight: [3 · in, 3, span, out], from `pack`.
        epilogue: scale and bias [out].
        outputs: out [N, D · H, W, out], statistics [N, blocks, 2, out].
    """
    conv_first.reference(beside_each_other(volumes), weight, epilogue, stored_by_slice(outputs, volumes.shape[2]))


def conv_first_volumes(
    volumes: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs, tile: conv_first.Tile | None = None
) -> None:
    """Write the convolution of the volumes through the epilogue into `outputs.out`: products in fp16, sums in fp32.

    Args:
        volumes: [N, in, D, H, W] fp32 contiguous, at most 4 channels.
        weight: [3 · in, 3, span, out] fp16, from `pack`.
        epilogue: scale and bias [out], an activation, and statistics.
        outputs: out [N, D · H, W, out] fp16 or fp8, may be a channel slice of a wider tensor; statistics
            [N, blocks, 2, out] where H is a multiple of 8.
        tile: one of `candidates`; the first of them without.

    Raises:
        ValueError: a shape, dtype or stride is not as above.
    """
    if volumes.ndim != 5:
        raise ValueError(f"volumes must be [N, in, D, H, W], got {list(volumes.shape)}")
    if epilogue.statistics and volumes.shape[3] % ROWS:
        raise ValueError(f"statistics of a volume need slices of a multiple of {ROWS} rows, got {volumes.shape[3]}")
    conv_first.conv_first(volumes, weight, epilogue, stored_by_slice(outputs, volumes.shape[2]), tile)


def candidates(volumes: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs) -> Iterator[conv_first.Tile]:
    """Yield tiles worth measuring for volumes [N, in, D, H, W], a packed weight and the answer, likeliest first."""
    return conv_first.candidates(volumes, weight, epilogue, stored_by_slice(outputs, volumes.shape[2]))


def by_library(x: Tensor, parameters: LibraryParameters, ends: Ends) -> Tensor:
    """Run the library and the epilogue on x [N, in, D, H, W] by weight [out, in, 3, 3, 3], as [N, out, D · H, W]."""
    volumes = x.to(parameters.weight.dtype, memory_format=torch.channels_last_3d)
    return ended(functional.conv3d(volumes, *parameters, padding=1).flatten(2, 3), ends)


OP: KernelOp = KernelOp(
    name="conv_first_volumes",
    accepts=None,
    reference=reference,
    launch=conv_first_volumes,
    candidates=candidates,
    library=by_library,
    flops=flops_of(27),
    tile_types=conv_first.OP.tile_types,
    pack=pack,
    weight_shape=lambda inner, outer: (outer, inner, 3, 3, 3),
    out_axis=3,
    folds=conv_first.FOLDS,
    reads=frozenset({"fp32"}),
    reads_image=True,
)
