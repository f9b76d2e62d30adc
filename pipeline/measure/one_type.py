"""Calls of torch's functions that are given half precision and fp32 at once, as a net's own code may make them."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeGuard

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

# By their names' beginnings: torch has them in fp32 alone, or in half for some sizes alone, or places would be rounded.
FOR_FP32 = ("fft_", "complex", "polar", "view_as_complex", "grid_sample")
ARITHMETIC = ("add", "sub", "mul", "div", "truediv", "pow")
# These take both: the wider one is what they compute in, or what they write into is what they give.
TAKE_BOTH = frozenset(
    {"to", "type_as", "copy_", "__get__", "__set__", "cat", "concat", "stack", "where", "maximum", "minimum"}
    | {"eq", "ne", "lt", "le", "gt", "ge"}
    | {form.format(name) for name in ARITHMETIC for form in ("{}", "{}_", "__{}__", "__r{}__", "__i{}__")}
)


class OneType(TorchFunctionMode):
    """Within, a function that is given tensors in half precision and in fp32 is given all in one of these.

    That is the type of what it writes into, if it does, fp32 for what torch has for that alone, else half precision.
    What takes both is left alone, and so are single numbers.
    """

    def __init__(self, half: torch.dtype) -> None:
        super().__init__()
        self.half = half

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Call the function."""
        named = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        kinds = {part.dtype for part in tree_leaves((args, named)) if _is_floating(part) and part.dim()}
        if self.half in kinds and name.startswith(FOR_FP32):
            wanted = torch.float32
        elif kinds >= {self.half, torch.float32} and name not in TAKE_BOTH:
            into = named.get("out", args[0] if _writes(name) else None)
            wanted = into.dtype if _is_floating(into) else self.half
        else:
            return func(*args, **named)

        def cast(part: object) -> object:
            return part.to(wanted) if _is_floating(part) else part

        return func(*tree_map(cast, args), **tree_map(cast, named))


def _is_floating(part: object) -> TypeGuard[Tensor]:
    return isinstance(part, Tensor) and part.is_floating_point()


def _writes(name: str) -> bool:
    """Whether a function writes into its first argument, by its name."""
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
