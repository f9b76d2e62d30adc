"""ATen's operations by name, and their arguments out of a graph."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pipeline.compiler.graph import UnsupportedError


def aten(name: str) -> Callable[..., Any]:
    """ATen's operation of a name such as "aten.relu.default"; nothing else can be named.

    Raises:
        UnsupportedError: there is none.
    """
    space, _, rest = name.partition(".")
    packet, _, overload = rest.partition(".")
    found = getattr(getattr(torch.ops.aten, packet, None), overload, None) if space == "aten" else None
    if not isinstance(found, torch._ops.OpOverload):
        raise UnsupportedError(f"{name}: no operation of ATen")
    return found


def functional_name(target: object) -> str:
    """The name of what an exported program calls; of an operation in place, that of the one that makes a new tensor.

    Source of the rule: ATen writes in place as `name_`, and as `__iname__` where Python has an operator for it.

    Raises:
        UnsupportedError: it isn't an operation of ATen, or has no form that makes a new tensor.
    """
    name = str(target)
    if not isinstance(target, torch._ops.OpOverload) or not target._schema.is_mutable:
        aten(name)
        return name
    space, packet, overload = name.split(".")
    if packet.startswith("__i") and packet.endswith("__"):
        functional = f"{space}.__{packet[3:]}.{overload}"
    elif packet.endswith("_"):
        functional = f"{space}.{packet[:-1]}.{overload}"
    else:
        raise UnsupportedError(f"{name}: it writes into its argument, and has no form that doesn't")
    aten(functional)
    return functional


@dataclass(frozen=True)
class ArgumentDecoder:
    """What the placeholders in an ATen operation's arguments stand for."""

    inputs: list[Any]
    tensors: dict[str, Tensor]
    device: torch.device

    def decode(self, value: Any) -> Any:
        """Arguments out of JSON."""
        match value:
            case list():
                return [self.decode(part) for part in value]
            case {"input": index}:
                found: Any = self.inputs[index]
            case {"tensor": role}:
                found = self.tensors[role]
            case {"torch": name}:
                found = getattr(torch, name)
            case {"device": True}:
                found = self.device
            case dict():
                found = {key: self.decode(part) for key, part in value.items()}
            case _:
                found = value
        return found
