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
        (lambda a, b, c: torch.cat([a, a], 1), 32, 16, 1),
        (lambda a, b, c: torch.cat([a, b], 2), 16, 16, 1),
        (lambda a, b, c: torch.cat([b, a], 1), 24, 8, 0),
        (lambda a, b, c: torch.cat([b, a], 1), 20, 4, 1),
        (lambda a, b, c: torch.cat([c[:, :3], a], 1), 19, 16, 1),
    ],
    ids=[
        "kernels' values",
        "a part that torch makes",
        "all three, counted from behind",
        "a part twice",
        "rows",
        "channels in a multiple of 8",
        "channels in no multiple of 8",
        "a part that begins between",
    ],
)
def test_a_concatenation_happens_only_where_its_parts_cannot_lie_in_it(
    join: Parts, channels: int, last: int, left: int
) -> None:
    graph, error = lowered_net(join, channels, last)
    assert joins(graph) == left
    assert error < 1e-3


def test_a_part_joins_one_buffer_only() -> None:
    """A value that two concatenations want can lie in one of them; the other is made by torch."""

    def join(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return torch.cat([b, a], 1) * 2 + torch.cat([b, c], 1)

    graph, error = lowered_net(join, 32)
    assert joins(graph) == 1
    assert error < 1e-3


def test_a_concatenation_within_one_keeps_the_answer() -> None:
    def join(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return torch.cat([torch.cat([b, a], 1), c], 1)

    graph, error = lowered_net(join, 48)
    assert joins(graph) == 0
    assert error < 1e-3


def test_a_part_that_the_library_makes_is_written_where_it_belongs() -> None:
    made = rewritten("bilinear, odd size")
    for name in layers(made.net):
        graph = lowered(made.net, by_library=[name])
        assert joins(graph) == 0
        assert made.error(graph) < 1e-3, name
