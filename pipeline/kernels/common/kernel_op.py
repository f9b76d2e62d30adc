"""A kernel's description of itself: the layers that it takes, and its packing, launch and candidates."""

import math
from collections.abc import Callable, Iterator
from dataclasses import Field, dataclass
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from pipeline.kernels.common.activation import Activation

CHANNELS, CHANNELS_IN_FP8 = 8, 16  # TMA moves rows of 16 bytes: multiples of so many channels in fp16 and in fp8
FP16_AND_FP8 = frozenset({"fp16", "fp8"})
NO_WEIGHT = torch.empty(0)  # of a kernel that has none


class Tile(Protocol):
    """A cut of the work: a dataclass of the kernel's own, by whose name a saved net finds it."""

    kernel: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Field[object]]]


class LibraryParameters(NamedTuple):
    """A layer's weight in torch's own shape, channels_last, and its bias [out], both in the compute dtype."""

    weight: Tensor
    bias: Tensor


class Ends(NamedTuple):
    """The operations after a layer's sums, for the library.

    Attributes:
        activation: of the result.
        slopes: [out], of an activation that has one for each channel.
        residual: [N, out, H', W'], added before the activation.
        slices: of how many the input is made, one below the other: a volume's depth, 1 for an image.
        dilation: how many pixels apart the window's taps are.
    """

    activation: Activation
    slopes: Tensor | None = None
    residual: Tensor | None = None
    slices: int = 1
    dilation: int = 1


class SecondSource(NamedTuple):
    """A layer's second input, and its contribution at the border.

    Attributes:
        map: [N, 2 h, 2 w, skip], at the output's resolution; None for an up-sampling without a skip. Of a kernel that
            multiplies its input by a factor for each image and channel these, [N, 1, 1, in].
        weight: [9, out, skip]; None without a map.
        border: [3, 3, out] fp32; None for nothing.
    """

    map: Tensor | None = None
    weight: Tensor | None = None
    border: Tensor | None = None


@dataclass(frozen=True)
class LayerDescription:
    """A layer of a net, as far as a kernel decides by it whether to take the layer.

    Attributes:
        kind: "conv2d", "conv_transpose2d" or "upsample_bilinear2d".
        inner: input channels.
        outer: output channels.
        in_size: height and width of the input.
        out_size: height and width of the output.
        reads_image: whether the input is the network's own, or that padded.
    """

    kind: str
    inner: int
    outer: int
    in_size: tuple[int, int]
    out_size: tuple[int, int]
    window: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    output_padding: tuple[int, int] = (0, 0)
    groups: int = 1
    align_corners: bool = False
    reads_image: bool = False

    def is_square(self, window: int, stride: int, padding: int) -> bool:
        """Return whether a convolution has this window, stride and padding both ways, and nothing unusual."""
        return (
            self.window == (window, window)
            and self.stride == (stride, stride)
            and self.padding == (padding, padding)
            and self.dilation == (1, 1)
            and self.output_padding == (0, 0)
            and self.groups == 1
        )

    @property
    def suits_bulk_copies(self) -> bool:
        """Return whether input and output channels are multiples that TMA moves in fp16; `fp8_values` asks for more."""
        return self.inner % CHANNELS == 0 and self.outer % CHANNELS == 0


def flops_of(taps: float) -> Callable[[tuple[int, ...], int], float]:
    """Return a function that counts FLOPs: of an input's shape [batch, in, ...] and the output channels.

    Each pixel, input channel and output channel costs `taps` multiply-adds of 2 FLOPs.
    """

    def flops(shape: tuple[int, ...], outer: int) -> float:
        return 2.0 * taps * math.prod(shape) * outer

    return flops


@dataclass(frozen=True)
class KernelOp:
    """A kernel with all that the compiler, the tuner, the stages and the tests need to know of it.

    Attributes:
        name: of the operation in a rewritten graph.
        accepts: whether it takes a layer; None for a kernel of several layers, which a pass of its own finds.
        reference: what it computes, in plain PyTorch on any device: of x [N, H, W, in] (of a kernel that reads the
            image: [N, in, H, W]), the packed weight, an epilogue and the outputs.
        launch: the same by the kernel, with one of `candidates`; the first of them for None. It raises ValueError where
            a shape, dtype or stride isn't as the kernel takes it.
        candidates: the tiles worth measuring for the operands of `reference`, the likeliest first: also what is stored
            takes a program's shared memory.
        library: the sums with bias and activation by the library, of x [N, in, H, W] as [N, out, H', W']; of volumes
            that are read as the user gives them x is [N, in, D, H, W].
        flops: operations, 2 for a multiply-add, for an input of such a shape and `out` channels.
        tile_types: the classes of `candidates`.
        pack: a weight in torch's own shape as the kernel reads it; None for a kernel without weights.
        weight_shape: of in and out channels, torch's own shape of the weight.
        out_axis: of the packed weight, the axis of the output channels.
        tap_axis: of the packed weight, the axis of the taps of a window, whose fp8 errors are balanced; None for none.
        reads: the types in which it reads values.
        writes: the types in which it stores values.
        folds: what its epilogue does beyond scale, bias and an activation of one slope, as `Epilogue.parts` names it.
        reads_image: whether it reads the network's input as the user gives it, fp32 and planar.
        writes_logits: whether it stores the network's answer, fp32 and planar, and nothing else.
        takes_second: whether `reference`, `launch` and `candidates` take a `SecondSource` after the outputs.
        most_channels: how many input and output channels it takes; None for any number.
        phases: 2 where its statistics are of one phase's pixels each, as `block_statistics` has it.
        growth: output pixels for each input pixel along a side.
        growth_deep: of volumes, output slices for each input slice.
        by_channel: whether each output channel is made of the input's channel of its number alone.
    """

    name: str
    accepts: Callable[[LayerDescription], bool] | None
    reference: Callable[..., None]
    launch: Callable[..., None]
    candidates: Callable[..., Iterator[Tile]]
    library: Callable[[Tensor, LibraryParameters, Ends], Tensor]
    flops: Callable[[tuple[int, ...], int], float]
    tile_types: tuple[type[Tile], ...]
    pack: Callable[[Tensor], Tensor] | None = None
    weight_shape: Callable[[int, int], tuple[int, ...]] | None = None
    out_axis: int = 1
    tap_axis: int | None = None
    reads: frozenset[str] = FP16_AND_FP8
    writes: frozenset[str] = FP16_AND_FP8
    folds: frozenset[str] = frozenset()
    reads_image: bool = False
    writes_logits: bool = False
    takes_second: bool = False
    most_channels: tuple[int | None, int | None] = (None, None)
    phases: int = 1
    growth: float = 1
    growth_deep: float = 1
    by_channel: bool = False
