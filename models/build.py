"""Makes the net that the user named, in fp32, ready to answer."""

import importlib
import inspect
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch import nn

from models.checkpoint import load_into
from models.errors import ModelError
from models.model_output import with_output
from models.targets import borrowed, refusal


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

    Raises:
        ModelError: the name may not be imported (`models.targets`), there is no such module or class, or it is no net.
    """
    module_name, _, name = target.rpartition(".")
    if why := refusal(target) if module_name else "it has no package":
        raise ModelError(f"model.target={target}: no net's class, as {why}; name yours as my_package.MyNet")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ModelError(f"model.target={target}: {module_name} can't be imported ({error}){_hidden(target)}") from None
    found = getattr(module, name, None)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        said = f"no such class of a net in {module_name}{_nearest(module, name)}{_hidden(target)}"
        raise ModelError(f"model.target={target}: {said}")
    if why := borrowed(found):
        raise ModelError(f"model.target={target}: no net of {module_name}'s own, as {why}")
    return found


def _hidden(target: str) -> str:
    """A clause for a name that the user may have meant of a folder of his own, which this program's package hides."""
    folder = Path.cwd() / "models"
    if target.partition(".")[0] != "models" or not folder.exists() or folder.samefile(Path(__file__).parent):
        return ""
    return f"; {folder} can't be named, as models is this program's own package: give it another name"


def _nearest(module: Any, name: str) -> str:
    """A clause that names the nets of the module that are most like `name`."""
    nets = [key for key, part in vars(module).items() if isinstance(part, type) and issubclass(part, nn.Module)]
    close = get_close_matches(name, nets, n=1, cutoff=0.5) or nets[:5]
    return f"; did you mean {' or '.join(close)}?" if close else ""
