"""Whether a bundle's net is right by the run's rule: its own answers to all that the run judged the stage on."""

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

CHUNK, CHUNK_SECONDS = 16, 120.0  # batches that one process answers, and seconds of the fp32 net that they stand for
MARGIN = 1.25  # by which another machine may be further off on one batch: it rounds other pixels over a threshold

Asker = Callable[..., Said]  # such as `bundle.ask`


def judged(recorded: RecordedStage, folder: Path, scratch: Path, ask: Asker, step: Say = silent) -> Judged:
    """How far the bundle in a folder is from the fp32 net over the run's evaluation images, which its rule lets pass.

    Args:
        recorded: the stage.
        folder: the bundle's.
        scratch: for batches and answers, a few at a time.
        ask: its loader.
        step: is told what it is at.

    Raises:
        BundleFails: it gives no answer, or one that the run would have called inaccurate; its reason.
        pipeline.errors.InputError: the run's images or labels aren't there any more.
    """
    run = recorded.run
    work = recorded.workload
    sizes = batch_sizes(work)
    left_out = calibrated_on(recorded, work, sizes)
    numbers = [number for number in range(len(sizes)) if number not in left_out]
    images = judged_images(work, sizes, left_out)
    labels = None if work.labels is None else torch.from_numpy(work.labels[images])
    labels = labels if work.targets is None else work.targets[images]
    step(f"judging it: the fp32 net's answers to {work.words.counted(len(images))}")
    began = time.monotonic()
    expected = [reference(work, number)[: sizes[number]] for number in numbers]
    chunk = chunk_of((time.monotonic() - began) / max(1, len(numbers)))
    chunks = [numbers[start : start + chunk] for start in range(0, len(numbers), chunk)]
    found = answers(recorded, work, chunks, folder, scratch, ask, step)
    try:
        answered = (part[: sizes[number]] for number, part in zip(numbers, found, strict=True))
        accuracy = compare(map(as_logits, answered, expected), expected, labels, run.config.task)
    except WrongShape as wrong:
        raise BundleFails(str(wrong)) from None
    check(recorded, accuracy)
    off = None if recorded.ends.classes_out else accuracy.relative_l2
    return Judged(len(images), off, accuracy.flipped_share)


def batch_sizes(work: Workload) -> list[int]:
    """How many images of each evaluation batch count: all but in the last."""
    size = work.shape[0]
    total = max(work.judged, work.verified * size)
    return [min(size, total - start) for start in range(0, total, size)]


def calibrated_on(recorded: RecordedStage, work: Workload, sizes: list[int]) -> tuple[int, ...]:
    """The evaluation batches that the run didn't judge the stage on, as it had chosen its scales by them."""
    accuracy, size = recorded.stage.accuracy, work.shape[0]
    if recorded.stage.calibration is None or accuracy is None:
        return ()
    given = (sum(sizes) - accuracy.images) // size
    whole = sum(count == size for count in sizes[work.verified :])
    return given_away(work.verified, whole, given) if 0 < given <= whole else ()


def inputs_of(work: Workload, number: int) -> list[Tensor]:
    """What the fp32 net takes of an evaluation batch, on the device."""
    if work.images is not None:
        return [to_batch(images_of(work, number), work.contract).to(work.device)]
    size = work.shape[0]
    if number < work.verified or work.further is None:
        return [*work.inputs[number]]
    return [*work.further(number * size, (number + 1) * size)]


def images_of(work: Workload, number: int) -> np.ndarray:
    """The images [batch, height, width, channels] of an evaluation batch; the last is filled up with the first."""
    assert work.images is not None
    size = work.shape[0]
    found = work.images[number * size : (number + 1) * size]
    return np.concatenate([found, work.images[: size - len(found)]])


def reference(work: Workload, number: int) -> Tensor:
    """The fp32 net's answer [batch, …] to an evaluation batch, on the CPU."""
    with torch.inference_mode(), without_tf32():
        answer: Tensor = work.model(*inputs_of(work, number))
    return answer.float().cpu()


def chunk_of(seconds: float) -> int:
    """How many batches one process answers, where the fp32 net takes so long for one: it has minutes for them all."""
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
    """The bundle's own answer [batch, …] to each evaluation batch, in order, from a process without us a chunk."""
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
    """Logits of which the classes [batch, height, width] are those of an answer that holds classes; others as they are.

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
    """That the run's own rule lets such an answer pass.

    Raises:
        BundleFails: it doesn't; its reason, and what the stage itself had in the run.
    """
    run, stage = recorded.run, recorded.stage
    allowed, words = stage.spec.tolerance, recorded.workload.words
    if recorded.ends.classes_out:
        allowed = replace(allowed, relative_l2=float("inf"))
    status, reason = judge(accuracy, allowed, run.config.model.is_trained, words)
    limits = replace(run.config.accuracy, max_final_error=None)  # its loop isn't run again
    if status == "ok":
        reason = limits.missed(accuracy, words) if run.config.model.is_trained else ""
    if reason:
        raise BundleFails(f"over {words.counted(accuracy.images)} as the run judged {stage.name}, {reason}")


def golden_limits(answer: Tensor, expected: Tensor, tolerance: Tolerance, task: Task) -> GoldenLimits:
    """How far the golden batch's answer may be from the fp32 net's: a sample, it may lie beyond the limit for them all.

    Args:
        answer: the bundle's, [batch, …], which the run's rule lets pass.
        expected: the fp32 net's.
        tolerance: of the stage, for all images that are judged.
        task: what the answers are.
    """
    found = compare([as_logits(answer, expected)], [expected], None, task)
    off = 0.0 if answer.ndim != expected.ndim else found.relative_l2
    return GoldenLimits(
        max(tolerance.relative_l2, MARGIN * off),
        max(tolerance.flipped_share, MARGIN * (found.flipped_share or 0.0)),
    )
