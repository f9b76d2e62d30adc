"""Calls the user's net as whoever looks at it must: what it does then besides answering is one line that names it."""

from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from models.build import ends_the_program
from pipeline.compiler.batch import Batch
from pipeline.errors import InputError, ModelError
from pipeline.records.data_words import Words, words_for
from pipeline.records.tasks import SEGMENTATION, Task
from pipeline.worker.contract import share_memory
from pipeline.worker.failures import failure_of


@dataclass(frozen=True)
class Net:
    """What is looked at.

    Attributes:
        name: of the net's class.
        model: the net.
        inputs: that it is called with.
        task: what its answer is.
    """

    name: str
    model: nn.Module
    inputs: Batch
    task: Task = SEGMENTATION

    @property
    def images(self) -> Tensor:
        """The first input, such as images [batch, channels, height, width]."""
        return self.inputs.first

    @property
    def words(self) -> Words:
        """What its data are called: images, or volumes."""
        return words_for(self.images.dim() - 2)


def called(net: Net) -> object:
    """The net's answer to its images.

    Raises:
        ModelError: the call fails, changes the images, or answers in their memory.
    """
    given = net.inputs.clone()
    try:
        with torch.inference_mode():
            answer: object = net.model(*given)
    except InputError:
        raise
    except SystemExit as error:
        raise ModelError(f"model.target: {net.name} {ends_the_program(error)} when it is called") from error
    except Exception as error:
        kind, reason = failure_of(error)
        if kind == "out of memory":
            raise
        shape = described_inputs(given)
        hint = channel_hint(net) or batch_hint(net)
        raise ModelError(f"model.target: {net.name} fails on {shape}: {reason}{hint}") from error
    check_inputs_left(net, given, answer)
    return answer


def check_inputs_left(net: Net, given: Batch, answer: object) -> None:
    """That a call left its inputs as they were, and has its answer elsewhere.

    Raises:
        ModelError: it didn't.
    """
    if not all(torch.equal(one, other) for one, other in zip(given, net.inputs, strict=True)):
        raise ModelError(
            f"model.target: {net.name} changes its input in place: a second call would see another {net.words.sample}"
        )
    if any(part.requires_grad for part in given):
        raise ModelError(
            f"model.target: {net.name} asks for gradients of its input (requires_grad), which every stage is given; "
            "let it take them of a copy (.clone())"
        )
    if isinstance(answer, Tensor) and share_memory(answer, given):
        raise ModelError(
            f"model.target: {net.name} answers in the memory of its input, so that neither could be kept; give the "
            "answer a tensor of its own (.clone())"
        )


def batch_hint(net: Net) -> str:
    """A clause for a net of torch.export's, whose graph may name the batch that it was exported with."""
    if not isinstance(net.model, fx.GraphModule):
        return ""
    return "; its graph may be for one batch alone: export the net with a batch of 1, and set data.batch_size=1"


def described_inputs(given: Batch) -> str:
    """What a net was given, for a message: a batch of images, or each input by its name."""
    if len(given.names) == 1:
        return f"a batch {list(given.shape)} in fp32"
    parts = zip(given.names, given, strict=True)
    return ", ".join(f"{name} {list(part.shape)} {str(part.dtype).removeprefix('torch.')}" for name, part in parts)


def channel_hint(net: Net) -> str:
    """A clause that says how channels go together, where the net's first convolution has others than the images."""
    first = next((part for part in net.model.modules() if isinstance(part, nn.Conv2d | nn.Conv3d)), None)
    given = net.images.shape[1] if net.images.dim() > 1 else 0
    if first is None or first.in_channels == given or len(net.inputs.names) > 1:
        return ""
    return f"; its first convolution takes {first.in_channels} channels, data.channels={given} gives {given}"


def out_of_sight(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Layers in plain lists and dicts of a net, each after where it is: it doesn't know them as its own."""
    known, found = set(model.modules()), list[tuple[str, nn.Module]]()
    for path, part in model.named_modules():
        for name, held in vars(part).items():
            inside = held.values() if isinstance(held, dict) else held if isinstance(held, list | tuple) else ()
            place = f"{'.'.join(filter(None, (path, name)))}, a {type(held).__name__}"
            found += [(place, each) for each in inside if isinstance(each, nn.Module) and each not in known]
    return found
