"""EfficientNet's encoder is the project's kernels alone, and what only looks like it is left as it is."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.compiler.graph.exported_net import export
from pipeline.compiler.graph.fp8_values import fp8_groups, reads_fp8
from tests.compiler.further_nets import Late
from tests.compiler.nets import image, lively
from tests.compiler.rewriting import computing, distance, layers, lowered, own_calls, rewrite_all, rewritten

NAME = "late windows, depthwise, squeeze and excitation"


def test_nothing_is_left_to_the_library() -> None:
    """Each residual is added where it is made, each factor multiplied where the map is read."""
    made = rewritten(NAME)
    graph = lowered(made.net)
    assert own_calls(graph) == [
        "conv_first_strided", "depthwise", "gated_conv1x1", "conv1x1", "depthwise_strided", "gated_conv1x1",
        "depthwise", "gated_conv1x1", "upsampled_conv3x3", "conv_head",
    ]  # fmt: skip
    assert computing(graph) == {"aten.empty.memory_format"}  # of the sums
    assert made.net.matched["centre_windows"] == ["stem.1", "low.depthwise.1"]
    assert len(made.net.matched["excite_where_summed"]) == 3
    assert len(made.net.matched["fold_residual"]) == 1


def test_no_value_of_another_than_16_channels_is_stored_in_fp8() -> None:
    net = rewritten(NAME).net
    assert {int(value.meta["val"].shape[1]) % 16 for group in fp8_groups(net, []) for value in group} <= {0}
    narrow = [layer for layer in layers(net).values() if layer.bias is not None and len(layer.bias) == 24]
    assert narrow
    assert not any(reads_fp8(layer) for layer in narrow)


class Body(nn.Module):
    """Some layers, and what is computed with them."""

    def __init__(self, forward: Callable[..., Tensor], *parts: nn.Module) -> None:
        super().__init__()
        self.compute, self.parts = forward, nn.ModuleList(parts)

    def forward(self, batch: Tensor) -> Tensor:
        return self.compute(batch, *self.parts)


class Left(NamedTuple):
    """A net of which a pass must change nothing, and its image's size."""

    step: str
    net: nn.Module
    size: tuple[int, int] = (8, 8)


def conv(inner: int, outer: int, side: int = 1, **geometry: int) -> nn.Conv2d:
    return nn.Conv2d(inner, outer, side, **geometry)  # type: ignore[arg-type]


def squeezed(x: Tensor, parts: Sequence[nn.Module], gate: Callable[[Tensor], Tensor]) -> Tensor:
    made, one, other = parts
    value = functional.relu(made(x))
    factors: Tensor = gate(other(functional.relu(one(value.mean((2, 3), keepdim=True)))))
    return value * factors


LAYERS = (conv(3, 32, 3, padding=1), conv(32, 4), conv(4, 32))
LEFT: dict[str, Left] = {
    "an odd size": Left("centre_windows", Late(3, 16, 3), (9, 9)),
    "a late window in the net's middle, of all channels": Left(
        "centre_windows", nn.Sequential(conv(3, 16, 3, padding=1), Late(16, 16, 3))
    ),
    "a window of 4 on an odd size": Left("centre_windows", nn.Sequential(conv(3, 16, 4, stride=2, padding=1)), (9, 8)),
    "a window of 4 in the net's middle": Left(
        "centre_windows", nn.Sequential(conv(3, 16, 3, padding=1), conv(16, 16, 4, stride=2, padding=1))
    ),
    "a pad of ones": Left(
        "centre_windows", Body(lambda x, c: c(functional.pad(x, (0, 1, 0, 1), value=1.0)), conv(3, 16, 3, stride=2))
    ),
    "another gate": Left("excite_where_summed", Body(lambda x, a, b, c: squeezed(x, (a, b, c), torch.tanh), *LAYERS)),
    "the mean of a row": Left(
        "excite_where_summed",
        Body(lambda x, a, b, c: c(b(a(x).mean((2,), keepdim=True)).relu()).sigmoid(), *LAYERS),
    ),
    "no layer before the mean": Left(
        "excite_where_summed",
        Body(lambda x, a, b, c: c(b(torch.tanh(a(x)).mean((2, 3), keepdim=True)).relu()).sigmoid(), *LAYERS),
    ),
    "a factor for each pixel": Left(
        "take_gated_conv1x1", Body(lambda x, a, b: b(a(x) * x[:, :1]), conv(3, 16, 3, padding=1), conv(16, 16))
    ),
    "a product that is read again": Left(
        "take_gated_conv1x1",
        Body(lambda x, a, b: b(y := a(x) * x.mean((2, 3), True)[:, :1].expand(-1, 16, -1, -1)) + y,
             conv(3, 16, 3, padding=1), conv(16, 16)),
    ),
}  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("name", LEFT)
def test_what_only_looks_like_it_is_left(name: str) -> None:
    step, net, size = LEFT[name]
    torch.manual_seed(0)
    net, batch = lively(net), image(1, 3, *size)
    made = export(net, batch, torch.float32)
    rewrite_all(made)
    assert made.matched[step] == []
    assert distance(lowered(made), batch, net(batch)) < 1e-3
