"""Lets the layers of a net say in a trace which of them is at work."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.profiler import record_function

from pipeline.records.chrome_trace import LAYER


@contextmanager
def announced(net: nn.Module) -> Iterator[None]:
    """Within, every leaf of the net runs inside an annotation with its path: `layer:encoder.0.3`."""
    handles = [hook for name, leaf in leaves(net) for hook in _hooks(leaf, name)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def leaves(net: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules that have none of their own, with their paths; a net that is a leaf itself has the path ""."""
    return [(name, part) for name, part in net.named_modules() if not any(part.children())]


def _hooks(leaf: nn.Module, name: str) -> list[Any]:
    opened: list[record_function] = []

    def enter(_: nn.Module, __: Any) -> None:
        annotation = record_function(f"{LAYER}{name}")
        annotation.__enter__()
        opened.append(annotation)

    def leave(_: nn.Module, __: Any, ___: Any) -> None:
        opened.pop().__exit__(None, None, None)

    return [leaf.register_forward_pre_hook(enter), leaf.register_forward_hook(leave)]
