"""A concatenation of channels is one buffer that its parts are written into, where they can be."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx, nn

from tests.compiler.nets import image
from tests.compiler.rewriting import called, distance, layers, lowered, rewritten, rewritten_from

BATCH = image(2, 3, 8, 12)
Parts = Callable[[Tensor, Tensor, Tensor], Tensor]


class Joining(nn.Module):
    """Two values of kernels, and one that torch makes, joined in some way before another layer."""

    def __init__(self, join: Parts, channels: int, last: int = 16) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, last, 3, padding=1)
        self.joined = nn.Conv2d(channels, 16, 3, padding=1)
        self.join = join

    def forward(self, image: Tensor) -> Tensor:
        first = self.first(image).relu()
        logits: Tensor = self.joined(self.join(first, self.second(first).relu(), torch.sigmoid(first)))
        return logits


def lowered_net(join: Parts, channels: int, last: int = 16) -> tuple[fx.GraphModule, float]:
    """A `Joining` lowered, and how far its answer is from the net's (relative L2)."""
    torch.manual_seed(0)
    net = Joining(join, channels, last).eval()
    graph = lowered(rewritten_from(net, BATCH))
    with torch.no_grad():
        return graph, distance(graph, BATCH, net(BATCH))


def joins(graph: fx.GraphModule) -> int:
    """How many concatenations happen."""
    return called(graph).count("aten.cat.default")


@pytest.mark.parametrize(
    ("join", "channels", "last", "left"),
    [
        (lambda a, b, c: torch.cat([b, a], 1), 32, 16, 0),
        (lambda a, b, c: torch.cat([b, c], 1), 32, 16, 0),
        (lambda a, b, c: torch.cat([c, a, b], dim=-3), 48, 16, 0),
        (lambda a, b, c: torch.cat([a, a], 1), 32, 16, 0),
        (lambda a, b, c: torch.cat([a, b], 2), 16, 16, 1),
        (lambda a, b, c: torch.cat([b, a], 1), 24, 8, 0),
        (lambda a, b, c: torch.cat([b, a], 1), 20, 4, 1),
        (lambda a, b, c: torch.cat([c[:, :3], a], 1), 19, 16, 1),
    ],
)
def test_a_concatenation_happens_only_where_its_parts_cannot_lie_in_it(
    join: Parts, channels: int, last: int, left: int
) -> None:
    graph, error = lowered_net(join, channels, last)
    assert joins(graph) == left
    assert error < 1e-3


@pytest.mark.parametrize(
    ("join", "left", "copies"),
    [
        (lambda a, b, c: torch.cat([a, b, -c], 1)[:, 16:] * torch.cat([a, b], 1), 0, 1),
        (lambda a, b, c: torch.cat([-c, a, b], 1)[:, :32] * torch.cat([a, b], 1), 0, 1),
        (lambda a, b, c: torch.cat([-c, a, b, c], 1)[:, 32:] * torch.cat([a, b], 1), 0, 2),
        (lambda a, b, c: torch.cat([torch.cat([b, a], 1), -c], 1)[:, 16:], 0, 1),
        (lambda a, b, c: torch.cat([torch.cat([b, a], 1), b], 1)[:, 16:], 0, 1),
        (lambda a, b, c: torch.cat([a, b], 1) * torch.cat([-c, a], 1), 0, 2),
        (lambda a, b, c: torch.cat([a, b, -c], 1)[:, 16:] * torch.cat([c, a, b], 1)[:, 16:], 0, 3),
        (lambda a, b, c: torch.cat([a, b, -c], 1)[:, 16:] * torch.cat([b, a], 1), 1, 1),
    ],
)
def test_concatenations_share_buffers_where_their_parts_lie_alike(join: Parts, left: int, copies: int) -> None:
    """What torch makes is written in place, and of two buffers that want a value one has a copy of it."""
    graph, error = lowered_net(join, 32)
    assert joins(graph) == left
    assert called(graph).count("aten.copy_.default") == copies
    assert error < 1e-3


def test_a_part_that_the_library_makes_is_written_where_it_belongs() -> None:
    made = rewritten("bilinear, odd size")
    for name in layers(made.net):
        graph = lowered(made.net, by_library=[name])
        assert joins(graph) == 0
        assert made.error(graph) < 1e-3, name
