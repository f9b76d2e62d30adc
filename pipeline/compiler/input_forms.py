"""Inputs of the one form that a net was built for: a file that bundles carry.

Torch itself asks nothing: `copy_` repeats one image over a batch, and a package of AOTInductor reads beyond its input.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Size, Tensor

Form = tuple[Size, torch.dtype, torch.device]


def form_of(part: Tensor) -> Form:
    """Return shape, type and device of a tensor of any shape."""
    return part.shape, part.dtype, part.device


def said(form: Form) -> str:
    """Return a form in words, such as "[8, 3, 64, 64] float32 on cuda:0"."""
    shape, dtype, device = form
    return f"{list(shape)} {str(dtype).removeprefix('torch.')} on {device}"


def check_forms(inputs: Sequence[Tensor], forms: list[Form]) -> None:
    """Raise ValueError, which says which one, where inputs aren't of these forms; some 0.3 µs where they are."""
    if [(part.shape, part.dtype, part.device) for part in inputs] == forms:
        return
    if len(inputs) != len(forms):
        raise ValueError(f"{len(inputs)} inputs, and this network was built for {len(forms)}")
    found = map(form_of, inputs)
    number, one, other = next((n, *pair) for n, pair in enumerate(zip(found, forms, strict=True)) if pair[0] != pair[1])
    raise ValueError(f"input {number} is {said(one)}, and this network was built for {said(other)}")


def for_these_alone(call: Callable[..., Tensor], forms: list[Form]) -> Callable[..., Tensor]:
    """Return a call on contiguous inputs of these forms, checked by `check_forms`; others are copied."""

    def run(*inputs: Tensor) -> Tensor:
        check_forms(inputs, forms)
        return call(*(part.contiguous() for part in inputs))

    return run
