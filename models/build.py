"""Makes the net that the user named, in fp32, ready to answer."""

import importlib
import inspect
import sys
from difflib import get_close_matches
from typing import Any

import torch
from torch import nn

from models.checkpoint import load_into
from models.errors import ModelError
from models.model_output import with_output

NOT_NETS = {"torch"}  # whose functions read files and fetch addresses; a net comes from a package of nets


def build_model(
    target: str, options: dict[str, Any], checkpoint: str | None, seed: int, output: int | str | None = None
) -> nn.Module:
    """The net `target(**options)` in eval mode with the checkpoint's weights, or with seeded random ones.

    Args:
        target: a dotted name such as "my_package.MyNet".
        options: keyword arguments of the class.
        checkpoint: a file of weights.
        seed: of random weights.
        output: which part of the net's answer holds the logits; None where the answer is they.

    Raises:
        ModelError: `target` names no class of a net, it doesn't take these options, or takes more memory than there is.
        CheckpointError: the file isn't weights of this net.
    """
    cls = net_class(target)
    torch.manual_seed(seed)
    try:
        model = cls(**options)
    except (TypeError, ValueError) as error:
        known = ", ".join(inspect.signature(cls).parameters)
        raise ModelError(f"model.options don't fit {target}: {error}; it takes {known}") from None
    if checkpoint:
        load_into(model, checkpoint)
    return with_output(model.eval().float(), output)


def net_class(target: str) -> type[nn.Module]:
    """The class that a dotted name such as "my_package.MyNet" names.

    A name in the standard library or in torch itself is refused before anything is imported.

    Raises:
        ModelError: there is no such module or class, or it is no net.
    """
    module_name, _, name = target.rpartition(".")
    top = target.partition(".")[0]
    named = module_name and all(part.isidentifier() for part in target.split("."))
    if not named or top in sys.stdlib_module_names or top in NOT_NETS:
        raise ModelError(f"model.target={target}: no net's class; name yours as my_package.MyNet")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ModelError(f"model.target={target}: {module_name} can't be imported ({error})") from None
    found = getattr(module, name, None)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise ModelError(f"model.target={target}: no such class of a net in {module_name}{_nearest(module, name)}")
    return found


def _nearest(module: Any, name: str) -> str:
    """A clause that names the nets of the module that are most like `name`."""
    nets = [key for key, part in vars(module).items() if isinstance(part, type) and issubclass(part, nn.Module)]
    close = get_close_matches(name, nets, n=1, cutoff=0.5) or nets[:5]
    return f"; did you mean {' or '.join(close)}?" if close else ""
