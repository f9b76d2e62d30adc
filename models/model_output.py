"""Networks whose answer is more than the logits: a tuple, a list of deep supervision, a dict, a dataclass."""

import inspect
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from pipeline.errors import ModelError, nearest


def with_output(model: nn.Module, output: int | str | None, upsample: str | None = None) -> nn.Module:
    """Change the network to answer with the part `output` of its answer, or with logits of the image's size; return it.

    A derived class of the same name replaces its class: a wrapper would rename the weights. The derived class keeps
    the whole answer's function as `whole`. `upsample` is "bilinear" or "nearest".
    """
    if output is None and upsample is None:
        return model
    cls, whole = type(model), type(model).forward
    signature = inspect.signature(model.forward)
    if own := vars(model).pop("forward", None):  # set on the instance, it would hide the derived class's
        model.own_forward = own

        def whole(self: Any, *inputs: object, **named: object) -> object:
            return self.own_forward(*inputs, **named)

    def forward(self: nn.Module, *inputs: object, **named: object) -> object:
        answer = whole(self, *inputs, **named)
        if output is not None:
            answer = part_of(answer, output, cls.__name__)
        first = next(iter((*inputs, *named.values())))
        return upsampled(answer, first, upsample) if upsample else answer

    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    forward.__signature__ = signature.replace(parameters=[itself, *signature.parameters.values()])  # type: ignore[attr-defined]
    model.__class__ = type(cls.__name__, (cls,), {"forward": forward, "whole": whole, "__module__": cls.__module__})
    return model


def upsampled(answer: object, image: object, mode: str) -> object:
    """Return logits [batch, classes, …] at an image's size; an answer that is no tensor of as many axes stays."""
    if not (isinstance(answer, Tensor) and isinstance(image, Tensor) and answer.ndim == image.ndim):
        return answer
    smooth = {"mode": "trilinear" if image.ndim == 5 else "bilinear", "align_corners": False}
    return functional.interpolate(answer, image.shape[2:], **(smooth if mode == "bilinear" else {"mode": mode}))


def part_of(answer: object, output: int | str, net: str) -> object:
    """Return the part of a network's answer that `output` names; raise ModelError if there is none."""
    value = answer
    for name in str(output).split("."):
        parts = parts_of(value)
        if isinstance(value, tuple) and name.isdecimal():  # a named tuple's parts have numbers as well
            parts = parts_of(list(value))
        if name not in parts:
            if isinstance(value, Tensor):
                raise ModelError(f"model.output={output}: {net} answers with a tensor without parts; leave it out")
            remedy = nearest(name, parts)
            raise ModelError(f"model.output={output}: no such part of {net}'s {described(value)}; {remedy}")
        value = parts[name]
    if not isinstance(value, Tensor) and (within := tensors_of(value, f"{output}.")):
        remedy = f"name a tensor in it: {', '.join(f'model.output={name}' for name in within)}"
        raise ModelError(f"model.output={output}: of {net}'s answer that is a {described(value)}; {remedy}")
    return value


def parts_of(answer: object) -> dict[str, object]:
    """Return the parts of an answer by the names that a user types; none of a tensor."""
    if isinstance(answer, Mapping):
        return {str(key): value for key, value in answer.items()}
    if is_dataclass(answer) and not isinstance(answer, type):
        return {field.name: getattr(answer, field.name) for field in fields(answer)}
    if isinstance(answer, tuple | list):
        names = getattr(answer, "_fields", range(len(answer)))
        return {str(name): value for name, value in zip(names, answer, strict=True)}
    return {}


def described(answer: object) -> str:
    """Describe an answer in a few words: "tuple of 2 (0, 1)", "dict of 2 (out, aux)"."""
    parts = parts_of(answer)
    kind = type(answer).__name__
    return f"{kind} of {len(parts)} ({', '.join(parts)})" if parts else kind


def tensors_of(answer: object, before: str = "") -> dict[str, Tensor]:
    """Return every tensor of an answer by its name in `model.output`, in order."""
    tensors: dict[str, Tensor] = {}
    for name, value in parts_of(answer).items():
        tensors |= {f"{before}{name}": value} if isinstance(value, Tensor) else tensors_of(value, f"{before}{name}.")
    return tensors
