"""Call the user's network and check its answer; each fault is a one-line error that names the option to change."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from models.build import ends_the_program
from models.model_output import described, parts_of, tensors_of
from pipeline.compiler.agreement import distance
from pipeline.compiler.batch import Batch, batched, of_batches
from pipeline.errors import ImageError, InputError, ModelError, TensorError, few, per_cent
from pipeline.inputs.input_contract import UNLABELLED
from pipeline.profiling.layers import hooked
from pipeline.profiling.operators import Dispatched, Operator, counted, of_each_operator
from pipeline.records.data_words import Words, words_for
from pipeline.records.goals import SEGMENTATION, Task, TaskName
from pipeline.records.run_record import RunWarning
from pipeline.stages.api import Workload
from pipeline.stats.warnings import warned
from pipeline.worker.contract import change_since, named, process_state, share_memory, unlike_a_tensor
from pipeline.worker.failures import failure_of
from pipeline.worker.reference import LEAST_LIMIT, answered, fresh

MOST_CLASSES = 255  # a mask is kept in uint8, in which 255 is no class
SAME_WORK = 0.01  # of the bytes that a call moves
REPEATS_WITHIN = 1e-5  # relative L2; sums in another order on a GPU differ by less
SUMS_TO_ONE = 1e-3  # the largest error of a softmax's sum in fp32
UPSAMPLES = "model.upsample_logits=bilinear, which brings logits of a lower resolution to the images' size"
MOST_NAMED = 5  # outputs, or layers, in a line
CLAUSES = (  # what torch 2.12 says, and what that means for a network
    (
        r"should be the same|expected scalar type|(have|share) the same dtype|same data type",
        "; its weights are in fp32 here, as stages choose the precision: let its forward cast to their type",
    ),
    (r"does not require grad|[Ii]nference tensors?\b", "; its forward takes gradients, which nothing records here"),
)
SIDES = (96, 128, 224, 256, 384, 512)  # pixels that networks with positions or pools of their own are made for


class SeveralFitError(ModelError):
    """Several outputs have the shape that the task wants."""


class SideEffectError(ModelError):
    """A call has changed the process, which stays changed."""


@dataclass(frozen=True)
class Net:
    """The network and inputs that are checked."""

    name: str
    model: nn.Module
    inputs: Batch
    task: Task = SEGMENTATION
    classes: int | None = None

    @property
    def images(self) -> Tensor:
        """The first input, such as images [batch, channels, height, width]."""
        return self.inputs.first

    @property
    def words(self) -> Words:
        """The words for its data: images or volumes."""
        return words_for(self.images.dim() - 2)


def called(net: Net) -> object:
    """Call the network on its images and return the answer."""
    inputs, state = net.inputs.clone(), process_state()
    try:
        with torch.inference_mode():
            answer: object = net.model(*inputs)
    except InputError:
        raise
    except SystemExit as error:
        raise ModelError(f"model.target: {net.name} {ends_the_program(error)} when it is called") from error
    except Exception as error:
        kind, reason = failure_of(error)
        if kind == "out of memory":
            raise
        parts = zip(inputs.names, inputs, strict=True)
        said = [f"{name} {list(part.shape)} {str(part.dtype).removeprefix('torch.')}" for name, part in parts]
        shape = ", ".join(said) if len(said) > 1 else f"a batch {list(inputs.shape)} in fp32"
        hint = channel_hint(net) or rank_hint(net)
        if not hint and isinstance(net.model, fx.GraphModule):
            hint = "; its graph may be for one batch alone: export it with a batch of 1, and set data.batch_size=1"
        meant = (clause for pattern, clause in CLAUSES if re.search(pattern, reason))
        hint = hint or next(meant, "") or container_hint(net) or size_hint(net)
        raise ModelError(f"model.target: {net.name} fails on {shape}: {reason}{hint}") from error
    check_process_left(net, state)
    check_inputs_left(net, inputs, answer)
    return answer


def check_process_left(net: Net, state: dict[str, object]) -> None:
    """Raise if a call changed the process, whose `process_state` it was before."""
    if change := change_since(state):
        raise SideEffectError(
            f"model.target: {net.name} changes the process where it is called: {change}; leave that to the program "
            "that uses it"
        )


def check_inputs_left(net: Net, given: Batch, answer: object) -> None:
    """Raise if a call changed its inputs, or answered in their memory."""
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


def channel_hint(net: Net) -> str:
    """Return a clause where the first convolution that the call reaches takes other channels than the images have."""
    reached: list[Any] = []
    convolutions = [(name, part) for name, part in net.model.named_modules() if isinstance(part, nn.Conv2d | nn.Conv3d)]
    with hooked(convolutions, lambda _, part: reached.append(part)):
        answered(net.model, net.inputs)
    channels = net.images.shape[1] if net.images.dim() > 1 else 0
    if not reached or reached[0].in_channels == channels or len(net.inputs.names) > 1:
        return ""
    return f"; its first convolution takes {reached[0].in_channels} channels, data.channels={channels} gives {channels}"


def rank_hint(net: Net) -> str:
    """Return a clause for a network of images that is given volumes."""
    convolutions = [part for part in net.model.modules() if isinstance(part, nn.Conv2d | nn.Conv3d)]
    no_volumes = net.images.dim() != 5 or len(net.inputs.names) > 1  # such as frames beside a time step
    if no_volumes or not convolutions or any(isinstance(part, nn.Conv3d) for part in convolutions):
        return ""
    return "; it has Conv2d alone, and volumes have three dimensions (MONAI's: model.options.spatial_dims=3)"


def container_hint(net: Net) -> str:
    """Return a clause for a network that takes its images in a dict or a list."""
    keys: dict[str, None] = {}

    class Asked(dict[str, Tensor]):
        def __missing__(self, key: str) -> Tensor:
            keys[key] = None
            return net.images

    takes = next(iter(inspect.signature(net.model.forward).parameters), "")
    with suppress(Exception), torch.inference_mode():
        net.model(Asked())
        named = ", ".join(f"{takes}.{key}" for key in keys)
        return f"; it takes a dict: give it as data=tensors, by the names {named}" if keys else ""
    with suppress(Exception), torch.inference_mode():
        net.model([*net.images])
        return "; it takes a list of images: name a class that takes a batch and gives it that"
    return ""


def size_hint(net: Net) -> str:
    """Return a clause that names a size of images that the network takes."""
    if net.images.dim() != 4 or len(net.inputs.names) > 1:
        return ""
    shape = net.images.shape[:2]
    fits = (side for side in SIDES if answered(net.model, batched(net.images.new_zeros(*shape, side, side))))
    return f"; it takes data.size={side}" if (side := next(fits, None)) else ""


def out_of_sight(model: nn.Module) -> list[tuple[str, nn.Module | nn.Parameter]]:
    """Return layers and parameters in plain lists or dicts, each with its place; torch doesn't register them."""
    known = {id(part) for part in (*model.modules(), *model.parameters())}
    unregistered = list[tuple[str, nn.Module | nn.Parameter]]()
    for path, part in model.named_modules():
        for name, held in vars(part).items():
            inside = held.values() if isinstance(held, dict) else held if isinstance(held, list | tuple) else ()
            place = f"{'.'.join(filter(None, (path, name)))}, a {type(held).__name__}"
            lost = (each for each in inside if isinstance(each, nn.Module | nn.Parameter) and id(each) not in known)
            unregistered += [(place, each) for each in lost]
    return unregistered


def check_answer(net: Net, answer: object) -> Tensor:
    """Return the answer if it is what the task wants: logits [batch, classes, height, width], or values."""
    of_classes, fits = net.task.has_masks, FITS[net.task.name]
    if not isinstance(answer, Tensor):
        if not tensors_of(answer):
            raise ModelError(
                f"model.target: {net.name} answers with {named(answer)}, in which there is no tensor; it must give a "
                "tensor, or a dict, list or dataclass of some"
            )
        fitting = fitting_outputs(net, answer)
        what, size = ("logits", f"{net.words.one}'s") if of_classes else ("answer", "a fitting")
        options = " or ".join(f"model.output={name}" for name in fitting)
        said = f"model.output: {net.name} answers with a {described(answer)}"
        if len(fitting) > 1:
            raise SeveralFitError(
                f"{said}, of which {len(fitting)} fit; name the one that your application uses: {options}"
            )
        parts = tensors_of(answer).items() if of_classes else ()
        small = {name: part for name, part in parts if is_smaller(part, net.images)}
        outputs = " or ".join(f"model.output={name}" for name in small)
        cure = next((f"; {outputs} with {enlarged(net, part, name)}" for name, part in small.items()), "")
        none = f", none of which has {size} size{cure}"
        raise ModelError(f"{said}; name the one with the {what}: {options}" if fitting else f"{said}{none}")
    if not answer.is_floating_point():
        wanted = "logits, before any argmax" if of_classes else "floating numbers"
        raise ModelError(f"model.target: {net.name} answers in {answer.dtype}; it must give {wanted}")
    if fault := unlike_a_tensor(answer, net.images.device):
        raise ModelError(f"model.target: {net.name} answers {fault}")
    if not fits(answer, net.images):
        images_shape, answer_shape = list(net.images.shape), list(answer.shape)
        wanted = f"{images_shape}" if net.task.name == "diffusion" else f"[{images_shape[0]}, …]"
        if of_classes:
            wanted = f"logits [{', '.join(map(str, [images_shape[0], 'classes', *images_shape[2:]]))}]"
        cure = f"; it needs {enlarged(net, answer)}" if is_smaller(answer, net.images) else ""
        other = (
            f"{cure}; for a network that answers with values, not classes, set task=regression" if of_classes else ""
        )
        raise ModelError(
            f"model.target: {net.name} answers {answer_shape} to {net.words.samples if of_classes else 'inputs'} "
            f"{images_shape}; it must give {wanted}{other}"
        )
    if of_classes and answer.shape[1] > MOST_CLASSES:
        raise ModelError(f"model.target: {net.name} has {answer.shape[1]} classes; at most {MOST_CLASSES} are judged")
    if broken := float((~answer.isfinite()).float().mean()):
        variances = [(name, part) for name, part in net.model.named_buffers() if name.endswith("running_var")]
        below = [name for name, part in variances if bool((part < 0).any())]
        cause = f"; model.checkpoint: {below[0]} holds a variance below 0" if below else ""
        raise ModelError(f"model.target: {100 * broken:.3g} % of {net.name}'s fp32 answer is NaN or infinite{cause}")
    return answer


def fitting_outputs(net: Net, answer: object) -> list[str]:
    """Return the names of the outputs that have the wanted shape, of those with the labels' classes if any has."""
    parts = {name: part for name, part in tensors_of(answer).items() if FITS[net.task.name](part, net.images)}
    classes = net.classes
    if classes is None or not net.task.has_masks:
        return list(parts)
    holds = [name for name, part in parts.items() if part.shape[1] >= classes or (part.shape[1] == 1 and classes <= 2)]
    return [name for name in holds if parts[name].shape[1] == classes] or holds or list(parts)


def fits_images(answer: Tensor, images: Tensor) -> bool:
    """Return whether an answer is [batch, classes, height, width] of the images, with a depth for volumes."""
    of_images = answer.ndim == images.ndim and answer.shape[:1] == images.shape[:1]
    return of_images and answer.shape[1] > 0 and answer.shape[2:] == images.shape[2:]


def enlarged(net: Net, small: Tensor, output: str = "") -> str:
    """Return the cure of a network whose logits, in the part `output`, are smaller than the images."""
    kinds = (nn.Conv2d, nn.Conv3d)
    convolutions = ((name, part) for name, part in net.model.named_modules() if isinstance(part, kinds))
    for name, part in convolutions:
        axes = [] if isinstance(part.padding, str) else zip(part.kernel_size, part.stride, part.padding, strict=True)
        if not any(kernel > 1 and stride == 1 and padding == 0 for kernel, stride, padding in axes):
            continue
        if is_cropped(net, small, output):
            return (
                f"padding='same' in its unpadded convolutions, of which {name or net.name} is the first, "
                "or images that its forward pads (torch.nn.functional.pad)"
            )
        break
    return UPSAMPLES


def is_cropped(net: Net, small: Tensor, output: str) -> bool:
    """Return whether logits lose a border alone: images of twice the width add as many pixels to them."""
    width = net.images.shape[-1]
    try:
        with torch.inference_mode():
            answer: Any = net.model(torch.cat([net.images, net.images], -1), *list(net.inputs)[1:])
        wide = (tensors_of(answer)[output] if output else answer).shape[-1]
    except Exception:  # noqa: BLE001 - a network may take one size alone, and its code may raise anything
        return small.shape[-1] > width / 2
    return bool(wide - small.shape[-1] > 0.75 * width)


def is_smaller(answer: Tensor, images: Tensor) -> bool:
    """Return whether an answer is [batch, classes, height, width] with fewer places than the images."""
    of_images = answer.ndim == images.ndim and answer.shape[:1] == images.shape[:1] and answer.numel() > 0
    sides = zip(answer.shape[2:], images.shape[2:], strict=of_images)
    return of_images and answer.is_floating_point() and all(1 < one < other for one, other in sides)


FITS: dict[TaskName, Callable[[Tensor, Tensor], bool]] = {
    "segmentation": fits_images,
    "regression": lambda answer, images: answer.ndim > 0 and len(answer) == len(images) and answer.numel() > 0,
    "diffusion": lambda answer, images: answer.shape == images.shape,
}


def check_targets(work: Workload, answer: Tensor) -> None:
    """Raise if the targets of a regression network haven't the shape of its answers."""
    if work.targets is not None and work.targets.shape[1:] != answer.shape[1:]:
        wanted, targets = list(answer.shape[1:]), list(work.targets.shape[1:])
        raise TensorError(f"data.labels: the targets are {targets} for each sample, and the network answers {wanted}")


def check_labels(work: Workload, classes: int) -> None:
    """Raise if a label isn't a class of the network, or labels haven't the inputs' size."""
    if work.labels is not None and work.labels.shape[1:] != work.shape[2:]:
        labels_shape, wanted = list(work.labels.shape[1:]), list(work.shape[2:])
        raise ImageError(f"data.labels: {labels_shape} for each sample, and the network's input is {wanted}")
    check_classes(work.labels, work.sources, classes)


def check_classes(labels: np.ndarray | None, sources: Sequence[str], classes: int) -> None:
    """Raise if a label isn't a class of the network."""
    if labels is None:
        return
    beyond = (labels >= classes) & (labels != UNLABELLED)
    if beyond.any():
        values = ", ".join(map(str, np.unique(labels[beyond]).tolist()[:5]))
        first = sources[int(beyond.reshape(len(beyond), -1).any(1).argmax())]
        raise ImageError(
            f"data.labels: {first} has labels {values}, and the network has classes 0 to {classes - 1}; take a network "
            "of more classes, or say by data.positive, data.ignore and data.colors what values mean"
        )


def repeated(net: Net, logits: Tensor) -> list[RunWarning]:
    """Return a warning where a second call on the same images answers differently; it names random operators."""
    again = check_answer(net, called(net))
    if share_memory(again, [logits]):
        raise ModelError(
            f"model.target: {net.name} gives each answer in the memory of the one before, which is overwritten, or "
            "was never computed again; return a new tensor from each call"
        )
    moved = distance(again, logits)
    if moved <= REPEATS_WITHIN:
        return []
    ran = of_each_operator(lambda operator: (operator.name, operator.function.tags), lambda: called(net))
    drawn = list(dict.fromkeys(name for name, tags in ran if torch.Tag.nondeterministic_seeded in tags))
    certain = [name for name in drawn if "attention" not in name] or drawn  # which draws with a dropout alone
    by = f"; {', '.join(certain)} draws at random" if certain else ""
    return [warned("net in doubt", "answers differ", name=net.name, moved=moved, by=by)]


def check_apart(net: Net, logits: Tensor) -> None:
    """Raise if an answer depends on the rest of its batch; a network whose batch is a unit isn't asked."""
    if len(logits) < 2:
        return
    one = replace(net, inputs=net.inputs.samples(0, 1))
    if not answered(net.model, one.inputs):
        return
    alone = check_answer(one, called(one))
    if (off := distance(alone, logits[:1])) > LEAST_LIMIT:
        raise ModelError(
            f"model.target: what {net.name} answers to {net.words.one} depends on the rest of its batch: alone it is "
            f"{off:.2g} (relative L2) off, as with a norm without running statistics; data.batch_size=1 measures it"
        )


def work_varies(net: Net, batches: Iterable[Batch]) -> list[RunWarning]:
    """Raise if a second call on the same values moves other bytes; return a warning if those of other batches do."""
    new = fresh(fresh(net.inputs)) if net.images.dim() > 1 else net.inputs  # rolled once they are known to it
    try:
        moved = [counted(of_batches(net.model), given.clone()) for given in (new, new, *batches)]
    except Exception:  # noqa: BLE001 - a network may fail in any way under a dispatcher
        return []
    first, again, *others = moved
    if abs(again - first) > SAME_WORK * first:
        raise ModelError(
            f"model.target: {net.name} moves {first / 1e6:.3g} MB at a call, {again / 1e6:.3g} at the next on the same "
            "inputs: it keeps what it has computed, and no time would be that of new inputs"
        )
    least, most = min(others, default=0), max(others, default=0)
    if most - least <= SAME_WORK * most:
        return []
    return [warned("net in doubt", "work varies", name=net.name, times=most / least, **net.words.named)]


def constant(net: Net, logits: Tensor) -> list[RunWarning]:
    """Return a warning where an answer [batch, …] of more than one number is constant over all images and places."""
    values = logits.transpose(0, 1).flatten(1) if net.task.has_masks else logits.flatten()[None]
    if values.shape[1] < 2 or bool((values != values[:, :1]).any()):
        return []
    return [warned("net in doubt", "constant", name=net.name, **net.words.named)]


def probabilities(net: Net, logits: Tensor) -> list[RunWarning]:
    """Return a warning where logits [batch, classes, height, width] look like probabilities."""
    if not net.task.has_masks or not bool(logits.any()):
        return []
    if bool((logits == logits.round()).all()):
        return [warned("net in doubt", "whole numbers", name=net.name, **net.words.named)]
    if not bool(((logits >= 0) & (logits <= 1)).all()):
        return []
    sums_to_one = bool(((logits.sum(1) - 1).abs() < SUMS_TO_ONE).all())
    kind = "one sigmoid" if logits.shape[1] == 1 else "softmax" if sums_to_one else "sigmoids"
    return [warned("net in doubt", kind, name=net.name, channels=logits.shape[1], **net.words.named)]


def left_out(net: Net, output: int | str) -> list[RunWarning]:
    """Return a warning that names the outputs and the layers that `model.output` leaves out; none without any."""
    states = states_of(net, output)
    model: Any = net.model
    every: dict[str, Tensor] = {}
    with suppress(Exception), torch.inference_mode():  # a network's code may raise anything without its hooks
        every = tensors_of(model.whole(*net.inputs.clone()))
    others = [name for name in every if name != str(output) and not {name, name.partition(".")[0]} & set(states)]
    weights = dict(net.model.named_parameters())
    unused = without_effect(net, weights)
    carried = []
    if states:
        taken, given = ", ".join(states.values()), few(list(states), MOST_NAMED)
        carried = [warned("parts left out", "states", name=net.name, inputs=taken, outputs=given)]
    if not others and not unused:
        return carried
    said = [f"the outputs {few(others, MOST_NAMED)}"] if others else []
    if unused:
        share = sum(weights[name].numel() for name in unused) / sum(part.numel() for part in weights.values())
        said.append(
            f"{few(holders(net.model, unused), MOST_NAMED)} ({per_cent(share)} of the weights), without effect on it"
        )
    return [*carried, warned("parts left out", output=output, said=", and ".join(said))]


def states_of(net: Net, output: int | str) -> dict[str, str]:
    """Return the outputs that are states of a video's next frame, each with the input that takes it."""
    # Those are the last outputs, as many as the inputs beside the first that may be None; they change the next answer.
    model: Any = net.model
    try:
        parameters = [*inspect.signature(model.forward).parameters.values()][1:]
        taken = [part.name for part in parameters if part.default is None]
        with torch.inference_mode():
            parts = parts_of(model.whole(*net.inputs.clone()))
            given = dict(zip(net.inputs.names, net.inputs.clone(), strict=True))
            names = list(parts)[len(parts) - len(taken) :]
            if not taken or len(parts) <= len(taken) or str(output) in names:
                return {}
            first = given.pop(net.inputs.names[0])
            again = model(first, **(given | dict(zip(taken, (parts[name] for name in names), strict=True))))
            before = model(*net.inputs.clone())
    except Exception:  # noqa: BLE001 - a network's code may raise anything, such as where it takes no such values
        return {}
    moves = again.shape == before.shape and distance(again, before) > REPEATS_WITHIN
    return dict(zip(names, taken, strict=True)) if moves else {}


def without_effect(net: Net, weights: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the weights that have no effect on the answer; none where that can't be watched."""
    # Each tensor's memory is followed with the set of weights behind its values, as bits of a number.
    bits = {place(part): 1 << index for index, part in enumerate(weights.values())}
    behind = dict(bits)

    def see(operator: Operator) -> None:
        inputs = [place(part) for part in operator.inputs]
        outputs = [place(part) for part in operator.outputs]
        union = 0
        for each in inputs:
            union |= behind.get(each, 0)
        behind.update(dict.fromkeys([*outputs, *(inputs if operator.function._schema.is_mutable else [])], union))

    try:
        with Dispatched(see):
            answer = called(net)
    except ModelError:
        return []
    used = behind.get(place(answer), 0) if isinstance(answer, Tensor) else 0
    return [name for name, part in weights.items() if not used & bits[place(part)]] if used else []


def place(part: Tensor) -> int:
    """Return the address of a tensor's memory."""
    return part.untyped_storage().data_ptr() if part.layout is torch.strided else 0


def holders(model: nn.Module, unused: list[str]) -> list[str]:
    """Return the largest layers all of whose weights are unused, and unused weights of other layers."""
    found: list[str] = []
    for path, part in model.named_modules():
        own = [f"{path}.{name}" for name, _ in part.named_parameters()]
        if path and own and set(own) <= set(unused) and not any(path.startswith(f"{other}.") for other in found):
            found.append(path)
    return found + [name for name in unused if not any(name.startswith(f"{layer}.") for layer in found)]
