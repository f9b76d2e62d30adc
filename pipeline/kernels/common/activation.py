"""The activations that a kernel can end in: a network's operation, the reference and the kernels' expression of each.

To add one, write its expression and its entry in `ACTIVATIONS`; an operation with arguments also needs a form, a
function of them that returns the slope, or None. fp8's scale comes before a homogeneous activation. One that is neither
homogeneous nor sloped, such as SiLU, has it as a gain: `gains=True`, `_gained(...)` as the reference, `* slope` in the
expression, and a form that returns 0.0, which is a gain of 1.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional


@triton.jit
def larger(a, b):
    """Return the maximum of two tensors of one shape, or of a tensor and a number; a NaN stays, as torch keeps it."""
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
    return y / (1.0 + tl.exp(-y)) * slope


@triton.jit
def _elu(y, slope):
    return tl.where(y > 0.0, y, slope * (tl.exp(y) - 1.0))


@triton.jit
def _gelu(y, slope):
    # 1 - erf(a) by Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26: at most 1.5e-7 off. The library's
    # erf takes too many instructions: no registers are left beside a tile's sums.
    a = tl.abs(y) * 0.7071067811865476
    t = 1.0 / (1.0 + 0.3275911 * a)
    series = 0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)))
    tail = 0.5 * t * series * tl.exp(-a * a)
    return y * tl.where(y > 0.0, 1.0 - tail, tail) * slope


@triton.jit
def _gelu_tanh(y, slope):
    # (1 + tanh u) / 2 = 1 / (1 + exp(-2 u)), with u = sqrt(2 / pi) (y + 0.044715 y^3); beyond 80 exp would overflow
    return y / (1.0 + tl.exp(tl.minimum(-1.5957691216057308 * (y + 0.044715 * y * y * y), 80.0))) * slope


@triton.jit
def _tanh(y, slope):
    grown = tl.exp(-2.0 * tl.abs(y))  # at most 1: it can't overflow
    value = (1.0 - grown) / (1.0 + grown)
    return tl.where(y < 0.0, -value, value) * slope


@triton.jit
def _hardswish(y, slope):
    return y * tl.minimum(larger(y + 3.0, 0.0), 6.0) * (slope / 6.0)


@triton.jit
def _mish(y, slope):
    # tanh(log(1 + e)) = e (e + 2) / (e (e + 2) + 2); beyond 20 it is 1, and e would overflow
    grown = tl.exp(tl.minimum(y, 20.0))
    product = grown * (grown + 2.0)
    return y * (product / (product + 2.0)) * slope


@dataclass(frozen=True)
class ActivationKind:
    """An entry of the table."""

    aten: str  # a network's operation; several activations may have the same one. "" for none
    # of a tensor of any shape and the slope, which may be a tensor that broadcasts
    reference: Callable[..., Tensor]
    expression: object  # the same as a function of Triton, which a kernel takes as its constant ACTIVATION
    # of the operation's further arguments: the slope, or None if they mean another activation
    form: Callable[..., float | None] = lambda: 0.0
    sloped: bool = False  # whether it has a slope, one for all channels
    by_channel: bool = False  # whether its slope is a vector, the epilogue's `slopes`
    homogeneous: bool = False  # whether f(s · y) = s · f(y) for every s > 0, so that a scale may be applied before it
    gains: bool = False  # whether its slope is a gain instead, which its value is multiplied by


def _gained(activation: Callable[[Tensor], Tensor]) -> Callable[[Tensor, float], Tensor]:
    """Return an activation's expression times a gain, without an operation where the gain is 1."""
    return lambda y, gain: activation(y) if gain == 1.0 else activation(y) * gain


def _gelu_form(*, approximate: str = "none", wanted: str) -> float | None:
    return 0.0 if approximate == wanted else None


GELU, GELU_TANH = "aten.gelu.default", partial(functional.gelu, approximate="tanh")
ACTIVATIONS: dict[str, ActivationKind] = {
    "none": ActivationKind("", lambda y, _: y, _unchanged, homogeneous=True),
    "relu": ActivationKind("aten.relu.default", lambda y, _: y.relu(), _relu, homogeneous=True),
    "leaky_relu": ActivationKind(
        "aten.leaky_relu.default", functional.leaky_relu, _leaky_relu,
        lambda negative_slope=0.01: negative_slope, sloped=True, homogeneous=True,
    ),
    "silu": ActivationKind("aten.silu.default", _gained(functional.silu), _silu, gains=True),
    "gelu": ActivationKind(GELU, _gained(functional.gelu), _gelu, partial(_gelu_form, wanted="none"), gains=True),
    "gelu_tanh": ActivationKind(GELU, _gained(GELU_TANH), _gelu_tanh, partial(_gelu_form, wanted="tanh"), gains=True),
    "elu": ActivationKind(
        "aten.elu.default", functional.elu, _elu,
        lambda alpha=1.0, scale=1.0, input_scale=1.0: alpha if scale == input_scale == 1 else None, sloped=True,
    ),
    "hardswish": ActivationKind("aten.hardswish.default", _gained(functional.hardswish), _hardswish, gains=True),
    "mish": ActivationKind("aten.mish.default", _gained(functional.mish), _mish, gains=True),
    "tanh": ActivationKind("aten.tanh.default", _gained(torch.tanh), _tanh, gains=True),
    # Of PReLU the epilogue holds the slopes.
    "prelu": ActivationKind(
        "aten.prelu.default", lambda y, slopes: y.where(y > 0, y * slopes), _leaky_relu, lambda _, /: 0.0,
        by_channel=True, homogeneous=True,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Activation:
    """An activation of the table with its slope for negative values (ELU: its alpha), or its gain, of which 0 is 1."""

    name: str = "none"
    slope: float = 0.0

    def __post_init__(self) -> None:
        """Make a gain of 1 of none: a network's own operation has none."""
        if self.kind.gains and self.slope == 0.0:
            object.__setattr__(self, "slope", 1.0)

    def __call__(self, y: Tensor, slopes: Tensor | None = None) -> Tensor:
        """Return the activation of y, of any shape, with a slope for each channel in a shape that broadcasts to y's."""
        return self.kind.reference(y, self.slope if slopes is None else slopes)

    @property
    def kind(self) -> ActivationKind:
        """Its entry of the table."""
        return ACTIVATIONS[self.name]

    @property
    def takes_scale(self) -> bool:
        """Return whether its value can be divided by a scale, before it or after."""
        return self.kind.homogeneous or self.kind.gains

    def divided_by(self, scale: float) -> tuple["Activation", float]:
        """Return an activation and a divisor before it that together give its value over a scale that it takes."""
        if scale == 1.0 or self.kind.homogeneous:
            return self, scale
        if not self.takes_scale:
            raise ValueError(f"{self}: takes no scale, got {scale:g}")
        return Activation(self.name, self.slope / scale), 1.0

    def __str__(self) -> str:
        return f"{self.name} {self.slope:g}" if self.kind.sloped else self.name


NONE = Activation()
RELU = Activation("relu")


def recognised(target: str, arguments: Sequence[object], keywords: Mapping[str, object]) -> Activation | None:
    """Return the activation of an operation such as "aten.gelu.default" with these arguments after the tensor, or None.

    Of "aten.prelu.default" the argument is the weight, which the caller expands to the epilogue's `slopes` [out].
    """
    target = target.replace("_.default", ".default")
    for name, kind in ACTIVATIONS.items():
        if kind.aten == target:
            try:
                asked = signature(kind.form).bind(*arguments, **keywords)
            except TypeError:  # arguments that the form doesn't accept
                continue
            if (slope := kind.form(*asked.args, **asked.kwargs)) is not None:
                return Activation(name, float(slope))
    return None
