"""The switches of a process that decide how torch computes in fp32."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def allow_tf32(allowed: bool) -> None:
    """Let matrix products and convolutions in fp32 round their inputs to TF32, or not: a switch of the process."""
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


@contextmanager
def without_tf32() -> Iterator[None]:
    """Within, fp32 is fp32; the switches are as they were afterwards."""
    switches: list[Any] = [torch.backends.cuda.matmul, torch.backends.cudnn]
    name = "allow_tf32"
    try:
        before = [switch.allow_tf32 for switch in switches]
    except RuntimeError:  # the net's module has set torch's newer ones, after which the older can't be read
        switches, name = [switches[0], switches[1].conv], "fp32_precision"
        before = [switch.fp32_precision for switch in switches]
    allow_tf32(False)
    try:
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            setattr(switch, name, value)
