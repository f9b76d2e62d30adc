"""Stages with real faults, for `tests.benchmarks.gpu_faults`: each goes wrong in the phase that its name says."""

import ctypes
import os
import signal
from collections.abc import Callable

import torch
from torch import Tensor

from pipeline.stages import Runner
from pipeline.stages.api import Workload

BLOCK_BYTES, ABSURD_BYTES = 2**30, 2**50
VERIFYING_CALLS = 6  # the first call, and the verification of eight images in batches of two; then the warm-up begins
CYCLES = 2**60  # of a kernel that ends in years
HANG_SECONDS = 3600

kept: list[Tensor] = []


def fill_memory(device: torch.device) -> None:
    """Take all of a GPU's memory in blocks, or more than there is of the host's."""
    if device.type != "cuda":
        torch.empty(ABSURD_BYTES, dtype=torch.uint8)
    while True:
        kept.append(torch.empty(BLOCK_BYTES, dtype=torch.uint8, device=device))


def hang(device: torch.device) -> None:
    """Wait for a kernel that doesn't end; on a CPU, in native code that holds Python's lock."""
    if device.type == "cuda":
        torch.cuda._sleep(CYCLES)
        torch.cuda.synchronize()
    ctypes.PyDLL(None).sleep(HANG_SECONDS)


def poison(device: torch.device) -> None:
    """Trip an assertion on the device: the process's context answers nothing from then on."""
    wrong = torch.full((1,), 1000, device=device)
    torch.zeros(10, device=device).index_select(0, wrong)
    torch.cuda.synchronize()


def kill(_: torch.device) -> None:
    """As the system does where memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


DEEDS: dict[str, Callable[[torch.device], None]] = {"memory": fill_memory, "hang": hang, "poison": poison, "kill": kill}


def build(workload: Workload, *, deed: str, after_calls: int = -1, share: float = 0.0) -> Runner:
    """A stage that runs the net, and does the deed.

    Args:
        workload: the net and its images.
        deed: one of `DEEDS`; "none" does nothing.
        after_calls: so many calls; less than 0: in the build.
        share: of the device's whole memory, which is taken in one piece in the build.
    """
    device, calls = workload.device, 0
    if share:
        total = torch.cuda.get_device_properties(device).total_memory
        kept.append(torch.empty(int(share * total), dtype=torch.uint8, device=device))
    if after_calls < 0 and deed in DEEDS:
        DEEDS[deed](device)

    def run(batch: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls > after_calls and deed in DEEDS:
            DEEDS[deed](device)
        return workload.model(batch)

    return Runner(run=run, description="a fault")
