"""Walks over the layers of random nets' lowered graphs with what their kernels would be given."""

import random
from collections.abc import Callable, Iterator

import torch
from torch import fx

from pipeline.compiler.batch import Batch
from pipeline.compiler.custom_ops import KernelCall, kernel_call
from pipeline.compiler.fp8_values import fp8_groups
from pipeline.compiler.lowering import Plan, lower
from pipeline.kernels.common.kernel_op import KernelOp, Tile
from tests.random_nets.draw import Draw
from tests.random_nets.net import random_net
from tests.random_nets.trial import rewritten

Meet = Callable[[KernelOp, KernelCall, list[Tile]], None]


class LayerWalk(fx.Interpreter):
    """Runs a lowered graph but for its layers: `meet` has each, with some of its tiles, and fills the outputs or not.

    Attributes:
        drawn: chooses the tiles.
        tiles: how many of a layer's, at the most.
    """

    def __init__(self, module: fx.GraphModule, meet: Meet, drawn: random.Random, tiles: int) -> None:
        super().__init__(module)
        self.meet, self.drawn, self.tiles = meet, drawn, tiles

    def run_node(self, n: fx.Node) -> object:
        layer = n.meta.get("layer")
        if layer is None:
            return super().run_node(n)
        (x,), given = self.fetch_args_kwargs_from_env(n)
        call = kernel_call(layer.op, {"x": x, **given})
        options = list(call.tiles(layer.op))
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
