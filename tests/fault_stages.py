"""Stages that misbehave, each in one way that fooled somebody: the pipeline must see every one of them."""

import gc
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from pipeline.measure.clock import Clock
from pipeline.stages import Runner, Skip, StageError
from pipeline.stages.api import Workload

Run = Callable[[Tensor], Tensor]
VERIFYING_CALLS = 5  # the first call, and the verification of eight images in batches of two; however short the warm-up
LIVING_CALLS = 6  # of a stage that dies later: while it is sampled, if not in the warm-up


def zeros(net: nn.Module) -> Run:
    """Fast and wrong."""
    return lambda batch: torch.zeros(batch.shape[0], 2, *batch.shape[2:])


def not_a_number(net: nn.Module) -> Run:
    """fp16 that overflowed."""
    return lambda batch: net(batch) * float("nan")


def black(net: nn.Module) -> Run:
    """A mask in which everything is ground."""
    return lambda batch: net(batch) + torch.tensor([1e4, 0.0]).reshape(1, 2, 1, 1)


def first_answer(net: nn.Module) -> Run:
    """The answer to the first batch, for ever."""
    kept: list[Tensor] = []

    def run(batch: Tensor) -> Tensor:
        if not kept:
            kept.append(net(batch))
        return kept[0]

    return run


def half_the_batch(net: nn.Module) -> Run:
    """Half of the work."""
    return lambda batch: net(batch[: max(1, len(batch) // 2)])


def wrong_later(net: nn.Module) -> Run:
    """Right while it is verified, wrong when it is timed."""
    calls = 0

    def run(batch: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return net(batch) if calls <= VERIFYING_CALLS else torch.zeros(batch.shape[0], 2, *batch.shape[2:])

    return run


def remembers_by_address(net: nn.Module) -> Run:
    """Computes each answer once, and looks it up by where the input lies."""
    kept: dict[int, Tensor] = {}

    def run(batch: Tensor) -> Tensor:
        if batch.data_ptr() not in kept:
            kept[batch.data_ptr()] = net(batch)
        return kept[batch.data_ptr()]

    return run


def dies_at_work(net: nn.Module) -> Run:
    """Killed while it is timed, as by a lack of memory."""
    calls = 0

    def run(batch: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls > LIVING_CALLS:
            os.kill(os.getpid(), signal.SIGKILL)
        return net(batch)

    return run


class Hasty(Clock):
    """A tenth of the time passes."""

    def now(self) -> float:
        """Seconds, of which there are too few."""
        return super().now() / 10


def forges_its_clock(net: nn.Module) -> Run:
    """Right, and as slow as the net; the clock that times it is sought out and hurried, which nothing near it sees."""
    for found in gc.get_objects():
        if type(found) is Clock:
            found.__class__ = Hasty
    return net


RUNS = {
    fault.__name__: fault
    for fault in (
        zeros,
        not_a_number,
        black,
        first_answer,
        half_the_batch,
        wrong_later,
        remembers_by_address,
        dies_at_work,
        forges_its_clock,
    )
}


def build(workload: Workload, *, fault: str) -> Runner:
    """The stage that misbehaves as `fault` says."""
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
    run = RUNS[fault](workload.model) if fault in RUNS else workload.model
    return Runner(run=run, description="a fault")


def is_first(folder: Path) -> bool:
    """Whether nobody built in this folder before: then the baseline's worker still holds its memory."""
    mark = folder / "was_here"
    found = not mark.exists()
    folder.mkdir(parents=True, exist_ok=True)
    mark.touch()
    return found
