"""Whether a net reads numbers of what it computes, to decide or compute by: a trace would keep those of one batch.

`while features.mean() > 0.1`, `image / image.max().item()` and what numpy makes of a tensor are such; sizes are not.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from pipeline.compiler.batch import Batch
from pipeline.compiler.network_calls import Function, FunctionMode

BRIGHTER = 10  # times; much more would overflow in fp16
READ = torch.ops.aten._local_scalar_dense.default  # behind item(), bool(), float() and int() of a tensor
READ_WHOLE = (Tensor.numpy, Tensor.tolist, Tensor.__array__, Tensor.__dlpack__)  # behind which there is no operator


class Reads(TorchDispatchMode):
    """A digest of the numbers that are read of tensors within it, and the line of the net's code that reads each."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.values: list[int] = []
        self.places: list[str] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """As `pipeline.profiling.operators.Dispatched`'s: nothing is compiled within."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call the operator, and keep what it gives where it reads."""
        found = func(*args, **(kwargs or {}))
        if func is READ:
            self.keep(args[0])
        return found

    def keep(self, read: Tensor) -> None:
        """Note what is read, of any shape."""
        values = (read.detach() + 0).cpu().flatten().contiguous()  # 0 added: -0.0 equals 0.0, as NaN does NaN by bytes
        self.values.append(hash(values.view(torch.uint8).numpy().tobytes()))
        self.places.append(_place())


class WholeReads(FunctionMode):
    """Within, `keep` is given each tensor that is read as a whole, such as by numpy()."""

    def __init__(self, keep: Callable[[Tensor], None]) -> None:
        super().__init__()
        self.keep = keep

    def call(self, func: Function, args: tuple[object, ...], named: dict[str, object]) -> object:
        """Call the function, and show what it reads."""
        found = func(*args, **named)
        if func in READ_WHOLE:
            assert isinstance(args[0], Tensor)
            self.keep(args[0])
        return found


def reads_its_data(model: nn.Module, batches: Sequence[Batch]) -> str:
    """Where a net reads numbers that differ from batch to batch, such as "Net.forward, nets.py:60"; else empty.

    Args:
        model: is called with the first batch; if it reads anything of that one, with the others, and with the first
            all dark and `BRIGHTER` times as bright.
        batches: each of inputs of any shape.
    """
    first, *others = batches
    known = _reads(model, first)
    for batch in (*others, first.mapped(torch.zeros_like), first.mapped(_brighter)) if known.values else ():
        with suppress(Exception):  # a net may refuse such images
            found = _reads(model, batch)
            if found.values != known.values:
                same = zip(found.values, known.values, strict=False)
                at = next((number for number, (one, other) in enumerate(same) if one != other), -1)
                return known.places[at]
    return ""


def _brighter(part: Tensor) -> Tensor:
    """An input of any shape; whole numbers, as they may be indices, stay."""
    return part * BRIGHTER if part.is_floating_point() else part


def _reads(model: nn.Module, batch: Batch) -> Reads:
    reads = Reads()
    # no_grad, as inference mode keeps what is made of other operators from a mode
    with torch.no_grad(), reads, WholeReads(reads.keep):
        model(*batch)
    return reads


def _place() -> str:
    """The innermost call of a module's method that isn't torch's own."""
    step, torchs = sys._getframe(2), str(Path(torch.__file__).parent)
    while step.f_back is not None:
        owner, code = step.f_locals.get("self"), step.f_code
        if isinstance(owner, nn.Module) and not code.co_filename.startswith(torchs):
            return f"{type(owner).__name__}.{code.co_name}, {Path(code.co_filename).name}:{step.f_lineno}"
        step = step.f_back
    return "its code"
