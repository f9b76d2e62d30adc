"""Nets that take tensors within a dict or a tuple, or past arguments that aren't given, called with them one by one."""

import re
from collections.abc import Mapping, Sequence
from inspect import Parameter, Signature

from torch import nn

DOT = "."  # after an argument that is a dict or a tuple: added_cond_kwargs.text_embeds


def argument_of(name: str, arguments: Sequence[str]) -> str:
    """The argument that a tensor of this name is, or is a part of; the name itself where there is none."""
    argument = name.partition(DOT)[0]
    return argument if argument in arguments else name


def with_inputs(net: nn.Module, names: Sequence[str], arguments: Sequence[str]) -> None:
    """Change the net to take tensors of these names one by one, where its class would take them otherwise.

    It becomes one of a class derived from its own, of the same name; its weights keep their names.

    Args:
        net: of any class.
        names: of the tensors, in order. One within an argument is ARGUMENT.KEY, of a tuple ARGUMENT.0, ARGUMENT.1, …
        arguments: of the net's forward, in order.
    """
    placed = list(dict.fromkeys(argument_of(name, arguments) for name in names))
    in_order = [each for each in arguments if each in placed]
    if placed == list(names) and (placed != in_order or placed == list(arguments[: len(placed)])):
        return
    cls = type(net)

    def forward(self: object, *inputs: object) -> object:
        return cls.forward(self, **gathered(dict(zip(names, inputs, strict=True)), placed))

    shown = ["self", *(re.sub(r"\W", "_", name) for name in names)]
    forward.__signature__ = Signature([Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in shown])  # type: ignore[attr-defined]
    net.__class__ = type(
        cls.__name__, (cls,), {"forward": forward, "__module__": cls.__module__, "inputs_taken": tuple(names)}
    )


def gathered(tensors: Mapping[str, object], arguments: Sequence[str]) -> dict[str, object]:
    """What each argument is given: its tensor, or a dict of those called ARGUMENT.KEY, or a tuple where keys count."""
    found: dict[str, object] = {}
    for argument in arguments:
        within = argument + DOT
        parts = {name.removeprefix(within): part for name, part in tensors.items() if name.startswith(within)}
        counted = [parts[str(at)] for at in range(len(parts)) if str(at) in parts]
        found[argument] = tensors.get(argument, tuple(counted) if len(counted) == len(parts) else parts)
    return found


def inputs_taken(net: nn.Module) -> list[str]:
    """The tensors that `with_inputs` had the net take; none of any other net."""
    return list(getattr(type(net), "inputs_taken", ()))
