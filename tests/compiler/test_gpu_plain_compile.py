"""On a GPU a plain torch.compile calls the kernels, and answers as the net in fp32 does."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.utils import run_and_get_code

from pipeline.compiler import custom_ops, post_grad_pass
from pipeline.compiler.post_grad_pass import kernels_in_torch_compile
from pipeline.compiler.tuning.autotune import Tuner
from tests.compiler.plain_compile import LAYERS, channels_of, error, half_image, half_net, residual_block
from tests.process_state import own_switches

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def switched_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(custom_ops, "Tuner", lambda: Tuner(tmp_path))
    monkeypatch.setattr(post_grad_pass, "SHARE", 1e6)
    config: Any = torch._inductor.config
    with own_switches(), config.patch(post_grad_custom_pre_pass=None):
        torch.backends.cudnn.allow_tf32 = False  # of the net in fp32
        kernels_in_torch_compile()
        yield
    torch._dynamo.reset()


def answered(net: nn.Module, batch: Tensor) -> tuple[Tensor, str]:
    torch._dynamo.reset()
    with torch.no_grad():
        answer, programs = run_and_get_code(torch.compile(net), batch)
    return answer, programs[-1]


@pytest.mark.parametrize(("name", "layer", "even"), LAYERS)
def test_a_layer_is_its_kernel_s(name: str, layer: nn.Module, even: bool) -> None:
    inner, outer = channels_of(layer)
    net = half_net(copy.deepcopy(layer), nn.BatchNorm2d(outer), nn.SiLU()).cuda()
    x = half_image(2, inner, 33 + even, 47 + even).cuda()
    answer, program = answered(net, x)
    assert program.count(f"torch.ops.unet_ladder.{name}.default(") == 1
    assert error(net, answer, x) < 1e-3


def test_a_block_adds_its_shortcut_in_its_last_convolution() -> None:
    net, x = residual_block().cuda(), half_image(2, 32, 34, 46).cuda()
    answer, program = answered(net, x)
    names = ("conv3x3_strided", "conv3x3", "conv1x1_strided")
    assert [program.count(f"torch.ops.unet_ladder.{name}.default(") for name in names] == [1, 1, 1]
    assert error(net, answer, x) < 1e-3
