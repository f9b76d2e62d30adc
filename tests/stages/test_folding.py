"""Batch norm is folded into the convolution before it where nothing else would change."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm, weight_norm

from pipeline.compiler.folding import folded
from pipeline.compiler.graph.exported_net import export
from pipeline.stages.api import Workload
from tests.stages.test_stages import references


def test_batch_norm_folded_is_the_same_net(workload: Workload) -> None:
    rewritten, count = folded(workload.model, workload.batches[0])
    assert count == 18
    assert not any(isinstance(part, torch.nn.BatchNorm2d) for part in rewritten.modules())
    with torch.inference_mode():
        torch.testing.assert_close(rewritten(workload.batches[0]), references(workload)[0], rtol=1e-4, atol=1e-4)


class ByDimensions(torch.nn.Module):
    """It looks something up by what torch.fx gives a proxy for, as the layers of einops do."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, image: Tensor) -> Tensor:
        return {4: self.layers}[image.ndim](image)


COMPUTED: dict[str, Callable[[nn.Conv2d], object]] = {
    "weight norm": parametrizations.weight_norm,
    "spectral norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
    "the older weight norm": weight_norm,
    "the older spectral norm": spectral_norm,
    "pruned": lambda conv: prune.l1_unstructured(conv, "weight", 0.5),
    "pruned twice": lambda conv: prune.random_unstructured(prune.l1_unstructured(conv, "weight", 0.5), "weight", 0.2),
}


@pytest.mark.parametrize("computed", COMPUTED.values(), ids=COMPUTED)
@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")
def test_a_weight_that_is_computed_at_each_call_is_computed_once(computed: Callable[[nn.Conv2d], object]) -> None:
    """Its batch norm is folded, half precision rounds it once, and the net that was given computes it as before."""
    torch.manual_seed(0)
    net = nn.Sequential(conv := nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    computed(conv)
    net(image := torch.rand(2, 3, 8, 8))
    net.eval()
    with torch.no_grad():
        expected = net(image)
        rewritten, count = folded(net)
        torch.testing.assert_close(rewritten(image), expected, rtol=1e-5, atol=1e-5)
    assert count == 1
    assert "weight" in rewritten.get_submodule("0")._parameters
    assert parametrize.is_parametrized(conv) or conv._forward_pre_hooks
    taken = export(net, image, torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(taken.module(image), expected, rtol=1e-5, atol=1e-5)
    assert "net.0.weight" in taken.exact


def test_a_weight_that_a_hook_of_the_nets_own_computes_is_not_folded() -> None:
    net = nn.Sequential(conv := nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)).eval()
    conv.raw = nn.Parameter(conv.weight.detach().clone())
    del conv.weight
    conv.register_forward_pre_hook(lambda layer, _: setattr(layer, "weight", layer.raw.abs()))
    with torch.no_grad():
        net(image := torch.rand(1, 3, 4, 4))
        rewritten, count = folded(net)
        assert count == 0
        torch.testing.assert_close(rewritten(image), net(image))


class Magnitudes(nn.Conv2d):
    def forward(self, image: Tensor) -> Tensor:
        return super().forward(image).abs()


class Standardised(nn.Conv2d):
    """A convolution by its weight without that one's mean and size."""

    def _conv_forward(self, image: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(image, (weight - weight.mean()) / weight.std(), bias)


class Activated(nn.BatchNorm2d):
    def forward(self, image: Tensor) -> Tensor:
        return super().forward(image).relu()


class Named(nn.Conv2d):
    """A convolution of torch's under another name."""


def with_forward(layer: nn.Module, forward: Callable[[Tensor], Tensor]) -> nn.Module:
    layer.forward = forward
    return layer


def hooked(layer: nn.Module, by: str) -> nn.Module:
    changes = {"forward_pre": lambda _, given: (given[0] * 2,), "forward": lambda _, given, answer: answer * 2}
    getattr(layer, f"register_{by}_hook")(changes[by])
    return layer


CONV, NORM = partial(nn.Conv2d, 3, 4, 1), partial(nn.BatchNorm2d, 4)
OF_THEIR_OWN: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module], int]] = {
    "a convolution's forward": (lambda: Magnitudes(3, 4, 1), NORM, 0),
    "a convolution's weight": (lambda: Standardised(3, 4, 1), NORM, 0),
    "a norm's forward": (CONV, lambda: Activated(4), 0),
    "statistics of each batch": (CONV, partial(nn.BatchNorm2d, 4, track_running_stats=False), 0),
    "an instance's forward": (CONV, lambda: with_forward(NORM(), torch.sigmoid), 0),
    "a hook behind the convolution": (lambda: hooked(CONV(), "forward"), NORM, 0),
    "a hook before the norm": (CONV, lambda: hooked(NORM(), "forward_pre"), 0),
    "a hook behind the norm": (CONV, lambda: hooked(NORM(), "forward"), 0),
    "a hook before the convolution": (lambda: hooked(CONV(), "forward_pre"), NORM, 1),
    "a name alone": (lambda: Named(3, 4, 1), NORM, 1),
}


@pytest.mark.parametrize(("conv", "norm", "count"), OF_THEIR_OWN.values(), ids=OF_THEIR_OWN)
@torch.no_grad()
def test_other_layers_are_not_folded(conv: Callable[[], nn.Module], norm: Callable[[], nn.Module], count: int) -> None:
    torch.manual_seed(0)
    block, image = nn.Sequential(conv(), norm()), torch.rand(2, 3, 4, 4)
    block(image)  # its statistics
    net = ByDimensions(block).eval()
    (traced, _), (by_neighbours, found) = folded(block), folded(net, image)
    assert found == count
    for rewritten in (traced, by_neighbours):
        torch.testing.assert_close(rewritten(image), net(image))
