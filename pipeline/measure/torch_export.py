"""torch.export and torch.jit.trace, of what they don't take by themselves too."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.nn.modules.module import _global_buffer_registration_hooks

from pipeline.measure.function_mode import Function, FunctionMode


def exported_program(net: nn.Module, inputs: Iterable[Tensor]) -> ExportedProgram:
    """The net as one graph, for inputs of these shapes, [batch, ...]; it is traced with copies of them.

    Raises:
        Exception: torch can't export it; it raises many kinds, the net's own among them.
    """
    with torch.inference_mode(False), torch.no_grad(), exportable():
        return torch.export.export(net, tuple(part.clone() for part in inputs))


@contextmanager
def exportable(may_set_weights: bool = False) -> Iterator[None]:
    """Within, torch.export takes nets that read `tensor.data`; where it fails, it leaves nothing behind.

    Args:
        may_set_weights: whether the data of parameters may be set within, as torch.onnx does.
    """
    known = dict(_global_buffer_registration_hooks)
    try:
        with DataDetached(may_set_weights):
            yield
    except Exception:
        # torch leaves one of its own there that holds the net (torch 2.12).
        _global_buffer_registration_hooks.clear()
        _global_buffer_registration_hooks.update(known)
        raise


class DataDetached(FunctionMode):
    """Within, `tensor.data` is `tensor.detach()`: the same values, by an operator that a graph can hold.

    torch.export refuses the former, and a trace keeps its values of one batch. What sets data is refused, of
    parameters unless that may be: both would keep what was there before.
    """

    def __init__(self, may_set_weights: bool = False) -> None:
        super().__init__()
        self.may_set_weights = may_set_weights

    def call(self, func: Function, args: tuple[object, ...], named: dict[str, object]) -> object:
        """Call the function, or that one in its place.

        Raises:
            NotImplementedError: it is what sets a tensor's data.
        """
        sets = func == Tensor.data.__set__  # type: ignore[attr-defined]
        if sets and not (self.may_set_weights and isinstance(args[0], nn.Parameter)):
            raise NotImplementedError("the net's own code sets a tensor's data, which no graph holds")
        called: Callable[..., object] = Tensor.detach if func == Tensor.data.__get__ else func  # type: ignore[attr-defined]
        return called(*args, **named)
