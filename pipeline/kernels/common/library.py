"""The kernels' operations by the library: PyTorch's own, and cuDNN's where it has the fused one."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.kernels.common.activation import RELU
from pipeline.kernels.common.block_statistics import statistics_of
from pipeline.kernels.common.epilogue import Epilogue, Outputs
from pipeline.kernels.common.kernel_op import Ends, LibraryParameters


def convolution(
    x: Tensor,
    parameters: LibraryParameters,
    ends: Ends,
    *,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
) -> Tensor:
    """Return the convolution of x [N, in, H, W] with bias, residual and activation, as [N, out, H', W'].

    One kernel on a GPU, in fp16 and with a ReLU, also where a residual is added; otherwise residual and activation are
    kernels of their own.
    """
    weight, bias = parameters
    geometry = (list(stride), list(padding), list(dilation), groups)
    if ends.activation == RELU and x.is_cuda and x.dtype == torch.float16:
        if ends.residual is None:
            fused: Tensor = torch.cudnn_convolution_relu(x, weight, bias, *geometry)
            return fused
        added: Tensor = torch.cudnn_convolution_add_relu(x, weight, ends.residual.to(x.dtype), 1.0, bias, *geometry)
        return added
    return ended(torch.conv2d(x, weight, bias, *geometry), ends)


def same_size_convolution(x: Tensor, parameters: LibraryParameters, ends: Ends) -> Tensor:
    """Run a convolution that keeps height and width, and its epilogue: x [N, in, H, W] to [N, out, H, W].

    Args:
        x: any dtype; cast to the weight's.
        parameters: weight [out, in, k, k] with an odd k.
        ends: what follows.
    """
    side = parameters.weight.shape[2] // 2
    return convolution(_as_weights(x, parameters), parameters, ends, padding=(side, side))


def transposed_convolution(x: Tensor, parameters: LibraryParameters, ends: Ends) -> Tensor:
    """Run a 2×2 transposed convolution of stride 2 and its epilogue: x [N, in, H, W] to [N, out, 2 H, 2 W]."""
    return ended(functional.conv_transpose2d(_as_weights(x, parameters), *parameters, stride=2), ends)


def bilinear(x: Tensor, _: LibraryParameters, ends: Ends, *, align_corners: bool = False) -> Tensor:
    """Bilinear upsampling by 2: x [N, channels, H, W] to [N, channels, 2 H, 2 W]."""
    return ended(functional.interpolate(x, scale_factor=2, mode="bilinear", align_corners=align_corners), ends)


def _as_weights(x: Tensor, parameters: LibraryParameters) -> Tensor:
    """X [N, in, H, W] in the weight's type and channels_last."""
    return x.to(parameters.weight.dtype, memory_format=torch.channels_last)


def ended(y: Tensor, ends: Ends) -> Tensor:
    """Y [N, out, H, W] with its residual and its activation."""
    if ends.residual is not None:
        y = y + ends.residual.to(y.dtype)
    return ends.activation(y, None if ends.slopes is None else ends.slopes.to(y.dtype)[:, None, None])


def store_results(y: Tensor, epilogue: Epilogue, outputs: Outputs) -> None:
    """Copy y [N, out, H, W], its 2×2 maxima and its head's logits where a kernel stores them (NCHW)."""
    if outputs.out is not None:
        outputs.out.copy_(y)
    if outputs.pooled is not None:
        outputs.pooled.copy_(functional.max_pool2d(y, 2))
    if outputs.logits is not None and epilogue.head is None:
        outputs.logits.copy_(y)
    elif outputs.logits is not None and epilogue.head is not None:
        weight, bias = epilogue.head.weight.to(y.dtype)[..., None, None], epilogue.head.bias.to(y.dtype)
        outputs.logits.copy_(functional.conv2d(y, weight, bias))
    if outputs.statistics is not None:
        outputs.statistics.copy_(statistics_of(y.permute(0, 2, 3, 1).float(), epilogue.phases))
