"""Check a network before anything is measured; random images come first, as a folder may take minutes to read."""

import copy
import inspect
import sys
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches

import numpy as np
import torch
from torch import nn

from models.build import UNCOMPILED
from models.image_batches import to_batch
from pipeline.compiler.agreement import distance
from pipeline.compiler.batch import Batch, batched
from pipeline.config.data_request import GIB, TENSORS, VOLUME
from pipeline.devices.host import memory_bytes
from pipeline.errors import InputError, ModelError, few, per_cent, typed_line
from pipeline.inputs.input_contract import UNLABELLED
from pipeline.measure.rotation import fingerprint, held_by, is_same
from pipeline.profiling.layers import hooked
from pipeline.profiling.observed_execution import Seen, contradiction
from pipeline.profiling.operators import Dispatched, Operator, of_each_operator, size
from pipeline.records.goals import SEGMENTATION, Task
from pipeline.records.request import Job
from pipeline.records.run_record import Execution, RunWarning
from pipeline.stages.api import Workload
from pipeline.stats.warnings import warned
from pipeline.worker import answer_checks
from pipeline.worker.answer_checks import Net, called, place
from pipeline.worker.contract import process_state
from pipeline.worker.reference import LEAST_LIMIT, fresh

JUDGED_BY_WORK = 3  # batches
MOST_NAMED = 3  # parts, in a line
IMAGES = 2  # in a call; one if the batch has one, for which a network may be made
Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
TINY = 64  # pixels of a side, which most networks take
LARGEST = 1024  # pixels of the run's own size; `check` sees larger ones, after it has counted their memory
# Most stages work on a deep copy. A hook or a forward that was set on an instance may close over the first network: a
# copy then runs other weights than its own, or finds what was kept elsewhere.
CURE = (
    "most stages work on a copy, and a hook or a forward that was set on an instance may close over the first network: "
    "make it a method of a class, which uses self"
)


def check(work: Workload, task: Task = SEGMENTATION, output: int | str | None = None) -> list[RunWarning]:
    """Raise if the network breaks its contract; return warnings about doubts."""
    values = [] if work.labels is None else np.unique(work.labels[work.labels != UNLABELLED]).tolist()
    classes = None if work.labels is None else 1 + max(values, default=0)  # that there are at least
    net = Net(type(work.model).__name__, work.model, work.inputs[0], task, classes)
    check_arguments(net)
    check_weights(net)
    check_dimensions(net)
    on_gpu = work.device.type == "cuda"
    memory = torch.cuda.get_device_properties(work.device).total_memory if on_gpu else memory_bytes()
    check_memory(net, work.shape, memory)
    check_sight(net)
    compiled_before = frames_compiled(anew=True)
    net, answer = first_answer(net)
    if frames_compiled() > compiled_before:
        raise ModelError(
            f"model.target: {net.name} calls a function that torch.compile has compiled already, so that eager would "
            "not be eager; take torch.compile away from it: stages compile the whole network"
        )
    compiled = []
    if parts := vars(net.model).get(UNCOMPILED):  # which run eagerly here
        compiled = [warned("net in doubt", "compiled in part", name=net.name, parts=few(parts, MOST_NAMED))]
    logits = answer_checks.check_answer(net, answer)
    answer_checks.check_targets(work, logits)
    if task.name == "diffusion" and task.timestep not in (others := net.inputs.names[1:]):
        close = get_close_matches(task.timestep, others, n=1)
        remedy = f"did you mean task.timestep={close[0]}?" if close else "data=tensors takes further ones"
        raise ModelError(
            f"task.timestep={task.timestep}: {net.name} is given no such input beside the latents; it is given "
            f"{', '.join(net.inputs.names)}; {remedy}"
        )
    if task.has_masks:
        answer_checks.check_labels(work, classes=max(2, logits.shape[1]))
    doubts = answer_checks.repeated(net, logits)
    check_copy(net, repeats=not doubts)
    if not doubts:
        answer_checks.check_apart(net, logits)
        judged = [batch.samples(0, net.inputs.shape[0]) for batch in work.inputs[:JUDGED_BY_WORK]]
        doubts = answer_checks.work_varies(net, judged)
    unused = [] if output is None else answer_checks.left_out(net, output)
    doubts = [*compiled, *unused, *doubts, *of_another_precision(net)]
    return [*doubts, *answer_checks.constant(net, logits), *answer_checks.probabilities(net, logits)]


def first_answer(net: Net) -> tuple[Net, object]:
    """Return the network with two samples and its answer; with the whole batch where it takes that alone."""
    small = replace(net, inputs=net.inputs.samples(0, IMAGES))
    try:
        return small, called_unchanged(small)
    except ModelError as error:
        failed = error.__cause__ is not None  # such as with frames that are joined four by four
        if not failed or net.inputs.shape[0] <= IMAGES or not answers(net):
            raise
    return net, called_unchanged(net)


def check_sight(net: Net) -> None:
    """Raise if the network calls a layer, or has a parameter, that it keeps in a plain list or dict."""
    found = answer_checks.out_of_sight(net.model)
    used = [place for place, part in found if isinstance(part, nn.Parameter)]
    if layers := [(place, part) for place, part in found if isinstance(part, nn.Module)]:
        with hooked(layers, lambda place, _: used.append(place)):
            called(net)
    if used:
        raise ModelError(
            f"model.target: {net.name} calls what it keeps in {used[0]}, where no checkpoint, cast or device finds it; "
            "use nn.ModuleList or nn.ModuleDict, or nn.ParameterList or nn.ParameterDict"
        )


def called_unchanged(net: Net) -> object:
    """Return the network's answer, and raise if the call changes the network."""
    before = {name: fingerprint(part) for name, part in held_by(net.model).items()}
    answer = called(net)
    now = held_by(net.model)
    if made := [name for name in now if name not in before]:
        raise ModelError(
            f"model.target: {net.name} makes its {made[0]} at its first call: no checkpoint, copy or export made "
            "before would hold it; make it in __init__"
        )
    if changed := [name for name, part in now.items() if not is_same(before[name], part)]:
        raise ModelError(
            f"model.target: {net.name} changes its own {changed[0]} where it is called, in eval mode: a second call "
            "would see another network, and no stage could be compared; remove what counts or learns in eval mode"
        )
    return answer


def of_another_precision(net: Net) -> list[RunWarning]:
    """Return a warning where the network casts by itself, so that its answers aren't fp32."""
    seen = Seen()
    try:
        with Dispatched(seen.see):
            called(net)
    except ModelError:  # the network can't run under a dispatcher
        return []
    if not contradiction(Execution(precision="fp32", layer_precision={"": "tf32"}), seen, share=1.0):
        return []
    own = ("fp32", "tf32", None)
    others = [(flops, precision) for precision, flops in seen.by_precision.items() if precision not in own]
    share, most = sum(flops for flops, _ in others) / seen.flops, max(others)[1]
    return [warned("net in doubt", "casts", name=net.name, share=per_cent(share), most=most)]


def check_arguments(net: Net) -> None:
    """Raise if the network needs more tensors than it is given, or takes none."""
    try:
        parameters = list(inspect.signature(net.model.forward).parameters.values())
    except (TypeError, ValueError):  # a compiled module has no signature
        return
    needed = [part.name for part in parameters if part.default is part.empty and part.kind not in (2, 4)]
    if len(needed) > 1 and len(net.inputs.names) == 1:
        given = f"{len(needed)} tensors ({', '.join(needed)}); only {needed[0]} is given"
        raise ModelError(
            f"model.target: {net.name} takes {given}: give all by their names (data=tensors), or name a class that "
            "takes an image alone and gives the rest"
        )
    if not parameters:
        raise ModelError(f"model.target: {net.name}.forward takes no tensor; it is given an image")


def check_weights(net: Net) -> None:
    """Raise if a weight, or a mean or variance of a norm, isn't finite."""
    norms = [(name, part) for name, part in net.model.named_buffers() if name.endswith(("running_mean", "running_var"))]
    wrong = [name for name, part in (*net.model.named_parameters(), *norms) if not bool(part.isfinite().all())]
    if wrong:
        raise ModelError(
            f"model.checkpoint: {len(wrong)} weights of {net.name} hold NaN or infinite values, first {wrong[0]}"
        )


def check_dimensions(net: Net) -> None:
    """Raise if all convolutions are for volumes and the inputs are images: torch would take a batch for one volume."""
    kinds = {type(part).__name__: part for part in net.model.modules() if isinstance(part, Convolution)}
    if net.images.dim() == 4 and kinds and all(isinstance(part, nn.Conv3d) for part in kinds.values()):
        raise ModelError(
            f"model.target: {net.name} has {' and '.join(kinds)} alone; images have two dimensions (data=volume gives "
            "volumes)"
        )


def check_memory(net: Net, shape: tuple[int, ...], memory: int) -> None:
    """Raise if one operator's inputs and outputs exceed `memory` bytes, a lower bound of the network's peak."""
    # It runs on torch's device "meta"; a network that can't run there isn't checked.
    largest, state = (0, ""), process_state()

    def see(operator: Operator) -> None:
        nonlocal largest
        largest = max(largest, (sum(map(size, [*operator.inputs, *operator.outputs])), operator.name))

    first, *others = net.inputs
    shapes = [shape, *((shape[0], *part.shape[1:]) for part in others)]
    kinds = [part.dtype for part in (first, *others)]
    try:
        with torch.no_grad(), Dispatched(see):
            empty = (torch.empty(each, dtype=kind, device="meta") for each, kind in zip(shapes, kinds, strict=True))
            # `torch.func.functional_call` would leave other tensors in a module that is reachable by two names.
            memo: dict[int, object] = {}
            for parameter in net.model.parameters():
                memo[id(parameter)] = nn.Parameter(parameter.detach().to("meta"), requires_grad=False)
            memo |= {id(buffer): buffer.detach().to("meta") for buffer in net.model.buffers()}
            copy.deepcopy(net.model, memo)(*empty)
    except (Exception, SystemExit):  # noqa: BLE001 - a network may fail in any way on tensors without values
        largest = 0, ""
    answer_checks.check_process_left(net, state)
    held, name = largest
    if held > memory:
        raise ModelError(
            f"data.batch_size={shape[0]}: {name} of {net.name} alone holds {held / GIB:.4g} GiB for "
            f"{net.words.samples} {'×'.join(map(str, shape[1:]))}, and the device has {memory / GIB:.4g}; "
            "choose a smaller data.batch_size or data.size"
        )


def first_look(model: nn.Module, job: Job) -> None:
    """Check the network on a tiny image, and if that fails on one of the run's size."""
    # On a copy, as a network may keep state. What isn't found here, `check` finds.
    if job.data.name == TENSORS:
        return
    sides = job.data.sides or (TINY,) * (3 if job.data.name == VOLUME else 2)
    tiny, samples, batch = [min(TINY, side) for side in sides], min(IMAGES, job.data.batch_size), job.data.batch_size
    net = Net(type(model).__name__, model, chance(job, tiny, samples), job.task)
    check_arguments(net)
    check_weights(net)
    check_dimensions(net)
    try:
        net = replace(net, model=copy.deepcopy(model))
    except Exception:  # noqa: BLE001 - a network's parts may refuse in any way
        return
    with torch.random.fork_rng(devices=[]):
        if any(answers(replace(net, inputs=chance(job, tiny, count))) for count in {samples, batch}):
            return
        if job.data.sides and max(sides) <= LARGEST:
            net = replace(net, inputs=chance(job, sides, samples))
            try:
                answers(net, strictly=True)
            except InputError as error:
                by_labels = isinstance(error, answer_checks.SeveralFitError) and job.data.labels
                if not by_labels and not answers(replace(net, model=model)):
                    raise


def answers(net: Net, *, strictly: bool = False) -> bool:
    """Return whether the network's answer is as it must be; False where anything fails."""
    try:
        answer_checks.check_answer(net, called(net))
    except answer_checks.SideEffectError:
        raise
    except InputError:
        if strictly:
            raise
        return False
    except Exception:  # noqa: BLE001 - such as out of memory, which `check` reports better
        return False
    return True


def chance(job: Job, sides: Sequence[int], count: int) -> Batch:
    """Return random images, normalised as the run's: [count, channels, height, width], with a depth for volumes."""
    data = job.data
    shape = [count, *sides, data.contract.channels]
    drawn = np.random.default_rng(job.seed).integers(0, 256, shape, dtype=np.uint8)
    return batched(to_batch(drawn, data.contract).to(job.device))


def copied(model: nn.Module) -> nn.Module:
    """Return a copy of a network."""
    name = type(model).__name__
    try:
        made = copy.deepcopy(model)
    except Exception as error:
        raise ModelError(
            f"model.target: {name} can't be copied, and most stages work on a copy: {typed_line(error)}; keep threads, "
            "locks, open files and tensors with a gradient's history out of it"
        ) from error
    if not isinstance(made, nn.Module):
        wrong = f"{name} gives a {type(made).__name__} for its copy"
    elif made is model or {*map(id, model.parameters())} & {*map(id, made.parameters())}:
        wrong = f"{name} gives its own weights to its copy"
    else:
        held = held_by(made)
        known = {each: fingerprint(part) for each, part in held_by(model).items()}
        differ = [each for each, values in known.items() if each not in held or not is_same(values, held[each])]
        if not differ:
            return made
        wrong = f"a copy of {name} hasn't its {differ[0]}"
    raise ModelError(f"model.target: {wrong} (by its __deepcopy__), and most stages take a copy; leave that to torch")


def check_copy(net: Net, *, repeats: bool) -> None:
    """Raise unless a copy of the network answers as the network does, with its own weights."""
    made = replace(net, model=copied(net.model))
    inputs = fresh(net.inputs) if net.images.dim() > 1 else net.inputs  # which no hook has kept
    try:
        answer = answer_checks.check_answer(made, called(replace(made, inputs=inputs)))
    except ModelError as error:
        raise ModelError(f"model.target: a copy of {net.name} fails where the network answers; {CURE}") from error
    if name := foreign_weight(net.model, made):
        raise ModelError(f"model.target: a copy of {net.name} reads the first network's {name}; {CURE}")
    expected = answer_checks.check_answer(net, called(replace(net, inputs=inputs)))
    if repeats and (off := distance(answer, expected)) > LEAST_LIMIT:
        raise ModelError(f"model.target: a copy of {net.name} answers {off:.2g} (relative L2) differently; {CURE}")


def foreign_weight(model: nn.Module, made: Net) -> str:
    """Return the first weight of `model` that a call of its copy reads; empty for none, or if it can't be watched."""
    names = {place(part): name for name, part in model.named_parameters()}
    try:
        read = of_each_operator(lambda operator: [*map(place, operator.inputs)], lambda: called(made))
    except ModelError:  # the network can't run under a dispatcher
        return ""
    return next((names[each] for places in read for each in places if each in names), "")


def frames_compiled(*, anew: bool = False) -> int:
    """Return the number of functions that torch.compile has compiled in this process."""
    dynamo = sys.modules.get("torch._dynamo")  # slow to import, and not needed by a network without torch.compile
    if dynamo is None:
        return 0
    if anew:
        dynamo.reset()
    return int(dynamo.utils.counters["frames"]["total"])
