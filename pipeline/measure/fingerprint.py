"""Whether a tensor, or a net, still holds what it held, without a copy of it."""

import torch
from torch import Tensor, nn

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # bytes of an element to a type of its bits


def held_by(model: nn.Module) -> dict[str, Tensor]:
    """A net's weights and further tensors of any shape, by name; a state dict may hold more (`get_extra_state`)."""
    return {name: part for name, part in model.state_dict().items() if isinstance(part, Tensor)}


def fingerprint(values: Tensor) -> tuple[Tensor, ...]:
    """Sums of the values' bits along each of the last two dimensions of a tensor of any shape and type.

    A value that changes by one bit changes them, and so do two values that change places in a row or a column. They
    wrap around at 64 bits, take a few thousandths of the tensor's memory, and no copy of it.
    """
    bits = torch.view_as_real(values.detach()) if values.is_complex() else values.detach()
    bits = bits.view(torch.uint8) if bits.dtype is torch.bool else bits.view(BITS[bits.element_size()])
    if bits.dim() < 2:
        return (bits.clone(),)
    return bits.sum(-1, dtype=torch.int64), bits.sum(-2, dtype=torch.int64)


def is_same(before: tuple[Tensor, ...], values: Tensor) -> bool:
    """Whether a tensor of any shape has the fingerprint that it had before."""
    now = fingerprint(values)
    return len(before) == len(now) and all(torch.equal(one, other) for one, other in zip(before, now, strict=True))
