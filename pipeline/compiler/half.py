"""A copy of a network in half precision: its casts, its layout, and modules that stay in fp32."""

import copy
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from difflib import get_close_matches
from functools import partial
from typing import Literal, TypeGuard

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.hooks import RemovableHandle

from pipeline.compiler.batch import IN_WORDS, Batch, Order, in_dtype, laid_out, net_in_dtype, net_laid_out
from pipeline.compiler.errors import CompileError
from pipeline.compiler.folding import folded
from pipeline.compiler.network_calls import Function, FunctionMode, refuses

KeepFp32 = Literal["auto", "none"] | list[str]  # "auto": where a wrong answer begins
Precision = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8"]
SHORT: dict[torch.dtype, Precision] = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
FULL = torch.float32
HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def named_modules(keep_fp32: object) -> list[str]:
    """Return the paths of modules that an option names; none at first for "auto"."""
    return keep_fp32 if isinstance(keep_fp32, list) else []


def layers_within(net: nn.Module, kept: Sequence[str]) -> list[str]:
    """Return the modules with own weights or buffers within those called `kept`, by their first paths."""
    inside = {part for name in kept for part in net.get_submodule(name).modules()}
    own = set(with_weights(net))
    return [name for name, part in net.named_modules() if part in inside & own]


def in_half(net: nn.Module, dtype: torch.dtype, kept: Sequence[str] = ()) -> nn.Module:
    """Return the net itself in that precision, but for the modules called `kept`, which compute and answer in fp32.

    What they answer stays fp32 until the next module with weights: a value that half precision can't hold is lost no
    sooner than there, and that module may be kept as well.

    Args:
        net: in fp32.
        dtype: of the rest.
        kept: paths of modules.

    Raises:
        CompileError: the network has no module of that name, or it is the whole net.
    """
    known = {name: part for name, part in net.named_modules(remove_duplicate=False) if name}
    if missing := [name for name in kept if name not in known]:
        close = get_close_matches(missing[0], list(known), n=1, cutoff=0.5)
        instead = f"did you mean {close[0]!r}?" if close else f"choose one of: {', '.join(known)}"
        raise CompileError(f"keep_fp32: the network has no module {missing[0]!r}; {instead}")
    inside = {part for name in kept for part in known[name].modules()}
    exact = {part: copy.deepcopy((part._parameters, part._buffers)) for part in inside}
    net_in_dtype(net, dtype)
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


def cast_own_values(whole: nn.Module, net: nn.Module, dtype: torch.dtype, inputs: Batch) -> bool:
    """Let a net cast what it makes itself, where it doesn't run without, but so; whether it does.

    So runs a net in half precision that makes fp32 values in its forward, such as a grid of positions, a time's sines
    or a softmax in fp32, which torch's layers don't take beside their weights. Only torch's layers cast where that
    suffices, so that what the net's own modules compute in fp32 on purpose stays fp32; else all with weights. One
    number a sample, as a time step is, stays as it is. Where no module meets them, as a filter for
    functional.conv2d or the grid of a warp, each function of torch that a net calls is given one type (`OneType`).

    Args:
        whole: calls the net, with casts of the inputs.
        net: in half precision; it is changed.
        dtype: of its weights.
        inputs: of `whole`: a batch [batch, channels, height, width], and what others the net has.
    """
    if dtype == torch.float32 or not refuses(whole, inputs):
        return False
    parts = [part for part in with_weights(net) if not casts(part)]  # as those do that stay in fp32
    of_torch = [part for part in parts if type(part).forward.__module__.startswith("torch.nn.")]
    for change in (partial(_let_cast, of_torch), partial(_let_cast, parts), partial(_run_in_one_type, net)):
        with ExitStack() as changed:
            change(dtype, changed)
            if not refuses(whole, inputs):
                changed.pop_all()
                return True
    return False


def _let_cast(parts: Collection[nn.Module], dtype: torch.dtype, changed: ExitStack) -> None:
    for part in parts:
        changed.callback(takes_in(part, dtype, least_axes=2).remove)


def _run_in_one_type(net: nn.Module, dtype: torch.dtype, changed: ExitStack) -> None:
    forward = net.forward
    net.forward = partial(_in_one_type, forward, dtype)
    changed.callback(setattr, net, "forward", forward)


def _in_one_type(forward: Callable[..., object], dtype: torch.dtype, *inputs: object) -> object:
    with OneType(dtype):
        return forward(*inputs)


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


def short(dtype: torch.dtype) -> Precision:
    """Return the common name of a type: fp32, fp16, bf16."""
    return SHORT[dtype]


class Cast(nn.Module):
    """A net in another precision, which may cast values of its own."""

    casts_own_values = False

    @property
    def and_casts(self) -> str:
        """The words that a description adds where the network's own values are cast; "" where they aren't."""
        return f", {CAST_OWN_VALUES}" if self.casts_own_values else ""


class Half(Cast):
    """The network in half precision or fp32, batch norm folded; it casts the user's fp32 batch and sets its layout.

    Modules called `kept` stay in fp32 (`kept_fp32.in_half`); `inputs` are for `folded`.
    """

    def __init__(
        self,
        model: nn.Module,
        dtype: torch.dtype,
        kept: Sequence[str] = (),
        layout: Order = "NHWC",
        inputs: Batch | None = None,
    ) -> None:
        super().__init__()
        net, self.folds = folded(model, inputs)
        self.net = net_laid_out(in_half(net, dtype, kept), layout)
        self.dtype = dtype
        self.kept = [*kept]
        self.layout: Order = layout

    @property
    def in_words(self) -> str:
        """Such as "fp16 weights, channels_last, 18 batch norms folded"."""
        return f"{short(self.dtype)} weights, {IN_WORDS[self.layout]}, {self.folds} batch norms folded{self.and_casts}"

    def forward(self, batch: Tensor, *others: Tensor) -> Tensor:
        """Logits [batch, classes, height, width] in that precision of a batch [batch, channels, height, width].

        Of a net with several inputs they are `others`; volumes have a depth before the height.
        """
        logits: Tensor = self.net(*[laid_out(in_dtype(part, self.dtype), self.layout) for part in (batch, *others)])
        return logits


def half_net(
    model: nn.Module, dtype: torch.dtype, inputs: Batch, kept: Sequence[str] = (), layout: Order = "NHWC"
) -> Half:
    """Return a copy of a network as `Half`, in eval mode, with the casts that it needs; arguments as of `Half`."""
    half = Half(model, dtype, kept, layout, inputs).eval()
    half.casts_own_values = cast_own_values(half, half.net, dtype, inputs)
    return half


class AsItLies(Cast):
    """As `Half`, in the layout that the net has: for a runtime that chooses its own, or for whom NHWC is no matter."""

    def __init__(self, model: nn.Module, dtype: torch.dtype, inputs: Batch | None = None) -> None:
        super().__init__()
        self.net, self.folds = folded(model, inputs)
        net_in_dtype(self.net, dtype)
        self.dtype = dtype
        if inputs is not None:
            self.casts_own_values = cast_own_values(self, self.net, dtype, inputs)

    def forward(self, batch: Tensor, *others: Tensor) -> Tensor:
        """Return logits [batch, classes, height, width], as `Half` does."""
        logits: Tensor = self.net(*[in_dtype(part, self.dtype) for part in (batch, *others)])
        return logits
