"""Stages that end, hang, fail, or answer zeros: the parent must see every one of them."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from pipeline.stages import Runner, Skip, StageError
from pipeline.stages.api import Workload

Run = Callable[[Tensor], Tensor]
LIVING_CALLS = 6  # of a stage that dies later: while it is sampled, if not in the warm-up


def zeros(net: nn.Module) -> Run:
    return lambda batch: torch.zeros(batch.shape[0], 2, *batch.shape[2:])


def dies_at_work(net: nn.Module) -> Run:
    calls = 0

    def run(batch: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls > LIVING_CALLS:
            os.kill(os.getpid(), signal.SIGKILL)
        return net(batch)

    return run


def build(workload: Workload, *, fault: str) -> Runner:
    if fault == "dies_in_build":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "hangs_in_build":
        time.sleep(600)
    if fault == "raises":
        raise RuntimeError("the compiler gave up\nand said so at length")
    if fault == "falls_back":
        reason = "asked for CUDAExecutionProvider, the session landed on CPUExecutionProvider"
        raise StageError(reason, "wrong device")
    if fault == "has_no_form_here":
        raise Skip("needs a unit that this machine lacks")
    if fault.startswith("too_large") and (fault == "too_large_for_any" or is_first(workload.folder)):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB\nand so on")
    runs: dict[str, Callable[[nn.Module], Run]] = {"zeros": zeros, "dies_at_work": dies_at_work}
    run = runs[fault](workload.model) if fault in runs else workload.model
    return Runner(run=run, description="a fault")


def is_first(folder: Path) -> bool:
    """Whether nobody built in this folder before: then the baseline's worker still holds its memory."""
    mark = folder / "was_here"
    found = not mark.exists()
    folder.mkdir(parents=True, exist_ok=True)
    mark.touch()
    return found
