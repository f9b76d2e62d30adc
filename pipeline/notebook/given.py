"""The network of a notebook on its way to the workers: saved as the object that it is, and loaded again."""

import pickle
from pathlib import Path

import torch
from torch import fx, nn

from pipeline.config.request_error import RequestError

TARGET = "pipeline.notebook.given.network"
FILE = "network.pt"
FROM_ITS_FILE = "measured from its file: {} writes it, and python -m pipeline model=file model.file={} runs it"
INTO_A_FILE = "put it into a file such as nets.py and import it from there: workers are processes of their own"


def network(file: str, made_of: str) -> nn.Module:  # noqa: ARG001 - the class's name, for the record
    """Load the network of class `made_of` that the notebook saved; a pickle, as its own user wrote it."""
    found: nn.Module = torch.load(file, map_location="cpu", weights_only=False)
    return found.eval().float()


def save(net: nn.Module, folder: Path) -> Path:
    """Save the network, and return the file's path."""
    path = (folder / FILE).resolve()
    if isinstance(net, torch.jit.ScriptModule):
        raise RequestError(f"TorchScript is {FROM_ITS_FILE.format('torch.jit.save(net, FILE)', 'net.ts')}")
    for module in net.modules():
        if isinstance(module, fx.GraphModule):  # of a class of its own, which its pickle makes again
            continue
        cls = type(module)
        if cls.__module__ == "__main__" or "." in cls.__qualname__:
            raise RequestError(f"{cls.__qualname__} was defined in the notebook or in a function; {INTO_A_FILE}")
    try:
        torch.save(net, path)
    except (pickle.PicklingError, AttributeError, TypeError, RuntimeError) as error:
        if isinstance(net, fx.GraphModule):
            said = FROM_ITS_FILE.format("torch.export.save(program, FILE)", "net.pt2")
            raise RequestError(f"a graph of torch.export is {said}") from None
        raise RequestError(f"{type(net).__name__} can't be saved for the workers ({error}); {INTO_A_FILE}") from None
    return path
