"""A network without a form for a runtime is refused in plain words; what TorchScript takes, and as what; ONNX."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnxruntime as ort
import pytest
import torch
from onnxruntime.capi.onnxruntime_pybind11_state import Fail
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pipeline.compiler.batch import Batch
from pipeline.errors import typed_line
from pipeline.records.diagnostics import SearchCount
from pipeline.stages import onnxruntime, torchscript
from pipeline.stages.api import Runner, StageError, Workload
from pipeline.stages.common import onnx_models
from pipeline.stages.common.network_forms import checked_form, fault, taken_by
from pipeline.stages.common.onnx_models import BiasApart, biases_apart, bound
from pipeline.stages.onnxruntime import nodes_searched
from pipeline.stages.torchscript import Method
from pipeline.worker.failures import failure_of
from tests.compiler.nets_that_passes_leave import Made
from tests.input_nets import Between

pytestmark = pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
IMAGE = Batch((torch.rand(2, 3, 16, 16),), ("image",))


def decides(value: Tensor) -> Tensor:
    return value.relu() if value.mean() > 0 else value


def of_frequencies(value: Tensor) -> Tensor:
    kept = torch.zeros_like(found := torch.fft.rfft2(value))
    kept[..., :4] = found[..., :4]
    return torch.fft.irfft2(kept, s=value.shape[-2:])


def by_five_axes(value: Tensor) -> Tensor:
    split = value.reshape(len(value), 2, 4, 8, -1).transpose(-1, -2)
    return functional.scaled_dot_product_attention(split, split, split).transpose(-1, -2).reshape(value.shape)


def in_bf16(value: Tensor) -> Tensor:
    return functional.conv2d(value.bfloat16(), value.new_ones(8, value.shape[1], 1, 1).bfloat16()).float()


def onnx_stage(function: Callable[[Tensor], Tensor], folder: Path) -> tuple[nn.Module, Callable[..., Tensor]]:
    torch.manual_seed(0)
    net = Between(function).eval()
    return net, onnxruntime.build(Workload(net, [IMAGE.first], torch.device("cpu"), folder)).run


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (decides, "ONNX can't take the network: the network decides by values that it computes"),
        (of_frequencies, "ONNX has no form of aten.zeros_like"),
        (by_five_axes, "ONNX has no form of scaled_dot_product_attention"),
        (lambda value: value + torch.mode(value, 1, keepdim=True).values, "ONNX has no form of aten.mode"),
        (in_bf16, "ONNX can't take the network: [ShapeInferenceError] (op_type:Conv"),
    ],
)
def test_what_onnx_lacks_is_said_plainly(function: Callable[[Tensor], Tensor], said: str, tmp_path: Path) -> None:
    with pytest.raises(StageError) as caught:
        onnx_stage(function, tmp_path)
    assert str(caught.value).startswith(said)


def test_an_answer_whose_size_depends_on_the_image_is_refused() -> None:
    lengths = [SimpleNamespace(shape=["u7", 2])]
    session: Any = SimpleNamespace(get_inputs=list, get_outputs=lambda: lengths)
    with pytest.raises(StageError, match="the size of this network's answer depends on the image"):
        bound(session, IMAGE, torch.float32)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("full"), OSError("no space"), StageError("wrong")])
def test_what_isnt_the_networks_stays_what_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, taken_by("ONNX"):
        raise error
    assert caught.value is error


@pytest.mark.parametrize("epsilon", [1e-8, 1e-12, 1e-15])
def test_an_epsilon_stays_in_the_exported_model(epsilon: float, tmp_path: Path) -> None:
    net, run = onnx_stage(lambda value: value / (value.relu().sum((2, 3), keepdim=True) + epsilon), tmp_path)
    with torch.inference_mode():
        for image in (IMAGE.first, torch.zeros_like(IMAGE.first), torch.ones_like(IMAGE.first)):
            torch.testing.assert_close(run(image), net(image), rtol=1e-4, atol=1e-4)


def unsafe(value: Tensor) -> Tensor:
    return value / value.abs().sum((2, 3), keepdim=True)


def safe(value: Tensor) -> Tensor:
    return value / (value.abs().sum((2, 3), keepdim=True) + 1e-8)


def capped(value: Tensor) -> Tensor:
    return safe(value.clamp(-2, 2))


@pytest.mark.parametrize(
    ("ran", "net", "said"),
    [
        (unsafe, safe, "answers NaN or infinity to zeros, and the network doesn't"),
        (safe, unsafe, ""),
        (lambda value: value.clamp(0, 3), torch.relu, "is 0.59 (relative L2) off the network on 10 times its values"),
        (capped, capped, ""),
        (lambda value: value.flip(0), torch.nn.functional.relu, "is 0.7"),
    ],
)
def test_extreme_images_are_tried(ran: Callable[[Tensor], Tensor], net: Callable[[Tensor], Tensor], said: str) -> None:
    whole, generator = Made(net), torch.Generator().manual_seed(0)
    inputs = Batch((torch.rand(2, 3, 16, 16, generator=generator),), ("image",))
    found = fault(ran, whole, inputs)
    assert found.startswith(said)
    assert bool(found) == bool(said)
    if said:
        with pytest.raises(StageError, match=r"^ONNX's form of the network (is|answers)"):
            checked_form(ran, Workload(whole, [inputs.first], torch.device("cpu"), Path()), "ONNX", whole)


NODES = {"CUDAExecutionProvider": {"Conv": 19, "ConvTranspose": 4, "Concat": 4, "FusedConv": 2}}


@pytest.mark.parametrize(
    ("nodes", "search", "asked"),
    [
        (NODES, "EXHAUSTIVE", 25),
        (NODES, "HEURISTIC", 25),
        (NODES, "DEFAULT", None),
        ({"CPUExecutionProvider": {"Conv": 19}}, "EXHAUSTIVE", None),
        ({}, "EXHAUSTIVE", None),
    ],
)
def test_onnx_runtime_asks_node_by_node(nodes: dict[str, dict[str, int]], search: str, asked: int | None) -> None:
    wanted = (SearchCount("cuDNN for ONNX Runtime", "nodes", asked, search.lower()),) if asked else ()
    assert nodes_searched(nodes, search) == wanted


@pytest.mark.parametrize(
    ("text", "kind"),
    [("Failed to allocate memory for requested buffer of size 1", "out of memory"), ("an operator failed", "error")],
)
def test_a_lack_of_memory_is_told_from_other_failures_of_a_call(text: str, kind: str) -> None:
    session = Mock()
    session.get_inputs.return_value = []
    session.get_outputs.return_value = [SimpleNamespace(shape=[1, 2, 4, 4])]
    session.run_with_iobinding.side_effect = Fail(text)
    *_, replay = onnx_models.bound(session, torch.zeros(1, 3, 4, 4), torch.float32)
    with pytest.raises(RuntimeError, match=text) as raised:
        replay()
    assert failure_of(raised.value)[0] == kind


@pytest.mark.parametrize("provider", ["cuda", "cpu"])
def test_a_session_is_told_how_many_threads_it_has(provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[ort.SessionOptions] = []

    def session(path: str, settings: ort.SessionOptions, providers: list[tuple[str, dict[str, str]]]) -> Any:
        asked.append(settings)
        return SimpleNamespace(get_providers=lambda: [providers[0][0]])

    monkeypatch.setattr(ort, "InferenceSession", session)
    monkeypatch.setattr(ort, "preload_dlls", lambda: None)
    onnx_models.open_session(Path("net.onnx"), provider, {})
    assert [settings.intra_op_num_threads for settings in asked] == [torch.get_num_threads()]


class Twice(nn.Module):
    """Calls one transposed convolution under two names, one without a bias, one for a size, and reads a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.again = self.first
        self.other = nn.Sequential(nn.ConvTranspose2d(4, 4, 2, stride=2, bias=False), nn.ReLU())
        self.sized = nn.ConvTranspose2d(4, 3, 3, stride=2)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        raised = self.other(self.again(self.first(image)))
        return self.sized(raised, output_size=[81, 82]) + self.sized.weight.sum()


def test_biases_apart_are_additions_and_give_the_same_answer() -> None:
    net, image = Twice().eval(), torch.randn(2, 4, 5, 5)
    with torch.inference_mode():
        expected = net(image)
        found = biases_apart(net)(image)
    assert sum(isinstance(part, BiasApart) for part in net.modules()) == 3
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    apart = biases_apart(nn.ConvTranspose2d(4, 3, 2, stride=2).eval())
    graph = torch.export.export(apart, (torch.randn(1, 4, 5, 5),)).graph
    calls = [node for node in graph.nodes if node.op == "call_function"]
    (raised,) = [node for node in calls if "conv_transpose" in str(node.target)]
    assert len(raised.args) < 3 or raised.args[2] is None
    assert any("add" in str(node.target) for node in calls)


WITHOUT = "the frozen program without torch.jit.optimize_for_inference, with which it fails: RuntimeError: mkldnn_"


POOL = partial(functional.avg_pool2d, kernel_size=2, divisor_override=3)


def gelu_by_tanh(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


def built(between: Callable[[Tensor], Tensor], folder: Path, method: Method = "trace") -> tuple[Workload, Runner]:
    torch.manual_seed(0)
    batches = [torch.randn(1, 3, 8, 8) for _ in range(2)]
    work = Workload(Between(between, width=4).eval(), batches, torch.device("cpu"), folder, verified=2)
    return work, torchscript.build(work, method=method)


def check_answers(work: Workload, stage: Runner) -> None:
    with torch.inference_mode():
        for batch in work.batches:
            torch.testing.assert_close(stage.run(batch), work.model(batch), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("between", "method", "why"),
    [
        (gelu_by_tanh, "trace", "gelu: fast, approximate gelu is not supported"),
        (gelu_by_tanh, "script", "gelu: fast, approximate gelu is not supported"),
        (POOL, "trace", "avg_pool2d operator does not support divisor"),
    ],
)
def test_what_fails_when_optimised_runs_as_it_was_frozen(
    between: Callable[[Tensor], Tensor], method: Method, why: str, tmp_path: Path
) -> None:
    work, stage = built(between, tmp_path, method)
    check_answers(work, stage)
    assert stage.execution.instead == WITHOUT + why
    assert stage.description.endswith(f"loaded from its file; it is {WITHOUT}{why}")


def test_what_is_optimised_says_nothing_of_it(tmp_path: Path) -> None:
    work, stage = built(functional.gelu, tmp_path)
    check_answers(work, stage)
    assert stage.execution.instead == ""
    assert stage.description.endswith("loaded from its file")


def test_what_fails_either_way_is_an_error_that_says_why(tmp_path: Path) -> None:
    work, _ = built(functional.relu, tmp_path)
    others = replace(work, batches=[torch.randn(1, 5, 8, 8)])
    with pytest.raises(RuntimeError) as caught, torchscript.deprecations_filtered():
        torchscript.optimised(tmp_path / "model.pt", work.model, others)
    assert typed_line(caught.value).startswith("RuntimeError: Given groups=1, weight of size [4, 3, 3, 3]")


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, image: Tensor) -> Tensor:
        ctx.save_for_backward(image)
        ctx.wants = ctx.needs_input_grad[0]
        return image * image.sigmoid()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(image: Tensor) -> Tensor:
        return 2 * image

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)


def checkpointed(x: Tensor) -> Tensor:
    return checkpoint(functional.relu, x, use_reentrant=True)


def as_classes(x: Tensor) -> Tensor:
    return x * functional.one_hot(x.argmax(1), 4).permute(0, 3, 1, 2)


@pytest.mark.parametrize("between", [Swish.apply, Doubled.apply, checkpointed, as_classes, lambda x: x.data * 2])
def test_a_trace_holds_own_functions_and_checks_of_data(between: Callable[[Tensor], Tensor], tmp_path: Path) -> None:
    check_answers(*built(between, tmp_path))


def test_what_cannot_be_scripted_is_told_what_takes_it_if_anything(tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"^TorchScript .*; stage\.method=trace takes it$"):
        built(checkpointed, tmp_path, "script")
    with pytest.raises(StageError) as caught:
        built(lambda x: checkpointed(x) / x.abs().max().item(), tmp_path, "script")
    assert "stage.method=trace" not in str(caught.value)


Then = Callable[[Any, Tensor], Tensor]


class Reading(nn.Module):
    def __init__(self, then: Then) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, 2, 1)
        self.register_buffer("gain", torch.tensor(2.0))
        self.then = then

    def forward(self, image: Tensor) -> Tensor:
        return self.then(self, self.head(image))


def halved(_: nn.Module, logits: Tensor) -> Tensor:
    while logits.abs().mean() > 0.1:
        logits = logits / 2
    return logits


OF_IMAGES: dict[str, Then] = {
    "a loop": halved,
    "item": lambda _, logits: logits / logits.abs().max().item(),
    "numpy": lambda _, logits: logits / float(logits.abs().numpy().max()),
    "an array": lambda _, logits: logits / float(np.abs(np.asarray(logits)).max()),
    "DLPack": lambda _, logits: logits / float(np.from_dlpack(logits).max()),
    "a list": lambda _, logits: logits / float(max(logits.abs().flatten().tolist())),
}
OF_ALL: dict[str, Then] = {
    "a weight": lambda net, logits: logits * float(net.gain),
    "weights by numpy": lambda net, logits: (
        logits * float(np.nan_to_num((net.gain * torch.tensor([1, torch.nan])).numpy()).sum())
    ),
    "NaN": lambda _, logits: logits if torch.tensor(torch.nan).item() > 0 else logits * 2,
    "sizes": lambda _, logits: logits * 2 if logits.shape[-1] > 8 else logits,
}


def reading(workload: Workload, then: Then) -> Workload:
    torch.manual_seed(0)
    return replace(workload, model=Reading(then).eval())


@pytest.mark.parametrize("then", OF_IMAGES.values(), ids=OF_IMAGES)
def test_a_net_that_reads_its_images_is_not_traced(workload: Workload, then: Then) -> None:
    said = r"reads of its images \(in Reading\.forward, test_network_forms\.py:\d+\).*stage\.method=script"
    with pytest.raises(StageError, match=said):
        torchscript.build(reading(workload, then))


@pytest.mark.parametrize("then", OF_ALL.values(), ids=OF_ALL)
def test_numbers_of_weights_and_sizes_are_the_same_for_all_images(workload: Workload, then: Then) -> None:
    work = reading(workload, then)
    run = torchscript.build(work).run  # not in inference mode, in which item() is seen by nobody
    with torch.inference_mode():
        found, wanted = run(work.batches[0]), work.model(work.batches[0])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
