"""Convolutions of one value whose answers are added become one: the branches of RepVGG, MobileOne, RepViT and ACNet.

Each is a linear map of the same pixels, and so is their sum: the smaller windows' weights are added to the largest
one's, around the tap that they lie on. No multiplication is added, and neither a map for each branch nor the pass that
adds them is written or read.
"""

import math
import operator
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, fx
from torch.nn import functional

from pipeline.compiler.folding import fold
from pipeline.compiler.graph.exported_net import ExportedNet
from pipeline.compiler.graph.fx_graph import (
    ADDITION,
    arguments,
    calls,
    is_call,
    module_of,
    only_user,
    replace,
    shape_of,
)
from pipeline.compiler.passes.constant_folding import CONVOLUTIONS, NORM, TRANSPOSED, batch_norm, give_weight
from pipeline.compiler.passes.kernel_folding import each_axis, padding

STRAIGHT = tuple(name for name in CONVOLUTIONS if name not in TRANSPOSED)


class Walk(NamedTuple):
    """The steps of a window over a map: a number for each axis, and the groups of its channels."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


class Branch(NamedTuple):
    """One convolution of a sum: its weight [out, in / groups, k, k], of volumes with one more k, and its bias [out]."""

    weight: Tensor
    bias: Tensor
    walk: Walk


def add_parallel_convolutions(net: ExportedNet) -> list[str]:
    """Branches that a sum alone reads join the one with the largest window; of them also a batch norm of their input.

    So does that input itself where each channel has a window of its own. Elsewhere a kernel adds it to its sums, and a
    weight of one beside small ones would round them.
    """
    matched: list[str] = []
    gone: set[fx.Node] = set()
    convolutions = list(calls(net.module.graph, *STRAIGHT))
    for conv in sorted(convolutions, key=_taps, reverse=True):
        largest = None if conv in gone else convolution_of(net, conv)
        if largest is None:
            continue
        root, values = sum_around(net, conv)
        branches = [(value, _branch(net, value, conv, largest)) for value in values]
        parts = [branch for _, branch in branches if branch is not None]
        if not parts:
            continue
        whole = added([largest, *parts])
        give_weight(net, conv, whole.weight.float(), whole.bias.float())
        replace(root, _sum(conv, [value for value, branch in branches if branch is None], root))
        joined = {value for value, branch in branches if branch is not None}
        net.merged |= {module_of(value): module_of(conv) for value in joined if is_call(value, *STRAIGHT)}
        gone |= joined
        matched.append(module_of(conv))
    return matched


def added(branches: list[Branch]) -> Branch:
    """Return one convolution that gives the sum of branches, the first with the largest window; in float64."""
    first = branches[0]
    kernels = [placed(branch, first) for branch in branches]
    weight = torch.stack([kernel.double() for kernel in kernels if kernel is not None]).sum(0)
    return Branch(weight, torch.stack([branch.bias.double() for branch in branches]).sum(0), first.walk)


def placed(branch: Branch, largest: Branch) -> Tensor | None:
    """Return a branch's weight with zeros around it, in the largest's shape; None if its taps lie between the other's.

    Tap t of a window reads the pixel t · dilation − padding beyond the first: by the paddings' difference it is placed.
    """
    one, other, sides = branch.walk, largest.walk, list[int]()
    if one.groups != other.groups or one.stride != other.stride or len(branch.weight) != len(largest.weight):
        return None
    for axis, (size, room) in enumerate(zip(branch.weight.shape[2:], largest.weight.shape[2:], strict=True)):
        before, between = divmod(other.padding[axis] - one.padding[axis], other.dilation[axis])
        after = room - size - before
        if between or before < 0 or after < 0 or (size > 1 and one.dilation[axis] != other.dilation[axis]):
            return None
        sides = [before, after, *sides]  # functional.pad begins with the last axis
    return functional.pad(branch.weight, sides)


def sum_around(net: ExportedNet, conv: fx.Node) -> tuple[fx.Node, list[fx.Node]]:
    """Return the sum that alone reads a convolution, and what else is added in it; the node itself without one."""
    root = conv
    while (user := only_user(root)) is not None and _is_sum(net, user):
        root = user
    return root, [value for value in _addends(net, root) if value is not conv] if root is not conv else []


def _addends(net: ExportedNet, add: fx.Node) -> Iterator[fx.Node]:
    for value in add.all_input_nodes:
        if _is_sum(net, value) and only_user(value) is add:
            yield from _addends(net, value)
        else:
            yield value


def _sum(conv: fx.Node, others: list[fx.Node], root: fx.Node) -> fx.Node:
    total = conv
    for value in others:
        with root.graph.inserting_before(root):
            total = root.graph.call_function(torch.ops.aten.add.Tensor, (total, value))
        total.meta = dict(root.meta)
    return total


def _is_sum(net: ExportedNet, node: fx.Node) -> bool:
    """Return whether a node adds two different values of its own shape, in the net's type."""
    values = node.all_input_nodes
    if not is_call(node, ADDITION) or node.kwargs or len(values) != 2:
        return False
    return all(
        isinstance(value.meta.get("val"), Tensor)
        and value.meta["val"].dtype == net.dtype
        and shape_of(value) == shape_of(node)
        for value in values
    )


def convolution_of(net: ExportedNet, conv: fx.Node) -> Branch | None:
    """Return a convolution's constants; None where they aren't constant, or padding differs between the sides."""
    given, held = arguments(conv), net.parameters(conv)
    if held is None or conv.meta["val"].dtype != net.dtype:
        return None
    size = held[0].shape[2:]
    stride, dilation = each_axis(given["stride"], len(size)), each_axis(given["dilation"], len(size))
    around = padding(given["padding"], size, dilation)
    return None if -1 in around else Branch(*held, Walk(stride, around, dilation, given["groups"]))


def _branch(net: ExportedNet, node: fx.Node, conv: fx.Node, largest: Branch) -> Branch | None:
    """Return a value that is added to a convolution's, as a convolution of the same input that joins it; else None."""
    seen, found = arguments(conv)["input"], None
    if is_call(node, *STRAIGHT) and arguments(node)["input"] is seen and only_user(node) is not None:
        found = convolution_of(net, node)
    elif node is seen and len(largest.weight) == largest.walk.groups:
        found = _identity(largest)
    elif node.target is operator.getitem and is_call(node.args[0], NORM) and only_user(node) is not None:
        norm = node.all_input_nodes[0]
        known = batch_norm(net, norm) if norm.args[0] is seen and only_user(norm) is node else None
        if known is not None:
            same = _identity(largest)
            found = Branch(*fold(same.weight, None, known), same.walk)
    return None if found is None or placed(found, largest) is None else found


def _identity(like: Branch) -> Branch:
    """Return a convolution of one pixel that gives its input, in another's groups and of as many inputs."""
    outer, inner = like.weight.shape[:2]
    axes = like.weight.ndim - 2
    weight = like.weight.new_zeros(outer, inner, *[1] * axes)
    channel = torch.arange(outer, device=weight.device)
    weight[channel, channel % inner] = 1
    return Branch(weight, like.bias.new_zeros(outer), Walk((1,) * axes, (0,) * axes, (1,) * axes, like.walk.groups))


def _taps(conv: fx.Node) -> int:
    return math.prod(shape_of(arguments(conv)["weight"])[2:])
