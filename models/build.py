"""The network that the user named, in fp32 and eval mode."""

import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import is_dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

from models.checkpoint import LOADED, Loaded, load_into, without_plain_values
from models.model_output import with_output
from pipeline.errors import CheckpointError, ModelError, first_line, typed_line
from pipeline.targets import import_target, refusal

CLASS = "_class_"  # the only key of an option's value that stands for a class
UNCOMPILED = "uncompiled"  # attribute of a network: its parts that torch.compile had wrapped
WRAPPED, COMPILED, KEPT_EAGER = "_orig_mod", "_torchdynamo_orig_callable", "_torchdynamo_disable"  # torch 2.12
QUANTISED = re.compile(r"torch\.(ao\.)?nn\.(intrinsic\.)?quantized\b")  # modules of layers


def build_model(
    target: str, options: Mapping[str, object], checkpoint: str | None, seed: int, output: int | str | None = None, *,
    key: str | None = None, upsample: str | None = None,
) -> nn.Module:  # fmt: skip
    """Make the network `target(**options)` in eval mode with the checkpoint's weights, or with seeded random ones.

    Args:
        target: a dotted name such as "my_package.MyNet", of a class or of a function that makes a network.
        options: its keyword arguments; {_class_: "torch.nn.InstanceNorm2d"} stands for that class.
        checkpoint: a weights file, or a folder of a library; None: random weights, or those that the maker loads.
        seed: of random weights.
        output: the part of the network's answer that holds the logits; None: the answer itself.
        key: of the weights in the checkpoint.
        upsample: "bilinear" or "nearest" brings logits to the image's size.

    Raises:
        ModelError: `target` makes no network of these options; CheckpointError: the weights are another network's.
    """
    maker = maker_of_net(target)
    arguments = with_classes(options, "model.options")
    of_a_library = checkpoint is not None and Path(checkpoint).is_dir() and hasattr(maker, "from_pretrained")
    make = partial(from_folder, maker, str(checkpoint)) if of_a_library else maker
    files: set[str] = set()
    with noting_files(files):
        model = made_by(make, target, arguments, seed)
    check_plain(target, model)
    model = uncompiled(model)
    check_layouts(target, model)
    if checkpoint and not of_a_library:
        load_into(model, checkpoint, key)
    elif files and not checkpoint:
        own, again = (net.state_dict() for net in (model, uncompiled(made_by(make, target, arguments, seed + 1))))
        LOADED[model] = Loaded(
            itself=all(name in again and torch.equal(part, again[name]) for name, part in own.items())
        )
    return with_output(answering(model), output, upsample)


def made_by(maker: Callable[..., nn.Module], target: str, arguments: Mapping[str, Any], seed: int) -> nn.Module:
    """Return the network that a class or function makes once torch is seeded; raise ModelError if it fails."""
    torch.manual_seed(seed)
    try:
        model = maker(**{name: as_dataclass(kinds_of(maker).get(name), value) for name, value in arguments.items()})
    except SystemExit as error:
        raise ModelError(f"model.target: {target} {ends_the_program(error)} when it is made") from error
    except (TypeError, ValueError) as error:
        known = ", ".join(inspect.signature(maker).parameters) or "no options"
        saved = "; its checkpoint's folder has them (model.checkpoint=FOLDER), or a function of yours makes it"
        cure = saved if hasattr(maker, "from_pretrained") else ""
        raise ModelError(f"model.options don't fit {target}: {first_line(error)}; it takes {known}{cure}") from None
    except (RuntimeError, ArithmeticError, LookupError, MemoryError, AttributeError, AssertionError) as error:
        if not arguments:
            raise
        said = ", ".join(f"{name}={value}" for name, value in arguments.items())
        nested = isinstance(error, AttributeError) and any(isinstance(part, Mapping) for part in arguments.values())
        cure = "; name a function of yours that makes the object it wants (model.target)" if nested else ""
        raise ModelError(f"model.options ({said}): {target} fails with them: {typed_line(error)}{cure}") from None
    if not isinstance(model, nn.Module):
        raise ModelError(f"model.target={target}: it returns {type(model).__name__}, no torch.nn.Module")
    return model


def kinds_of(maker: Callable[..., object]) -> dict[str, Any]:
    """Return the annotations of the arguments that a class or function takes; none where one can't be read."""
    with suppress(Exception):  # a name that is imported for a type checker alone
        return typing.get_type_hints(maker.__init__ if inspect.isclass(maker) else maker)
    return {}


def as_dataclass(kind: Any, value: Any) -> Any:
    """Return an option's value as the dataclass that its argument is annotated with, also within; others unchanged."""
    if not is_dataclass(kind) or not isinstance(value, Mapping):
        return value
    kinds = kinds_of(kind)  # type: ignore[arg-type]
    return kind(**{name: as_dataclass(kinds.get(name), part) for name, part in value.items()})  # type: ignore[operator]


def from_folder(cls: Any, folder: str, **arguments: object) -> nn.Module:
    """Return the network of a folder by `save_pretrained`; raise CheckpointError if weights are missing."""
    libraries = {base.__module__.partition(".")[0] for base in cls.__mro__}
    if not libraries & {"transformers", "diffusers"}:
        model: nn.Module = cls.from_pretrained(folder, **arguments)
        load_into(model, folder)
        return model
    model, found = cls.from_pretrained(folder, output_loading_info=True, **arguments)
    lost = [*found["missing_keys"], *(each[0] for each in found["mismatched_keys"])]
    if lost:
        raise CheckpointError(f"{folder}: {len(lost)} weights of {cls.__name__} are missing in it, first {lost[0]}")
    return model


@contextmanager
def noting_files(found: set[str]) -> Iterator[None]:
    """Put the names of the functions that read weights from a file meanwhile into `found`."""
    readers = {function.__code__: function.__name__ for function in (torch.load, np.load, load_file)}

    def see(frame: FrameType, event: str, function: object) -> None:
        if event == "call" and frame.f_code in readers:
            found.add(readers[frame.f_code])
        elif event == "c_call" and type(getattr(function, "__self__", None)).__name__ == "safe_open":
            found.add("safe_open")

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        yield
    finally:
        sys.setprofile(before)


def maker_of_net(target: str) -> Callable[..., nn.Module]:
    """Import the class of a network, or the function that makes one, of a name such as "my_package.MyNet"."""

    def makes_nets(found: object) -> bool:
        return inspect.isfunction(found) or is_net(found) or hasattr(found, "from_pretrained")

    maker: Callable[..., nn.Module] = named(target, "model.target", "network", "my_package.MyNet", makes_nets)
    return maker


def class_of(target: object, key: str) -> type[nn.Module]:
    """Import the class of a layer or network of a dotted name; raise ModelError if it isn't one."""
    layer: type[nn.Module] = named(str(target), key, "layer", "torch.nn.InstanceNorm2d", is_net)
    return layer


def named(target: str, key: str, what: str, example: str, fits: Callable[[object], bool]) -> Any:
    """Import what a dotted name stands for; raise ModelError if that fails, or if it doesn't fit."""
    module_name, _, name = target.rpartition(".")
    if not module_name or refusal(target):
        raise ModelError(f"{key}={target}: no class of a {what}, as its name has no package; write {example}")
    try:
        module = import_target(module_name)
    except SystemExit as error:
        raise ModelError(f"{key}={target}: {module_name} {ends_the_program(error)} when it is imported") from error
    except Exception as error:  # a user's module may raise any type
        folder = Path(*module_name.split(".")[:-1])
        beside = isinstance(error, ModuleNotFoundError) and folder.joinpath(f"{error.name}.py").exists()
        absent = "; install it, or start in the folder that holds it" if isinstance(error, ModuleNotFoundError) else ""
        cure = f"; it lies in {folder}/: add that to PYTHONPATH, or import it by its package" if beside else absent
        raise ModelError(f"{key}={target}: {module_name} can't be imported ({typed_line(error)}){cure}") from error
    found = getattr(module, name, None)
    if isinstance(found, nn.Module):
        raise ModelError(f"{key}={target}: a {what} that is made already; name its class, or a function that makes it")
    if not fits(found):
        raise ModelError(f"{key}={target}: no class of a {what} called {name} in {module_name}{_nearest(module, name)}")
    return found


def with_classes(value: object, key: str) -> Any:
    """Return an option's value with the class itself wherever it has {_class_: "torch.nn.InstanceNorm2d"}."""
    if isinstance(value, Mapping):
        if CLASS in value:
            return class_of(value[CLASS] if len(value) == 1 else None, key)
        return {name: with_classes(item, f"{key}.{name}") for name, item in value.items()}
    return [with_classes(item, key) for item in value] if isinstance(value, list) else value


def is_net(found: object) -> bool:
    """Return whether it is the class of a network or of a layer."""
    return isinstance(found, type) and issubclass(found, nn.Module)


def _nearest(module: ModuleType, name: str) -> str:
    """Return a clause that names networks of the module that are most like `name`, or its module that has it."""
    inside = [part for part in vars(module).values() if isinstance(part, ModuleType) and hasattr(part, name)]
    if home := next((part.__name__ for part in inside if part.__name__.startswith(f"{module.__name__}.")), ""):
        return f"; did you mean {home}.{name}?"
    nets = [key for key, member in vars(module).items() if is_net(member)]
    close = get_close_matches(name, nets, n=1, cutoff=0.5) or nets[:5]
    return f"; did you mean {' or '.join(close)}?" if close else ""


def answering(model: nn.Module) -> nn.Module:
    """Put the network into eval mode and fp32, and return it; its own `eval` or `float` may not."""
    without_history(model)
    model.eval()
    model.float()
    return model


def without_history(model: nn.Module) -> None:
    """Detach tensors that modules hold, as torch's older weight norm: one with a history can't be copied."""
    for module in model.modules():
        for name, held in vars(module).items():
            if isinstance(held, torch.Tensor) and not held.is_leaf:
                setattr(module, name, held.detach())


def uncompiled(model: nn.Module) -> nn.Module:
    """Take off torch.compile wherever it wraps a part or a method of the network; list those in `UNCOMPILED`."""
    found = [
        name.replace(f"{WRAPPED}.", "") or "the whole"
        for name, part in model.named_modules()
        if WRAPPED in part._modules
    ]
    model = _inner(model)
    for part in model.modules():
        part._modules.update({name: _inner(child) for name, child in part._modules.items() if child is not None})
    for path, part in model.named_modules():
        if part._compiled_call_impl is not None:  # Module.compile()
            part._compiled_call_impl = None
            found.append(path or "the whole")
        for owner in (part, *type(part).__mro__):
            for name, held in list(vars(owner).items()):
                if not isinstance(held, nn.Module) and hasattr(held, COMPILED) and not hasattr(held, KEPT_EAGER):
                    setattr(owner, name, getattr(held, COMPILED))
                    found.append(f"{path}.{name}".lstrip("."))
    if found:
        setattr(model, UNCOMPILED, found)
    return model


def _inner(part: nn.Module) -> nn.Module:
    while WRAPPED in part._modules:  # torch.compile's own class is slow to import
        part = part.get_submodule(WRAPPED)
    return part


def check_plain(target: str, model: nn.Module) -> None:
    """Raise ModelError if a part of the network is scripted or quantised already: stages do that themselves."""
    for path, part in model.named_modules():
        scripted = isinstance(part, torch.jit.ScriptModule)
        if scripted or QUANTISED.match(type(part).__module__):
            what = f"{path} of {target}" if path else target
            by = "what torch.jit.script or torch.jit.load made" if scripted else "quantised"
            raise ModelError(f"model.target: {what} is {by} already; give the layer itself in fp32: stages do that")


def check_layouts(target: str, model: nn.Module) -> None:
    """Raise ModelError unless every parameter and buffer is plain: others end in errors, or in SIGSEGV (torch 2.12)."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if why := without_plain_values(tensor):
            raise ModelError(
                f"model.target: {target} makes {name} with {why}; make a network whose weights are plain tensors"
            )


def ends_the_program(error: SystemExit) -> str:
    """Return a clause about a network that calls sys.exit instead of answering."""
    return f"ends the program (sys.exit({error.code!r}))"
