"""The activations that a kernel can end in: the operation of a net, the reference and the kernels' expression of each.

To add one, write its expression below and its line in `ACTIVATIONS`. Triton and Gluon compile the same expression.
"""

from collections.abc import Callable
from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional


@triton.jit
def larger(a, b):
    """The maximum of two tensors of one shape, or of a tensor and a number; a NaN stays, as torch keeps it."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _unchanged(y, slope):
    return y


@triton.jit
def _relu(y, slope):
    return larger(y, 0.0)


@triton.jit
def _leaky_relu(y, slope):
    return tl.where(y > 0.0, y, y * slope)


@triton.jit
def _silu(y, slope):
    return y / (1.0 + tl.exp(-y))


@dataclass(frozen=True)
class ActivationKind:
    """One line of the table.

    Attributes:
        aten: the operation of a net that it stands for; "" for none.
        reference: of a tensor of any shape and the slope, in plain PyTorch.
        expression: the same as a function of Triton.
        default_slope: the operation's slope where the net names none; None for an activation without a slope.
        homogeneous: whether f(s · y) = s · f(y) for every s > 0.
    """

    aten: str
    reference: Callable[[Tensor, float], Tensor]
    expression: object
    default_slope: float | None = None
    homogeneous: bool = False


ACTIVATIONS: dict[str, ActivationKind] = {
    "none": ActivationKind("", lambda y, _: y, _unchanged, homogeneous=True),
    "relu": ActivationKind("aten.relu.default", lambda y, _: y.relu(), _relu, homogeneous=True),
    "leaky_relu": ActivationKind(
        "aten.leaky_relu.default", functional.leaky_relu, _leaky_relu, default_slope=0.01, homogeneous=True
    ),
    "silu": ActivationKind("aten.silu.default", lambda y, _: functional.silu(y), _silu),
}


@dataclass(frozen=True)
class Activation:
    """An activation of the table with its slope for negative values, where it has one."""

    name: str = "none"
    slope: float = 0.0

    def __call__(self, y: Tensor) -> Tensor:
        """The activation of y, a tensor of any shape and floating dtype, in a tensor of the same shape."""
        return ACTIVATIONS[self.name].reference(y, self.slope)

    @property
    def is_homogeneous(self) -> bool:
        """Whether f(s · y) = s · f(y) for every s > 0, so that a scale may be applied before it."""
        return ACTIVATIONS[self.name].homogeneous

    @property
    def expression(self) -> object:
        """The function that a kernel takes as its constant ACTIVATION and calls with the slope."""
        return ACTIVATIONS[self.name].expression

    def __str__(self) -> str:
        """As a tuner's key and a benchmark name it."""
        return self.name if ACTIVATIONS[self.name].default_slope is None else f"{self.name} {self.slope:g}"


NONE = Activation()
RELU = Activation("relu")
