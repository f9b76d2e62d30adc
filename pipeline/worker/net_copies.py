"""Check that a copy of the network is that network, with weights of its own, and that eager runs all of it.

Most stages work on a deep copy. A hook or a forward that was set on an instance may close over the first network: a
copy then runs other weights than its own, or finds what was kept elsewhere.
"""

import copy
import sys
from dataclasses import replace

import torch
from torch import nn

from models.build import UNCOMPILED
from pipeline.compiler.agreement import distance
from pipeline.errors import ModelError, typed_line
from pipeline.measure.rotation import fingerprint, held_by, is_same
from pipeline.profiling.operators import Dispatched, Operator
from pipeline.records.run_record import RunWarning
from pipeline.worker.answer_checks import Net, called, check_answer
from pipeline.worker.reference import LEAST_LIMIT, fresh

CURE = (
    "most stages work on a copy, and a hook or a forward that was set on an instance may close over the first network: "
    "make it a method of a class, which uses self"
)


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
        differ = (name for name, part in held_by(model).items() if not _is_in(held, name, fingerprint(part)))
        if (first := next(differ, None)) is None:
            return made
        wrong = f"a copy of {name} hasn't its {first}"
    raise ModelError(
        f"model.target: {wrong} (by its __deepcopy__), and most stages work on a copy; leave that to torch"
    )


def _is_in(held: dict[str, torch.Tensor], name: str, values: tuple[torch.Tensor, ...]) -> bool:
    return name in held and is_same(values, held[name])


def check_copy(net: Net, *, repeats: bool) -> None:
    """Raise unless a copy of the network answers as the network does, with its own weights."""
    made = replace(net, model=copied(net.model))
    inputs = fresh(net.inputs) if net.images.dim() > 1 else net.inputs  # which no hook has kept
    try:
        answer = check_answer(made, called(replace(made, inputs=inputs)))
    except ModelError as error:
        raise ModelError(
            f"model.target: a copy of {net.name} fails where the network itself answers; {CURE}"
        ) from error
    if name := foreign_weight(net.model, made):
        raise ModelError(f"model.target: a copy of {net.name} reads the first network's {name}; {CURE}")
    expected = check_answer(net, called(replace(net, inputs=inputs)))
    if repeats and (off := distance(answer, expected)) > LEAST_LIMIT:
        raise ModelError(f"model.target: a copy of {net.name} answers {off:.2g} (relative L2) differently; {CURE}")


def foreign_weight(model: nn.Module, made: Net) -> str:
    """Return the first weight of `model` that a call of its copy reads; empty for none, or if it can't be watched."""
    names = {part.untyped_storage().data_ptr(): name for name, part in model.named_parameters()}
    found: list[str] = []

    def see(operator: Operator) -> None:
        places = (part.untyped_storage().data_ptr() for part in operator.inputs if part.layout is torch.strided)
        found.extend(names[place] for place in places if place in names)

    try:
        with Dispatched(see):
            called(made)
    except ModelError:  # the network can't run under a dispatcher
        return ""
    return next(iter(found), "")


def frames_compiled(*, anew: bool = False) -> int:
    """Return the number of functions that torch.compile has compiled in this process."""
    dynamo = sys.modules.get("torch._dynamo")  # slow to import, and not needed by a network without torch.compile
    if dynamo is None:
        return 0
    if anew:
        dynamo.reset()
    return int(dynamo.utils.counters["frames"]["total"])


def compiled_already(net: Net, compiled_before: int) -> list[RunWarning]:
    """Return a warning that names the parts that the network had compiled; they run eagerly here."""
    if frames_compiled() > compiled_before:
        raise ModelError(
            f"model.target: {net.name} calls a function that torch.compile has compiled already, so that eager would "
            "not be eager; take torch.compile away from it: stages compile the whole network"
        )
    if not (parts := vars(net.model).get(UNCOMPILED)):
        return []
    more = f" and {len(parts) - 3} more" if len(parts) > 3 else ""
    text = f"{net.name} was compiled in part ({', '.join(parts[:3])}{more}): torch.compile was taken off"
    remedy = "leave torch.compile out of the network: eager is then eager, and stages compile it whole"
    return [RunWarning("net in doubt", text, remedy)]
