"""Calls of torch's functions that are given half precision and fp32 at once, as a net's own code may make them."""

from typing import TypeGuard

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from pipeline.measure.function_mode import Function, FunctionMode

# By their names' beginnings: torch has them in fp32 alone, or in half for some sizes alone, or places would be rounded.
FOR_FP32 = ("fft_", "stft", "istft", "complex", "polar", "view_as_complex", "grid_sample")
# What torch refuses two types in. All else takes both, as arithmetic does, or has one floating tensor.
PRODUCTS = frozenset(
    {f"conv{way}{axes}d" for way in ("", "_transpose") for axes in (1, 2, 3)}
    | {f"{cell}{step}" for cell in ("lstm", "gru", "rnn_tanh", "rnn_relu") for step in ("", "_cell")}
    | {"linear", "bilinear", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "mv", "dot", "inner", "tensordot"}
    | {"einsum", "chain_matmul", "linalg_multi_dot", "addmm", "addmv", "addbmm", "baddbmm", "addr", "prelu"}
    | {"scaled_dot_product_attention", "multi_head_attention_forward", "layer_norm", "group_norm", "rms_norm"}
)
INTO_THE_FIRST = frozenset(
    {f"{name}{place}" for name in ("index_put", "index_add", "index_copy", "index_reduce") for place in ("", "_")}
    | {"scatter", "scatter_add", "scatter_reduce", "scatter_", "scatter_add_", "scatter_reduce_"}
    | {"masked_scatter", "masked_scatter_", "__setitem__", "put", "put_", "lerp", "lerp_"}
    | {"addmm_", "addmv_", "addbmm_", "baddbmm_", "addr_"}
)


class OneType(FunctionMode):
    """Within, a function that is given tensors in half precision and others is given all in one type, if it needs that.

    That is fp32 for what torch has for that alone, the type of what a function writes into, and half precision for
    products. What takes both is left alone, and so are single numbers.
    """

    def __init__(self, half: torch.dtype) -> None:
        super().__init__()
        self.half = half

    def call(self, func: Function, args: tuple[object, ...], named: dict[str, object]) -> object:
        """Call the function."""
        name = getattr(func, "__name__", "")
        kinds = {part.dtype for part in tree_leaves((args, named)) if _is_floating(part) and part.dim()}
        if self.half in kinds and name.startswith(FOR_FP32):
            wanted = torch.float32
        elif self.half in kinds and len(kinds) > 1 and name in PRODUCTS | INTO_THE_FIRST:
            into = next(iter(args), named.get("input")) if name in INTO_THE_FIRST else named.get("out")
            wanted = into.dtype if _is_floating(into) else self.half
        else:
            return func(*args, **named)

        def cast(part: object) -> object:
            return part.to(wanted) if _is_floating(part) else part

        return func(*tree_map(cast, args), **tree_map(cast, named))


def _is_floating(part: object) -> TypeGuard[Tensor]:
    return isinstance(part, Tensor) and part.is_floating_point()
