"""Gives a lowered graph the library's kernels for its norms, as a pass or within the layer that reads it.

Inductor makes a pass of a norm's factor and shift, its activation, and perhaps the rounding to fp8 or the logits of a
head. It stays Inductor's where it does more, as for a residual. Tiles, and which of the two, are measured here.
"""

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypedDict

import torch
from torch import Tensor, fx

from pipeline.compiler.batch import Batch, batched
from pipeline.compiler.custom_ops import NAMESPACE, REFERENCE, RUNS, layout, operation
from pipeline.compiler.graph import fx_graph as nodes
from pipeline.compiler.graph.layers import FP8
from pipeline.compiler.ops import tile_of, tile_text
from pipeline.compiler.passes.kernel_folding import RECOGNISABLE
from pipeline.compiler.passes.norms import factor_and_shift
from pipeline.compiler.tuning.autotune import Tuner
from pipeline.compiler.tuning.choose import fastest_right, is_right
from pipeline.kernels import norm_pass
from pipeline.kernels.common.activation import NONE, Activation, recognised
from pipeline.kernels.common.epilogue import Head
from pipeline.kernels.conv3x3 import NormingTile, slope_of


def head_of(value: fx.Node) -> tuple[fx.Node, Head] | None:
    """Return the logits and the head that alone reads a value [N, C, H, W], if a norm's pass can make them; or None."""
    wide = nodes.only_user(value)
    head = None if wide is None else wide.meta.get("head")  # which `head_after_pointwise` has left
    if wide is None or head is None or not norm_pass.may_head(*head.weight.shape):
        return None
    logits = wide
    while not nodes.is_call(logits, nodes.CONCATENATION):  # the sums of each class read no other value
        logits = next(iter(logits.users))
    return logits, head


aten = torch.ops.aten
MEMORY, CLAMP = "aten.empty_strided.default", "aten.clamp.default"
COPY, PLACE = "aten.copy_.default", "aten.as_strided.default"
OF_PASS_ALONE = ("norm_scale", "tile", "result", "head_weight", "head_bias")  # arguments
OF_LAYER = "weight bias activation slope layer tile result statistics residual residual_scale slices".split()  # noqa: SIM905
NORMING = (operation("conv3x3"), operation("conv3x3x3"))  # of whose tiles some can norm what they read
LAYOUTS = ("aten.contiguous.default", "prims.inductor_force_stride_order.default")


@dataclass(frozen=True)
class FoundPass:
    """A norm's pass in a lowered graph."""

    x: fx.Node  # memory that the layer before writes, fp16
    factors: fx.Node  # the call of `factor_and_shift`
    last: fx.Node  # the node of the pass's answer
    activation: Activation  # one without a slope for each channel
    scale: float | None  # of `last`, where that is fp8
    head: tuple[fx.Node, Head] | None  # the logits and what makes them, where they alone are made of `last`


def found_passes(graph: fx.Graph) -> Iterator[FoundPass]:
    """Return the passes that a kernel can take over, as they stood at the start."""
    for node in [node for node in graph.nodes if node.target is factor_and_shift]:
        found = _pass_of(node)
        if found is not None and (found.head or all(_only_reads(user, found.last) for user in found.last.users)):
            yield found


def _pass_of(factors: fx.Node) -> FoundPass | None:
    parts = {user.args[1]: user for user in factors.users if user.target is operator.getitem}
    scaled = nodes.only_user(parts[0]) if parts.keys() == {0, 1} else None
    if not nodes.is_call(scaled, nodes.MULTIPLICATION):
        return None
    shifted, cast = nodes.only_user(scaled), scaled.args[0]
    if not nodes.is_call(shifted, nodes.ADDITION) or shifted.args != (scaled, parts[1]):
        return None
    x, last = cast.args[0] if nodes.is_call(cast, nodes.TO) else None, nodes.only_user(shifted)
    if not nodes.is_call(x, MEMORY) or x.kwargs["dtype"] != torch.float16:
        return None
    if not nodes.is_call(last, nodes.TO) or last.args[1] != torch.float16:
        return None
    activation, after = NONE, nodes.only_user(last)
    if nodes.is_call(after, *RECOGNISABLE):
        known = recognised(str(after.target), after.args[1:], after.kwargs)
        if known is None:
            return None
        activation, last = known, after
    last, scale = _rounded(last)
    head = head_of(last) if scale is None else None
    return None if activation.kind.by_channel else FoundPass(x, factors, last, activation, scale, head)


def _rounded(value: fx.Node) -> tuple[fx.Node, float | None]:
    """Return the fp8 that a value is alone rounded to, and its scale; the value and None where it isn't."""
    steps = [value]
    for name in (nodes.TO, nodes.MULTIPLICATION, CLAMP, nodes.TO):
        user = nodes.only_user(steps[-1])
        if not nodes.is_call(user, name):
            return value, None
        steps.append(user)
    wide, factor = steps[1].args[1], steps[2].args[1]
    if wide != torch.float32 or not isinstance(factor, float) or steps[4].args[1] != FP8:
        return value, None
    return steps[4], 1.0 / factor


def _only_reads(user: fx.Node, value: fx.Node) -> bool:
    stored = nodes.is_call(user, COPY) and user.args[1] is value and nodes.is_call(user.args[0], PLACE)
    return stored or nodes.is_call(user, *LAYOUTS) or str(user.target).startswith(f"{NAMESPACE}.")


def put_pass(found: FoundPass) -> fx.Node:
    """Put the kernel's operation, by its reference as yet, in the place of a norm's pass; its node."""
    graph, last = found.x.graph, found.last
    counted, weight, bias, eps, _, phases, group_width = found.factors.args
    stored = next((user for user in last.users if nodes.is_call(user, COPY)), None)
    with graph.inserting_before(stored or last):
        out = _memory(found, stored)
        head_weight = head_bias = None
        if found.head is not None:
            module = graph.owning_module
            assert isinstance(module, fx.GraphModule)
            head_weight, head_bias = (
                nodes.add_constant(module, f"head_{name}", part) for name, part in found.head[1]._asdict().items()
            )
        given = {
            "counted": counted, "norm_weight": weight, "norm_bias": bias, "eps": eps, "phases": phases,
            "norm_activation": found.activation.name, "norm_slope": found.activation.slope,
            "norm_scale": 1.0 if found.scale is None else found.scale, "tile": REFERENCE, "result": out,
            "group_width": group_width, "head_weight": head_weight, "head_bias": head_bias,
        }  # fmt: skip
        call = graph.call_function(operation("normalised"), (found.x,), given)
    if stored is not None:
        place = nodes.source(stored)
        graph.erase_node(stored)
        place.replace_all_uses_with(out)
        graph.erase_node(place)
    for user in [user for user in last.users if nodes.is_call(user, *LAYOUTS)]:
        user.replace_all_uses_with(out)
        graph.erase_node(user)
    given_up = last if found.head is None else found.head[0]
    given_up.replace_all_uses_with(out)
    graph.eliminate_dead_code()
    return call


def _memory(found: FoundPass, stored: fx.Node | None) -> fx.Node:
    """Return what the kernel writes to: memory of its own, or the part of a buffer that the pass filled."""
    graph, (shape, steps) = found.x.graph, found.x.args
    if stored is None or found.head is not None:
        dtype = torch.float16 if found.scale is None else FP8
        if found.head is not None:
            logits = torch.empty(found.head[0].meta["val"].shape, device="meta")
            shape, steps, dtype = list(logits.shape), list(logits.stride()), torch.float32
        return graph.call_function(aten.empty_strided.default, (shape, steps), {**found.x.kwargs, "dtype": dtype})
    view: Any = nodes.source(stored).args
    wide, (_, length, _, _), _, first = view
    return graph.call_function(aten.slice.Tensor, (wide, 1, first, first + length))


def layer_that_norms(call: fx.Node) -> fx.Node | None:
    """Return the layer that alone reads what a norm's pass writes and can apply the norm itself; None without one."""
    out = call.kwargs["result"]
    assert isinstance(out, fx.Node)
    readers = [user for user in out.users if user is not call]
    layer = readers[0] if len(readers) == 1 else None
    if layer is None or layer.target not in NORMING or layer.args[0] is not out:
        return None
    given = layer.kwargs
    tile = None if given["tile"] == REFERENCE else tile_of(str(given["tile"]))
    activation = Activation(str(call.kwargs["norm_activation"]), float(str(call.kwargs["norm_slope"])))
    plain = all(given[name] is None for name in ("scale", "slopes", "pooled", "logits", "second"))
    whole = plain and given["result"] is not None and given["residual"] is not out
    fits = isinstance(tile, NormingTile) and getattr(tile, "fold", 1) == 1 and slope_of(activation) is not None
    halves = nodes.is_call(out, MEMORY) and out.kwargs["dtype"] == torch.float16
    return layer if whole and fits and halves else None


def normed_arguments(call: fx.Node, layer: fx.Node) -> dict[str, Any]:
    """Return the arguments of the operation that does what a norm's pass and the layer after it do."""
    norm = {name: part for name, part in call.kwargs.items() if name not in OF_PASS_ALONE}
    return {**norm, **{name: layer.kwargs[name] for name in OF_LAYER}}


WHEN_READ, IN_A_PASS = "norm when read", "norm in a pass"


class Norms(TypedDict):
    """The choices for the norms of a lowered graph, by the names of their passes' nodes."""

    tiles: dict[str, str]  # their texts
    when_read: list[str]  # passes whose norm the layer after them applies


def put_own_norms(
    lowered: fx.GraphModule, inputs: Tensor | Batch, tuner: Tuner, known: Norms | None = None
) -> dict[str, int]:
    """Put own kernels in the place of norms' passes, and return how many; NothingRunsError if none is right.

    The choices, measured unless they are `known`, are in the graph's `meta`.
    """
    if calls := put_passes(lowered):
        if (norms := known) is None:
            walk = _Measuring(lowered, calls, tuner)
            walk.run(*batched(inputs))
            tiles = {call.name: tile for call, tile in walk.tiles.items()}
            norms = Norms(tiles=tiles, when_read=[call.name for call in walk.when_read])
        layers = {call: layer_that_norms(call) for call in calls if call.name in norms["when_read"]}
        for call in calls:
            call.kwargs = {**call.kwargs, "tile": norms["tiles"][call.name]}
        for call, layer in layers.items():
            assert layer is not None
            with lowered.graph.inserting_before(layer):  # which norms what it reads
                lowered.graph.call_function(operation("normed_conv3x3"), call.args, normed_arguments(call, layer))
            for gone in (layer, call, call.kwargs["result"]):
                assert isinstance(gone, fx.Node)
                lowered.graph.erase_node(gone)
        lowered.graph.lint()
        lowered.recompile()
        lowered.meta["norms"] = norms
        return {IN_A_PASS: len(calls) - len(layers), WHEN_READ: len(layers)}
    return {}


def put_passes(lowered: fx.GraphModule) -> list[fx.Node]:
    """Put the operation of a pass in every norm's place, without a tile yet; their nodes."""
    calls = [put_pass(found) for found in found_passes(lowered.graph)]
    if calls:
        lowered.graph.lint()
        lowered.recompile()
    return calls


def launches_of_pass(given: dict[str, Any], tuner: Tuner) -> list[Callable[[], None]]:
    """Return the launches that `put_own_norms` will measure for such a pass; none where its tile is known."""
    tiles = [] if tuner.known(_key("normalised", given)) else norm_pass.candidates(given["counted"])
    return [partial(RUNS["normalised"], given, tile) for tile in tiles]


class _Measuring(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, calls: list[fx.Node], tuner: Tuner) -> None:
        super().__init__(module)
        self.tuner = tuner
        self.tiles: dict[fx.Node, str] = {}  # the text of each pass's tile
        self.when_read: list[fx.Node] = []  # passes that the layer after them is faster without
        self.pass_before = {layer: call for call in calls if (layer := layer_that_norms(call)) is not None}
        self.passes = set(calls)
        self.given: dict[fx.Node, dict[str, Any]] = {}

    def run_node(self, n: fx.Node) -> object:
        if n in self.passes:
            (x,), given = self.fetch_args_kwargs_from_env(n)
            given = {"x": x, **given}
            run, options = partial(RUNS["normalised"], given), list(norm_pass.candidates(given["counted"]))

            def answers(tile: norm_pass.Tile) -> bool:
                run(tile)
                return is_right("normalised", given)

            self.tiles[n] = tile_text(fastest_right(self.tuner, _key("normalised", given), options, run, answers))
            if n in self.pass_before.values():
                self.given[n] = {**given, "tile": self.tiles[n]}
            return None
        answer = super().run_node(n)
        if n in self.pass_before:
            self._choose_way(self.pass_before[n], n)
        return answer

    def _choose_way(self, call: fx.Node, layer: fx.Node) -> None:
        """Note a pass that takes longer, with the layer after it, than the layer that norms what it reads."""
        before = self.given.pop(call)
        (x,), plain = self.fetch_args_kwargs_from_env(layer)
        normed: dict[str, Any] = normed_arguments(call, layer)
        normed |= {name: plain[name] for name in ("weight", "bias", "result", "statistics", "residual")}
        normed |= {name: before[name] for name in ("x", "counted", "norm_weight", "norm_bias")}

        def run(way: str) -> None:
            if way == WHEN_READ:
                RUNS["normed_conv3x3"](normed, tile_of(normed["tile"]))
            else:
                RUNS["normalised"](before, tile_of(before["tile"]))
                layer.target(x, **plain)  # type: ignore[operator]

        name = f"{_key('normed_conv3x3', normed)}; {before['tile']}"
        if self.tuner.best(name, [IN_A_PASS, WHEN_READ], run) == WHEN_READ:
            run(WHEN_READ)
            if is_right("normed_conv3x3", normed):
                self.when_read.append(call)
            run(IN_A_PASS)


def _key(name: str, given: dict[str, Any]) -> str:
    """Return what makes two calls of an operation the same for the tuner: everything but the values."""
    parts = [f"{role} {layout(part)}" for role, part in given.items() if isinstance(part, Tensor)]
    scaled = given.get("norm_scale", 1.0) != 1.0
    others = [str(given[role]) for role in ("phases", "norm_activation", "activation", "tile") if role in given]
    width = given.get("group_width", 1)
    marks = [*(["scaled"] if scaled else []), *([f"groups of {width}"] if width > 1 else [])]
    return "; ".join([name, *parts, *marks, *others])
