"""In a plain torch.compile the kernel takes the convolutions that it can, and nothing else changes."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._inductor.utils import run_and_get_code
from torch._subclasses.fake_tensor import FakeTensorMode

from pipeline.compiler.post_grad_pass import CONVOLUTION, Convolutions, kernels_in_torch_compile, takes
from tests.process_state import own_switches


@pytest.fixture
def switched_on() -> Iterator[None]:
    with own_switches():
        kernels_in_torch_compile()
        yield
        kernels_in_torch_compile(wanted=False)


def half_image(*size: int) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(1)).half().to(memory_format=torch.channels_last)


@pytest.mark.slow
@pytest.mark.usefixtures("switched_on")
def test_a_compiled_net_calls_the_kernel_and_answers_as_before() -> None:
    """Two convolutions, one of them with a ReLU, which is the operation's: two calls, and no kernel for the ReLU."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 16, 3, padding=1, bias=False))
    net, batch = net.eval().half().to(memory_format=torch.channels_last), half_image(2, 16, 9, 12)  # type: ignore[call-overload, unused-ignore]
    with torch.no_grad():
        want = net(batch)
        torch._dynamo.reset()
        got, programs = run_and_get_code(torch.compile(net), batch)
    assert programs[-1].count("torch.ops.unet_ladder.conv3x3.default(") == 2
    assert "'relu'" in programs[-1]
    assert float((got - want).norm() / want.norm()) < 5e-3


def convolution(dtype: torch.dtype = torch.float16, *, nhwc: bool = True, **options: Any) -> fx.Node:
    """A graph's one convolution, as Inductor's pass sees it."""
    inner, outer, stride = options.get("inner", 16), options.get("outer", 16), options.get("stride", 1)
    layout = torch.channels_last if nhwc else torch.contiguous_format
    graph = fx.Graph()
    with FakeTensorMode():
        x, weight = graph.placeholder("x"), graph.placeholder("weight")
        x.meta["val"] = torch.empty(1, inner, 8, 8, dtype=dtype).to(memory_format=layout)
        weight.meta["val"] = torch.empty(outer, inner, 3, 3, dtype=dtype).to(memory_format=layout)
        rest = (None, [stride] * 2, [1, 1], [1, 1], False, [0, 0], 1)
        conv = graph.call_function(torch.ops.aten.convolution.default, (x, weight, *rest))
        conv.meta["val"] = torch.ops.aten.convolution.default(x.meta["val"], weight.meta["val"], *rest)
    graph.output(conv)
    return conv


def test_it_takes_what_the_kernel_takes() -> None:
    assert takes(convolution())
    assert not takes(convolution(torch.float32))
    assert not takes(convolution(nhwc=False))
    assert not takes(convolution(stride=2))
    assert not takes(convolution(inner=12))
    assert not takes(convolution(outer=20))


def test_what_it_does_not_take_stays_as_it_was() -> None:
    graph = convolution(stride=2).graph
    before = str(graph)
    Convolutions()(graph)
    assert str(graph) == before
    assert CONVOLUTION in before


def test_another_pass_is_not_pushed_aside() -> None:
    with torch._inductor.config.patch(post_grad_custom_pre_pass=print), pytest.raises(RuntimeError, match="already"):
        kernels_in_torch_compile()
    assert torch._inductor.config.post_grad_custom_pre_pass is None
