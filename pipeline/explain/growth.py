"""How a stage's time grows with the batch: what is bound by launches and Python hardly does."""

from statistics import median

import torch
from torch import Tensor

from pipeline.measure.clock import Clock
from pipeline.reasons import BatchGrowth
from pipeline.stages import Runner

SETTLING, TIMED = 2, 5  # calls of each batch size


def growth(runner: Runner, batch: Tensor, clock: Clock) -> BatchGrowth | None:
    """Seconds of single calls at a part of the batch, at half of it and at all of it; at batch 1 also at 2 images.

    None for a stage that is built for one shape.
    """
    if runner.module is None or runner.twin is not None:
        return None
    count = len(batch)
    sizes = sorted({max(1, count // 8), max(1, count // 2), count, 2 * count if count == 1 else count})
    with torch.inference_mode():
        seconds = [_seconds(runner, _of_size(batch, size), clock) for size in sizes]
    return BatchGrowth(sizes, seconds)


def _of_size(batch: Tensor, size: int) -> Tensor:
    return batch[:size].contiguous() if size <= len(batch) else torch.cat([batch] * size)[:size]


def _seconds(runner: Runner, batch: Tensor, clock: Clock) -> float:
    for _ in range(SETTLING):
        runner.run(batch)
    clock.synchronize()
    taken = []
    for _ in range(TIMED):
        start = clock.now()
        runner.run(batch)
        clock.synchronize()
        taken.append(clock.now() - start)
    return median(taken)
