"""A batch norm folded into a convolution, by the one function that does it, changes no answer."""

import pytest
import torch
from torch import nn

from pipeline.compiler.folding import BatchNorm, fold, folded
from pipeline.compiler.graph.exported_net import export
from pipeline.compiler.passes import FOR_ANY_BACKEND, rewrite
from tests.compiler.nets import image, lively
from tests.compiler.nets_that_passes_leave import Made, conv


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_one_convolution_does_what_both_did(affine: bool, bias: bool) -> None:
    conv, norm = nn.Conv2d(3, 8, 3, bias=bias), nn.BatchNorm2d(8, affine=affine).eval()
    norm.running_mean, norm.running_var = torch.linspace(-1, 1, 8), torch.linspace(0.1, 2, 8)
    known = BatchNorm(norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias)
    weight, shift = fold(conv.weight, conv.bias, known)
    batch = image(2, 3, 9, 9)
    torch.testing.assert_close(nn.functional.conv2d(batch, weight, shift), norm(conv(batch)), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_stage_s_copy_folds_with_it_and_the_net_is_left_alone() -> None:
    norm = nn.BatchNorm2d(8)
    net = lively(nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.ReLU()))
    rewritten, count = folded(net)
    assert count == 1
    assert net.get_submodule("1") is norm
    batch = image(2, 3, 9, 9)
    torch.testing.assert_close(rewritten(batch), net(batch), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_norm_by_the_batch_itself_is_not_folded() -> None:
    """Without running statistics a batch norm is another function of each batch."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, track_running_stats=False)).eval()
    rewritten, count = folded(net)
    assert count == 0
    batch = image(2, 3, 9, 9)
    torch.testing.assert_close(rewritten(batch), net(batch))


@torch.no_grad()
def test_one_that_the_net_s_own_autocast_runs_is_not_folded() -> None:
    """Its convolution reads bf16, and would be given weights in the net's type; the convolution before it is folded."""

    def both(x: torch.Tensor, first: nn.Module, before: nn.Module, second: nn.Module, after: nn.Module) -> torch.Tensor:
        y = before(first(x))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            made: torch.Tensor = after(second(y))
        return made.float()

    net = lively(Made(both, conv(3, 8), nn.BatchNorm2d(8), conv(8, 8), nn.BatchNorm2d(8)))
    batch = image(2, 3, 9, 9)
    made = export(net, batch, torch.float32)
    rewrite(made, FOR_ANY_BACKEND)
    assert made.matched["fold_batch_norm"] == ["layers.0"]
    torch.testing.assert_close(made.module(batch), net(batch), rtol=2e-2, atol=2e-2)
