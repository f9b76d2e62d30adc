"""A copy of a network in half precision: its casts, its layout, and modules that stay in fp32."""

import copy
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, nullcontext, suppress
from difflib import get_close_matches
from functools import partial
from typing import Literal, TypeGuard

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.hooks import RemovableHandle

from pipeline.compiler.batch import IN_WORDS, Batch, Order, in_dtype, laid_out, net_laid_out
from pipeline.compiler.errors import CompileError
from pipeline.compiler.folding import folded
from pipeline.compiler.network_calls import Function, FunctionMode, refuses, trial, trial_copy

Precision = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8"]
SHORT: dict[torch.dtype, Precision] = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
FULL = torch.float32


def layers_within(net: nn.Module, kept: Sequence[str]) -> list[str]:
    """Return the modules with own weights or buffers within those called `kept`, by their first paths."""
    inside = {part for name in kept for part in net.get_submodule(name).modules()}
    own = set(with_weights(net))
    return [name for name, part in net.named_modules() if part in inside & own]


def in_half(net: nn.Module, dtype: torch.dtype, kept: Sequence[str] = ()) -> nn.Module:
    """Return the net itself in that precision, but for the modules called `kept`, which compute and answer in fp32.

    What they answer stays fp32 until the next module with weights. Raises CompileError for an unknown module.
    """
    known = {name: part for name, part in net.named_modules(remove_duplicate=False) if name}
    if missing := [name for name in kept if name not in known]:
        close = get_close_matches(missing[0], list(known), n=1, cutoff=0.5)
        instead = f"did you mean {close[0]!r}?" if close else f"choose one of: {', '.join(known)}"
        raise CompileError(f"keep_fp32: the network has no module {missing[0]!r}; {instead}")
    inside = {part for name in kept for part in known[name].modules()}
    exact = {part: copy.deepcopy((part._parameters, part._buffers)) for part in inside}
    net._apply(lambda part: part.to(dtype) if part.is_floating_point() else part)  # `to` would cut complex numbers
    for part, held in exact.items():
        part._parameters, part._buffers = held  # in the module itself, which the net may call by another name
    for asked in {known[name] for name in kept}:
        for part in {asked, *with_weights(asked)}:  # the net may call one within by another name
            takes_in(part, torch.float32)
    for part in with_weights(net, inside) if kept else ():
        takes_in(part, dtype)
    return net


CAST_OWN_VALUES = "fp32 values of the network's own cast where they meet weights"  # what is said of such a net


def takes_in(module: nn.Module, dtype: torch.dtype, least_axes: int = 0) -> RemovableHandle:
    """Let a module take its floating tensors of `least_axes` or more in a precision; return what undoes that."""

    def cast(value: object) -> object:
        if isinstance(value, Tensor) and value.is_floating_point() and value.dim() >= least_axes:
            return value.to(dtype)
        return value

    def before(
        _: nn.Module, args: tuple[object, ...], named: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        return tree_map(cast, args), tree_map(cast, named)  # the states of an LSTM are a tuple

    before.casts = True  # type: ignore[attr-defined]
    return module.register_forward_pre_hook(before, with_kwargs=True)


def casts(module: nn.Module) -> bool:
    """Return whether it takes its tensors in one precision already."""
    return any(getattr(hook, "casts", False) for hook in module._forward_pre_hooks.values())


def with_weights(net: nn.Module, left_out: Collection[nn.Module] = ()) -> Iterator[nn.Module]:
    """Return the modules that have weights or buffers of their own, but those left out."""
    for part in net.modules():
        if part not in left_out and (*part.parameters(recurse=False), *part.buffers(recurse=False)):
            yield part


def cast_own_values(whole: nn.Module, net: nn.Module, dtype: torch.dtype, inputs: Batch) -> str:
    """Let a net cast what it makes itself, where it doesn't run without, but so; return what is said of it, or "".

    Such a net makes fp32 values in its forward, such as a grid of positions. Only torch's layers cast where that
    suffices, else all with weights, else each function (`OneType`). `whole` calls the `net`, which is changed.
    """
    if dtype == torch.float32 or not refuses(whole, inputs, finite=dtype == torch.float16):
        return ""
    if not refuses(whole, inputs):  # a number of its own may be beyond half precision
        return in_other_ways(whole, net, dtype, inputs, finite=True)
    parts = [part for part in with_weights(net) if not casts(part)]  # as those do that stay in fp32
    of_torch = [part for part in parts if type(part).forward.__module__.startswith("torch.nn.")]
    for asked in (of_torch, parts):
        with ExitStack() as changed:
            for part in asked:
                changed.callback(takes_in(part, dtype, least_axes=2).remove)
            if not refuses(whole, inputs):
                changed.pop_all()
                return CAST_OWN_VALUES
    return in_other_ways(whole, net, dtype, inputs)


def in_other_ways(whole: nn.Module, net: nn.Module, dtype: torch.dtype, inputs: Batch, finite: bool = False) -> str:
    """Give each function that a net calls one type, and what half precision refuses another way."""
    forward, looks = net.forward, _Mending(dtype)
    with suppress(Exception), trial(inputs), looks:
        trial_copy(whole)[0](*inputs.clone())
    net.forward = partial(_in_one_type, forward, dtype, looks.ways)  # a partial, of which a copy calls the copied net
    if (finite and not looks.ways) or refuses(whole, inputs, finite):
        net.forward = forward
        return ""
    return ", ".join([CAST_OWN_VALUES, *sorted({f"{called[0]} {WAYS[way]}" for called, way in looks.ways.items()})])


def _in_one_type(forward: Callable[..., object], dtype: torch.dtype, ways: "Ways", *inputs: object) -> object:
    with OneType(dtype, ways):
        return forward(*inputs)


OVERFLOWS = "without overflow"  # in torch's error of a number beyond half precision (2.12)
FILLS = ("__setitem__", "fill_", "full", "new_full", "new_tensor", "tensor", "where")  # make it an infinity instead
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

Called = tuple[str, ...]  # a function's name, and the words and switches that it is called with
Way = Callable[[torch.dtype, Function, tuple[object, ...], dict[str, object]], object]
Ways = dict[Called, Way]


class OneType(FunctionMode):
    """Within, a function that is given tensors in half precision and others is given all in one type, if it needs that.

    That is fp32 for what torch has for that alone, the type of what is written into, and half precision for products.
    """

    def __init__(self, half: torch.dtype, ways: Ways | None = None) -> None:
        super().__init__()
        self.half, self.ways = half, ways or {}

    def call(self, func: Function, args: tuple[object, ...], named: dict[str, object]) -> object:
        """Call the function."""
        name = _name(func)
        way = self.ways.get(_called(func, args, named)) if self.ways else None
        if way is not None:
            return way(self.half, func, args, named)
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


class _Mending(OneType):
    """Within, what fails in half precision is called in another way, which is kept if it works."""

    def call(self, func: Function, args: tuple[object, ...], named: dict[str, object]) -> object:
        """Call the function; raise where it fails in every way, or memory ran out."""
        try:
            if _name(func) in FILLS and _holds_more(self.half, args, named):
                raise OverflowError(OVERFLOWS)
            return super().call(func, args, named)
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:
            way = _within_range if OVERFLOWS in str(error) else _in_fp32
            if "out" in named or _name(func).startswith("__i"):  # what it writes into would be lost
                raise
            answer = way(self.half, func, args, named)
            self.ways[_called(func, args, named)] = way
            return answer


def _name(func: Function) -> str:
    return f"{getattr(func, '__name__', '')}"  # formatted: Dynamo of torch 2.14 has no method for the name itself


def _called(func: Function, args: tuple[object, ...], named: dict[str, object]) -> Called:
    said = [str(part) for part in tree_leaves((args, named)) if isinstance(part, str | bool)]
    return (_name(func), *sorted(said))  # torch.compile has other orders


def _holds_more(half: torch.dtype, *given: object) -> bool:
    parts = tree_leaves(given)
    return any(part is half or getattr(part, "dtype", None) is half for part in parts) and any(
        part != _bounded(half, part) for part in parts if isinstance(part, float | int)
    )


def _bounded(half: torch.dtype, part: object) -> object:
    most = torch.finfo(half).max
    if isinstance(part, float | int) and not isinstance(part, bool) and math.isfinite(part):
        return max(-most, min(part, most))
    return part


def _within_range(half: torch.dtype, func: Function, args: tuple[object, ...], named: dict[str, object]) -> object:
    bounded = partial(_bounded, half)
    return func(*tree_map(bounded, args), **tree_map(bounded, named))


def _in_fp32(half: torch.dtype, func: Function, args: tuple[object, ...], named: dict[str, object]) -> object:
    """Call a function in fp32, and give back what it writes into."""

    def cast(part: object) -> object:
        if part is half:
            return torch.float32
        return part.float() if isinstance(part, Tensor) and part.dtype == half else part

    given, name = tree_map(cast, args), _name(func)
    kind = next((part.device.type for part in tree_leaves(args) if isinstance(part, Tensor)), "cpu")
    with torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext():
        answer = func(*given, **tree_map(cast, named))
    if name == "__setitem__" or (name.endswith("_") and not name.endswith("__")):
        into, written = args[0], given[0]
        assert isinstance(into, Tensor)
        assert isinstance(written, Tensor)
        return into.copy_(written)
    return answer


WAYS: dict[Way, str] = {_within_range: "within its range", _in_fp32: "in fp32"}


def _is_floating(part: object) -> TypeGuard[Tensor]:
    return isinstance(part, Tensor) and part.is_floating_point()


class Cast(nn.Module):
    """A net in another precision, which may cast values of its own."""

    casts = ""  # what is said of them

    @property
    def casts_own_values(self) -> bool:
        """True if values of the network's own are cast."""
        return bool(self.casts)

    @property
    def and_casts(self) -> str:
        """The words that a description adds where the network's own values are cast; "" where they aren't."""
        return f", {self.casts}" if self.casts else ""


class Half(Cast):
    """The network in half precision or fp32, batch norm folded, `kept` in fp32; it casts the batch and lays it out."""

    def __init__(
        self, model: nn.Module, dtype: torch.dtype, kept: Sequence[str] = (), layout: Order = "NHWC",
        inputs: Batch | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        net, self.folds = folded(model, inputs)
        self.net = net_laid_out(in_half(net, dtype, kept), layout)
        self.dtype = dtype
        self.kept = [*kept]
        self.layout: Order = layout

    @property
    def in_words(self) -> str:
        """Such as "fp16 weights, channels_last, 18 batch norms folded"."""
        return f"{SHORT[self.dtype]} weights, {IN_WORDS[self.layout]}, {self.folds} batch norms folded{self.and_casts}"

    def forward(self, batch: Tensor, *others: Tensor) -> Tensor:
        """Return logits [batch, classes, height, width] in that precision of a batch of images or volumes."""
        logits: Tensor = self.net(*[laid_out(in_dtype(part, self.dtype), self.layout) for part in (batch, *others)])
        return logits


def half_net(
    model: nn.Module, dtype: torch.dtype, inputs: Batch, kept: Sequence[str] = (), layout: Order = "NHWC"
) -> Half:
    """Return a copy of a network as `Half`, in eval mode, with the casts that it needs; arguments as of `Half`."""
    half = Half(model, dtype, kept, layout, inputs).eval()
    half.casts = cast_own_values(half, half.net, dtype, inputs)
    return half
