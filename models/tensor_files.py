"""The user's own tensors: every input of a network by its name, in one file of safetensors (docs/inputs.md)."""

import inspect
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from pipeline.errors import TensorError, first_line, nearest

SUFFIX = ".safetensors"
MOST_AXES = 5  # samples, channels, depth, height, width
FLOATS = ("F64", "F32", "F16", "BF16")  # become fp32
WHOLE = ("I64", "I32", "I16", "I8", "U8", "U16", "U32")  # become int64
BOOL = "BOOL"  # stays
MOST_NAMED = 6  # optional arguments that a message names
DOT = "."  # behind an argument that is a dict or a tuple: added_cond_kwargs.text_embeds
STEP = 13  # elements by which repeated samples are rolled, as images are


@dataclass(frozen=True)
class Header:
    """A tensor as the file's header describes it."""

    kind: str  # type of its values, by safetensors' name
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Size of the tensor as the network takes it."""
        each = 4 if self.kind in FLOATS else 8 if self.kind in WHOLE else 1
        return each * math.prod(self.shape)


def headers(path: str) -> dict[str, Header]:
    """Return the headers of a file's tensors by name; raise TensorError if one can't be an input."""
    by_name: dict[str, Header] = {}
    try:
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - no mapping
                tensor = file.get_slice(name)
                by_name[name] = Header(tensor.get_dtype(), tuple(tensor.get_shape()))
    except (SafetensorError, OSError) as error:
        raise TensorError(f"data.path={path}: no file of safetensors ({first_line(error)})") from None
    if not by_name:
        raise TensorError(f"data.path={path}: it holds no tensor")
    for name, header in by_name.items():
        check_header(path, name, header)
    counts = {name: header.shape[0] for name, header in by_name.items()}
    if len(set(counts.values())) > 1:
        shown = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise TensorError(
            f"data.path={path}: the tensors hold different numbers of samples, their first axis: {shown}; store rows "
            "that belong to one sample, such as its frames, on an axis of their own, [samples, frames, …], and join "
            "the axes in a class around the network"
        )
    return by_name


def check_header(path: str, name: str, header: Header) -> None:
    """Raise TensorError if a tensor can't be an input."""
    if header.kind not in (known := (*FLOATS, *WHOLE, BOOL)):
        raise TensorError(f"data.path={path}: {name} holds {header.kind}; an input is one of {', '.join(known)}")
    if not header.shape:
        raise TensorError(f"data.path={path}: {name} is a single number; give one for each sample, [samples]")
    if len(header.shape) > MOST_AXES:
        raise TensorError(f"data.path={path}: {name} has {len(header.shape)} axes; at most {MOST_AXES} are taken")
    if not math.prod(header.shape):
        raise TensorError(f"data.path={path}: {name} {list(header.shape)} holds no values")


def read_tensors(path: str, names: Sequence[str], rows: slice | None = None) -> dict[str, Tensor]:
    """Read tensors of a file, all samples or `rows` of them: floats as fp32, integers as int64, others as bool."""
    tensors: dict[str, Tensor] = {}
    with safe_open(path, "pt") as file:
        for name in names:
            tensor = file.get_tensor(name) if rows is None else file.get_slice(name)[rows]
            if tensor.is_floating_point():
                tensor = tensor.float()
                wrong = (~tensor.isfinite()).reshape(len(tensor), -1).any(1)
                if bool(wrong.any()):
                    first = int(wrong.nonzero()[0])
                    raise TensorError(
                        f"data.path={path}: {name} holds NaN or infinite values in {int(wrong.sum())} of {len(tensor)} "
                        f"samples, first in sample {first}; leave them out, or mend them"
                    )
            tensors[name] = (tensor if tensor.dtype in (torch.float32, torch.bool) else tensor.long()).contiguous()
    return tensors


def inputs_of(net: nn.Module, given: Sequence[str], typed: Sequence[str], path: str) -> list[str]:
    """Return the names of the tensors that a network takes, in order, and change it to take them one by one."""
    if taken := getattr(type(net), "inputs_taken", ()):
        return list(taken)
    names = in_order(net, given, typed, path)
    with_inputs(net, names, arguments_of(net)[1])
    return names


def in_order(net: nn.Module, given: Sequence[str], typed: Sequence[str], path: str) -> list[str]:
    """Return the names of the tensors `given` that a network takes, in the order of its forward or of `typed`.

    Raises:
        TensorError: a tensor is missing, or is no input of the network; the line names the nearest.
    """
    if typed:
        if missing := [name for name in typed if name not in given]:
            raise TensorError(f"data.inputs: {path} holds no tensor {missing[0]!r}; {nearest(missing[0], given)}")
        return list(typed)
    needed, known, any_number = arguments_of(net)
    name = type(net).__name__
    if any_number or (len(given) == 1 and len(needed) <= 1):
        if len(given) > 1:
            raise TensorError(
                f"data.path={path}: {name}.forward names no inputs; say in which order it takes {', '.join(given)}: "
                "data.inputs=[FIRST,SECOND]"
            )
        return list(given)
    if wrong := _misfit(given, needed, known):
        further = f" and up to {len(known) - len(needed)} more" if len(known) > len(needed) + MOST_NAMED else ""
        raise TensorError(f"data.path={path}: {name} takes {', '.join(needed if further else known)}{further}{wrong}")
    return sorted(given, key=lambda each: known.index(argument_of(each, known)))


def _misfit(given: Sequence[str], needed: Sequence[str], known: Sequence[str]) -> str:
    """Return a clause with the missing or superfluous tensor and the option that helps; empty if all fit."""
    places = [argument_of(each, known) for each in given]
    strange = [each for each, place in zip(given, places, strict=True) if place not in known]
    if missing := [each for each in needed if each not in places]:
        further = [each for each in known if each in given and each not in needed]
        order = [strange[0] if strange and each == missing[0] else each for each in [*needed, *further]]
        only = len(missing) == len(strange) == 1
        rename = f"; say which is which: data.inputs=[{','.join(order)}]" if only else ""
        return f"; it holds no {missing[0]!r}{rename}; {nearest(missing[0], given)}"
    if strange:
        fitting = ",".join(each for each in given if each in known)
        ways = f"data.labels={strange[0]} where it says what is right, data.inputs=[{fitting}] leaves it out"
        if len(known) > len(needed):
            ways += f"; a part of a dict or a tuple is named ARGUMENT{DOT}{strange[0]}"
        return f", and not {strange[0]!r}; {ways}; {nearest(strange[0], known)}"
    twice = [each for each, place in zip(given, places, strict=True) if each != place and place in given]
    return f"; {twice[0]!r} would lie within a tensor of the same file" if twice else ""


def argument_of(name: str, arguments: Sequence[str]) -> str:
    """Return the argument that a tensor of this name is, or is a part of; else the name itself."""
    argument = name.partition(DOT)[0]
    return argument if argument in arguments else name


def with_inputs(net: nn.Module, names: Sequence[str], arguments: Sequence[str]) -> None:
    """Change the network to take tensors of these names one by one, if its class takes them otherwise.

    A derived class of the same name replaces its class: a wrapper would rename the weights. A tensor within an argument
    is named ARGUMENT.KEY, of a tuple ARGUMENT.0, ARGUMENT.1, …
    """
    placed = list(dict.fromkeys(argument_of(name, arguments) for name in names))
    in_order = [each for each in arguments if each in placed]
    if placed == list(names) and (placed != in_order or placed == list(arguments[: len(placed)])):
        return
    cls = type(net)

    def forward(self: object, *inputs: object) -> object:
        return cls.forward(self, **gathered(dict(zip(names, inputs, strict=True)), placed))

    shown = ["self", *(re.sub(r"\W", "_", name) for name in names)]
    forward.__signature__ = Signature([Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in shown])  # type: ignore[attr-defined]
    net.__class__ = type(
        cls.__name__, (cls,), {"forward": forward, "__module__": cls.__module__, "inputs_taken": tuple(names)}
    )


def gathered(tensors: Mapping[str, object], arguments: Sequence[str]) -> dict[str, object]:
    """Return the value of each argument: a tensor, or a dict or a tuple of the tensors called ARGUMENT.KEY."""
    values: dict[str, object] = {}
    for argument in arguments:
        within = argument + DOT
        parts = {name.removeprefix(within): part for name, part in tensors.items() if name.startswith(within)}
        counted = [parts[str(at)] for at in range(len(parts)) if str(at) in parts]
        values[argument] = tensors.get(argument, tuple(counted) if len(counted) == len(parts) else parts)
    return values


def arguments_of(net: nn.Module) -> tuple[list[str], list[str], bool]:
    """Return the required arguments of a forward, all arguments in order, and whether it takes any number."""
    try:
        parameters = list(inspect.signature(net.forward).parameters.values())
    except (TypeError, ValueError):  # a compiled module
        return [], [], True
    required = [each for each in parameters if each.default is each.empty]
    if named := [each.name for each in required if each.kind is each.KEYWORD_ONLY]:
        raise TensorError(
            f"model.target: {type(net).__name__}.forward takes {named[0]} by its name alone; name a class that takes "
            "it in a place"
        )
    placed = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    any_number = any(each.kind is each.VAR_POSITIONAL for each in parameters)
    return [each.name for each in placed if each in required], [each.name for each in placed], any_number


def repeated(tensors: dict[str, Tensor], count: int) -> dict[str, Tensor]:
    """Return `count` samples of each tensor; repeated ones of the first, if floats, are rolled along the last axis."""
    samples = {}
    for number, (name, tensor) in enumerate(tensors.items()):
        turns = math.ceil(count / len(tensor))
        rolls = number == 0 and tensor.is_floating_point() and tensor.dim() > 1
        again = [tensor.roll(STEP * turn, -1) if rolls and turn else tensor for turn in range(turns)]
        samples[name] = torch.cat(again)[:count].contiguous()
    return samples


def file_at(path: str | None) -> str:
    """Return the path of the file; raise TensorError if there is no such file."""
    if not path or not Path(path).is_file():
        what = "is a folder; name the file in it" if path and Path(path).is_dir() else "no such file of tensors"
        raise TensorError(f"data.path={path}: {what}, such as data.path=inputs{SUFFIX}")
    return path
