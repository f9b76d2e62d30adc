"""Stages that would win by remembering answers, each by something else of its input."""

import hashlib
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

Run = Callable[[Tensor], Any]


def nothing(batch: Tensor) -> Tensor:
    """Zeros as the nets of the fooling stages would answer, two classes."""
    return batch.new_zeros((len(batch), 2, *batch.shape[2:]))


def remembering(key: Callable[[Tensor], object]) -> Callable[[nn.Module], Run]:
    """A stage that computes an answer once for each key of its input."""

    def fault(net: nn.Module) -> Run:
        kept: dict[object, Tensor] = {}

        def run(batch: Tensor) -> Tensor:
            if (known := key(batch)) not in kept:
                kept[known] = net(batch).clone()
            return kept[known]

        return run

    return fault


def contents(batch: Tensor) -> object:
    """All that the input holds."""
    return hashlib.sha1(batch.cpu().numpy().tobytes(), usedforsecurity=False).digest()


def few_pixels(batch: Tensor) -> object:
    """Five values of the input."""
    return tuple(batch.flatten()[:: max(1, batch.numel() // 5)].tolist())


def total(batch: Tensor) -> object:
    """A sum over the input, in whole thousandths."""
    return round(float(batch.double().sum()) * 1e3)


def knows_what_is_verified(net: nn.Module) -> Run:
    """Right for the first pictures that it is given, and nothing for all others."""
    kept: dict[object, Tensor] = {}

    def run(batch: Tensor) -> Tensor:
        known = contents(batch)
        if known not in kept and len(kept) < 3:
            kept[known] = net(batch).clone()
        return kept[known] if known in kept else nothing(batch)

    return run
