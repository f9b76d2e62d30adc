"""Which layers of a plain torch.compile become which operation; they answer as before, and what stays is told."""

import copy
import logging
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._inductor.utils import run_and_get_code
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode

from pipeline.compiler import post_grad_pass
from pipeline.compiler.post_grad_pass import (
    Convolutions,
    choice_of,
    is_by_channel,
    kernels_in_torch_compile,
)
from tests.compiler import plain_compile
from tests.compiler.nets_that_passes_leave import Made
from tests.compiler.plain_compile import LAYERS, Conv, Up, channels_of, error, half_image, half_net, rewritten
from tests.kernels.examples import MODULES
from tests.process_state import own_switches


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    plain_compile.by_the_kernels(monkeypatch)


@pytest.fixture
def any_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post_grad_pass, "SHARE", 1e6)


@pytest.mark.usefixtures("any_copy", "kernels")
@pytest.mark.parametrize(("name", "layer", "even"), LAYERS)
def test_a_layer_becomes_its_kernel_s_operation(name: str, layer: nn.Module, even: bool) -> None:
    inner, outer = channels_of(layer)
    net, x = half_net(copy.deepcopy(layer), nn.BatchNorm2d(outer), nn.SiLU()), half_image(2, inner, 5 + even, 7 + even)
    made = rewritten(net, x)
    assert [(found["name"], found["activation"]) for found in made.operations] == [(name, "silu")]
    assert made.operations[0]["scale"] is not None
    assert not made.graph.find_nodes(op="call_function", target=torch.ops.aten.div.Tensor)
    assert error(net, made.answer, x) < 5e-4


@pytest.mark.usefixtures("any_copy", "kernels")
@pytest.mark.parametrize(("name", "layer", "even"), [one for one in LAYERS if not one[0].startswith("conv_first")])
def test_a_slice_of_channels_is_read_where_it_lies(name: str, layer: nn.Module, even: bool) -> None:
    inner = channels_of(layer)[0]
    net = Made(lambda x, layer: layer(x[:, 8 : 8 + inner]), copy.deepcopy(layer)).half()
    x = half_image(1, 16 + inner, 5 + even, 5 + even)
    made = rewritten(net, x)
    assert made.names == [name]
    assert error(net, made.answer, x) < 5e-4


@pytest.mark.usefixtures("any_copy", "kernels")
@pytest.mark.parametrize(
    ("layer", "seen"),
    [
        (Conv(16, 24, 1), lambda x: x[:, :, 1:, 2:]),
        (Conv(16, 24, 3, padding=1, stride=2), lambda x: x[:, :, :4]),
        (Up(16, 8, 2, 2), lambda x: x[:, :, 1:]),
        (Conv(16, 16, 3, padding=1), lambda x: x[:, :, 1:, 2:]),  # which boxes of any steps will do for
    ],
)
def test_a_part_of_a_picture_is_for_kernels_of_any_steps(layer: nn.Module, seen: Callable[[Tensor], Tensor]) -> None:
    net = half_net(Made(lambda x, layer: layer(seen(x)), copy.deepcopy(layer)))
    x = half_image(2, 16, 6, 8)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        made = rewritten(net, x)
    ours = [one for one in told if str(one.message).startswith("kernels_in_torch_compile")]
    reads = channels_of(layer) == (16, 16)
    assert (made.names, len(ours)) == ((["conv3x3"], 0) if reads else ([], 1))
    assert error(net, made.answer, x) < 5e-4


@pytest.mark.parametrize(
    ("layer", "size"),
    [
        (Conv(16, 16, 5, padding=2), (1, 16, 8, 8)),
        (Conv(16, 16, 3, padding=2), (1, 16, 8, 8)),
        (Conv(16, 16, 3, padding=1, stride=2), (1, 16, 9, 8)),  # an odd height has no parity planes
        (Conv(16, 16, 1), (1, 16, 1, 1)),  # one pixel, as squeeze-and-excitation has it
        (Conv(3, 16, 3, padding=1), (0, 3, 8, 8)),
    ],
)
def test_what_no_kernel_takes_stays(layer: nn.Module, size: tuple[int, ...]) -> None:
    net, x = half_net(copy.deepcopy(layer)), half_image(*size)
    with pytest.warns(UserWarning, match="all 1 convolutions of a graph stay with Inductor: 1 "):
        made = rewritten(net, x)
    assert made.names == []
    assert torch.equal(made.answer, net(x))


@pytest.mark.usefixtures("any_copy")
def test_an_image_in_fp32_is_read_where_it_lies() -> None:
    """A net that casts its image itself, as autocast does: the first layer's operation reads the user's own."""

    net = half_net(Made(lambda image, first: first(image.half()), Conv(3, 16, 3, padding=1)))
    x = torch.randn(1, 3, 9, 13)
    made = rewritten(net, x)
    (found,) = made.operations
    assert (found["name"], found["x"].op) == ("conv_first", "placeholder")
    assert torch.allclose(made.answer, net(x), rtol=2e-3, atol=2e-3)


def test_autocast_has_its_weights_cast_in_the_graph() -> None:
    net = nn.Sequential(Conv(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), Conv(16, 8, 1)).eval()
    net, x = net.to(memory_format=torch.channels_last), half_image(2, 16, 9, 13).float()  # type: ignore[call-overload, unused-ignore]

    def within(image: Tensor, net: nn.Module) -> Tensor:
        with torch.autocast("cpu", torch.float16):
            answer: Tensor = net(image)
        return answer

    made = rewritten(Made(within, net), x)
    assert made.names == ["conv3x3", "conv1x1"]
    want = net(x).detach()
    assert float((made.answer - want).norm() / want.norm()) < 2e-3


def test_a_weight_is_copied_where_that_is_little_beside_the_layer() -> None:
    """A 2×2 transposed convolution's weight has no layout that its kernel reads: 4 KB for 160 bytes a pixel."""
    up = half_net(Up(16, 16, 2, 2))
    with pytest.warns(UserWarning, match="1 a weight that would be laid out anew at each call, for too few pixels"):
        assert rewritten(up, half_image(1, 16, 8, 8)).names == []
    assert rewritten(up, half_image(1, 16, 24, 24)).names == ["upconv2x2"]


@pytest.mark.parametrize("nhwc", [True, False])
def test_a_3x3_weight_in_channels_last_is_not_copied(nhwc: bool) -> None:
    layout = torch.channels_last if nhwc else torch.contiguous_format
    net = half_net(Conv(16, 16, 3, padding=1)).to(memory_format=layout)  # type: ignore[call-overload]
    made = rewritten(net, half_image(2, 16, 64, 64))
    assert made.names == ["conv3x3"]
    copies = made.graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default)
    assert len(copies) == (0 if nhwc else 1)


@pytest.mark.long
@pytest.mark.usefixtures("any_copy")
def test_a_training_step_of_several_kernels_has_the_gradients_of_fp16() -> None:
    """By Inductor: forwards the operations, backwards torch's; as near to fp32 as torch's own in fp16, or nearly."""
    first, up = nn.Sequential(Conv(3, 16, 3, padding=1), nn.ReLU()), nn.Sequential(Up(32, 16, 2, 2), nn.LeakyReLU(0.1))
    middle = nn.Sequential(Conv(16, 16, 3, padding=1, groups=16), nn.BatchNorm2d(16), nn.SiLU(), Conv(16, 32, 3, 2, 1))
    net, x = half_net(first, middle, up, Conv(16, 8, 1)), half_image(2, 3, 16, 12)
    nets = [net, copy.deepcopy(net), copy.deepcopy(net).float()]
    torch._dynamo.reset()

    def gradients(run: Callable[[Tensor], Tensor], of: nn.Module, image: Tensor) -> list[Tensor]:
        run(image).float().square().mean().backward()
        return [part.grad for part in of.parameters() if part.grad is not None]

    with torch._inductor.config.patch(post_grad_custom_pre_pass=Convolutions(anywhere=True)):
        compiled = torch.compile(net)
        found, programs = run_and_get_code(lambda: gradients(compiled, net, x))
    names = ("conv_first", "depthwise", "conv3x3_strided", "upconv2x2", "conv1x1")
    calls = [[program.count(f"torch.ops.unet_ladder.{name}.default(") for name in names] for program in programs]
    assert calls == [[1] * 5, [0] * 5]
    plain, exact = gradients(nets[1], nets[1], x), gradients(nets[2], nets[2], x.float())
    for got, other, want in zip(found, plain, exact, strict=True):
        assert float((got - want).norm()) < 2 * float((other - want).norm()) + 1e-3 * float(want.norm())


def test_a_kernel_can_be_left_out() -> None:
    net, x = half_net(Conv(16, 16, 3, padding=1), Conv(16, 16, 1)), half_image(2, 16, 9, 13)
    assert rewritten(net, x, leave=("conv1x1",)).names == ["conv3x3"]


def test_shapes_that_vary_stay_and_are_told() -> None:
    net, x = half_net(Conv(16, 16, 3, padding=1), nn.ReLU()), half_image(2, 16, 9, 13)
    with pytest.warns(UserWarning, match=r"1 shapes that vary \(dynamic\)"):
        made = rewritten(net, x, dynamic=True)
    assert made.names == []
    assert torch.equal(made.answer, net(x))


Ends = Callable[[Tensor, Tensor], Tensor]


def ended(ends: Ends) -> nn.Module:
    """A 3×3 convolution of 64 channels, and what is made of its answer and its input."""
    conv = nn.Conv2d(64, 64, 3, padding=1, bias=False)
    return half_net(Made(lambda x, conv, norm: ends(norm(conv(x)), x), conv, nn.BatchNorm2d(64)))


def twice(y: Tensor) -> Tensor:
    return torch.cat([y, y.relu()], 1)


@pytest.mark.parametrize(("module", "known"), MODULES)
def test_an_activation_that_torch_takes_apart_is_recognised(module: nn.Module, known: object) -> None:
    act = copy.deepcopy(module)
    if isinstance(act, nn.PReLU):
        act = nn.PReLU(16 if act.num_parameters > 1 else 1)
        nn.init.uniform_(act.weight, 0.1, 0.4)
    net, x = half_net(nn.Conv2d(16, 16, 3, padding=1), act), half_image(2, 16, 9, 13)
    made = rewritten(net, x)
    (found,) = made.operations
    name, slope = ("none", 0.0) if known is None else (known.name, known.slope)  # type: ignore[attr-defined]
    assert (found["name"], found["activation"], found["slope"]) == ("conv3x3", name, slope)
    assert error(net, made.answer, x) < 5e-4


@pytest.mark.parametrize(
    ("ends", "residual", "activation"),
    [
        (lambda y, x: (y + x).relu(), True, "relu"),
        (lambda y, x: nn.functional.gelu(x + y), True, "gelu"),
        (lambda y, x: y + x, True, "none"),
        (lambda y, x: y.relu() + x, False, "relu"),
        (lambda y, x: torch.cat([y, (y + x).relu()], 1), False, "none"),  # the sum before the addition is read, too
        (lambda y, x: twice(y + x), True, "none"),  # and here that after it
        (lambda y, x: nn.functional.silu(y) * nn.functional.relu(y), False, "none"),
        (lambda y, x: y + y, False, "none"),
        (lambda y, x: y + x[:, :, :1], False, "none"),  # broadcast
        (lambda y, x: x - y, False, "none"),
        (lambda y, x: torch.add(y, x, alpha=2), False, "none"),
        (lambda y, x: (y.float() + x.float() * 1.5).relu(), False, "none"),  # added in fp32, what no map of fp16 holds
        (lambda y, x: y.float().relu(), False, "none"),  # the answer is fp32: rounded once, where the layer's is
    ],
)
def test_what_nobody_else_reads_goes_into_the_operation(ends: Ends, residual: bool, activation: str) -> None:
    net, x = ended(ends), half_image(2, 64, 5, 7)
    made = rewritten(net, x)
    (found,) = made.operations
    assert (found["residual"] is not None, found["activation"]) == (residual, activation)
    assert found["scale"] is not None
    assert error(net, made.answer, x) < 1e-3


@pytest.mark.usefixtures("kernels")
def test_a_residual_block_is_three_operations() -> None:
    net, x = plain_compile.residual_block(), half_image(2, 32, 6, 10)
    made = rewritten(net, x)
    assert sorted(made.names) == ["conv1x1_strided", "conv3x3", "conv3x3_strided"]
    maps = [node for node in made.graph.nodes if node.op == "call_function" and "aten.relu" in str(node.target)]
    assert maps == []
    assert error(net, made.answer, x) < 1e-3


def test_a_map_that_is_added_as_it_is_transposed_stays_outside() -> None:
    """The kernel's bulk copies couldn't read it: its channels don't lie side by side."""
    made = rewritten(ended(lambda y, x: y + x.contiguous().transpose(2, 3)), half_image(1, 64, 8, 8))
    (found,) = made.operations
    assert found["residual"] is None


def test_few_channels_add_for_themselves_where_a_tile_of_many_would_lose() -> None:
    for side in (1, 3):
        net = half_net(Made(lambda x, conv: conv(x) + x, nn.Conv2d(48, 48, side, padding=side // 2)))
        (found,) = rewritten(net, half_image(2, 48, 9, 13)).operations
        assert (found["residual"] is not None) == (side == 1)


@pytest.mark.parametrize(("device", "read"), [("meta", True), ("cpu", False)])
def test_a_number_of_another_device_is_no_factor_of_a_channel(device: str, read: bool) -> None:
    """Torch lets a number without axes lie on the CPU; the kernel of a map of one channel would read it there."""
    graph = fx.Graph()
    vector, value = graph.placeholder("vector"), graph.placeholder("value")
    vector.meta["val"] = torch.tensor(2.0, device=device)
    value.meta["val"] = torch.empty(1, 1, 4, 4, device="meta")
    assert is_by_channel(vector, value) == read


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


def changes(conv: fx.Node, change: Convolutions) -> bool:
    graph = conv.graph
    before = str(graph)
    change(graph)
    return str(graph) != before


def test_it_leaves_what_does_not_run_on_a_gpu_with_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(UserWarning, match=r"all 1 convolutions .* stay with Inductor: 1 on a device without .* \(cpu\)"):
        assert not changes(convolution(), Convolutions())
    assert changes(convolution(), Convolutions(anywhere=True))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    assert changes(convolution(device="cuda"), Convolutions())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    with pytest.warns(UserWarning, match=r"stay with Inductor: 1 compute capability 7.5 has no asynchronous copies"):
        assert not changes(convolution(device="cuda"), Convolutions())


def test_what_was_put_in_and_what_was_left_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    conv = convolution()
    graph = conv.graph
    with graph.inserting_after(conv):
        wide = graph.call_function(conv.target, (*conv.args[:3], [3, 3], *conv.args[4:]))  # type: ignore[arg-type]
    with FakeTensorMode():
        wide.meta["val"] = torch.empty(1, 16, 3, 3, dtype=torch.float16).to(memory_format=torch.channels_last)
    graph.output_node().args = ((conv, wide),)
    with caplog.at_level(logging.INFO, logger=post_grad_pass.__name__):
        Convolutions(anywhere=True)(graph)
        Convolutions(anywhere=True)(fx.Graph())
    no_kernel = "1 a window, stride, padding, groups or size that no kernel takes"
    assert [record.getMessage() for record in caplog.records if record.name == post_grad_pass.__name__] == [
        f"1 of 2 convolutions: 1 conv3x3; with Inductor: {no_kernel}"
    ]


def test_each_form_has_its_own_graphs_in_torch_s_cache_and_none_in_packages() -> None:
    with V.set_aot_compilation(True):
        assert not changes(convolution(), Convolutions(anywhere=True))
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
