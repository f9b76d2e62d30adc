"""Operands of the kernels of the first convolution, and the width of a packed window."""

from typing import NamedTuple

from torch import Tensor

from pipeline.kernels.common.epilogue import Epilogue
from pipeline.kernels.common.nhwc import next_power_of_two

MOST_CHANNELS, MOST_ENTRIES = 14, 256  # beyond, the gather is dearer than a padded copy in NHWC
WINDOWS, STRIDES = (3, 5, 7), (1, 2)


class Operands(NamedTuple):
    """The arguments of `conv_first.conv_first`, checked: out [N, H', W', out], statistics [N, blocks, 2, out].

    The image is [N, in, H, W], or volumes [N / D, in, D, H, W], of whose slices the N outputs are.
    """

    image: Tensor
    weight: Tensor
    epilogue: Epilogue
    out: Tensor
    statistics: Tensor | None = None

    @property
    def stride(self) -> int:
        """Of the convolution, 1 or 2: the output's size tells it."""
        return stride_of(tuple(self.image.shape[-2:]), tuple(self.out.shape[1:3]))

    @property
    def deep(self) -> int:
        """Return how many slices a window reaches over: 3 of volumes, else 1."""
        return 3 if self.image.ndim == 5 else 1

    @property
    def slices(self) -> int:
        """Of each volume; 1 of images."""
        return self.image.shape[2] if self.deep == 3 else 1


def stride_of(size: tuple[int, ...], out_size: tuple[int, ...]) -> int:
    """Return the stride, 1 or 2, of a padded convolution that makes an output of `out_size` of an image of `size`.

    Raises:
        ValueError: neither does.
    """
    for stride in STRIDES:
        if tuple(-(-side // stride) for side in size) == out_size:
            return stride
    raise ValueError(f"out must have the height and width {list(size)} or half of it, got {list(out_size)}")


def margin(window: int) -> int:
    """Return how many columns left of its pixel a packed window begins: its padding, made even for loads of pairs."""
    return window // 2 + window // 2 % 2


def span(window: int) -> int:
    """Return how many columns a packed window has: a power of two."""
    return next_power_of_two(window + window // 2 % 2)
