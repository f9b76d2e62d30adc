"""Keeps some modules of a net in fp32 while the rest is in half precision."""

import copy
from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn

from pipeline.config.request_error import nearest
from pipeline.measure.memory_formats import net_in_dtype
from pipeline.measure.module_casts import takes_in, with_weights
from pipeline.stages.api import StageError

KeepFp32 = Literal["auto", "none"] | list[str]  # "auto": where a wrong answer begins, `pipeline.worker.half_retry`


def named_modules(keep_fp32: object) -> list[str]:
    """The paths of modules that an option names; none at first for "auto"."""
    return keep_fp32 if isinstance(keep_fp32, list) else []


def layers_within(net: nn.Module, kept: Sequence[str]) -> list[str]:
    """The modules with weights or buffers of their own that are within those called `kept`, by their first paths."""
    inside = {part for name in kept for part in net.get_submodule(name).modules()}
    own = set(with_weights(net))
    return [name for name, part in net.named_modules() if part in inside & own]


def in_half(net: nn.Module, dtype: torch.dtype, kept: Sequence[str] = ()) -> nn.Module:
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
    known = {name: part for name, part in net.named_modules(remove_duplicate=False) if name}
    if missing := [name for name in kept if name not in known]:
        raise StageError(f"keep_fp32: the net has no module {missing[0]!r}; {nearest(missing[0], known)}")
    inside = {part for name in kept for part in known[name].modules()}
    exact = {part: copy.deepcopy((part._parameters, part._buffers)) for part in inside}
    net_in_dtype(net, dtype)
    for part, held in exact.items():
        part._parameters, part._buffers = held  # in the module itself, which the net may call by another name
    for asked in {known[name] for name in kept}:
        for part in {asked, *with_weights(asked)}:  # the net may call one within by another name
            takes_in(part, torch.float32)
    for part in with_weights(net, inside) if kept else ():
        takes_in(part, dtype)
    return net
