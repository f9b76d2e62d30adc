"""What goes into a convolution's operation in a plain torch.compile, and what stays as others read it, too."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx, nn

from pipeline.compiler.post_grad_pass import is_by_channel
from tests.compiler.nets_that_passes_leave import Made
from tests.compiler.plain_compile import by_the_kernels, error, half_image, half_net, residual_block, rewritten
from tests.kernels.examples import MODULES

Ends = Callable[[Tensor, Tensor], Tensor]


class Ended(nn.Module):
    """A 3×3 convolution of 64 channels, and what is made of its answer and its input."""

    def __init__(self, ends: Ends) -> None:
        super().__init__()
        self.conv = nn.Conv2d(64, 64, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(64)
        self.ends = ends

    def forward(self, x: Tensor) -> Tensor:
        return self.ends(self.norm(self.conv(x)), x)


def twice(y: Tensor) -> Tensor:
    return torch.cat([y, y.relu()], 1)


@pytest.mark.parametrize(("module", "known"), MODULES)
def test_an_activation_that_torch_takes_apart_is_recognised(module: nn.Module, known: object) -> None:
    """Each of the table, with its slope; another one stays, and the convolution before it doesn't."""
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
    net, x = half_net(Ended(ends)), half_image(2, 64, 5, 7)
    made = rewritten(net, x)
    (found,) = made.operations
    assert (found["residual"] is not None, found["activation"]) == (residual, activation)
    assert found["scale"] is not None
    assert error(net, made.answer, x) < 1e-3


def test_a_residual_block_is_three_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its shortcut by a 1×1 convolution of stride 2, which the block's last one adds; each with its batch norm."""
    by_the_kernels(monkeypatch)

    net, x = residual_block(), half_image(2, 32, 6, 10)
    made = rewritten(net, x)
    assert sorted(made.names) == ["conv1x1_strided", "conv3x3", "conv3x3_strided"]
    maps = [node for node in made.graph.nodes if node.op == "call_function" and "aten.relu" in str(node.target)]
    assert maps == []
    assert error(net, made.answer, x) < 1e-3


def test_a_map_that_is_added_as_it_is_transposed_stays_outside() -> None:
    """The kernel's bulk copies couldn't read it: its channels don't lie side by side."""
    net = half_net(Ended(lambda y, x: y + x.contiguous().transpose(2, 3)))
    made = rewritten(net, half_image(1, 64, 8, 8))
    (found,) = made.operations
    assert found["residual"] is None


def test_few_channels_add_for_themselves_where_a_tile_of_many_would_lose() -> None:
    """As in a stage: 3×3 of 48 channels leave the addition to Inductor, 1×1 ones don't."""

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
