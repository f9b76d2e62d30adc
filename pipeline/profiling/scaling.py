"""How a stage's time grows with its work: what is bound by launches and Python hardly does."""

from statistics import median

import torch

from pipeline.compiler.batch import Batch
from pipeline.measure.clock import Clock
from pipeline.records.diagnostics import BatchGrowth, ImageGrowth
from pipeline.stages.api import IMAGE_RANK, Runner

WARM_UP, TIMED = 2, 5  # calls of each batch size
FEWER_WARM_UP, FEWER_TIMED = 1, 3  # of each size of image, on a CPU
ROUNDS_SECONDS = 0.2  # of the calls on smaller images, alternating with those on whole ones


def growth(runner: Runner, batch: Batch, clock: Clock) -> BatchGrowth | None:
    """Seconds of single calls at a part of the batch, at half of it and at all of it; at batch 1 also at 2 images.

    None for a stage that is built for one shape, and for a single image
    on a CPU, whose growth says little (`image_growth`).
    """
    count = batch.shape[0]
    alone = count == 1 and not batch.is_cuda
    if runner.module is None or runner.uncaptured is not None or alone:
        return None
    sizes = sorted({max(1, count // 8), max(1, count // 2), count, 2 * count if count == 1 else count})
    with torch.inference_mode():
        seconds = [_seconds(runner, _of_size(batch, size), clock) for size in sizes]
    return BatchGrowth(sizes, seconds)


def image_growth(runner: Runner, batch: Batch, clock: Clock) -> ImageGrowth | None:
    """Seconds of the fastest calls on the upper left quarter of every image and on all of it, on a CPU.

    A single image's growth with the batch says little there: from one image to two, torch takes other libraries. The
    two are interleaved, and what other programs add is left out: it would hide what the pixels add.
    None on a GPU, for a stage that is built for one shape, for images that can't be halved, and for what is no batch
    of images [batch, channels, height, width] alone.

    Raises:
        RuntimeError: the net takes no image of half the height and width.
    """
    if len(batch.shape) != IMAGE_RANK or len(batch.tensors) > 1:
        return None
    height, width = batch.shape[-2:]
    if batch.is_cuda or runner.module is None or runner.uncaptured is not None or height % 2 or width % 2:
        return None
    quarter = batch.mapped(lambda part: part[..., : height // 2, : width // 2].contiguous())
    with torch.inference_mode():
        seconds = _fastest(runner, [quarter, batch], clock)
    return ImageGrowth([height * width // 4, height * width], seconds)


def _fastest(runner: Runner, batches: list[Batch], clock: Clock) -> list[float]:
    """The least of each batch's seconds, over as many rounds as fit into a fifth of a second, and at least three."""
    taken: list[list[float]] = []
    began = clock.now()
    while len(taken) < FEWER_WARM_UP + FEWER_TIMED or clock.now() - began < ROUNDS_SECONDS:
        taken.append([_call_seconds(runner, batch, clock) for batch in batches])
    return [min(rounds) for rounds in zip(*taken[FEWER_WARM_UP:], strict=True)]


def _of_size(batch: Batch, size: int) -> Batch:
    return batch.mapped(lambda part: torch.cat([part] * -(-size // len(part)))[:size].contiguous())


def _seconds(runner: Runner, batch: Batch, clock: Clock) -> float:
    for _ in range(WARM_UP):
        runner.run(batch)
    clock.synchronize()
    return median(_call_seconds(runner, batch, clock) for _ in range(TIMED))


def _call_seconds(runner: Runner, batch: Batch, clock: Clock) -> float:
    start = clock.now()
    runner.run(batch)
    clock.synchronize()
    return clock.now() - start
