"""Finds what a configuration names: the class or function that makes a net, and classes that are options' values."""

import importlib
import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from types import FunctionType, ModuleType
from typing import Any, get_type_hints

from torch import nn

from pipeline.errors import ModelError
from pipeline.inputs.targets import CLASS, LAYERS, borrowed, imported_as, is_own_code, refusal, refusal_of_class


def maker_of_net(target: str) -> Callable[..., nn.Module]:
    """The class of a net, or the function that makes one, of a dotted name such as "my_package.MyNet".

    A function must be of the user's own code, or of this program's and return a net by its annotation: what functions
    of installed packages do besides, such as reading files, is not for a configuration to say.

    Raises:
        ModelError: the name may not be imported (`pipeline.inputs.targets`), there is no such module, class or
            function, or it is neither.
    """
    module_name, _, name = target.rpartition(".")
    if why := refusal(target) if module_name else "it has no package":
        raise ModelError(f"model.target={target}: no net's class, as {why}; name yours as my_package.MyNet")
    module = _imported("model.target", target, module_name)
    found: Any = getattr(module, name, None)
    if inspect.isfunction(found) and not _makes_nets(found):
        raise ModelError(f"model.target={target}: a function, and no such class of a net{_nearest(module, name)}")
    if not (inspect.isfunction(found) or _is_layer(found)):
        said = f"no such class of a net in {module_name}{_nearest(module, name)}"
        raise ModelError(f"model.target={target}: {said}")
    if why := borrowed(found):
        raise ModelError(f"model.target={target}: no net of {module_name}'s own, as {why}")
    maker: Callable[..., nn.Module] = found
    return maker


def with_classes(value: object, key: str) -> Any:
    """An option's value with the class itself wherever it has {_class_: "torch.nn.InstanceNorm2d"}, however deep.

    Raises:
        ModelError: one is no class of a layer or net, or may not be imported; the line names the key.
    """
    if isinstance(value, Mapping):
        if CLASS in value:
            return class_of(value[CLASS] if len(value) == 1 else None, key)
        return {name: with_classes(part, f"{key}.{name}") for name, part in value.items()}
    if isinstance(value, list):
        return [with_classes(part, key) for part in value]
    return value


def class_of(target: Any, key: str) -> type[nn.Module]:
    """The class of a layer or net that a dotted name stands for.

    Raises:
        ModelError: it is none, or may not be imported; the line names the key.
    """
    if why := refusal_of_class(target):
        raise ModelError(f"{key}: {target} is no class of a layer, as {why}; name one as torch.nn.InstanceNorm2d")
    module_name, _, name = target.rpartition(".")
    module = _imported(key, target, module_name)
    found: type[nn.Module] | None = getattr(module, name, None)
    if found is None or not _is_layer(found) or (not LAYERS.fullmatch(target) and borrowed(found)):
        raise ModelError(f"{key}: no class of a layer called {name} in {module_name}{_nearest(module, name)}")
    return found


def _imported(key: str, target: str, module_name: str) -> ModuleType:
    try:
        return importlib.import_module(imported_as(module_name))
    except ImportError as error:
        raise ModelError(f"{key}={target}: {module_name} can't be imported ({error})") from None


def _is_layer(found: object) -> bool:
    return isinstance(found, type) and issubclass(found, nn.Module)


def _makes_nets(function: FunctionType) -> bool:
    """Whether a function is the user's own, or one of this program's that returns a net by its annotation."""
    if is_own_code(function.__module__):
        return True
    return function.__module__.startswith(f"{__package__}.") and _is_layer(get_type_hints(function).get("return"))


def _nearest(module: ModuleType, name: str) -> str:
    """A clause that names the nets of the module that are most like `name`."""
    nets = [key for key, part in vars(module).items() if _is_layer(part)]
    close = get_close_matches(name, nets, n=1, cutoff=0.5) or nets[:5]
    return f"; did you mean {' or '.join(close)}?" if close else ""
