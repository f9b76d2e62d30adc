"""Recognises activations that torch has taken apart: what Inductor's decompositions make of SiLU, GELU and their like.

The patterns are no lists of operations: each activation of the table is taken apart by the same decompositions, once a
process, and a graph is compared with that. So another version of torch brings its own patterns.
"""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, fx
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.experimental.proxy_tensor import make_fx

from pipeline.compiler.graph.fx_graph import ADDITION, MULTIPLICATION, is_call
from pipeline.kernels.common.activation import ACTIVATIONS, NONE, Activation

CAST = torch.ops.prims.convert_element_type.default
COMMUTATIVE = (ADDITION, MULTIPLICATION)
SUMMED = (torch.float16, torch.float32)  # a kernel's sums are fp32: between these no cast changes what it computes
SLOPE = 0.3141592653589793  # in a pattern: any number, the slope
LONGEST = 16  # operations that an activation is taken apart into, and more


class Pattern(NamedTuple):
    """An activation taken apart."""

    name: str  # in the table
    root: fx.Node  # the operation that gives the answer
    x: fx.Node  # what it is the activation of
    slopes: fx.Node | None  # of the channels; None without


class Recognised(NamedTuple):
    """An activation in a graph."""

    activation: Activation
    answer: fx.Node  # the operation that gives it, perhaps in fp32
    slopes: fx.Node | None  # a vector that broadcasts over images; None without


class Bound(NamedTuple):
    """The parts of a pattern in a graph: the operations between, and the slope or the slopes, where it has them."""

    inside: frozenset[fx.Node] = frozenset()
    slope: float = 0.0
    slopes: fx.Node | None = None


def uncast(node: fx.Node) -> fx.Node:
    """Return a value without the casts between fp16 and fp32 that it went through last."""
    while is_call(node, str(CAST)) and {node.meta["val"].dtype, _source(node).meta["val"].dtype} <= set(SUMMED):
        node = _source(node)
    return node


def readers(value: fx.Node) -> set[fx.Node]:
    """Who reads a value, also after casts between fp16 and fp32."""
    readers_seen: set[fx.Node] = set()
    for user in value.users:
        readers_seen |= readers(user) if uncast(user) is not user else {user}
    return readers_seen


def activation_of(value: fx.Node) -> Recognised | None:
    """Return the activation that alone reads a value; None where something else does, or no kernel ends in it."""
    for answer in _after(value):
        for pattern in _patterns():
            bound = _fitted(pattern, pattern.root, answer, value, Bound())
            inside = frozenset() if bound is None else bound.inside | {value}
            # Nothing else reads what the activation is computed from and in between.
            if bound is not None and all(readers(node) <= inside | {answer} for node in inside - {answer}):
                return Recognised(Activation(pattern.name, bound.slope), answer, bound.slopes)
    return None


def _source(node: fx.Node) -> fx.Node:
    return node.all_input_nodes[0]


def _after(value: fx.Node) -> Iterator[fx.Node]:
    """Yield the operations that depend on a value, nearest first, at most those that an activation consists of."""
    waiting, known = list(readers(value)), {value}
    while waiting and len(known) <= LONGEST:
        node = waiting.pop(0)
        if node not in known:
            known.add(node)
            waiting += readers(node)
            yield node


@cache
def _patterns() -> list[Pattern]:
    """Yield each activation of the table, as Inductor's decompositions leave it."""
    with unset_fake_temporarily():
        return [_pattern(name) for name in ACTIVATIONS if name != NONE.name]


def _pattern(name: str) -> Pattern:
    by_channel = ACTIVATIONS[name].by_channel
    activation = Activation(name) if ACTIVATIONS[name].gains else Activation(name, SLOPE)

    def run(x: Tensor, slopes: Tensor) -> Tensor:
        return activation(x, slopes if by_channel else None)

    traced = make_fx(run, decomposition_table=select_decomp_table())(torch.ones(1, 2, 3, 3), torch.ones(2, 1, 1))
    x, slopes = list(traced.graph.nodes)[:2]
    return Pattern(name, traced.graph.output_node().all_input_nodes[0], x, slopes if by_channel else None)


def _fitted(pattern: Pattern, part: object, given: object, value: fx.Node, bound: Bound) -> Bound | None:
    """Return what is bound once a part of a pattern is an argument in a graph; None where it isn't."""
    if not isinstance(part, fx.Node):
        return _number(part, given, bound)
    if not isinstance(given, fx.Node):
        return None
    if part is pattern.slopes:
        return bound._replace(slopes=given) if bound.slopes in (None, given) else None
    node = uncast(given)
    if part is pattern.x:
        return bound if node is value else None
    if part.op != "call_function" or node.op != "call_function" or node.target != part.target or node.kwargs:
        return None
    bound = bound._replace(inside=bound.inside | {node})
    orders = [node.args, node.args[::-1]] if is_call(node, *COMMUTATIVE) else [node.args]
    return next((found for order in orders if (found := _all(pattern, part.args, order, value, bound))), None)


def _all(
    pattern: Pattern, parts: tuple[object, ...], given: tuple[object, ...], value: fx.Node, bound: Bound
) -> Bound | None:
    matched: Bound | None = bound
    for part, argument in zip(parts, given, strict=False):
        matched = None if matched is None else _fitted(pattern, part, argument, value, matched)
    return matched if len(parts) == len(given) else None


def _number(part: object, given: object, bound: Bound) -> Bound | None:
    if part == SLOPE and isinstance(given, int | float):
        return bound._replace(slope=float(given))
    return bound if part == given and not isinstance(given, fx.Node) else None
