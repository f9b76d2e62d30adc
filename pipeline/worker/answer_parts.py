"""Several outputs: the parts of an answer that fit the task, and what a run of one part leaves out."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from models.model_output import tensors_of
from pipeline.errors import ModelError, per_cent
from pipeline.profiling.operators import Dispatched, Operator
from pipeline.records.run_record import RunWarning
from pipeline.worker.answer_checks import Net, called

MOST_NAMED = 5  # outputs, or layers, in a line


def left_out(net: Net, output: int | str) -> list[RunWarning]:
    """Return a warning that names the outputs and the layers that `model.output` leaves out; none without any."""
    others = [name for name in all_outputs(net) if name != str(output)]
    weights = dict(net.model.named_parameters())
    unused = without_effect(net, weights)
    if not others and not unused:
        return []
    said = [f"the outputs {named(others)}"] if others else []
    if unused:
        share = sum(weights[name].numel() for name in unused) / sum(part.numel() for part in weights.values())
        said.append(f"{named(holders(net.model, unused))} ({per_cent(share)} of the weights), without effect on it")
    text = (
        f"model.output={output} leaves out {', and '.join(said)}: compilers and exports drop that work, eager does it"
    )
    return [RunWarning("parts left out", text, "where the application needs them too, ratios to eager are too high")]


def named(names: list[str]) -> str:
    """Return some of the names in a line."""
    return ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")


def all_outputs(net: Net) -> dict[str, Tensor]:
    """Return every tensor of the whole answer by its name; none where the network can't be called without its hooks."""
    model: nn.Module = net.model
    try:
        with torch.inference_mode():
            return tensors_of(model.whole(*net.inputs.clone()))  # type: ignore[operator]
    except Exception:  # noqa: BLE001 - a network's code may raise anything
        return {}


def without_effect(net: Net, weights: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the weights that have no effect on the answer; none where that can't be watched.

    Each tensor's memory is followed with the set of weights behind its values, as bits of a number.
    """
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
