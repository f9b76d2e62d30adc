"""Convolutions of volumes whose window has one slice, 1×3×3 and 1×2×2, by the kernels of images.

No slice sees another, so that a volume of D slices is D images: [N, D · H, W, channels] is the memory of
[N · D, H, W, channels], also in a part of a wider buffer. Kernels are given views.
"""

from dataclasses import replace
from functools import partial

from torch import Tensor
from torch.nn import functional

from pipeline.kernels import conv3x3, conv_first, polyphase, upconv2x2
from pipeline.kernels.common.epilogue import Epilogue, Outputs
from pipeline.kernels.common.kernel_op import KernelOp, volume_convolution
from pipeline.kernels.common.program import by_slice, stored_by_slice
from pipeline.kernels.conv3x3.conv3x3_triton import FOLDS_OF_VOLUMES


def _of_images(x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs, *rest: object) -> tuple[object, ...]:
    """Convert the operands of N volumes to those of N · D images; raise ValueError where they can't be.

    X is [N, D · H, W, in], or the user's volumes [N, 1, D, H, W].
    """
    slices = epilogue.slices
    if x.ndim == 5 and x.shape[1] != 1:
        raise ValueError(f"volumes must have one channel, got {list(x.shape)}")
    if (x.shape[2] != slices) if x.ndim == 5 else x.shape[1] % slices:
        raise ValueError(f"x must have {slices} slices of one height, got {list(x.shape)}")
    given = replace(epilogue, slices=1, residual=by_slice(epilogue.residual, slices))
    images = x.flatten(0, 2)[:, None] if x.ndim == 5 else by_slice(x, slices)
    return images, weight, given, stored_by_slice(outputs, slices), *rest


def by_slice_of(op: KernelOp, name: str, side: int, stride: int = 1) -> KernelOp:
    """Make a kernel of images one of volumes with windows of one slice: [out, in, 1, k, k], k = `side`."""
    assert op.pack is not None
    pack, padding = op.pack, (0, side // 2, side // 2) if side % 2 else 0
    layer = functional.conv3d if side % 2 else functional.conv_transpose3d
    return replace(
        op, name=name, accepts=None, reference=lambda *operands: op.reference(*_of_images(*operands)),
        launch=lambda *operands: op.launch(*_of_images(*operands)),
        candidates=lambda *operands: op.candidates(*_of_images(*operands)),
        library=partial(volume_convolution, stride=(1, stride, stride), padding=padding, layer=layer),
        pack=lambda weight: pack(weight[:, :, 0]), folds=op.folds & FOLDS_OF_VOLUMES,
        most_channels=(1, None) if op.reads_image else op.most_channels,
    )  # fmt: skip


OP = by_slice_of(conv3x3.OP, "conv1x3x3", 3)
FIRST_OP = by_slice_of(conv_first.OP, "conv1x3x3_first", 3)
STRIDED_OP = by_slice_of(polyphase.STRIDED, "conv1x3x3_strided", 3, 2)
TRANSPOSED_OP = by_slice_of(upconv2x2.OP, "upconv1x2x2", 2, 2)
