"""Chooses for each operation the fastest of the project's tiles and the library, measured on real values."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pipeline.kernels.tuning import Tuner
from pipeline.rewrites.graph import Node
from pipeline.rewrites.layers import Layer, Outputs
from pipeline.rewrites.program import OURS, Program, Values


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
        if node.op not in OURS or node.op == "upsample2x":
            step(values)
            continue
        layer = program.layers[node.name]
        x = program.read(values[node.inputs[0]], node)
        outputs = program.outputs(values, node)
        chosen[node.name] = tuner.best(
            key(node, x, outputs, layer), layer.candidates(x, outputs), partial(layer.run, x, outputs)
        )
        layer.run(x, outputs, chosen[node.name])
    return chosen


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
