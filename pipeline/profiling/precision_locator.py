"""The module at which half precision goes wrong: both networks are run side by side and bisected level by level.

The children of the network are compared in the order in which they run; the first that goes wrong is looked into in the
same way, down to a module none of whose own children does.
"""

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from pipeline.compiler.network_calls import without_tf32
from pipeline.profiling.layers import level
from pipeline.records.diagnostics import PrecisionFault

JUMP = 8.0  # times by which an error must exceed every one before it, and the precision's own rounding
ROUNDING = {"fp16": 2.0**-11, "bf16": 2.0**-8}  # unit roundoff of the two formats
Half = Literal["fp16", "bf16"]
Forward = Callable[[], object]


class Side(NamedTuple):
    """One of the two networks."""

    net: nn.Module
    forward: Forward  # runs it on the batch


class Output(NamedTuple):
    """The answer of one call of a module."""

    name: str
    values: Tensor  # any shape, fp32, on the CPU
    input_magnitude: float | None


class Wrong(NamedTuple):
    """The first output that goes wrong."""

    exact: Output
    error: float | None  # None if it overflows
    before: float


def alike(one: nn.Module, other: nn.Module) -> bool:
    """Return whether two networks have the same modules under the same names."""
    types = [{name: type(part) for name, part in net.named_modules()} for net in (one, other)]
    return types[0] == types[1]


def locate(exact: Side, half: Side, precision: Half) -> PrecisionFault | None:
    """Return the first and smallest module at which half precision goes wrong; None if its error grows slowly."""
    path, found, before = "", None, ROUNDING[precision]
    while True:
        with without_tf32():  # which is as coarse as fp16
            expected = outputs(exact, path)
        wrong = first_wrong(expected, outputs(half, path), before)
        if wrong is None:
            break
        path, found, before = wrong.exact.name, wrong, wrong.before
    if found is None:
        return None
    return PrecisionFault(
        module=path,
        level=level(path),
        kind="overflow" if found.error is None else "error jump",
        precision=precision,
        magnitude=float(found.exact.values.abs().max()),
        input_magnitude=found.exact.input_magnitude,
        error=found.error,
        error_before=found.before,
    )


def first_wrong(expected: list[Output], got: list[Output], before: float) -> Wrong | None:
    """Return the first of the outputs that overflows, or whose error jumps."""
    for exact, half in zip(expected, got, strict=False):
        if exact.name != half.name or exact.values.shape != half.values.shape:
            return None
        if bool((exact.values.isfinite() & ~half.values.isfinite()).any()):
            return Wrong(exact, None, before)
        size = float(exact.values.norm())
        error = float((half.values - exact.values).norm()) / size if size else 0.0
        if error > JUMP * before:
            return Wrong(exact, error, before)
        before = max(before, error)
    return None


def outputs(side: Side, path: str) -> list[Output]:
    """Return what each child of the module at `path` gave, call by call."""
    seen: list[Output] = []

    def keep(name: str, inputs: tuple[object, ...], answer: object) -> None:
        if isinstance(answer, Tensor) and answer.is_floating_point():
            taken = [float(part.abs().max()) for part in inputs if isinstance(part, Tensor) and part.numel()]
            seen.append(Output(name, answer.detach().float().cpu(), max(taken, default=None)))

    handles = [
        part.register_forward_hook(lambda _, inputs, answer, name=name: keep(name, inputs, answer))
        for name, part in children(side.net.get_submodule(path), path)
    ]
    try:
        with torch.inference_mode():
            side.forward()
    finally:
        for handle in handles:
            handle.remove()
    return seen


def children(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    """Return the modules that a module may call, with their paths in the network; lists of modules are opened."""
    for name, part in module.named_children():
        below = f"{path}.{name}".lstrip(".")
        if isinstance(part, nn.ModuleList | nn.ModuleDict):
            yield from children(part, below)
        else:
            yield below, part
