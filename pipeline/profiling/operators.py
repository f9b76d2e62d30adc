"""The operators that torch's dispatcher runs, composite ones taken apart, with their bytes and torch's own FLOPs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry


@dataclass(frozen=True)
class Operator:
    """One operator that ran."""

    function: OpOverload
    arguments: tuple[Any, ...]
    keywords: Mapping[str, object]
    result: Any

    @property
    def name(self) -> str:
        """The name without namespace and overload, such as "convolution"."""
        return str(self.function._schema.name).rpartition("::")[2]

    @property
    def inputs(self) -> list[Tensor]:
        """The tensors among its arguments, each once."""
        leaves = tree_leaves((self.arguments, dict(self.keywords)))
        return list({id(part): part for part in leaves if isinstance(part, Tensor)}.values())

    @property
    def outputs(self) -> list[Tensor]:
        """The tensors of its result."""
        return [part for part in tree_leaves(self.result) if isinstance(part, Tensor)]

    @property
    def by_name(self) -> dict[str, Any]:
        """Its arguments by the names of the operator's schema."""
        names = (argument.name for argument in self.function._schema.arguments)
        return dict(zip(names, self.arguments, strict=False)) | dict(self.keywords)


class Dispatched(TorchDispatchMode):
    """A mode in which `see` gets every operator after it ran; one that is made of others is taken apart first."""

    def __init__(self, see: Callable[[Operator], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.see = see

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False, or torch would import Dynamo, for two seconds, to bar it from the method below."""
        return False

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        """Run the operator, and show it."""
        kwargs = kwargs or {}
        with self:
            parts = func.decompose(*args, **kwargs)
        if parts is not NotImplemented:
            return parts
        result = func(*args, **kwargs)
        self.see(Operator(func, args, kwargs, result))
        return result


Input = TypeVar("Input")
Told = TypeVar("Told")
ONLY_WRITES = {"copy_", "fill_", "zero_"}  # they don't read what they overwrite
WRITES_NOTHING = {"empty", "empty_strided", "empty_like", "new_empty"}


def of_each_operator(tell: Callable[[Operator], Told], call: Callable[[], object]) -> list[Told]:
    """Return what `tell` finds out about each operator of a call, in the order in which they ran."""
    told: list[Told] = []
    with Dispatched(lambda operator: told.append(tell(operator))):
        call()
    return told


def counted(run: Callable[[Input], object], batch: Input) -> int:
    """Return the bytes that all operators of one call read and write; 0 if torch's dispatcher sees none."""
    # What a cache keeps near counts as if it came from memory: this is what fusion can save.
    with torch.inference_mode():
        return sum(of_each_operator(moved, lambda: run(batch)))


def moved(operator: Operator) -> int:
    """Return the bytes that one operator reads and writes."""
    read, written = operator.inputs, operator.outputs
    if operator.name in WRITES_NOTHING:
        return 0
    places = {part.untyped_storage().data_ptr() for part in read}
    all_views = all(part.untyped_storage().data_ptr() in places for part in written)
    if all_views and not operator.function._schema.is_mutable:
        return 0
    if operator.name in ONLY_WRITES:
        read = [part for part in read if all(part is not other for other in written)]
    return sum(size(part) for part in [*read, *written])


def size(part: Tensor) -> int:
    """Return the bytes of the elements of a tensor of any shape."""
    return int(part.numel()) * int(part.element_size())


def flops(operator: Operator) -> int | None:
    """Return the floating-point operations of a convolution or matrix product, 2 per multiply-add; else None."""
    formula = flop_registry.get(operator.function._overloadpacket)
    if formula is None:
        return None
    return int(formula(*operator.arguments, **operator.keywords, out_val=operator.result))


def net_flops(net: nn.Module, *image: Tensor) -> int:
    """Return the FLOPs of the convolutions and matrix products for one sample, its inputs of any shape."""
    with torch.inference_mode():
        return sum(filter(None, of_each_operator(flops, lambda: net(*image))))
