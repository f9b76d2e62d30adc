"""A net's complex weights stay complex in every stage's copy, as they do where the user calls the net."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from pipeline.compiler.agreement import distance
from pipeline.compiler.batch import net_in_dtype
from pipeline.compiler.graph.exported_net import Entry
from pipeline.compiler.half import AsItLies, Half


class Fourier(nn.Module):
    """A convolution, filters of its frequencies, and a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 2, 1)
        self.filters = nn.Parameter(torch.randn(8, 8, 5, dtype=torch.complex64))
        self.turns, self.order = nn.Buffer(torch.polar(torch.ones(5), torch.arange(5.0))), nn.Buffer(torch.arange(8))

    def forward(self, batch: Tensor) -> Tensor:
        """Logits [batch, 2, 8, 8] of a batch [batch, 3, 8, 8]."""
        spectrum = torch.fft.rfft2(self.first(batch).float()) * self.filters * self.turns
        logits: Tensor = self.last(torch.fft.irfft2(spectrum).to(batch.dtype)[:, self.order])
        return logits


@pytest.mark.parametrize("copied", [Half, AsItLies, Entry, partial(Half, kept=["last"])])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@torch.no_grad()
def test_filters_of_frequencies_keep_their_imaginary_parts(
    copied: Callable[[nn.Module, torch.dtype], nn.Module], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    net, batch = Fourier().eval(), torch.rand(2, 3, 8, 8)
    assert distance(copied(net, dtype)(batch).float(), net(batch)) < 3e-3


def test_floating_weights_alone_are_cast() -> None:
    types = {name: part.dtype for name, part in net_in_dtype(Fourier(), torch.float16).state_dict().items()}
    assert types.pop("filters") == types.pop("turns") == torch.complex64
    assert types.pop("order") == torch.int64
    assert set(types.values()) == {torch.float16}
