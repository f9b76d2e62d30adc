"""What a stage works on: the net, real images on the device, and the seed that orders them."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Workload:
    """The net and its images; a stage reads it and never changes it.

    Attributes:
        model: the net in fp32, in eval mode, on `device`.
        batches: the rotation, each [batch, channels, height, width], fp32, contiguous, on `device`; all of one shape.
        device: where the stage is to run.
        folder: the stage's own folder, for its artefacts and caches.
        seed: of everything drawn at random.
    """

    model: nn.Module
    batches: list[Tensor]
    device: torch.device
    folder: Path
    seed: int = 0

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Batch, channels, height, width."""
        batch, channels, height, width = self.batches[0].shape
        return batch, channels, height, width
