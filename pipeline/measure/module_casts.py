"""Modules that take their floating tensors in one precision, whatever the net hands them."""

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torch.utils.hooks import RemovableHandle

from pipeline.measure.batch import Batch
from pipeline.measure.one_type import OneType
from pipeline.measure.trial_call import refuses

CAST_OWN_VALUES = "fp32 values of the net's own cast where they meet weights"  # what is said of such a net


def takes_in(module: nn.Module, dtype: torch.dtype, least_axes: int = 0) -> RemovableHandle:
    """Let a module take its floating tensors of so many axes or more in a precision; what takes that away again."""

    def cast(value: object) -> object:
        if isinstance(value, Tensor) and value.is_floating_point() and value.dim() >= least_axes:
            return value.to(dtype)
        return value

    def before(
        _: nn.Module, args: tuple[object, ...], named: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        return tree_map(cast, args), tree_map(cast, named)  # the states of an LSTM are a tuple

    before.casts = True  # type: ignore[attr-defined]
    return module.register_forward_pre_hook(before, with_kwargs=True)


def casts(module: nn.Module) -> bool:
    """Whether it takes its tensors in one precision already."""
    return any(getattr(hook, "casts", False) for hook in module._forward_pre_hooks.values())


def with_weights(net: nn.Module, left_out: Collection[nn.Module] = ()) -> Iterator[nn.Module]:
    """The modules that have weights or buffers of their own, but those left out."""
    for part in net.modules():
        if part not in left_out and (*part.parameters(recurse=False), *part.buffers(recurse=False)):
            yield part


def cast_own_values(whole: nn.Module, net: nn.Module, dtype: torch.dtype, inputs: Batch) -> bool:
    """Let a net cast what it makes itself, where it doesn't run without, but so; whether it does.

    So runs a net in half precision that makes fp32 values in its forward, such as a grid of positions, a time's sines
    or a softmax in fp32, which torch's layers don't take beside their weights. Only torch's layers cast where that
    suffices, so that what the net's own modules compute in fp32 on purpose stays fp32; else all with weights. One
    number a sample, as a time step is, stays as it is. Where no module meets them, as a filter for
    functional.conv2d or the grid of a warp, each function of torch that a net calls is given one type (`OneType`).

    Args:
        whole: calls the net, with casts of the inputs.
        net: in half precision; it is changed.
        dtype: of its weights.
        inputs: of `whole`: a batch [batch, channels, height, width], and what others the net has.
    """
    if dtype == torch.float32 or not refuses(whole, inputs):
        return False
    parts = [part for part in with_weights(net) if not casts(part)]  # as those do that stay in fp32
    of_torch = [part for part in parts if type(part).forward.__module__.startswith("torch.nn.")]
    for change in (partial(_let_cast, of_torch), partial(_let_cast, parts), partial(_run_in_one_type, net)):
        with ExitStack() as changed:
            change(dtype, changed)
            if not refuses(whole, inputs):
                changed.pop_all()
                return True
    return False


def _let_cast(parts: Collection[nn.Module], dtype: torch.dtype, changed: ExitStack) -> None:
    for part in parts:
        changed.callback(takes_in(part, dtype, least_axes=2).remove)


def _run_in_one_type(net: nn.Module, dtype: torch.dtype, changed: ExitStack) -> None:
    forward = net.forward
    net.forward = partial(_in_one_type, forward, dtype)
    changed.callback(setattr, net, "forward", forward)


def _in_one_type(forward: Callable[..., object], dtype: torch.dtype, *inputs: object) -> object:
    with OneType(dtype):
        return forward(*inputs)
