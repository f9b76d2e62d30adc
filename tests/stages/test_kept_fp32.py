"""Modules that stay in fp32 do so by whichever of their names the net calls them."""

import pytest
import torch
from torch import Tensor, nn

from pipeline.stages.common.kept_fp32 import in_half
from pipeline.stages.common.precision import Half


class TwoNames(nn.Module):
    """A convolution whose answers fp16 doesn't hold, called within a Sequential, or by its own name."""

    def __init__(self, within: bool) -> None:
        super().__init__()
        self.conv, self.within = nn.Conv2d(3, 4, 1), within
        self.block, self.last = nn.Sequential(self.conv, nn.ReLU()), nn.Conv2d(4, 2, 1)
        nn.init.constant_(self.conv.weight, 1e5 / 3)
        nn.init.constant_(self.last.weight, 1e-3)

    def forward(self, image: Tensor) -> Tensor:
        """Logits [batch, 2, height, width] of an image [batch, 3, height, width]."""
        logits: Tensor = self.last(1e-2 * (self.block if self.within else self.conv)(image))
        return logits


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("kept", ["conv", "block.0", "block"])
@torch.no_grad()
def test_a_module_is_kept_in_fp32_under_each_of_its_names(kept: str, within: bool) -> None:
    net, image = TwoNames(within).eval(), torch.ones(1, 3, 4, 4)
    half = Half(net, torch.float16, [kept])
    assert {part.dtype for part in half.net.get_submodule("block.0").parameters()} == {torch.float32}
    assert {part.dtype for part in half.net.get_submodule("last").parameters()} == {torch.float16}
    assert half.net.get_submodule("conv") is half.net.get_submodule("block.0")
    torch.testing.assert_close(half(image).float(), net(image), rtol=2e-3, atol=2e-3)
    assert not Half(net, torch.float16)(image).isfinite().all()


@torch.no_grad()
def test_a_weight_that_another_module_shares_is_in_half_there() -> None:
    one, other = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)
    other.weight = one.weight
    given, image = one.weight.detach().clone(), torch.rand(1, 3, 4, 4)
    half = in_half(nn.Sequential(one, other).eval(), torch.bfloat16, ["0"])
    weights = half.state_dict()
    assert (weights["0.weight"].dtype, weights["1.weight"].dtype) == (torch.float32, torch.bfloat16)
    assert torch.equal(weights["0.weight"], given)
    assert half(image.bfloat16()).dtype == torch.bfloat16
