"""Nets of several inputs are exported, rewritten, lowered and saved with all of them, each in its own type."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from pipeline.compiler.agreement import distance
from pipeline.compiler.artifact import ABOUT, load, save
from pipeline.compiler.batch import Batch
from pipeline.compiler.graph.exported_net import ExportedNet, export
from pipeline.compiler.graph.fx_graph import channel_concatenations
from pipeline.compiler.graph.lowering import Plan, lower
from pipeline.compiler.half import Half
from pipeline.compiler.tuning.autotune import Tuner
from pipeline.compiler.tuning.choose import LIBRARY, MeasuredLayer, choose
from tests.compiler.nets import lively
from tests.compiler.nets_that_passes_leave import Made
from tests.compiler.rewriting import layers, own_calls, rewrite_all
from tests.input_nets import SEVERAL

KERNELS = {  # that take their layers, in the order of the graph
    "conditioned": ["conv_first", "conv_head"],
    "two images": ["conv_first", "conv_first", "conv3x3", "upsampled_conv3x3", "conv_head"],
    "masked": ["conv_first", "conv3x3"],
}


@cache
def made(name: str, dtype: torch.dtype) -> tuple[nn.Module, Batch, ExportedNet]:
    """A net, its inputs, and its graph after all passes."""
    make, drawn = SEVERAL[name]
    torch.manual_seed(0)
    net, inputs = lively(make()), drawn()
    exported = export(net, inputs, dtype)
    rewrite_all(exported)
    return net, inputs, exported


def others(name: str) -> Batch:
    """Inputs that the net wasn't exported with."""
    torch.manual_seed(1)
    return SEVERAL[name][1]()


@pytest.mark.parametrize("name", SEVERAL)
@torch.no_grad()
def test_passes_and_kernels_keep_the_answer(name: str) -> None:
    """In fp32, of other inputs than those of the export; the first layer's weights are fp16 in its kernel."""
    net, _, exported = made(name, torch.float32)
    given = others(name)
    assert distance(exported.module(*given), net(*given)) < 1e-5
    graph = lower(exported, Plan())
    assert own_calls(graph) == KERNELS[name]
    assert distance(graph(*given), net(*given)) < 2e-3


@pytest.mark.parametrize("name", SEVERAL)
@torch.no_grad()
def test_in_half_precision_each_input_is_as_the_half_net_has_it(name: str) -> None:
    """Images and states become fp16; whole numbers, time steps and booleans stay."""
    net, _, exported = made(name, torch.float16)
    given = others(name)
    assert distance(lower(exported, Plan())(*given), Half(net, torch.float16).eval()(*given).float()) < 5e-3


def test_a_mask_is_no_image_for_a_kernel() -> None:
    """Those that read the user's image read floating values."""
    graph = lower(made("masked", torch.float16)[2], Plan())
    ours = [node for node in graph.graph.nodes if str(node.target).startswith("unet_ladder.")]
    given = [node.args[0] for node in ours if node.args[0].op == "placeholder"]
    assert [node.meta["val"].dtype for node in given] == [torch.float32]


@torch.no_grad()
def test_whole_numbers_are_joined_as_whole_numbers() -> None:
    """A buffer of the net's precision would round them."""
    torch.manual_seed(0)

    def joined(image: Tensor, low: Tensor, high: Tensor, conv: nn.Module) -> Tensor:
        answer: Tensor = conv(image) * (torch.cat([low, high], 1) % 1000).to(image.dtype)
        return answer

    net, numbers = Made(joined, nn.Conv2d(3, 16, 3, padding=1)).eval(), torch.randint(2**40, (2, 2, 16, 8, 8))
    given = Batch((torch.rand(2, 3, 8, 8), numbers[0, :, :8], numbers[1, :, 8:]), ("image", "low", "high"))
    exported = export(net, given, torch.float32)
    rewrite_all(exported)
    assert channel_concatenations(exported.module.graph) == []
    assert distance(lower(exported, Plan())(*given), net(*given)) < 2e-3


@torch.no_grad()
def test_a_first_input_of_whole_numbers_stays() -> None:
    """Such as a map of classes that the net looks up."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(5000, 16), nn.Flatten(1)).eval()
    given = torch.randint(2049, 5000, (2, 1, 8, 8))
    exported = export(net, given, torch.float16)
    assert distance(exported.module(given), net(given)) < 1e-3


def by_call(call: Callable[[], None]) -> float:
    """A clock for which all candidates are as fast."""
    call()
    return 1.0


@pytest.mark.parametrize("name", SEVERAL)
@torch.no_grad()
def test_each_layer_is_measured_on_values_of_all_inputs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MeasuredLayer, "candidates", lambda _: iter([LIBRARY]))
    net, inputs, exported = made(name, torch.float32)
    said: list[str] = []
    plan = choose(exported, {}, inputs, Tuner(tmp_path, by_call), said.append)
    assert list(plan.by_library) == list(layers(exported))
    assert len(said) == len(KERNELS[name])
    assert distance(lower(exported, plan)(*inputs), net(*inputs)) < 2e-3


@torch.no_grad()
def test_a_map_of_classes_is_saved(tmp_path: Path) -> None:
    torch.manual_seed(0)

    def classes(image: Tensor, known: Tensor, conv: nn.Module) -> Tensor:
        planes = functional.one_hot(known, 5).permute(0, 3, 1, 2).to(image.dtype)
        answer: Tensor = conv(torch.cat([image, planes], 1))
        return answer

    net = Made(classes, nn.Conv2d(3 + 5, 16, 3, padding=1)).eval()
    given = Batch((torch.rand(2, 3, 8, 8), torch.randint(5, (2, 8, 8))), ("image", "known"))
    exported = export(net, given, torch.float32)
    rewrite_all(exported)
    save(lower(exported, Plan()), given, tmp_path)
    assert distance(load(tmp_path)(*given), net(*given)) < 2e-3


@pytest.mark.parametrize("name", SEVERAL)
@torch.no_grad()
def test_what_is_saved_takes_all_inputs(name: str, tmp_path: Path) -> None:
    """In the order of the net's forward; their shapes and types stand beside it."""
    _, inputs, exported = made(name, torch.float16)
    graph = lower(exported, Plan())
    save(graph, inputs, tmp_path)
    loaded = load(tmp_path)
    assert isinstance(loaded, fx.GraphModule)
    given = others(name)
    assert torch.equal(loaded(*given), graph(*given))
    about = json.loads((tmp_path / ABOUT).read_text())
    first, *further = inputs
    assert about["batch"] == list(first.shape)
    assert [part["shape"] for part in about["others"]] == [list(part.shape) for part in further]
    assert [getattr(torch, part["dtype"]) for part in about["others"]] == [part.dtype for part in further]
