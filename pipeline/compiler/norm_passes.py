"""Finds the passes that norms take in a lowered graph, and gives them, or the layers that read them, to own kernels.

Inductor makes such a pass of a norm's factor and shift, its activation, and perhaps the rounding to fp8 or the logits
of a head. It stays Inductor's where it does more than that: where a residual or an activation of another kind reads it.
"""

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from pipeline.compiler.custom_ops import NAMESPACE, REFERENCE, operation
from pipeline.compiler.fp8_rounding import FP8
from pipeline.compiler.fx_graph import ADDITION, MULTIPLICATION, add_constant, erase_unread, is_call, only_user
from pipeline.compiler.norm_heads import FoundHead, head_of
from pipeline.compiler.ops import tile_of
from pipeline.compiler.passes.kernel_folding import RECOGNISABLE, TO
from pipeline.compiler.passes.norm_sums import factor_and_shift
from pipeline.kernels.common.activation import NONE, Activation, recognised
from pipeline.kernels.conv3x3 import conv3x3_narrow
from pipeline.kernels.conv3x3.conv3x3_normed import slope_of

aten = torch.ops.aten
MEMORY, CLAMP, COPY, PLACE = (
    "aten.empty_strided.default",
    "aten.clamp.default",
    "aten.copy_.default",
    "aten.as_strided.default",
)
OF_PASS_ALONE = ("norm_scale", "tile", "result", "head_weight", "head_bias")  # arguments
LAYOUTS = ("aten.contiguous.default", "prims.inductor_force_stride_order.default")


@dataclass(frozen=True)
class FoundPass:
    """A norm's pass in a lowered graph.

    Attributes:
        x: memory that the layer before writes, fp16.
        factors: the call of `factor_and_shift`.
        last: what the pass comes to.
        activation: one without a slope for each channel.
        scale: of `last`, where that is fp8; None of fp16.
        head: the logits, where they alone are made of `last`.
    """

    x: fx.Node
    factors: fx.Node
    last: fx.Node
    activation: Activation
    scale: float | None
    head: FoundHead | None


def found_passes(graph: fx.Graph) -> Iterator[FoundPass]:
    """The passes that a kernel can take over, as they stood at the start."""
    for node in [node for node in graph.nodes if node.target is factor_and_shift]:
        found = _pass_of(node)
        if found is not None and (found.head or all(_only_reads(user, found.last) for user in found.last.users)):
            yield found


def _pass_of(factors: fx.Node) -> FoundPass | None:
    parts = {user.args[1]: user for user in factors.users if user.target is operator.getitem}
    scaled = only_user(parts[0]) if parts.keys() == {0, 1} else None
    shifted = only_user(scaled) if is_call(scaled, MULTIPLICATION) and scaled is not None else None
    if scaled is None or shifted is None or not is_call(shifted, ADDITION) or shifted.args != (scaled, parts[1]):
        return None
    cast = scaled.args[0]
    x = cast.args[0] if is_call(cast, TO) and isinstance(cast, fx.Node) else None
    last = only_user(shifted)
    if not isinstance(x, fx.Node) or not is_call(x, MEMORY) or x.kwargs["dtype"] != torch.float16:
        return None
    if last is None or not is_call(last, TO) or last.args[1] != torch.float16:
        return None
    activation, after = NONE, only_user(last)
    if after is not None and is_call(after, *RECOGNISABLE):
        known = recognised(str(after.target), after.args[1:], after.kwargs)
        if known is None:
            return None
        activation, last = known, after
    last, scale = _rounded(last)
    head = head_of(last) if scale is None else None
    return None if activation.by_channel else FoundPass(x, factors, last, activation, scale, head)


def _rounded(value: fx.Node) -> tuple[fx.Node, float | None]:
    """The fp8 that a value is alone rounded to, and its scale; the value and None where it isn't."""
    steps = [value]
    for name in (TO, MULTIPLICATION, CLAMP, TO):
        user = only_user(steps[-1])
        if user is None or not is_call(user, name):
            return value, None
        steps.append(user)
    wide, factor = steps[1].args[1], steps[2].args[1]
    if wide != torch.float32 or not isinstance(factor, float) or steps[4].args[1] != FP8:
        return value, None
    return steps[4], 1.0 / factor


def _only_reads(user: fx.Node, value: fx.Node) -> bool:
    """Whether a user of a value lays it out, stores it in its place, or is a kernel of the project."""
    stored = is_call(user, COPY) and user.args[1] is value and is_call(user.args[0], PLACE)
    return stored or is_call(user, *LAYOUTS) or str(user.target).startswith(f"{NAMESPACE}.")


def put_pass(found: FoundPass) -> fx.Node:
    """Put the kernel's operation, by its reference as yet, in the place of a norm's pass; its node."""
    graph, last = found.x.graph, found.last
    counted, weight, bias, eps, _, phases, group_width = found.factors.args
    norm = {"counted": counted, "norm_weight": weight, "norm_bias": bias, "eps": eps, "phases": phases}
    stored = next((user for user in last.users if is_call(user, COPY)), None)
    with graph.inserting_before(stored or last):
        out = _memory(found, stored)
        weight, bias = _of_head(found)
        given = {
            **norm,
            "norm_activation": found.activation.name,
            "norm_slope": found.activation.slope,
            "norm_scale": 1.0 if found.scale is None else found.scale,
            "tile": REFERENCE,
            "result": out,
            "group_width": group_width,
            "head_weight": weight,
            "head_bias": bias,
        }
        call = graph.call_function(operation("normalised"), (found.x,), given)
    if stored is not None:
        place = stored.args[0]
        assert isinstance(place, fx.Node)
        graph.erase_node(stored)
        place.replace_all_uses_with(out)
        graph.erase_node(place)
    for user in [user for user in last.users if is_call(user, *LAYOUTS)]:
        user.replace_all_uses_with(out)
        graph.erase_node(user)
    given_up = last if found.head is None else found.head.logits
    given_up.replace_all_uses_with(out)
    erase_unread(given_up, MEMORY)
    return call


def _of_head(found: FoundPass) -> tuple[fx.Node | None, fx.Node | None]:
    """The weight and the bias of a pass's head as the module's own; two of None without one."""
    if found.head is None:
        return None, None
    module = found.x.graph.owning_module
    assert isinstance(module, fx.GraphModule)
    weight, bias = found.head.head
    return add_constant(module, "head_weight", weight), add_constant(module, "head_bias", bias)


def _memory(found: FoundPass, stored: fx.Node | None) -> fx.Node:
    """Where the kernel writes: memory of its own, or the part of a concatenation's buffer that the pass filled."""
    graph, (shape, steps) = found.x.graph, found.x.args
    if found.head is not None:
        logits = torch.empty(found.head.logits.meta["val"].shape, device="meta")
        described = list(logits.shape), list(logits.stride())
        return graph.call_function(aten.empty_strided.default, described, {**found.x.kwargs, "dtype": torch.float32})
    if stored is None:
        dtype = torch.float16 if found.scale is None else FP8
        return graph.call_function(aten.empty_strided.default, (shape, steps), {**found.x.kwargs, "dtype": dtype})
    place = stored.args[0]
    assert isinstance(place, fx.Node)
    view: Any = place.args
    wide, (_, length, _, _), _, first = view
    return graph.call_function(aten.slice.Tensor, (wide, 1, first, first + length))


def layer_that_norms(call: fx.Node) -> fx.Node | None:
    """The layer that alone reads what a norm's pass writes and can apply the norm itself; None where none does."""
    out = call.kwargs["result"]
    assert isinstance(out, fx.Node)
    readers = [user for user in out.users if user is not call]
    layer = readers[0] if len(readers) == 1 else None
    if layer is None or layer.target is not operation("conv3x3") or layer.args[0] is not out:
        return None
    given = layer.kwargs
    tile = None if given["tile"] == REFERENCE else tile_of(str(given["tile"]))
    activation = Activation(str(call.kwargs["norm_activation"]), float(str(call.kwargs["norm_slope"])))
    plain = all(given[name] is None for name in ("scale", "slopes", "pooled", "logits", "second"))
    whole = plain and given["result"] is not None and given["residual"] is not out
    fits = isinstance(tile, conv3x3_narrow.Tile) and slope_of(activation) is not None
    halves = is_call(out, MEMORY) and out.kwargs["dtype"] == torch.float16
    return layer if whole and fits and halves else None


def normed_arguments(call: fx.Node, layer: fx.Node) -> dict[str, Any]:
    """The arguments of the operation that does what a norm's pass and the layer after it do."""
    norm = {name: part for name, part in call.kwargs.items() if name not in OF_PASS_ALONE}
    kept = (
        "weight",
        "bias",
        "activation",
        "slope",
        "layer",
        "tile",
        "result",
        "statistics",
        "residual",
        "residual_scale",
    )
    return {**norm, **{name: layer.kwargs[name] for name in kept}}


def norm_when_read(call: fx.Node, layer: fx.Node) -> None:
    """Let a layer apply a norm to what it reads, and take the norm's pass away."""
    graph, out = call.graph, call.kwargs["result"]
    with graph.inserting_before(layer):
        graph.call_function(operation("normed_conv3x3"), call.args, normed_arguments(call, layer))
    graph.erase_node(layer)
    graph.erase_node(call)
    assert isinstance(out, fx.Node)
    graph.erase_node(out)
