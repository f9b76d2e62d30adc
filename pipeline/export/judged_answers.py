"""The judgement of a bundle: its own answers to all images that the run judged, by the run's rule."""

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from models.image_batches import to_batch
from pipeline.compiler.network_calls import without_tf32
from pipeline.export.bundle import BundleFails, Said
from pipeline.export.carried.golden_check import FURTHER
from pipeline.export.command import Say
from pipeline.export.contract import GoldenLimits, Judged
from pipeline.export.recorded_stage import RecordedStage
from pipeline.measure.accuracy import WrongShape, compare
from pipeline.records.goals import Task, Tolerance, judge
from pipeline.records.samples import Accuracy
from pipeline.stages.api import Workload, silent
from pipeline.worker.workload import given_away, judged_images

CHUNK, CHUNK_SECONDS = 16, 120.0  # batches for one process, and seconds that the fp32 network may need for them
MARGIN = 1.25  # for another machine, which rounds other pixels of a batch over a threshold

Asker = Callable[..., Said]  # such as `bundle.ask`


def judged(recorded: RecordedStage, folder: Path, scratch: Path, ask: Asker, step: Say = silent) -> Judged:
    """Measure the bundle's distance from the fp32 network over the run's evaluation images, by the run's rule.

    Args:
        recorded: the stage.
        folder: of the bundle.
        scratch: for batches and answers, a few at a time.
        ask: runs its loader.
        step: is told each step.

    Raises:
        BundleFails: it gives no answer, or an inaccurate one.
        InputError: the run's images or labels are gone.
    """
    run = recorded.run
    work = recorded.workload
    sizes = batch_sizes(work)
    left_out = calibrated_on(recorded, work, sizes)
    numbers = [number for number in range(len(sizes)) if number not in left_out]
    images = judged_images(work, sizes, left_out)
    labels = None if work.labels is None else torch.from_numpy(work.labels[images])
    labels = labels if work.targets is None else work.targets[images]
    step(f"judging it: the fp32 network's answers to {work.words.counted(len(images))}")
    began = time.monotonic()
    expected = [reference(work, number)[: sizes[number]] for number in numbers]
    chunk = chunk_of((time.monotonic() - began) / max(1, len(numbers)))
    chunks = [numbers[start : start + chunk] for start in range(0, len(numbers), chunk)]
    bundle_answers = answers(recorded, work, chunks, folder, scratch, ask, step)
    try:
        answered = (part[: sizes[number]] for number, part in zip(numbers, bundle_answers, strict=True))
        accuracy = compare(map(as_logits, answered, expected), expected, labels, run.config.task)
    except WrongShape as wrong:
        raise BundleFails(str(wrong)) from None
    check(recorded, accuracy)
    off = None if recorded.ends.classes_out else accuracy.relative_l2
    return Judged(len(images), off, accuracy.flipped_share)


def batch_sizes(work: Workload) -> list[int]:
    """Return the number of images in each evaluation batch; only the last may have fewer."""
    size = work.shape[0]
    total = max(work.judged, work.verified * size)
    return [min(size, total - start) for start in range(0, total, size)]


def calibrated_on(recorded: RecordedStage, work: Workload, sizes: list[int]) -> tuple[int, ...]:
    """Return the evaluation batches on which the stage was calibrated, and so wasn't judged."""
    accuracy, size = recorded.stage.accuracy, work.shape[0]
    if recorded.stage.calibration is None or accuracy is None:
        return ()
    given = (sum(sizes) - accuracy.images) // size
    whole = sum(count == size for count in sizes[work.verified :])
    return given_away(work.verified, whole, given) if 0 < given <= whole else ()


def inputs_of(work: Workload, number: int) -> list[Tensor]:
    """Return the fp32 network's inputs of an evaluation batch, on the device."""
    if work.images is not None:
        return [to_batch(images_of(work, number), work.contract).to(work.device)]
    size = work.shape[0]
    if number < work.verified or work.further is None:
        return [*work.inputs[number]]
    return [*work.further(number * size, (number + 1) * size)]


def images_of(work: Workload, number: int) -> np.ndarray:
    """Return the images [batch, height, width, channels] of an evaluation batch; the last is filled up."""
    assert work.images is not None
    size = work.shape[0]
    images = work.images[number * size : (number + 1) * size]
    return np.concatenate([images, work.images[: size - len(images)]])


def reference(work: Workload, number: int) -> Tensor:
    """Return the fp32 network's answer [batch, …] to an evaluation batch, on the CPU."""
    with torch.inference_mode(), without_tf32():
        answer: Tensor = work.model(*inputs_of(work, number))
    return answer.float().cpu()


def chunk_of(seconds: float) -> int:
    """Return how many batches one process answers, by the fp32 network's time for one."""
    return max(1, min(CHUNK, int(CHUNK_SECONDS / max(seconds, 1e-6))))


def answers(
    recorded: RecordedStage,
    work: Workload,
    chunks: list[list[int]],
    folder: Path,
    scratch: Path,
    ask: Asker,
    step: Say,
) -> Iterator[Tensor]:
    """Yield the bundle's answer [batch, …] to each evaluation batch, from a process without this project a chunk."""
    batches = scratch / "batches"
    for numbers in chunks:
        step(f"judging it: its own answers to batches {numbers[0] + 1} to {numbers[-1] + 1} of {chunks[-1][-1] + 1}")
        batches.mkdir()
        for number in numbers:
            first, *others = inputs_of(work, number)
            if recorded.ends.images_in:
                first = torch.from_numpy(images_of(work, number))
            further = {f"{FURTHER}{at}": part for at, part in enumerate(others)}
            tensors = {name: part.cpu().contiguous() for name, part in {"batch": first, **further}.items()}
            save_file(tensors, batches / f"{number:08}.safetensors")
        shape = ask(folder, "--batches", str(batches))["shape"]
        for path in sorted(batches.glob("*.bin")):
            yield torch.from_numpy(np.fromfile(path, np.float64).reshape(shape).astype(np.float32))
        shutil.rmtree(batches)


def as_logits(answer: Tensor, expected: Tensor) -> Tensor:
    """Return an answer of classes [batch, height, width] as logits with these classes; other answers unchanged.

    Args:
        answer: the bundle's.
        expected: logits [batch, classes, height, width].
    """
    if answer.ndim != expected.ndim - 1:
        return answer
    if expected.shape[1] == 1:
        return (2 * answer.float() - 1)[:, None]
    return torch.nn.functional.one_hot(answer.long(), expected.shape[1]).movedim(-1, 1).float()


def check(recorded: RecordedStage, accuracy: Accuracy) -> None:
    """Raise if the run's rule refuses this accuracy.

    Raises:
        BundleFails: it does; its reason.
    """
    run, stage = recorded.run, recorded.stage
    allowed, words = stage.spec.tolerance, recorded.workload.words
    if recorded.ends.classes_out:
        allowed = replace(allowed, relative_l2=float("inf"))
    status, reason = judge(accuracy, allowed, run.config.model.is_trained, words)
    limits = replace(run.config.accuracy, max_final_error=None)  # the loop isn't run again
    if status == "ok":
        reason = limits.missed(accuracy, words) if run.config.model.is_trained else ""
    if reason:
        raise BundleFails(f"over {words.counted(accuracy.images)} as the run judged {stage.name}, {reason}")


def golden_limits(answer: Tensor, expected: Tensor, tolerance: Tolerance, task: Task) -> GoldenLimits:
    """Return the limits for the golden batch, which may exceed the tolerance for all images.

    Args:
        answer: the bundle's, [batch, …], which the run's rule accepts.
        expected: the fp32 network's.
        tolerance: of the stage, for all judged images.
        task: of the network.
    """
    accuracy = compare([as_logits(answer, expected)], [expected], None, task)
    off = 0.0 if answer.ndim != expected.ndim else accuracy.relative_l2
    return GoldenLimits(
        max(tolerance.relative_l2, MARGIN * off),
        max(tolerance.flipped_share, MARGIN * (accuracy.flipped_share or 0.0)),
    )
