"""What a plain torch.compile makes of a net by the pass of the kernels, without Inductor's code: the graph is run."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.decomposition import select_decomp_table

from pipeline.compiler.post_grad_pass import Convolutions


class Rewritten(NamedTuple):
    """A net's answer by its rewritten graph, and that graph."""

    answer: Tensor
    graph: fx.Graph

    @property
    def operations(self) -> list[dict[str, Any]]:
        """The kernels' operations in order: name and what it is called with."""
        found = [node for node in self.graph.nodes if "auto_functionalized" in str(node.target)]
        return [{"name": str(node.args[0]).split(".")[1], **node.kwargs} for node in found]

    @property
    def names(self) -> list[str]:
        """The names of the operations alone."""
        return [operation["name"] for operation in self.operations]


def rewritten(net: nn.Module, *inputs: Tensor, dynamic: bool = False, leave: Sequence[str] = ()) -> Rewritten:
    """A net compiled for its inputs, the pass on the graph that Inductor would get, the operations by reference."""
    graphs: list[fx.Graph] = []

    def compiled(module: fx.GraphModule, _: Sequence[Any]) -> fx.GraphModule:
        Convolutions(anywhere=True, leave=leave)(module.graph)
        module.graph.lint()
        module.recompile()
        graphs.append(module.graph)
        return module

    backend = aot_autograd(fw_compiler=compiled, inference_compiler=compiled, decompositions=select_decomp_table())
    torch._dynamo.reset()
    with torch.no_grad():
        answer = torch.compile(net, backend=backend, dynamic=dynamic)(*inputs)
    return Rewritten(answer, graphs[-1])


def half_net(*layers: nn.Module) -> nn.Module:
    """Layers one after the other in fp16, channels_last and eval mode, norms with statistics of their own."""
    net: nn.Module = nn.Sequential(*layers).eval()
    generator = torch.Generator().manual_seed(2)
    for norm in (module for module in net.modules() if isinstance(module, nn.BatchNorm2d)):
        for part in (norm.running_mean, norm.running_var, norm.weight, norm.bias):
            if part is not None:
                part.data.uniform_(0.5, 2.0, generator=generator)
    return net.half().to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return, unused-ignore]


def half_image(*size: int) -> Tensor:
    """Random values [N, C, H, W] in fp16 and channels_last."""
    return torch.randn(*size, generator=torch.Generator().manual_seed(1)).half().to(memory_format=torch.channels_last)


def error(net: nn.Module, answer: Tensor, *inputs: Tensor) -> float:
    """The relative L2 distance of an answer from that of a net of fp16 computed in fp32."""
    with torch.no_grad():
        want = net.float()(*[part.float() for part in inputs])
        net.half()
    return float((answer.float() - want).norm() / want.norm())
