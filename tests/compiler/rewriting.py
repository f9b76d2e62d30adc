"""Nets exported, rewritten and lowered for a test, each exported once."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx, nn

from pipeline.compiler.batch import Batch
from pipeline.compiler.graph.exported_net import ExportedNet, export
from pipeline.compiler.graph.layers import KernelLayer, layer_of
from pipeline.compiler.graph.lowering import Plan, lower
from pipeline.compiler.passes import FOR_ANY_BACKEND, FOR_THE_KERNELS, rewrite
from tests.compiler.nets import NETS, image, lively


@dataclass(frozen=True)
class Exported:
    """A net of the list with its batch, the answer to it, and its graph, which a test may change."""

    module: nn.Module
    batch: Tensor
    wanted: Tensor
    net: ExportedNet

    def error(self, run: Callable[[Tensor], Tensor]) -> float:
        return distance(run, self.batch, self.wanted)


def exported(name: str) -> Exported:
    known = _exported(name)
    return replace(known, net=copied(known.net))


@cache
def _exported(name: str) -> Exported:
    make, size = NETS[name]
    torch.manual_seed(0)
    module, batch = lively(make()), image(*size)
    with torch.no_grad():
        return Exported(module, batch, module(batch), export(module, batch, torch.float32))


def copied(net: ExportedNet) -> ExportedNet:
    return replace(net, module=copy.deepcopy(net.module), matched=dict(net.matched), norms={})


def rewritten(name: str) -> Exported:
    known = _rewritten(name)
    return replace(known, net=copied(known.net))


@cache
def _rewritten(name: str) -> Exported:
    found = exported(name)
    rewrite_all(found.net)
    return found


def rewritten_from(module: nn.Module, batch: Tensor | Batch, dtype: torch.dtype = torch.float32) -> ExportedNet:
    net = export(module, batch, dtype)
    rewrite_all(net)
    return net


@torch.no_grad()
def kept(module: nn.Module, batch: Tensor, limit: float = 1e-3, dtype: torch.dtype = torch.float32) -> ExportedNet:
    """Any net after all passes, whose answer stays what it was within a limit (relative L2) when it is lowered."""
    net = rewritten_from(module.eval(), batch, dtype)
    assert distance(lowered(net), batch, module(batch)) < limit
    return net


def rewrite_all(net: ExportedNet) -> None:
    rewrite(net, FOR_ANY_BACKEND)
    rewrite(net, FOR_THE_KERNELS)


# Of what fp8 costs a net by its references, how far a run may be from those that rounds the same values elsewhere. Sums
# in another order flip roundings, which later layers carry on: 0.5 on a CPU for an image that differs by 1e-4 (three
# nets, two seeds), 0.37 on an H200 for tuned kernels. A layer without its bias is 0.65 and more off, but before a norm
# that takes any bias away.
OTHER_ROUNDINGS = 0.6


def limit_in_fp8(references: Tensor, exact: Tensor) -> float:
    """How far (relative L2) an fp8 net's logits may be from its references', given the fp32 net's, of any shape."""
    return OTHER_ROUNDINGS * float((references - exact).norm() / exact.norm())


def distance(run: Callable[[Tensor], Tensor], batch: Tensor, wanted: Tensor) -> float:
    with torch.no_grad():
        got = run(batch)
    assert got.shape == wanted.shape
    assert got.dtype == torch.float32
    return float((got - wanted).norm() / wanted.norm())


def layers(net: ExportedNet) -> dict[str, KernelLayer]:
    found = {node.name: layer_of(net.module, node) for node in net.module.graph.nodes}
    return {name: layer for name, layer in found.items() if layer is not None}


def called(module: fx.GraphModule) -> list[str]:
    """What a graph calls, in order: "aten.relu.default", "unet_ladder.conv3x3.default", or a submodule's class."""
    return [
        type(module.get_submodule(str(node.target))).__name__ if node.op == "call_module" else str(node.target)
        for node in module.graph.nodes
        if node.op in ("call_function", "call_module")
    ]


def own_calls(module: fx.GraphModule) -> list[str]:
    return [name.split(".")[1] for name in called(module) if name.startswith("unet_ladder.")]


def computing(module: fx.GraphModule) -> set[str]:
    """The operations of ATen in a lowered graph that compute or copy: all but memory and views of it."""
    memory = {"aten.empty_strided.default", "aten.slice.Tensor", "aten.as_strided.default"}
    return {name for name in called(module) if name.startswith("aten.")} - memory


class Calls(fx.Interpreter):
    """Runs a lowered graph, and keeps each of its layers with what its operation is called with."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.seen: list[tuple[KernelLayer, Tensor, dict[str, Any]]] = []

    def run_node(self, n: fx.Node) -> Any:
        if "layer" in n.meta:
            (x,), given = self.fetch_args_kwargs_from_env(n)
            self.seen.append((n.meta["layer"], x, dict(given)))
        return super().run_node(n)


def lowered(net: ExportedNet, **plan: object) -> fx.GraphModule:
    """The graph with the kernels' operations, by references unless the plan names tiles."""
    return lower(net, Plan(**plan))  # type: ignore[arg-type]
