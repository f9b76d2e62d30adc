"""A rewrite that can't apply leaves the graph alone."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.compiler.graph import Graph
from pipeline.compiler.passes import PASSES
from tests.compiler.nets import error, image, lively, traced


class Made(nn.Module):
    """A net out of some layers and a function of them and the image."""

    def __init__(self, call: Callable[..., Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.call = call

    def forward(self, image: Tensor) -> Tensor:
        return self.call(image, *self.layers)


def conv(inner: int, outer: int, size: int = 3, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(inner, outer, size, padding=options.pop("padding", size // 2), **options)


CASES = {
    "fold_batch_norm: the convolution is read twice": lambda: Made(
        lambda x, c, n: (lambda y: n(y) + y)(c(x)), conv(3, 16), nn.BatchNorm2d(16)
    ),
    "fold_batch_norm: no convolution before it": lambda: Made(lambda x, n: n(x), nn.BatchNorm2d(3)),
    "fold_activation: the convolution is read twice": lambda: Made(
        lambda x, c: (lambda y: functional.relu(y) + y)(c(x)), conv(3, 16)
    ),
    "fold_activation: one that no kernel ends in": lambda: Made(lambda x, c: functional.elu(c(x)), conv(3, 16)),
    "fold_activation: no convolution before it": lambda: Made(lambda x, c: c(functional.silu(x)), conv(3, 16)),
    "take_conv3x3: dilated": lambda: Made(lambda x, a, b: b(a(x)), conv(3, 16, 1), conv(16, 16, dilation=2, padding=2)),
    "take_conv3x3: strided": lambda: Made(lambda x, a, b: b(a(x)), conv(3, 16, 1), conv(16, 16, stride=2)),
    "take_conv3x3: grouped": lambda: Made(lambda x, a, b: b(a(x)), conv(3, 16, 1), conv(16, 16, groups=16)),
    "take_conv3x3: another padding": lambda: Made(lambda x, a, b: b(a(x)), conv(3, 16, 1), conv(16, 16, padding=0)),
    "take_conv3x3: channels in no multiple of 16": lambda: Made(lambda x, a, b: b(a(x)), conv(3, 24, 1), conv(24, 16)),
    "take_conv_first: it isn't first": lambda: Made(lambda x, c: c(x * 2), conv(3, 16)),
    "take_conv_first: many channels": lambda: Made(lambda x, c: c(x.repeat(1, 5, 1, 1)), conv(15, 16)),
    "take_upconv2x2: a wider window": lambda: Made(
        lambda x, a, b: b(a(x)), conv(3, 16, 1), nn.ConvTranspose2d(16, 16, 4, 2, 1)
    ),
    "take_upconv2x2: channels in no multiple of 16": lambda: Made(
        lambda x, a, b: b(a(x)), conv(3, 16, 1), nn.ConvTranspose2d(16, 8, 2, 2)
    ),
    "pool_where_it_is_made: overlapping windows": lambda: Made(
        lambda x, a, b: functional.max_pool2d(b(a(x)), 3, 2, 1), conv(3, 16), conv(16, 16)
    ),
    "pool_where_it_is_made: an odd size": lambda: Made(
        lambda x, a, b: functional.max_pool2d(b(a(x[..., :7])), 2), conv(3, 16), conv(16, 16)
    ),
    "pool_where_it_is_made: no convolution before it": lambda: Made(lambda x: functional.max_pool2d(x, 2)),
    "fold_head: too many classes": lambda: Made(
        lambda x, a, b, h: h(b(a(x))), conv(3, 16), conv(16, 16), conv(16, 9, 1)
    ),
    "fold_head: its input is read twice": lambda: Made(
        lambda x, a, b, h: (lambda y: h(y) + y[:, :2])(b(a(x))), conv(3, 16), conv(16, 16), conv(16, 2, 1)
    ),
    "take_upsample2x: corners aligned": lambda: Made(
        lambda x, a: functional.interpolate(a(x), scale_factor=2, mode="bilinear", align_corners=True), conv(3, 16)
    ),
    "take_upsample2x: by three": lambda: Made(
        lambda x, a: functional.interpolate(a(x), scale_factor=3, mode="bilinear"), conv(3, 16)
    ),
    "join_without_copy: rows, not channels": lambda: Made(
        lambda x, a, b: torch.cat([b(a(x)), b(a(x)) * 2], dim=2), conv(3, 16), conv(16, 16)
    ),
    "join_without_copy: the same part twice": lambda: Made(
        lambda x, a, b: (lambda y: torch.cat([y, y], dim=1))(b(a(x))), conv(3, 16), conv(16, 16)
    ),
    "join_without_copy: a part that torch makes": lambda: Made(
        lambda x, a, b: torch.cat([b(a(x)), x], dim=1), conv(3, 16), conv(16, 16)
    ),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[str, nn.Module]:
    torch.manual_seed(0)
    return request.param.partition(":")[0], lively(CASES[request.param]())


def test_a_rewrite_that_cannot_apply_changes_nothing(case: tuple[str, nn.Module]) -> None:
    name, net = case
    batch = image(1, 3, 8, 8)
    graph = traced(net, batch)
    names = [step.__name__ for step in PASSES]
    for step in PASSES[: names.index(name)]:
        step(graph)
    before = snapshot(graph)
    assert PASSES[names.index(name)](graph) == []
    assert snapshot(graph) == before
    assert error(graph, net, batch) < 1e-3


def snapshot(graph: Graph) -> tuple[object, ...]:
    return copy.deepcopy(
        (graph.nodes, graph.places, graph.output, {key: id(part) for key, part in graph.tensors.items()})
    )


def test_a_part_joins_one_buffer_only() -> None:
    """A value that two concatenations want can lie in one of them; the other is made by torch."""

    def call(x: Tensor, a: nn.Module, b: nn.Module, c: nn.Module) -> Tensor:
        first = a(x)
        second, third = b(first), c(first)
        return torch.cat([torch.cat([second, third], 1), torch.cat([second, first], 1)], 1)

    net = lively(Made(call, conv(3, 16), conv(16, 16), conv(16, 16)))
    batch = image(1, 3, 8, 8)
    graph = traced(net, batch)
    for step in PASSES:
        step(graph)
    assert len(graph.places) == 2
    assert error(graph, net, batch) < 1e-3
