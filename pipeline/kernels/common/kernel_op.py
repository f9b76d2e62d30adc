"""A kernel's description of itself: the layers that it takes, and its packing, launch and candidates."""

import math
from collections.abc import Callable, Iterator
from dataclasses import Field, dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.kernels.common.activation import RELU, Activation
from pipeline.kernels.common.nhwc import continued

CHANNELS, CHANNELS_IN_FP8 = 8, 16  # TMA moves rows of 16 bytes: multiples of these numbers of channels
FP16_AND_FP8 = frozenset({"fp16", "fp8"})
NO_WEIGHT = torch.empty(0)  # of a kernel that has none


class Tile(Protocol):
    """A cut of the work: a dataclass of the kernel's own, by whose name a saved net finds it."""

    kernel: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Field[object]]]


class LibraryParameters(NamedTuple):
    """A layer's weight in torch's own shape, channels_last, and its bias [out], both in the compute dtype."""

    weight: Tensor
    bias: Tensor | None  # None where the products alone are timed


class Packed(NamedTuple):
    """A layer's parts as its kernel reads them."""

    weight: Tensor | None  # in the type that the kernel multiplies in; None without weights
    scale: Tensor | None  # [out] fp32; None for 1
    bias: Tensor | None  # [out] fp32; None without weights
    second_weight: Tensor | None = None  # of a second input
    border: Tensor | None = None  # [3, 3, out] fp32, added at the border


class Ends(NamedTuple):
    """The operations after a layer's sums, for the library."""

    activation: Activation
    slopes: Tensor | None = None  # [out], of an activation that has one for each channel
    residual: Tensor | None = None  # [N, out, H', W'], added before the activation
    slices: int = 1  # of how many the input is made, one below the other: a volume's depth, 1 for an image
    dilation: int = 1  # how many pixels apart the window's taps are
    padding_mode: str = "zeros"  # what surrounds the input, as `Epilogue` has it


class SecondSource(NamedTuple):
    """A layer's second input, and its contribution at the border."""

    # [N, 2 h, 2 w, skip], at the output's resolution, or factors [N, 1, 1, in] of the input; None without a skip
    map: Tensor | None = None
    weight: Tensor | None = None  # [9, out, skip]; None without a map
    border: Tensor | None = None  # [3, 3, out] fp32; None for nothing


@dataclass(frozen=True)
class LayerDescription:
    """A layer of a net, as far as a kernel decides by it whether to take the layer."""

    kind: str  # "conv2d", "conv_transpose2d" or "upsample_bilinear2d"
    inner: int  # input channels
    outer: int  # output channels
    in_size: tuple[int, int]  # height and width of the input
    out_size: tuple[int, int]
    window: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    output_padding: tuple[int, int] = (0, 0)
    groups: int = 1
    align_corners: bool = False
    padding_mode: str = "zeros"  # what `padding` is of, as `Epilogue` has it
    reads_image: bool = False  # whether the input is the network's own, or that padded

    def is_square(self, window: int, stride: int, padding: int, output_padding: int = 0) -> bool:
        """Return whether a convolution has this window, stride and paddings both ways, and nothing unusual."""
        plain = self.dilation == (1, 1) and self.output_padding == (output_padding,) * 2 and self.groups == 1
        return plain and (self.window, self.stride, self.padding) == ((window,) * 2, (stride,) * 2, (padding,) * 2)

    @property
    def suits_bulk_copies(self) -> bool:
        """Return whether input and output channels are multiples that TMA moves in fp16; `fp8_values` asks for more."""
        return self.inner % CHANNELS == 0 and self.outer % CHANNELS == 0


@dataclass(frozen=True)
class KernelOp:
    """A kernel with all that the compiler, the tuner, the stages and the tests need to know of it.

    Its functions take x [N, H, W, in] or the image [N, in, H, W], the packed weight, an epilogue and the outputs, then
    a `SecondSource` where it takes one. `launch` takes a tile last; it raises ValueError.
    """

    name: str  # of the operation in a rewritten graph
    # whether it takes a layer; None where a pass of its own finds them
    accepts: Callable[[LayerDescription], bool] | None
    reference: Callable[..., None]  # what it computes, in plain PyTorch on any device
    launch: Callable[..., None]
    candidates: Callable[..., Iterator[Tile]]  # the tiles worth measuring, the likeliest first
    # the same by the library, of x [N, in, H, W] as [N, out, H', W'], or of the user's volumes [N, in, D, H, W]
    library: Callable[[Tensor, LibraryParameters, Ends], Tensor]
    taps: float  # multiply-adds for each input pixel, input and output channel; of windows of several sizes for 3×3
    tile_types: tuple[type[Tile], ...]  # the classes of `candidates`
    # a weight in torch's own shape as the kernel reads it; None for a kernel without weights
    pack: Callable[[Tensor], Tensor] | None = None
    out_axis: int = 1  # of the packed weight, the output channels'
    tap_axis: int | None = None  # of the packed weight, that of a window's taps, whose fp8 errors are balanced
    reads: frozenset[str] = FP16_AND_FP8  # the types in which it reads values
    writes: frozenset[str] = FP16_AND_FP8  # the types in which it stores values
    # what its epilogue does beyond scale, bias and an activation of one slope, as `Epilogue.parts` names it
    folds: frozenset[str] = frozenset()
    reads_image: bool = False  # whether it reads the network's input as the user gives it, fp32 and planar
    writes_logits: bool = False  # whether it stores the network's answer, fp32 and planar, and nothing else
    takes_second: bool = False
    most_channels: tuple[int | None, int | None] = (None, None)  # input and output; None for any number
    phases: int = 1  # 2 where its statistics are of one phase's pixels each
    growth: float = 1  # output pixels for each input pixel along a side
    growth_deep: float = 1  # of volumes, output slices for each input slice
    by_channel: bool = False  # whether each output channel is made of the input's channel of its number alone
    width: int | None = None  # of groups, how many input channels are multiplied for each output channel

    def flops(self, shape: tuple[int, ...], outer: int) -> float:
        """Return the operations, 2 for a multiply-add, for an input [batch, in, ...] and `outer` output channels."""
        batch, inner, *size = shape
        pairs = inner if self.by_channel else (self.width or inner) * outer
        return 2.0 * self.taps * batch * math.prod(size) * pairs


def convolution(x: Tensor, parameters: LibraryParameters, ends: Ends, *, stride: int = 1, edge: int = 1) -> Tensor:
    """Return the convolution of x with bias, residual and activation, [N, out, H', W']; with `edge` 0 without padding.

    With a ReLU it is one kernel on a GPU in fp16; else residual and activation are kernels of their own.
    """
    x, (weight, bias), apart = _as_weights(x, parameters), parameters, ends.dilation
    padding = (weight.shape[2] - 1) // 2 * apart * edge
    if ends.padding_mode != "zeros":
        x, padding = continued(x.permute(0, 2, 3, 1), padding, ends.padding_mode).permute(0, 3, 1, 2), 0
    geometry = ([stride] * 2, [padding] * 2, [apart] * 2, x.shape[1] // weight.shape[1])
    if ends.activation == RELU and x.is_cuda and x.dtype == torch.float16:
        if ends.residual is None:
            fused: Tensor = torch.cudnn_convolution_relu(x, weight, bias, *geometry)
            return fused
        added: Tensor = torch.cudnn_convolution_add_relu(x, weight, ends.residual.to(x.dtype), 1.0, bias, *geometry)
        return added
    return ended(torch.conv2d(x, weight, bias, *geometry), ends)


def by_layer(
    x: Tensor, parameters: LibraryParameters, ends: Ends, *, layer: Callable[..., Tensor], **geometry: Any
) -> Tensor:  # fmt: skip
    """Return torch's `layer` of x with its epilogue; of volumes [N, out, D' · H', W'], also for x [N, in, D, H, W]."""
    x = _as_weights(x, parameters)
    if parameters.weight.ndim == 4:
        return ended(layer(x, *parameters, **geometry), ends)
    volumes = x if x.ndim == 5 else x.unflatten(2, (ends.slices, -1))
    return ended(layer(volumes, *parameters, **geometry).flatten(2, 3), ends)


transposed_convolution = partial(by_layer, layer=functional.conv_transpose2d, stride=2)
volume_convolution = partial(by_layer, layer=functional.conv3d, padding=1)


def _as_weights(x: Tensor, parameters: LibraryParameters) -> Tensor:
    last = torch.channels_last if x.ndim == 4 else torch.channels_last_3d
    return x.to(parameters.weight.dtype, memory_format=last)


def ended(y: Tensor, ends: Ends) -> Tensor:
    """Return y [N, out, H, W] with its residual and its activation."""
    if ends.residual is not None:
        y = y + ends.residual.to(y.dtype)
    return ends.activation(y, None if ends.slopes is None else ends.slopes.to(y.dtype)[:, None, None])
