"""Chooses for each operation the fastest of the project's tiles and the library, measured on real values."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pipeline.kernels.tuning import NothingRunsError, Tuner
from pipeline.rewrites.graph import Node
from pipeline.rewrites.layers import REFERENCE, Layer, Outputs
from pipeline.rewrites.program import OURS, Program, Values

# How far from its reference a layer's answer may be (relative L2). Right ones are at most 2e-3 off on an H200, where
# another order of sums rounds to another fp8 value; a tile that is wrong misplaces whole boxes.
RIGHT = 2e-2


def choose(program: Program, image: Tensor, tuner: Tuner) -> dict[str, Any]:
    """The choice for every operation of ours, by its name; the program is left as it was.

    Args:
        program: walked through once, each operation on the values that the one before it gave.
        image: a batch as the user gives it.
        tuner: measures, and remembers on disk.
    """
    values: Values = {program.graph.input: image}
    chosen: dict[str, Any] = {}
    for node, step in zip(program.graph.nodes, program.steps, strict=True):
        if node.op not in OURS:
            step(values)
            continue
        layer = program.layers[node.name]
        x = program.read(values[node.inputs[0]], node)
        outputs = program.outputs(values, node)
        chosen[node.name] = settle(layer, key(node, x, outputs, layer), x, outputs, tuner)
    return chosen


def settle(layer: Layer, name: str, x: Tensor, outputs: Outputs, tuner: Tuner) -> Any:
    """The fastest candidate that is right; its answer is left in `outputs`.

    Raises:
        NothingRunsError: there is none.
    """
    options = list(layer.candidates(x, outputs))
    signed = with_random_signs(x)
    while options:
        choice = tuner.best(name, options, partial(layer.run, x, outputs))
        layer.run(signed, outputs, choice)
        if is_right(layer, signed, outputs):
            layer.run(x, outputs, choice)
            return choice
        options.remove(choice)
    raise NothingRunsError(f"{name}: no candidate gives the reference's answer")


def with_random_signs(x: Tensor) -> Tensor:
    """Values of the same size and layout, of either sign: what a tile is checked on.

    After a ReLU all values have one sign, and an fp8 product on Hopper, which keeps some 13 bits of its sums, is then
    off by more than a tile that is right may be.
    """
    signs = torch.randint(0, 2, x.shape, dtype=torch.int8, device=x.device) * 2 - 1
    signed = torch.empty_like(x)
    return signed.copy_(x.float() * signs)


def is_right(layer: Layer, x: Tensor, outputs: Outputs) -> bool:
    """Whether the last image's part of each output is what the reference gives."""
    got = [None if part is None else part[-1:] for part in vars(outputs).values()]
    want = [None if part is None else torch.empty_like(part) for part in got]
    benchmark, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, False  # it runs once: nothing to time
    layer.run(x[-1:], Outputs(*want), REFERENCE)
    torch.backends.cudnn.benchmark = benchmark
    return all(near(ours, theirs) for ours, theirs in zip(got, want, strict=True) if ours is not None)


def near(got: Tensor, want: Tensor | None) -> bool:
    """Whether two tensors agree where the second is finite, and neither is finite where it isn't."""
    assert want is not None
    got, want = got.float(), want.float()
    finite = want.isfinite()
    if not torch.equal(finite, got.isfinite()):
        return False
    got, want = got.where(finite, 0.0), want.where(finite, 0.0)
    return bool((got - want).norm() <= RIGHT * want.norm())


def key(node: Node, x: Tensor, outputs: Outputs, layer: Layer) -> str:
    """What makes two operations the same for the tuner: kind, shapes, types, layout and what the epilogue does."""
    parts = [f"{name} {_layout(part)}" for name, part in vars(outputs).items() if part is not None]
    ends = f"relu {layer.relu}, scaled {layer.alpha is not None}"
    return f"{node.op}: x {_layout(x)}; {'; '.join(parts)}; {ends}"


def _layout(value: Tensor) -> str:
    return f"{list(value.shape)} {list(value.stride())} {str(value.dtype).removeprefix('torch.')}"


def describe(chosen: dict[str, Any]) -> dict[str, str]:
    """The choices in words, for the record."""
    return {name: str(choice) for name, choice in chosen.items()}


def with_choices(program: Program, chosen: dict[str, Any]) -> Program:
    """The same program, its operations run as chosen; weights are packed again."""
    same = replace(program.precision)
    return Program(program.graph, same, program.device, chosen)


def milliseconds(run: Any, calls: int = 20) -> float:
    """Of a call on a GPU, back to back after five to warm up, by CUDA events."""
    for _ in range(5):
        run()
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    before.record()
    for _ in range(calls):
        run()
    after.record()
    torch.cuda.synchronize()
    return float(before.elapsed_time(after)) / calls
