"""What is asked of a net's answer: logits of the images, in classes that the labels have, the same at each call."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from models.errors import ImageError, ModelError
from models.model_output import described, tensors_of
from models.stain import UNLABELLED
from pipeline.profiling.dispatch import Dispatched, Operator
from pipeline.records.run_record import RunWarning
from pipeline.stages.api import Workload
from pipeline.worker.reference import relative_l2

MOST_CLASSES = 255  # a mask is kept in uint8, in which 255 is no class
REPEATS_WITHIN = 1e-5  # relative L2; a GPU's sums in another order lie below, and the record keeps how far
SUMS_TO_ONE = 1e-3  # how far from 1 the sum of a softmax in fp32 may be


@dataclass(frozen=True)
class Net:
    """What is looked at.

    Attributes:
        name: of the net's class.
        model: the net.
        images: that it is called with, [batch, channels, height, width].
    """

    name: str
    model: nn.Module
    images: Tensor


def check_answer(net: Net, answer: object) -> Tensor:
    """The answer, which must be logits [batch, classes, height, width] of the images.

    Raises:
        ModelError: it isn't; the line names what is wrong, or the part of it that `model.output` could take.
    """
    if not isinstance(answer, Tensor):
        fits = [name for name, part in tensors_of(answer).items() if fits_images(part, net.images)]
        remedy = (
            f"; name the one with the logits: model.output={fits[0]}" if fits else ", none of which has an image's size"
        )
        raise ModelError(f"model.output: {net.name} answers with a {described(answer)}{remedy}")
    if not answer.is_floating_point():
        raise ModelError(f"model.target: {net.name} answers in {answer.dtype}; it must give logits, before any argmax")
    if not fits_images(answer, net.images):
        given, found = list(net.images.shape), list(answer.shape)
        wanted = f"[{given[0]}, classes, {given[2]}, {given[3]}]"
        raise ModelError(f"model.target: {net.name} answers {found} to images {given}; it must give logits {wanted}")
    if answer.shape[1] > MOST_CLASSES:
        raise ModelError(f"model.target: {net.name} has {answer.shape[1]} classes; at most {MOST_CLASSES} are judged")
    if broken := float((~answer.isfinite()).float().mean()):
        raise ModelError(f"model.target: {broken:.3g} of what {net.name} answers in fp32 is NaN or infinite")
    return answer


def fits_images(answer: Tensor, images: Tensor) -> bool:
    """Whether it is [batch, any, height, width] of the images."""
    return answer.ndim == 4 and answer.shape[:1] == images.shape[:1] and answer.shape[2:] == images.shape[2:]


def check_labels(work: Workload, classes: int) -> None:
    """That every label is a class of the net.

    Raises:
        ImageError: one isn't; the line names the values and the first file.
    """
    if work.labels is None:
        return
    beyond = (work.labels >= classes) & (work.labels != UNLABELLED)
    if beyond.any():
        values = ", ".join(map(str, np.unique(work.labels[beyond]).tolist()[:5]))
        first = work.sources[int(beyond.reshape(len(beyond), -1).any(1).argmax())]
        raise ImageError(
            f"data.labels: {first} has labels {values}, and the net has classes 0 to {classes - 1}; "
            "data.positive, data.ignore and data.colors say what values mean"
        )


def repeated(net: Net, logits: Tensor) -> list[RunWarning]:
    """A warning where a second call on the same images answers otherwise; it names operators that draw at random.

    Args:
        net: the net and its images.
        logits: of the first call, [batch, classes, height, width].
    """
    drawn: dict[str, None] = {}

    def see(operator: Operator) -> None:
        if torch.Tag.nondeterministic_seeded in operator.function.tags:
            drawn[operator.name] = None

    with torch.inference_mode():
        moved = relative_l2(net.model(net.images.clone()), logits)
        if moved <= REPEATS_WITHIN:
            return []
        with Dispatched(see):
            net.model(net.images.clone())
    by = f"; {', '.join(drawn)} draws at random" if drawn else ""
    text = f"{net.name} answers otherwise at a second call: {moved:.2g} apart (relative L2){by}"
    return [RunWarning("net in doubt", text, "turn what is random off in eval mode; differences below it mean nothing")]


def probabilities(net: Net, logits: Tensor) -> list[RunWarning]:
    """A warning where logits [batch, classes, height, width] look like probabilities: masks are made of logits."""
    if not bool(((logits >= 0) & (logits <= 1)).all()) or not bool(logits.any()):
        return []
    if logits.shape[1] == 1:
        text, remedy = (
            "a single channel is thresholded at 0, so that every pixel is foreground",
            "leave the sigmoid out",
        )
    elif bool(((logits.sum(1) - 1).abs() < SUMS_TO_ONE).all()):
        text, remedy = "they sum to 1, as a softmax's", "leave the softmax out: errors of probabilities look small"
    else:
        return []
    return [RunWarning("net in doubt", f"the answers of {net.name} lie within 0 and 1: {text}", remedy)]
