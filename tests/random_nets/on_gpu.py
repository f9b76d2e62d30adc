"""Runs random nets' layers by their kernels on this GPU, each beside its reference on the same operands.

What each of a layer's tiles writes over NaN must be the reference's, and the same bits every time. The next layer reads
what the last of the kernels wrote.
"""

import random
import traceback
from collections.abc import Callable, Iterator

import torch
import triton
from torch import Tensor, fx

from pipeline.compiler.batch import Batch
from pipeline.compiler.custom_ops import KernelCall, kernel_call
from pipeline.compiler.graph.fp8_values import fp8_groups
from pipeline.compiler.graph.lowering import Plan, lower
from pipeline.kernels.common.kernel_op import KernelOp, Tile
from tests.kernels.examples import assert_near
from tests.random_nets.layers import Draw
from tests.random_nets.net import random_net
from tests.random_nets.trial import rewritten

Meet = Callable[[KernelOp, KernelCall, list[Tile]], None]


class LayerWalk(fx.Interpreter):
    """Runs a lowered graph but for its layers: `meet` has each, with some of its tiles."""

    def __init__(self, module: fx.GraphModule, meet: Meet, drawn: random.Random, tiles: int) -> None:
        super().__init__(module)
        self.meet, self.drawn, self.tiles = meet, drawn, tiles

    def run_node(self, n: fx.Node) -> object:
        layer = n.meta.get("layer")
        if layer is None:
            return super().run_node(n)
        (x,), given = self.fetch_args_kwargs_from_env(n)
        call = kernel_call(layer.op, {"x": x, **given})
        options = list(layer.op.candidates(*call.operands))
        self.meet(layer.op, call, self.drawn.sample(options, min(self.tiles, len(options))))
        return None


def graphs_of(seed: int, device: str = "cpu") -> Iterator[tuple[fx.GraphModule, Batch]]:
    """A seed's net lowered in fp16, and with all in fp8 that may be, each with inputs on the device."""
    net, (inputs, _) = random_net(Draw(seed))
    inputs = Batch(tuple(part.to(device) for part in inputs), inputs.names)
    exported = rewritten(net.to(device), inputs, torch.float16)
    values = {value.name: 1.0 for group in fp8_groups(exported, []) for value in group}
    for scales in ({}, values if len(inputs.tensors) == 1 else {}):
        yield lower(exported, Plan(scales)), inputs


class Running:
    def __init__(self, runs: int) -> None:
        self.runs, self.done, self.left_out = runs, 0, 0
        self.failures: list[str] = []

    def __call__(self, op: KernelOp, call: KernelCall, tiles: list[Tile]) -> None:
        op.reference(*call.operands)
        wanted = {name: part.clone() for name, part in call.outputs.given.items()}
        for tile in tiles:
            try:
                self.done += self.tried(op, call, tile, wanted)
            except Exception:  # noqa: BLE001 - it is what is looked for
                self.failures.append(f"{call.key(op)} {tile}\n{traceback.format_exc()[-800:]}")
                op.reference(*call.operands)

    def tried(self, op: KernelOp, call: KernelCall, tile: Tile, wanted: dict[str, Tensor]) -> int:
        """1 for a tile that is right, 0 for one that asks for more of the GPU than it has, which a tuner leaves out."""
        first: dict[str, Tensor] = {}
        multiplied = torch.float16 if op.reads_image else call.x.dtype
        for _ in range(self.runs):
            for part in call.outputs.given.values():
                part.copy_(torch.full_like(part, float("nan"), dtype=torch.float32))
            try:
                op.launch(*call.operands, tile)
            except triton.runtime.errors.OutOfResources:
                self.left_out += 1
                op.reference(*call.operands)
                return 0
            for name, part in call.outputs.given.items():
                if name not in first:
                    assert_near(part, wanted[name], multiplied)
                    first[name] = part.clone()
                assert torch.equal(part.float().nan_to_num(), first[name].float().nan_to_num()), f"{name} differs"
        return 1


@torch.no_grad()
def tried_on_gpu(seed: int, tiles: int, runs: int) -> tuple[str, list[str]]:
    """Run a seed's layers with so many tiles of each, so often each; what was done, and what went wrong."""
    running = Running(runs)
    try:
        for graph, inputs in graphs_of(seed, "cuda"):
            LayerWalk(graph, running, random.Random(seed), tiles).run(*inputs)
    except Exception:  # noqa: BLE001 - the other nets are still to be tried
        running.failures.append(traceback.format_exc()[-1500:])
    return f"{running.done} tiles right, {running.left_out} left out", running.failures
