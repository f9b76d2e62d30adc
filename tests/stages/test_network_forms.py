"""A network without a form for a runtime is refused in plain words, and an export is checked on extreme images."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.compiler.batch import Batch
from pipeline.stages import onnxruntime
from pipeline.stages.api import StageError, Workload
from pipeline.stages.common.network_forms import checked_form, fault, taken_by
from pipeline.stages.common.onnx_models import bound
from tests.input_nets import Between

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
    class Whole(nn.Module):
        def forward(self, image: Tensor) -> Tensor:
            return net(image)

    generator = torch.Generator().manual_seed(0)
    inputs = Batch((torch.rand(2, 3, 16, 16, generator=generator),), ("image",))
    found = fault(ran, Whole(), inputs)
    assert found.startswith(said)
    assert bool(found) == bool(said)
    if said:
        with pytest.raises(StageError, match=r"^ONNX's form of the network (is|answers)"):
            checked_form(ran, Workload(Whole(), [inputs.first], torch.device("cpu"), Path()), "ONNX", Whole())
