"""Stages that end, hang, fail, or answer zeros: the parent must see every one of them."""

import os
import signal
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from pipeline.stages import Runner, StageError
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
    runs: dict[str, Callable[[nn.Module], Run]] = {"zeros": zeros, "dies_at_work": dies_at_work}
    run = runs[fault](workload.model) if fault in runs else workload.model
    return Runner(run=run, description="a fault")
