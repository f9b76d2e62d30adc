"""Keeps some modules of a net in fp32 while the rest is in half precision."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pipeline.config.request_error import nearest
from pipeline.measure.memory_formats import net_in_dtype
from pipeline.stages.api import StageError


def in_half(net: nn.Module, dtype: torch.dtype, kept: Sequence[str]) -> nn.Module:
    """The net itself in that precision, but for the modules called `kept`, which compute and answer in fp32.

    What they answer stays fp32 until the next module with weights: a value that half precision can't hold is lost no
    sooner than there, and that module may be kept as well.

    Args:
        net: in fp32.
        dtype: of the rest.
        kept: paths of modules.

    Raises:
        StageError: the net has no module of that name, or it is the whole net.
    """
    known = {name: part for name, part in net.named_modules() if name}
    if missing := [name for name in kept if name not in known]:
        raise StageError(f"keep_fp32: the net has no module {missing[0]!r}; {nearest(missing[0], known)}")
    exact = {name: copy.deepcopy(known[name]) for name in kept}
    net_in_dtype(net, dtype)
    inside = {part for module in exact.values() for part in module.modules()}
    for name, module in exact.items():
        parent, _, leaf = name.rpartition(".")
        setattr(net.get_submodule(parent), leaf, module)
        _casts(module, torch.float32)
    if kept:
        for part in net.modules():
            if part not in inside and any(
                True for _ in (*part.parameters(recurse=False), *part.buffers(recurse=False))
            ):
                _casts(part, dtype)
    return net


def _casts(module: nn.Module, dtype: torch.dtype) -> None:
    """Lets a module take its floating tensors in that precision."""

    def cast(value: object) -> object:
        return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value

    def before(
        _: nn.Module, args: tuple[object, ...], named: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        return tuple(map(cast, args)), {name: cast(value) for name, value in named.items()}

    module.register_forward_pre_hook(before, with_kwargs=True)
