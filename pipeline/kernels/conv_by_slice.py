"""Convolutions of volumes whose window has one slice, 1×3×3 and 1×2×2, by the kernels of images.

No slice sees another, so that a volume of D slices is D images: [N, D · H, W, channels] is the memory of
[N · D, H, W, channels], also in a part of a wider buffer. Kernels and the library's convolution are given views.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from pipeline.kernels import conv3x3, conv_first, polyphase, upconv2x2
from pipeline.kernels.common.block_statistics import ROWS
from pipeline.kernels.common.epilogue import Epilogue, Outputs
from pipeline.kernels.common.kernel_op import Ends, KernelOp, LibraryParameters
from pipeline.kernels.common.program import by_slice, stored_by_slice
from pipeline.kernels.conv3x3.conv3x3_triton import FOLDS_OF_VOLUMES


def _images(x: Tensor, slices: int) -> Tensor:
    """Return [N, D · H, W, in], or the user's volumes [N, 1, D, H, W], as the images that a kernel reads."""
    if x.ndim == 4:
        return by_slice(x, slices)
    if x.shape[1] != 1:
        raise ValueError(f"volumes must have one channel, got {list(x.shape)}")
    return x.flatten(0, 2)[:, None]


def _of_images(x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs, *rest: object) -> tuple[object, ...]:
    """Convert the operands of N volumes to those of N · D images; raise ValueError where they can't be."""
    slices, out = epilogue.slices, outputs.out
    if (x.shape[2] != slices) if x.ndim == 5 else x.shape[1] % slices:
        raise ValueError(f"x must have {slices} slices of one height, got {list(x.shape)}")
    if slices > 1 and epilogue.statistics and out is not None and out.shape[1] // slices % ROWS:
        raise ValueError(
            f"statistics of a volume need slices of a multiple of {ROWS} rows, got {out.shape[1] // slices}"
        )
    given = replace(epilogue, slices=1, residual=by_slice(epilogue.residual, slices))
    return _images(x, slices), weight, given, stored_by_slice(outputs, slices), *rest


def by_slice_of(op: KernelOp, name: str, window: tuple[int, int, int]) -> KernelOp:
    """Make a kernel of images one of volumes with windows of one slice, such as [out, in, 1, k, k]."""
    assert op.pack is not None
    assert op.weight_shape is not None
    pack, shape = op.pack, op.weight_shape

    return replace(
        op, name=name, accepts=None, reference=lambda *operands: op.reference(*_of_images(*operands)),
        launch=lambda *operands: op.launch(*_of_images(*operands)),
        candidates=lambda *operands: op.candidates(*_of_images(*operands)), library=_library(op),
        pack=lambda weight: pack(weight[:, :, 0]), weight_shape=lambda inner,
        outer: (*shape(inner, outer)[:2], *window), folds=op.folds & FOLDS_OF_VOLUMES,
        most_channels=(1, None) if op.reads_image else op.most_channels,
    )  # fmt: skip


def _library(op: KernelOp) -> Callable[[Tensor, LibraryParameters, Ends], Tensor]:
    """Run the library's convolution of images on x [N, in, D · H, W], or on volumes [N, 1, D, H, W]."""

    def run(x: Tensor, parameters: LibraryParameters, ends: Ends) -> Tensor:
        residual = None if ends.residual is None else _slices_of(ends.residual, ends.slices)
        images = _images(x, ends.slices) if x.ndim == 5 else _slices_of(x, ends.slices)
        taps = parameters._replace(weight=parameters.weight[:, :, 0])
        made = op.library(images, taps, ends._replace(residual=residual, slices=1)).permute(0, 2, 3, 1)
        height, width, outer = made.shape[1:]
        return made.reshape(-1, ends.slices * height, width, outer).permute(0, 3, 1, 2)

    return run


def _slices_of(value: Tensor, slices: int) -> Tensor:
    """Return a value [N, channels, D · H, W] as [N · D, channels, H, W] in channels_last."""
    pixels = value.to(memory_format=torch.channels_last).permute(0, 2, 3, 1)
    _, height, width, channels = pixels.shape
    return pixels.reshape(-1, height // slices, width, channels).permute(0, 3, 1, 2)


OP = by_slice_of(conv3x3.OP, "conv1x3x3", (1, 3, 3))
FIRST_OP = by_slice_of(conv_first.OP, "conv1x3x3_first", (1, 3, 3))
STRIDED_OP = by_slice_of(polyphase.STRIDED, "conv1x3x3_strided", (1, 3, 3))
TRANSPOSED_OP = by_slice_of(upconv2x2.OP, "upconv1x2x2", (1, 2, 2))
