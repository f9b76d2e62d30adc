"""The kernels' operations by the library, of x [N, in, H, W], or a volume's slices, cast to the weight's type."""

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.kernels.common.activation import RELU
from pipeline.kernels.common.block_statistics import statistics_of
from pipeline.kernels.common.epilogue import Epilogue, Outputs
from pipeline.kernels.common.kernel_op import Ends, LibraryParameters


def convolution(x: Tensor, parameters: LibraryParameters, ends: Ends, *, stride: int = 1) -> Tensor:
    """Return the convolution of x, padded by half of its window, with bias, residual and activation: [N, out, H', W'].

    One kernel on a GPU, in fp16 and with a ReLU, also where a residual is added; otherwise residual and activation are
    kernels of their own.
    """
    x, (weight, bias), apart = _as_weights(x, parameters), parameters, ends.dilation
    padding = (weight.shape[2] - 1) // 2 * apart
    geometry = ([stride] * 2, [padding] * 2, [apart] * 2, x.shape[1] // weight.shape[1])
    if ends.activation == RELU and x.is_cuda and x.dtype == torch.float16:
        if ends.residual is None:
            fused: Tensor = torch.cudnn_convolution_relu(x, weight, bias, *geometry)
            return fused
        added: Tensor = torch.cudnn_convolution_add_relu(x, weight, ends.residual.to(x.dtype), 1.0, bias, *geometry)
        return added
    return ended(torch.conv2d(x, weight, bias, *geometry), ends)


def transposed_convolution(
    x: Tensor, parameters: LibraryParameters, ends: Ends, *, padding: int = 0, output_padding: int = 0
) -> Tensor:
    """Return the transposed convolution of stride 2 of x with its epilogue: [N, out, 2 H, 2 W]."""
    weight, bias = parameters
    return ended(
        functional.conv_transpose2d(_as_weights(x, parameters), weight, bias, 2, padding, output_padding), ends
    )


def volume_convolution(
    x: Tensor, parameters: LibraryParameters, ends: Ends, *, stride: int | tuple[int, int, int] = 1
) -> Tensor:
    """Return the 3×3×3 convolution of x, also [N, in, D, H, W], with its epilogue: [N, out, D' · H', W']."""
    x = _as_weights(x, parameters)
    volumes = x if x.ndim == 5 else x.unflatten(2, (ends.slices, -1))
    return ended(functional.conv3d(volumes, *parameters, stride=stride, padding=1).flatten(2, 3), ends)


def volume_growth(x: Tensor, parameters: LibraryParameters, ends: Ends) -> Tensor:
    """Return the 2×2×2 transposed convolution of stride 2 of x with its epilogue: [N, out, 2 D · 2 H, 2 W]."""
    volumes = _as_weights(x, parameters).unflatten(2, (ends.slices, -1))
    return ended(functional.conv_transpose3d(volumes, *parameters, stride=2).flatten(2, 3), ends)


def bilinear(x: Tensor, _: LibraryParameters, ends: Ends, *, align_corners: bool = False) -> Tensor:
    """Return x upsampled by 2: [N, channels, 2 H, 2 W]."""
    return ended(functional.interpolate(x, scale_factor=2, mode="bilinear", align_corners=align_corners), ends)


def _as_weights(x: Tensor, parameters: LibraryParameters) -> Tensor:
    """Return x in the weight's type, its channels last."""
    last = torch.channels_last if x.ndim == 4 else torch.channels_last_3d
    return x.to(parameters.weight.dtype, memory_format=last)


def ended(y: Tensor, ends: Ends) -> Tensor:
    """Return y [N, out, H, W] with its residual and its activation."""
    if ends.residual is not None:
        y = y + ends.residual.to(y.dtype)
    return ends.activation(y, None if ends.slopes is None else ends.slopes.to(y.dtype)[:, None, None])


def store_results(y: Tensor, epilogue: Epilogue, outputs: Outputs) -> None:
    """Copy y [N, out, H, W], its 2×2 maxima and its head's logits where a kernel stores them (NCHW)."""
    if outputs.out is not None:
        outputs.out.copy_(y)
    if outputs.pooled is not None:
        outputs.pooled.copy_(functional.max_pool2d(y, 2))
    if outputs.logits is not None:
        head = epilogue.head
        mixed = (
            y if head is None else functional.conv2d(y, head.weight.to(y.dtype)[..., None, None], head.bias.to(y.dtype))
        )
        outputs.logits.copy_(mixed)
    if outputs.statistics is not None:
        outputs.statistics.copy_(statistics_of(y.permute(0, 2, 3, 1).float(), epilogue.phases))
