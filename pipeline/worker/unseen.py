"""Pictures that no stage has seen before they are asked for: the run's own, rolled or with a part turned around.

Rolled, a picture keeps every sum over it; with a part turned, it keeps most of its pixels. Whoever finds answers by
either gives a stale one, and whoever finds them by all of the contents has none.
"""

import random
from collections.abc import Callable
from pathlib import Path
from types import EllipsisType
from typing import NamedTuple

import torch
from torch import Tensor

from pipeline.compiler.agreement import distance
from pipeline.compiler.batch import Batch
from pipeline.measure.rotation import Rotation
from pipeline.records.request import Job
from pipeline.stages.api import Workload
from pipeline.worker.reference import load_logits

LEAST_LIMIT = 1e-2  # relative L2; a single image of these may be further from fp32 than all that were verified
ALLOWED_TIMES = 3  # what the stage's tolerance allows, of the same
SAME_PICTURE = 1e-4  # relative L2 between the net's answers, below which two pictures are one to it


class Unseen(NamedTuple):
    """One batch in which the picture is unseen.

    Attributes:
        source: the batch that it is made of, by its number.
        image: the one that the answer is compared for.
        change: makes a sample of the source's first input, such as [channels, height, width], unseen, in place.
    """

    source: int
    image: int
    change: Callable[[Tensor], object]

    def make(self, batch: Batch) -> None:
        """Make every sample of the source's first input unseen, in place."""
        for image in batch.first:
            self.change(image)


def unseen(work: Workload, seed: int) -> list[Unseen]:
    """The unseen batches of a run, the same for all its stages; none where a sample's first input is one number."""
    draw = random.Random(seed)  # noqa: S311 - what is drawn is no secret
    batch, *sample = work.shape
    lengths = sample[-2:]  # rows and columns of a picture
    if not lengths:
        return []
    steps = tuple(draw.randrange(1, max(2, length)) for length in lengths)
    starts = [draw.randrange(max(1, length // 4)) for length in lengths]
    halves = (slice(at, at + (length + 1) // 2) for at, length in zip(starts, lengths, strict=True))
    part: tuple[EllipsisType | slice, ...] = (..., *halves)
    axes = tuple(range(-len(lengths), 0))

    def roll(image: Tensor) -> object:
        return image.copy_(image.roll(steps, axes))

    def turn_a_part(image: Tensor) -> object:
        return image[part].copy_(image[part].flip(axes))

    last = work.verified - 1
    return [Unseen(0, draw.randrange(batch), roll), Unseen(last, draw.randrange(batch), turn_a_part)]


def net_answers(work: Workload, seed: int) -> list[Tensor]:
    """The net's logits [1, classes, height, width] for each image that is compared, on the CPU; expects TF32 off."""
    answers = []
    with torch.inference_mode():
        for asked in unseen(work, seed):
            one = work.inputs[asked.source].samples(asked.image, asked.image + 1).clone()
            asked.make(one)
            answers.append(work.model(*one).cpu())
    return answers


def first_fault(
    job: Job, work: Workload, rotation: Rotation, verified: list[Tensor], answer: Callable[[Batch], Tensor]
) -> str:
    """Why a stage's answer to an unseen picture isn't the net's, in one line; empty where all are.

    Args:
        job: names the reference's files and the tolerance.
        work: the net's images.
        rotation: where they lie now; afterwards it holds what it held.
        verified: the stage's answers [batch, classes, height, width] to the first batches.
        answer: the stage, with its logits on the CPU in fp32.
    """
    net, expected = load_logits(path := Path(job.reference)), load_logits(path, "unseen")
    for asked, right in zip(unseen(work, job.seed), expected, strict=True):
        held, source, image = rotation.holding(asked.source), asked.source, asked.image
        rotation.spare.copy_(held)
        asked.make(held)
        got = answer(held)[image]
        held.copy_(rotation.spare)
        allowed = job.stage.tolerance.relative_l2
        if reason := fault(got, right[0], verified[source][image], net[source][image], allowed):
            return reason
    return ""


def fault(got: Tensor, expected: Tensor, earlier: Tensor, net_earlier: Tensor, allowed: float) -> str:
    """Why an answer to an unseen picture isn't the net's, in one line; empty where it is.

    Args:
        got: the stage's [classes, height, width], as all others.
        expected: the net's.
        earlier: the stage's answer to the picture that it is made of.
        net_earlier: the net's to the same.
        allowed: the stage's tolerance, relative L2.
    """
    if torch.equal(got, earlier) and distance(expected, net_earlier) > SAME_PICTURE:
        return "to a picture that it had never seen it gave, bit for bit, an answer that it had given to another one"
    off, limit = distance(got, expected), max(LEAST_LIMIT, ALLOWED_TIMES * allowed)
    if off > limit:
        return f"its answer to a picture that it had never seen is {off:.2g} (relative L2) off the net's"
    return ""
