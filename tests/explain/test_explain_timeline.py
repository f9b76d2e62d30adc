"""The allocator's books through one call, on an allocator whose every byte is known."""

import torch
from torch import Tensor, nn

from pipeline.explain.timeline import memory_timeline
from pipeline.stages import Runner

WORKSPACE = 1000


class Ledger:
    """Books that a test writes."""

    def __init__(self) -> None:
        self.now = self.most = 50

    def add(self, amount: int) -> None:
        """Allocate, or free with a negative amount."""
        self.now += amount
        self.most = max(self.most, self.now)

    def allocated(self) -> int:
        return self.now

    def peak(self) -> int:
        return self.most

    def reset(self) -> None:
        self.most = self.now


class Layer(nn.Module):
    """Writes four bytes an element, and works in as many more as it is told."""

    def __init__(self, ledger: Ledger, workspace: int) -> None:
        super().__init__()
        self.ledger, self.workspace = ledger, workspace

    def forward(self, image: Tensor) -> Tensor:
        """The image, allocated anew."""
        output = image.clone()
        self.ledger.add(4 * image.numel() + self.workspace)
        self.ledger.add(-self.workspace)
        return output


def test_the_peak_is_split_into_activations_and_workspace() -> None:
    """Two layers of 400 bytes each, the second working in 1000: the peak is 50 + 800 + 1000."""
    ledger = Ledger()
    net = nn.Sequential(Layer(ledger, 0), Layer(ledger, WORKSPACE))
    found = memory_timeline(Runner(net, "", module=net), torch.zeros(1, 1, 10, 10), ledger, 7)
    assert max(found.allocated_bytes) == 50 + 800 + WORKSPACE
    assert (found.held_bytes, found.activations_bytes, found.workspace_bytes) == (50, 800, WORKSPACE)
    assert found.context_bytes == 7
    assert found.seconds == sorted(found.seconds)
    assert any(holder.startswith("1:") for holder in found.peak_holders)


def test_a_stage_that_hides_its_layers_has_a_peak_alone() -> None:
    """Its workspace and weights are unknown."""
    ledger = Ledger()
    hidden = Layer(ledger, WORKSPACE)
    found = memory_timeline(Runner(hidden, ""), torch.zeros(1, 1, 10, 10), ledger, None)
    assert max(found.allocated_bytes) == 50 + 400 + WORKSPACE
    assert (found.workspace_bytes, found.weights_bytes) == (None, None)
    assert found.activations_bytes == 400 + WORKSPACE
