"""What the kernels compute, by the library: PyTorch's own operations, and cuDNN's where it has the fused one."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.kernels.common.activation import RELU, Activation
from pipeline.kernels.common.block_statistics import statistics_of
from pipeline.kernels.common.epilogue import Epilogue, Outputs
from pipeline.kernels.common.kernel_op import LibraryParameters


class Added(NamedTuple):
    """What is added before the activation: `scale` times a value [N, out, H, W]."""

    value: Tensor
    scale: float = 1.0


def convolution(
    x: Tensor,
    parameters: LibraryParameters,
    activation: Activation,
    *,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
    slopes: Tensor | None = None,
    residual: Added | None = None,
) -> Tensor:
    """The convolution of x [N, in, H, W] with bias, residual and activation, as [N, out, H', W'].

    One kernel on a GPU, in fp16 and with a ReLU, also where a residual in fp16 is added; otherwise residual and
    activation are kernels of their own. `slopes` [out] are those of an activation that has them.
    """
    weight, bias = parameters
    geometry = (list(stride), list(padding), list(dilation), groups)
    if activation == RELU and x.is_cuda and x.dtype == torch.float16:
        if residual is None:
            fused: Tensor = torch.cudnn_convolution_relu(x, weight, bias, *geometry)
            return fused
        if residual.value.dtype == x.dtype:
            added: Tensor = torch.cudnn_convolution_add_relu(x, weight, residual.value, residual.scale, bias, *geometry)
            return added
    y = torch.conv2d(x, weight, bias, *geometry)
    y = y if residual is None else y + residual.value.to(y.dtype) * residual.scale
    return _active(y, activation, slopes)


def same_size_convolution(x: Tensor, parameters: LibraryParameters, epilogue: Epilogue, outputs: Outputs) -> None:
    """A convolution of x [N, in, H, W] that keeps height and width, its results copied where a kernel stores them.

    Args:
        x: any dtype; cast to the weights'.
        parameters: weight [out, in, k, k] with an odd k.
        epilogue: without a scale; its bias is the parameters', its residual [N, H, W, out].
        outputs: out [N, out, H, W], pooled [N, out, H // 2, W // 2], logits [N, classes, H, W] and statistics
            [N, blocks, 2, out].
    """
    weight = parameters.weight
    side = weight.shape[2] // 2
    x = x.to(weight.dtype, memory_format=torch.channels_last)
    if epilogue.prologue is not None:
        x = epilogue.prologue.of(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    residual = None
    if epilogue.residual is not None:
        residual = Added(epilogue.residual.permute(0, 3, 1, 2), epilogue.residual_scale)
    y = convolution(x, parameters, epilogue.activation, padding=(side, side), slopes=epilogue.slopes, residual=residual)
    _copy_results(y, epilogue, outputs)


def transposed_convolution(x: Tensor, parameters: LibraryParameters, epilogue: Epilogue, outputs: Outputs) -> None:
    """A 2×2 transposed convolution of stride 2: x [N, in, H, W] to out [N, out, 2 H, 2 W]."""
    weight, bias = parameters
    x = x.to(weight.dtype, memory_format=torch.channels_last)
    y = functional.conv_transpose2d(x, weight, bias, stride=2)
    _copy_results(_active(y, epilogue.activation, epilogue.slopes), epilogue, outputs)


def bilinear(x: Tensor, _: LibraryParameters, epilogue: Epilogue, outputs: Outputs) -> None:
    """Bilinear upsampling by 2, corners not aligned: x [N, channels, H, W] to out [N, channels, 2 H, 2 W]."""
    _copy_results(functional.interpolate(x, scale_factor=2, mode="bilinear"), epilogue, outputs)


def _active(y: Tensor, activation: Activation, slopes: Tensor | None) -> Tensor:
    """The activation of y [N, out, H, W], whose slopes [out] are given where it has them."""
    return activation(y, None if slopes is None else slopes.to(y.dtype)[:, None, None])


def _copy_results(y: Tensor, epilogue: Epilogue, outputs: Outputs) -> None:
    """Copy y [N, out, H, W], its 2×2 maxima and its head's logits where a kernel stores them (NCHW)."""
    if outputs.out is not None:
        outputs.out.copy_(y)
    if outputs.pooled is not None:
        outputs.pooled.copy_(functional.max_pool2d(y, 2))
    if outputs.logits is not None and epilogue.head is not None:
        weight, bias = epilogue.head.weight.to(y.dtype)[..., None, None], epilogue.head.bias.to(y.dtype)
        outputs.logits.copy_(functional.conv2d(y, weight, bias))
    if outputs.statistics is not None:
        outputs.statistics.copy_(statistics_of(y.permute(0, 2, 3, 1).float()))
