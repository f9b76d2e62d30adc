"""In a plain torch.compile the kernel takes the convolutions that it can, and nothing else changes."""

import logging
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._inductor.utils import run_and_get_code
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode

from pipeline.compiler import post_grad_pass
from pipeline.compiler.graph.fx_graph import calls
from pipeline.compiler.post_grad_pass import CONVOLUTION, Convolutions, choice_of, kernels_in_torch_compile
from tests.compiler.plain_compile import half_image
from tests.process_state import own_switches


def convolution(dtype: torch.dtype = torch.float16, *, nhwc: bool = True, **options: Any) -> fx.Node:
    inner, outer, stride = options.get("inner", 16), options.get("outer", 16), options.get("stride", 1)
    layout = torch.channels_last if nhwc else torch.contiguous_format
    seen, graph, device = options.get("seen", lambda x: x), fx.Graph(), options.get("device", "cpu")
    with FakeTensorMode():
        x, weight = graph.placeholder("x"), graph.placeholder("weight")
        x.meta["val"] = seen(torch.empty(1, inner, 8, 8, dtype=dtype, device=device).to(memory_format=layout))
        side = options.get("side", 3)
        taps = torch.empty(outer, x.meta["val"].shape[1], side, side, dtype=dtype, device=device)
        weight.meta["val"] = taps.to(memory_format=layout)
        rest = (None, [stride] * 2, [1, 1], [1, 1], False, [0, 0], 1)
        conv = graph.call_function(torch.ops.aten.convolution.default, (x, weight, *rest))
        conv.meta["val"] = torch.ops.aten.convolution.default(x.meta["val"], weight.meta["val"], *rest)
    graph.output(conv)
    return conv


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, ""),
        ({"dtype": torch.float32}, "in float32, not float16"),
        ({"nhwc": False}, "an answer that isn't channels_last"),
        ({"seen": torch.Tensor.contiguous}, "an input that isn't channels_last"),
        ({"stride": 3}, "a window, stride, padding, groups or size that no kernel takes"),
        ({"inner": 20}, "channels that are no multiple of 8"),
        ({"outer": 20}, "channels that are no multiple of 8"),
        ({"seen": lambda x: x[:0]}, "no pixels"),
        ({"seen": lambda x: x[:, 8:24], "inner": 32}, ""),
        ({"seen": lambda x: x.transpose(2, 3)}, ""),
        ({"seen": lambda x: x[:, :, :1, :1]}, ""),
        ({"seen": lambda x: x[:, 3:19], "inner": 24}, "an input"),  # begins at 6 bytes
        ({"seen": lambda x: x[:, :16], "inner": 20}, "an input"),  # steps by 40 bytes
        ({"seen": lambda x: x.expand(3, -1, -1, -1)}, "an input"),
    ],
)
def test_it_takes_what_the_kernel_takes_and_says_why_not(options: dict[str, Any], why: str) -> None:
    """What the kernel would refuse stays with Inductor: once compiled, the net would fail where it is called."""
    choice = choice_of(convolution(**options))
    assert choice.startswith(why) if why else choice.op.name == "conv3x3"


def rewritten(conv: fx.Node, change: Convolutions) -> bool:
    graph = conv.graph
    before = str(graph)
    change(graph)
    return str(graph) != before


def test_it_leaves_what_does_not_run_on_a_gpu_with_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(UserWarning, match=r"all 1 convolutions .* stay with Inductor: 1 on a device without .* \(cpu\)"):
        assert not rewritten(convolution(), Convolutions())
    assert rewritten(convolution(), Convolutions(anywhere=True))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    assert rewritten(convolution(device="cuda"), Convolutions())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    with pytest.warns(UserWarning, match=r"stay with Inductor: 1 compute capability 7.5 has no asynchronous copies"):
        assert not rewritten(convolution(device="cuda"), Convolutions())


def test_what_was_put_in_and_what_was_left_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    graph = convolution().graph
    (conv,) = calls(graph, CONVOLUTION)
    with graph.inserting_after(conv):
        wide = graph.call_function(conv.target, (*conv.args[:3], [3, 3], *conv.args[4:]))  # type: ignore[arg-type]
    with FakeTensorMode():
        wide.meta["val"] = torch.empty(1, 16, 3, 3, dtype=torch.float16).to(memory_format=torch.channels_last)
    with caplog.at_level(logging.INFO, logger=post_grad_pass.__name__):
        Convolutions(anywhere=True)(graph)
        Convolutions(anywhere=True)(fx.Graph())
    no_kernel = "1 a window, stride, padding, groups or size that no kernel takes"
    assert [record.getMessage() for record in caplog.records if record.name == post_grad_pass.__name__] == [
        f"1 of 2 convolutions: 1 conv3x3; with Inductor: {no_kernel}"
    ]


def test_each_form_has_its_own_graphs_in_torch_s_cache_and_none_in_packages() -> None:
    with V.set_aot_compilation(True):
        assert not rewritten(convolution(), Convolutions(anywhere=True))
    forms = (Convolutions(), Convolutions(), Convolutions(anywhere=True), Convolutions(leave=["conv1x1"]))
    assert len({form.uuid() for form in forms}) == 3
    assert pickle.loads(pickle.dumps(Convolutions(anywhere=True))).anywhere


def test_the_switch_may_be_set_twice_and_back() -> None:
    config: Any = torch._inductor.config
    kernels_in_torch_compile()
    kernels_in_torch_compile()
    assert not config.post_grad_custom_pre_pass.anywhere
    kernels_in_torch_compile(leave=["conv1x1"])
    assert config.post_grad_custom_pre_pass.leave == {"conv1x1"}
    kernels_in_torch_compile(wanted=False)
    assert config.post_grad_custom_pre_pass is None


@pytest.mark.long
def test_a_net_whose_answer_has_no_gradient_is_no_training_step() -> None:
    """Called outside no_grad with weights that want gradients: the operation, which refuses them, runs all the same."""

    class Classes(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).argmax(1)

    torch.manual_seed(0)
    net, x = Classes(16, 8, 3, padding=1).half().to(memory_format=torch.channels_last), half_image(1, 16, 8, 8)  # type: ignore[call-overload, unused-ignore]
    torch._dynamo.reset()
    with own_switches(), torch._inductor.config.patch(post_grad_custom_pre_pass=Convolutions(anywhere=True)):
        got, programs = run_and_get_code(torch.compile(net), x)
    assert [program.count("torch.ops.unet_ladder.conv3x3.default(") for program in programs] == [1]
    assert float((got == net(x)).float().mean()) > 0.95


@pytest.mark.parametrize("name", ["conv9x9", "conv_head"])
def test_a_kernel_that_is_not_taken_cannot_be_left_out(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: no kernel that the pass takes; leave any of conv"):
        kernels_in_torch_compile(leave=[name, "conv1x1"])
    assert Convolutions(leave="conv1x1").leave == {"conv1x1"}


def test_another_pass_is_not_pushed_aside() -> None:
    with torch._inductor.config.patch(post_grad_custom_pre_pass=print), pytest.raises(RuntimeError, match="already"):
        kernels_in_torch_compile()
    assert torch._inductor.config.post_grad_custom_pre_pass is None
