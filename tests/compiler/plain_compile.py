"""What a plain torch.compile makes of a net by the pass of the kernels, without Inductor's code: the graph is run.

`LAYERS` are the layers of images that the kernels take.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.decomposition import select_decomp_table

from pipeline.compiler import custom_ops
from pipeline.compiler.post_grad_pass import Convolutions
from pipeline.kernels.common.nhwc import interpreted
from tests.compiler.nets_that_passes_leave import Made

Conv, Up = nn.Conv2d, nn.ConvTranspose2d
# By their kernels' names; whether their height and width must be even.
LAYERS: list[tuple[str, nn.Module, bool]] = [
    ("conv3x3", Conv(16, 24, 3, padding=1), False), ("conv3x3_valid", Conv(16, 24, 3), False),
    ("conv3x3_dilated", Conv(16, 24, 3, padding=2, dilation=2), False),
    ("conv3x3_grouped", Conv(64, 64, 3, padding=1, groups=8), False),
    ("conv3x3_grouped", Conv(72, 72, 3, padding=1, groups=3), False),
    ("conv3x3_grouped_strided", Conv(64, 64, 3, padding=1, groups=8, stride=2), True),
    ("conv3x3_strided", Conv(16, 24, 3, padding=1, stride=2), True),
    ("conv4x4_strided", Conv(16, 24, 4, padding=1, stride=2), True), ("conv3x3_few", Conv(2, 2, 3, padding=1), False),
    ("conv_first", Conv(3, 16, 3, padding=1), False), ("conv_first", Conv(1, 16, 5, padding=2), False),
    ("conv_first_strided", Conv(3, 16, 7, padding=3, stride=2), False), ("conv1x1", Conv(16, 24, 1), False),
    ("conv1x1_strided", Conv(16, 24, 1, stride=2), True), ("depthwise", Conv(16, 16, 3, padding=1, groups=16), False),
    ("depthwise", Conv(16, 16, 7, padding=3, groups=16), False),
    ("depthwise_strided", Conv(16, 16, 5, padding=2, groups=16, stride=2), False),
    ("depthwise_dilated", Conv(16, 16, 3, padding=3, groups=16, dilation=3), False),
    ("upconv2x2", Up(16, 8, 2, 2), False), ("transposed3x3", Up(16, 8, 3, 2, padding=1, output_padding=1), False),
    ("transposed3x3_few", Up(16, 2, 3, 2, padding=1, output_padding=1), False),
    ("transposed4x4", Up(16, 8, 4, 2, padding=1), False),
]  # fmt: skip


class Rewritten(NamedTuple):
    answer: Tensor
    graph: fx.Graph

    @property
    def operations(self) -> list[dict[str, Any]]:
        found = [node for node in self.graph.nodes if "auto_functionalized" in str(node.target)]
        return [{"name": str(node.args[0]).split(".")[1], **node.kwargs} for node in found]

    @property
    def names(self) -> list[str]:
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


def by_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the operations' kernels in Triton's interpreter, with all that they check, where it is on: not on a GPU."""
    if interpreted():
        monkeypatch.setattr(custom_ops, "is_cuda", lambda _: True)
        monkeypatch.setattr(custom_ops, "measured", lambda op, call: next(op.candidates(*call.operands)))


def channels_of(layer: nn.Module) -> tuple[int, int]:
    assert isinstance(layer, Conv | Up)
    return layer.in_channels, layer.out_channels


def half_net(*layers: nn.Module) -> nn.Module:
    """Layers one after the other in fp16, channels_last and eval mode, norms with statistics of their own."""
    net: nn.Module = nn.Sequential(*layers).eval()
    generator = torch.Generator().manual_seed(2)
    for norm in (module for module in net.modules() if isinstance(module, nn.BatchNorm2d)):
        for part in (norm.running_mean, norm.running_var, norm.weight, norm.bias):
            if part is not None:
                part.data.uniform_(0.5, 2.0, generator=generator)
    return net.half().to(memory_format=torch.channels_last)  # type: ignore[call-overload, unused-ignore]


def residual_block() -> nn.Module:
    """A residual block whose shortcut is a 1×1 convolution of stride 2, which its last convolution adds."""
    first = nn.Sequential(Conv(32, 64, 3, 2, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
    last = nn.Sequential(Conv(64, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64, affine=False))
    short = nn.Sequential(Conv(32, 64, 1, 2, bias=False), nn.BatchNorm2d(64))
    return half_net(Made(lambda x, first, last, short: (last(first(x)) + short(x)).relu(), first, last, short))


def half_image(*size: int) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(1)).half().to(memory_format=torch.channels_last)


def error(net: nn.Module, answer: Tensor, *inputs: Tensor) -> float:
    """The relative L2 distance of an answer from that of a net of fp16 computed in fp32."""
    with torch.no_grad():
        want = net.float()(*[part.float() for part in inputs])
        net.half()
    return float((answer.float() - want).norm() / want.norm())
