"""Shows every operator that torch's dispatcher runs, composite ones taken apart: the one way that this room counts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True)
class Operator:
    """One operator that ran."""

    function: OpOverload
    arguments: tuple[Any, ...]
    keywords: Mapping[str, object]
    result: Any

    @property
    def name(self) -> str:
        """Without namespace and overload, such as "convolution"."""
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
    """Within, `see` is called with every operator after it ran; one that is made of others is taken apart first."""

    def __init__(self, see: Callable[[Operator], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.see = see

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether torch is to bar Dynamo from the method below, for which it would import it: two seconds.

        Nothing is compiled within: what is compiled runs eagerly there (`autotune_counts.eagerly`).
        """
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
