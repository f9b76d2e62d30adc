"""Convolutions of one value that are added up become one, with the same answer, the border's included."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.compiler.graph.exported_net import export
from pipeline.compiler.passes import FOR_ANY_BACKEND, rewrite
from pipeline.compiler.passes.constant_folding import STRAIGHT, Branch, Walk, add_parallel_convolutions, added, placed
from tests.compiler.nets import image, lively
from tests.compiler.nets_that_passes_leave import Made
from tests.compiler.rewriting import distance, layers, lowered, rewritten_from

Window = tuple[tuple[int, ...], tuple[int, ...]]  # its sides, and its padding

# A largest window with its padding, smaller ones, and how all walk.
SUMS: dict[str, tuple[list[Window], Walk]] = {
    "3×3 and 1×1": ([((3, 3), (1, 1)), ((1, 1), (0, 0))], Walk((1, 1), (1, 1), (1, 1), 1)),
    "strided": ([((3, 3), (1, 1)), ((1, 1), (0, 0))], Walk((2, 2), (1, 1), (1, 1), 1)),
    "bars within a square": ([((3, 3), (1, 1)), ((3, 1), (1, 0)), ((1, 3), (0, 1))], Walk((1, 1), (1, 1), (1, 1), 1)),
    "three of a size": ([((5, 3), (2, 1))] * 3, Walk((1, 2), (2, 1), (1, 1), 1)),
    "dilated": ([((3, 3), (2, 3)), ((3, 1), (2, 0)), ((1, 1), (0, 0))], Walk((1, 1), (2, 3), (2, 3), 1)),
    "even windows": ([((4, 4), (2, 2)), ((2, 2), (1, 1))], Walk((2, 2), (2, 2), (1, 1), 1)),
    "grouped": ([((3, 3), (1, 1)), ((1, 1), (0, 0))], Walk((1, 1), (1, 1), (1, 1), 2)),
    "each channel alone": ([((7, 7), (3, 3)), ((3, 3), (1, 1)), ((1, 1), (0, 0))], Walk((1, 1), (3, 3), (1, 1), 4)),
    "volumes": ([((3, 3, 3), (1, 1, 1)), ((1, 3, 3), (0, 1, 1))], Walk((1, 2, 2), (1, 1, 1), (1, 1, 1), 1)),
}


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("size", [(9, 7, 8), (4, 6, 5)])
def test_the_sum_is_one_convolution(name: str, size: tuple[int, ...]) -> None:
    """In float64, pixel by pixel, on odd sizes too, so small that most pixels are at the border."""
    windows, walk = SUMS[name]
    axes = len(walk.stride)
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    branches = [
        Branch(drawn(4, 4 // walk.groups, *sides), drawn(4), walk._replace(padding=padding))
        for sides, padding in windows
    ]
    seen, convolve = drawn(2, 4, *size[:axes]), {2: functional.conv2d, 3: functional.conv3d}[axes]

    def answer(branch: Branch) -> Tensor:
        stride, padding, dilation, groups = branch.walk
        return convolve(seen, branch.weight, branch.bias, stride, padding, dilation, groups)

    whole, wanted = answer(added(branches)), torch.stack([answer(branch) for branch in branches]).sum(0)
    assert float((whole - wanted).abs().max()) < 1e-12


@pytest.mark.parametrize(
    ("sides", "walk"),
    [
        ((1, 1), Walk((1, 1), (0, 0), (1, 1), 2)),
        ((1, 1), Walk((2, 1), (0, 0), (1, 1), 1)),
        ((3, 1), Walk((1, 1), (1, 0), (1, 1), 1)),
        ((1, 1), Walk((1, 1), (1, 1), (1, 1), 1)),
        ((1, 1), Walk((1, 1), (3, 3), (1, 1), 1)),
        ((5, 1), Walk((1, 1), (4, 0), (2, 2), 1)),
    ],
    ids=["other groups", "another stride", "another dilation", "between the taps", "before the window", "wider"],
)
def test_a_window_that_does_not_fit_is_not_added(sides: tuple[int, int], walk: Walk) -> None:
    """Into a 3×3 window with a dilation of 2."""
    largest = Branch(torch.ones(4, 4, 3, 3), torch.zeros(4), Walk((1, 1), (2, 2), (2, 2), 1))
    assert placed(Branch(torch.ones(4, 4, *sides), torch.zeros(4), walk), largest) is None


def normed(inner: int, outer: int, size: int, **options: Any) -> nn.Sequential:
    """A convolution of the same size and its batch norm."""
    conv = nn.Conv2d(inner, outer, size, padding=options.pop("padding", size // 2), bias=False, **options)
    return nn.Sequential(conv, nn.BatchNorm2d(outer))


def total(x: Tensor, *branches: nn.Module) -> Tensor:
    answer: Tensor = sum(branch(x) for branch in branches)
    return answer


ALONE: dict[str, Any] = {"groups": 16}
BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "RepVGG": lambda: Made(
        lambda x, first, *branches: total(first(x), *branches).relu(),
        nn.Conv2d(3, 16, 1),
        normed(16, 16, 3),
        normed(16, 16, 1),
        nn.BatchNorm2d(16),
    ),
    "MobileOne": lambda: Made(
        lambda x, first, *branches: total(first(x), *branches).relu(),
        nn.Conv2d(3, 16, 1),
        nn.BatchNorm2d(16),
        normed(16, 16, 1, **ALONE),
        *[normed(16, 16, 3, **ALONE) for _ in range(4)],
    ),
    "RepViT": lambda: Made(
        lambda x, first, one, other, norm: (lambda y: norm(one(y) + other(y) + y))(first(x)),
        nn.Conv2d(3, 16, 1),
        normed(16, 16, 3, **ALONE),
        nn.Conv2d(16, 16, 1, **ALONE),
        nn.BatchNorm2d(16),
    ),
    "ACNet": lambda: Made(
        lambda x, first, *branches: total(first(x), *branches).relu(),
        nn.Conv2d(3, 16, 1),
        nn.Conv2d(16, 16, (1, 3), padding=(0, 1)),
        nn.Conv2d(16, 16, (3, 1), padding="same"),
        normed(16, 16, 3),
    ),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_of_branches_becomes_one_convolution(name: str) -> None:
    torch.manual_seed(0)
    net, batch = lively(BLOCKS[name]()), image(2, 3, 7, 9)
    found = export(net, batch, torch.float32)
    rewrite(found, FOR_ANY_BACKEND)
    left = {str(node.target) for node in found.module.graph.nodes if node.op == "call_function"}
    convolutions = [node for node in found.module.graph.nodes if str(node.target) in STRAIGHT]
    assert len(convolutions) == 2
    assert left <= {*STRAIGHT, "aten.relu.default", "aten._to_copy.default", "aten.to.dtype"}
    with torch.no_grad():
        assert distance(found.module, batch, net(batch)) < 1e-6


def test_what_is_no_branch_is_still_added() -> None:
    """A value of other layers, and the input of a convolution that mixes channels, once or twice."""
    torch.manual_seed(0)
    made = Made(
        lambda x, first, one, other, last: (lambda y: one(y) + (y.tanh() + other(y)) + (y + last(y.tanh()) + y))(
            first(x)
        ),
        nn.Conv2d(3, 16, 1),
        normed(16, 16, 1),
        normed(16, 16, 3),
        normed(16, 16, 3),
    )
    net, batch = lively(made), image(2, 3, 7, 9)
    found = rewritten_from(net, batch)
    assert found.matched["add_parallel_convolutions"] == ["layers.2.0"]
    assert [layer.name for layer in layers(found).values()] == ["layers.2.0", "layers.3.0"]
    with torch.no_grad():
        assert distance(lowered(found), batch, net(batch)) < 1e-3


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
def test_a_window_padded_by_a_row_more_on_one_side_is_left() -> None:
    net, batch = (
        Made(lambda x, a, b: a(x) + b(x), nn.Conv2d(3, 8, 4, padding="same"), nn.Conv2d(3, 8, 1)),
        image(1, 3, 7, 9),
    )
    found = export(net.eval(), batch, torch.float32)
    assert add_parallel_convolutions(found) == []
