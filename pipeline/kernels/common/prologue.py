"""What a kernel does with the values that it reads before the products: the norm and activation of a layer before."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.kernels.common.activation import NONE, Activation
from pipeline.kernels.common.nhwc import check_matrix, store


@dataclass(frozen=True)
class Prologue:
    """x' = activation(x · scale + shift), rounded to x's dtype; the zeros around the image come after it, and stay.

    Attributes:
        scale: [N, in] fp32 contiguous, a factor for each image and channel.
        shift: [N, in] fp32 contiguous.
        activation: one whose slope is a number.
    """

    scale: Tensor
    shift: Tensor
    activation: Activation = NONE

    @property
    def key(self) -> str:
        """What two prologues must share to run equally fast: everything but the values."""
        return f"prologue {self.activation}"

    def of(self, x: Tensor) -> Tensor:
        """X' for x [N, H, W, in], in x's shape and dtype, as a kernel rounds it."""
        found = torch.empty_like(x)
        store(self.activation(x.float() * self.scale[:, None, None] + self.shift[:, None, None]), found)
        return found

    def check(self, batch: int, inner: int) -> None:
        """Check it against an input of `batch` images and `inner` channels.

        Raises:
            ValueError: a part isn't as it must be; the text begins with its name.
        """
        check_matrix("prologue.scale", self.scale, (batch, inner))
        check_matrix("prologue.shift", self.shift, (batch, inner))
        if self.activation.by_channel:
            raise ValueError(f"prologue.activation must have one slope for all channels, got {self.activation}")
