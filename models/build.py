"""The network that the user named, in fp32 and eval mode."""

import inspect
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from types import ModuleType
from typing import Any

import torch
from torch import nn

from models.checkpoint import load_into, without_plain_values
from models.model_output import with_output
from pipeline.errors import ModelError
from pipeline.inputs.targets import import_target, refusal

CLASS = "_class_"  # the only key of an option's value that stands for a class
UNCOMPILED = "uncompiled"  # attribute of a network: its parts that torch.compile had wrapped
WRAPPED, COMPILED, KEPT_EAGER = "_orig_mod", "_torchdynamo_orig_callable", "_torchdynamo_disable"  # torch 2.12
QUANTISED = re.compile(r"torch\.(ao\.)?nn\.(intrinsic\.)?quantized\b")  # modules of layers


def build_model(
    target: str, options: Mapping[str, object], checkpoint: str | None, seed: int, output: int | str | None = None
) -> nn.Module:
    """Make the network `target(**options)` in eval mode with the checkpoint's weights, or with seeded random ones.

    Args:
        target: a dotted name such as "my_package.MyNet", of a class or of a function that makes a network.
        options: its keyword arguments; {_class_: "torch.nn.InstanceNorm2d"} stands for that class.
        checkpoint: a weights file; None: random weights.
        seed: of random weights.
        output: the part of the network's answer that holds the logits; None: the answer itself.

    Raises:
        ModelError: `target` names nothing that makes a network, or it doesn't take these options.
        CheckpointError: the file doesn't hold weights of this network.
    """
    maker = maker_of_net(target)
    arguments = with_classes(options, "model.options")
    torch.manual_seed(seed)
    try:
        model = maker(**arguments)
    except SystemExit as error:
        raise ModelError(f"model.target: {target} {ends_the_program(error)} when it is made") from error
    except (TypeError, ValueError) as error:
        known = ", ".join(inspect.signature(maker).parameters)
        raise ModelError(f"model.options don't fit {target}: {error}; it takes {known}") from None
    except (
        RuntimeError,
        ArithmeticError,
        LookupError,
        MemoryError,
    ) as error:  # torch's, of a size, or the network's own
        if not options:
            raise
        said = ", ".join(f"{key}={value}" for key, value in options.items())
        why = (str(error).splitlines() or [""])[0]
        raise ModelError(f"model.options ({said}): {target} fails with them: {type(error).__name__}: {why}") from None
    if not isinstance(model, nn.Module):
        raise ModelError(f"model.target={target}: it returns a {type(model).__name__}, no torch.nn.Module")
    check_plain(target, model)
    model = uncompiled(model)
    check_layouts(target, model)
    if checkpoint:
        load_into(model, checkpoint)
    return with_output(answering(model), output)


def maker_of_net(target: str) -> Callable[..., nn.Module]:
    """Import the class of a network, or the function that makes one, of a name such as "my_package.MyNet".

    Raises:
        ModelError: there is no such module, class or function.
    """
    module_name, _, name = target.rpartition(".")
    if why := refusal(target) if module_name else "it has no package":
        raise ModelError(f"model.target={target}: no network's class, as {why}; name yours as my_package.MyNet")
    module = _imported("model.target", target, module_name)
    maker: Callable[..., nn.Module] | None = getattr(module, name, None)
    if maker is None or not (inspect.isfunction(maker) or _is_layer(maker)):
        raise ModelError(f"model.target={target}: no class of a network in {module_name}{_nearest(module, name)}")
    return maker


def with_classes(value: object, key: str) -> Any:
    """Return an option's value with the class itself wherever it has {_class_: "torch.nn.InstanceNorm2d"}.

    Raises:
        ModelError: a name isn't a class of a layer or network; the line names the key.
    """
    if isinstance(value, Mapping):
        if CLASS in value:
            return class_of(value[CLASS] if len(value) == 1 else None, key)
        return {name: with_classes(item, f"{key}.{name}") for name, item in value.items()}
    return [with_classes(item, key) for item in value] if isinstance(value, list) else value


def class_of(target: Any, key: str) -> type[nn.Module]:
    """Import the class of a layer or network of a dotted name.

    Raises:
        ModelError: it isn't one; the line names the key.
    """
    if not isinstance(target, str) or "." not in target or refusal(target):
        raise ModelError(f"{key}: {target} is no class of a layer; name one as torch.nn.InstanceNorm2d")
    module_name, _, name = target.rpartition(".")
    module = _imported(key, target, module_name)
    layer: type[nn.Module] | None = getattr(module, name, None)
    if layer is None or not _is_layer(layer):
        raise ModelError(f"{key}: no class of a layer called {name} in {module_name}{_nearest(module, name)}")
    return layer


def _imported(key: str, target: str, module_name: str) -> ModuleType:
    try:
        return import_target(module_name)
    except ImportError as error:
        raise ModelError(f"{key}={target}: {module_name} can't be imported ({error})") from None


def _is_layer(found: object) -> bool:
    return isinstance(found, type) and issubclass(found, nn.Module)


def _nearest(module: ModuleType, name: str) -> str:
    """Return a clause that names the networks of the module that are most like `name`."""
    nets = [key for key, member in vars(module).items() if _is_layer(member)]
    close = get_close_matches(name, nets, n=1, cutoff=0.5) or nets[:5]
    return f"; did you mean {' or '.join(close)}?" if close else ""


def answering(model: nn.Module) -> nn.Module:
    """Put the network into eval mode and fp32, and return it; its own `eval` or `float` may not."""
    without_history(model)
    model.eval()
    model.float()
    return model


def without_history(model: nn.Module) -> None:
    """Detach tensors that modules hold beside their parameters: one with a history of gradients can't be copied.

    torch's older weight norm leaves one, and computes it again at each call.
    """
    for module in model.modules():
        for name, held in vars(module).items():
            if isinstance(held, torch.Tensor) and not held.is_leaf:
                setattr(module, name, held.detach())


def uncompiled(model: nn.Module) -> nn.Module:
    """Take off torch.compile wherever it wraps the network, a part or a method, and return the network.

    Stages compile by themselves, and eager must be eager. The network lists what was wrapped in `UNCOMPILED`.
    """
    found = [name.replace(f"{WRAPPED}.", "") or "the whole" for name, part in model.named_modules() if _wraps(part)]
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


def _wraps(part: nn.Module) -> bool:
    return WRAPPED in part._modules  # torch.compile's own class is slow to import


def _inner(part: nn.Module) -> nn.Module:
    while _wraps(part):
        part = part.get_submodule(WRAPPED)
    return part


def check_plain(target: str, model: nn.Module) -> None:
    """Raise if a part of the network is scripted or quantised already: stages do that themselves.

    Raises:
        ModelError: it is; the line names the part.
    """
    for path, part in model.named_modules():
        scripted = isinstance(part, torch.jit.ScriptModule)
        if scripted or QUANTISED.match(type(part).__module__):
            what = f"{path} of {target}" if path else target
            by = "what torch.jit.script or torch.jit.load made" if scripted else "quantised"
            raise ModelError(f"model.target: {what} is {by} already; give the layer itself in fp32: stages do that")


def check_layouts(target: str, model: nn.Module) -> None:
    """Raise unless every parameter and buffer is a plain tensor.

    One without values can't be moved, and a conversion of a quantised one to fp32 ends in SIGSEGV (torch 2.12).

    Raises:
        ModelError: one isn't; the line names the first.
    """
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if why := without_plain_values(tensor):
            raise ModelError(
                f"model.target: {target} makes {name} with {why}; make a network whose weights are plain tensors"
            )


def ends_the_program(error: SystemExit) -> str:
    """Return a clause about a network that calls sys.exit instead of answering."""
    return f"ends the program (sys.exit({error.code!r}))"
