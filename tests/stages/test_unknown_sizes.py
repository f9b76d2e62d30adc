"""A net with sizes that no graph knows runs in fp16, where nobody can tell what of it may be in fp8."""

from pathlib import Path

import torch
from torch import Tensor, nn

from pipeline.compiler.autotune import Tuner
from pipeline.compiler.budget import Budget
from pipeline.stages import fp8
from pipeline.stages.common.rewritten_net import Rewritten
from tests.stages.test_fused import no_gpu, small_unet, workload

__all__ = ["no_gpu"]  # a fixture


class Choosing(nn.Module):
    """Gives as many classes as a mask shows."""

    shown: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.net = small_unet()
        self.register_buffer("shown", torch.tensor([True, True]))

    def forward(self, batch: Tensor) -> Tensor:
        """[batch, 2, height, width] of an image [batch, 3, height, width]."""
        logits: Tensor = self.net(batch)[:, self.shown]
        return logits


def test_it_stays_in_fp16_and_says_why(tmp_path: Path) -> None:
    rewritten = Rewritten(workload(Choosing(), tmp_path), Tuner(tmp_path), None)
    assert fp8.sensitivity_or_why(rewritten, 4, "auto", Budget(1.0, 1.0)) is None
    assert rewritten.refused["fp8"].startswith("GuardOnDataDependentSymNode: ")
