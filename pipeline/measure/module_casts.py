"""Modules that take their floating tensors in one precision, whatever the net hands them."""

from collections.abc import Collection

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

CAST_OWN_VALUES = "fp32 values of the net's own cast where they meet weights"  # what is said of such a net


def takes_in(module: nn.Module, dtype: torch.dtype) -> RemovableHandle:
    """Let a module take its floating tensors, of any shape, in that precision; what takes the cast away again."""

    def cast(value: object) -> object:
        return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value

    def before(
        _: nn.Module, args: tuple[object, ...], named: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        return tuple(map(cast, args)), {name: cast(value) for name, value in named.items()}

    return module.register_forward_pre_hook(before, with_kwargs=True)


def cast_before_weights(
    net: nn.Module, dtype: torch.dtype, left_out: Collection[nn.Module] = ()
) -> list[RemovableHandle]:
    """Let each module with weights or buffers of its own, but those left out, take its floating tensors in a precision.

    So runs a net in half precision that makes fp32 values in its forward, such as a grid of positions, a time's sines
    or a softmax in fp32, which torch's layers don't take beside their weights. What takes the casts away again.
    """
    return [
        takes_in(part, dtype)
        for part in net.modules()
        if part not in left_out and any(True for _ in (*part.parameters(recurse=False), *part.buffers(recurse=False)))
    ]
