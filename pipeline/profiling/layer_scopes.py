"""Says which layer of a net is at work: by hooks around each, and as annotations in a trace."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import nn
from torch.profiler import record_function
from torch.utils.hooks import RemovableHandle

from pipeline.compiler.fx_graph import layers
from pipeline.records.chrome_trace import LAYER

Enter = Callable[[str, nn.Module], None]  # the layer's path and the layer
Leave = Callable[[str, nn.Module, tuple[object, ...], object], None]  # and its positional inputs and its output


@contextmanager
def hooked(net: nn.Module | None, enter: Enter | None, leave: Leave) -> Iterator[None]:
    """Within, every layer of the net calls `enter` before it runs and `leave` after; nothing happens without a net."""
    handles = [handle for name, layer in layers(net) for handle in _pair(name, layer, enter, leave)] if net else []
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _pair(name: str, layer: nn.Module, enter: Enter | None, leave: Leave) -> list[RemovableHandle]:
    after = layer.register_forward_hook(lambda part, inputs, output: leave(name, part, inputs, output))
    if enter is None:
        return [after]
    return [layer.register_forward_pre_hook(lambda part, _: enter(name, part)), after]


@contextmanager
def announced(net: nn.Module | None) -> Iterator[None]:
    """Within, every layer of the net runs inside an annotation with its path: `layer:encoder.0.3`."""
    opened: list[record_function] = []

    def enter(name: str, _: nn.Module) -> None:
        annotation = record_function(f"{LAYER}{name}")
        annotation.__enter__()
        opened.append(annotation)

    def leave(_: str, __: nn.Module, ___: tuple[object, ...], ____: object) -> None:
        opened.pop().__exit__(None, None, None)

    with hooked(net, enter, leave):
        yield
