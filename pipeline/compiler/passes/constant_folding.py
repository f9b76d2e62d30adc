"""Computes once what a network computes at each call from its weights and constants alone, and adds convolutions.

Such are standardised weights, and batch norms, which become part of the convolutions before them. Convolutions of one
value whose answers are added become one (RepVGG, MobileOne, RepViT, ACNet): their weights are added at the same taps.
"""

import math
import operator
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.fx.node import Argument
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map

from pipeline.compiler.batch import CHANNELS_LAST, laid_out, order_of
from pipeline.compiler.folding import BatchNorm, fold
from pipeline.compiler.graph import fx_graph as nodes
from pipeline.compiler.graph.exported_net import ExportedNet
from pipeline.compiler.passes.kernel_folding import LINEAR, RECOGNISABLE, each_axis, padding
from pipeline.kernels.common.kernel_op import CHANNELS

# What is kept for a fold beyond four times what it reads: a map that is a weight's broadcast is cheaper made than read.
GROWTH, FREE_BYTES = 4, 2**20
ROLES = ("weight", "bias", "running_mean", "running_var")  # of an operation's arguments that kernels ask to be known
NOT_FILLED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}


@dataclass(frozen=True)
class Known:
    """The constant that a node gives."""

    value: Argument  # in fp32 where the graph has it in the net's dtype; of some operations several
    read: frozenset[fx.Node]  # the constants behind it
    computed: bool  # whether more than views of a constant lies behind it


def fold_constants(net: ExportedNet) -> Iterator[str]:
    """Make values that depend on no input constants, computed in fp32 from the exact weights and rounded once.

    Nothing random, unfilled or larger than `GROWTH` and `FREE_BYTES` allow is; views of a weight are.
    """
    known = _known(net)
    for node, found in known.items():
        if not isinstance(found.value, Tensor) or node.op == "get_attr" or not _is_wanted(node, found, known):
            continue
        yield nodes.module_of(node)
        dtype = node.meta["val"].dtype
        with net.module.graph.inserting_before(node):
            value = _laid_out(found.value.to(dtype), node)
            constant = nodes.add_constant(net.module, f"{nodes.module_of(node)}.{node.name}", value)
        if dtype == net.dtype:
            net.exact = {**net.exact, str(constant.target): found.value}
        nodes.replace(node, constant)


def _is_wanted(node: fx.Node, found: Known, known: dict[fx.Node, Known]) -> bool:
    """Return whether an operation that isn't folded reads a value that is worth being kept."""
    readers = [user for user in node.users if user not in known]
    if any(nodes.is_call(user, *nodes.BY_STORAGE) for user in readers):
        return False
    return bool(readers) if found.computed else any(_as_weight(user, node) for user in readers)


def _laid_out(value: Tensor, node: fx.Node) -> Tensor:
    """Return images and volumes in channels_last for a layer's weight, and for what gives values that lie so."""
    made = [user.meta.get("val") for user in node.users]
    lie_so = any(isinstance(part, Tensor) and order_of(part) in CHANNELS_LAST.values() for part in made)
    return laid_out(value) if lie_so or any(_as_weight(user, node) for user in node.users) else value.contiguous()


def _as_weight(user: fx.Node, node: fx.Node) -> bool:
    given = nodes.arguments(user) if isinstance(user.target, OpOverload) else {}
    return any(given.get(role) is node for role in ROLES)


def _known(net: ExportedNet) -> dict[fx.Node, Known]:
    known: dict[fx.Node, Known] = {}
    written = {node.args[0] for node in net.module.graph.nodes if _is_mutable(node)}
    for node in net.module.graph.nodes:
        constant = None if node in written else net.constant(node)
        if constant is not None and "val" in node.meta:
            exact = constant.float() if node.meta["val"].dtype == net.dtype else constant
            known[node] = Known(exact, frozenset([node]), computed=False)
        elif _is_pure(node) and all(before in known for before in node.all_input_nodes):
            found = _evaluated(node, known, net.dtype)
            known.update({} if found is None else {node: found})
    return known


def _is_mutable(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def _is_pure(node: fx.Node) -> bool:
    target = node.target
    if target is operator.getitem:
        return True
    if not isinstance(target, OpOverload) or target.namespace != "aten" or nodes.is_call(node, *nodes.BY_STORAGE):
        return False
    random, name = torch.Tag.nondeterministic_seeded in target.tags, target._schema.name.split("::")[1]
    return not (random or _is_mutable(node) or name in NOT_FILLED)


def _evaluated(node: fx.Node, known: dict[fx.Node, Known], dtype: torch.dtype) -> Known | None:
    """Return an operation's answer; None if it is too large, or torch can't compute it in fp32 or gives another."""
    before = [known[one] for one in node.all_input_nodes]
    read = frozenset[fx.Node]().union(*(one.read for one in before))
    expected = node.meta.get("val")
    made = [part for part in tree_leaves(expected) if isinstance(part, Tensor)]
    if not made or not all(isinstance(length, int) for part in made for length in part.shape):  # none by values
        return None
    size = sum(part.nbytes for part in made)
    if size > FREE_BYTES + GROWTH * sum(constant.meta["val"].nbytes for constant in read):
        return None
    given = fx.map_arg((node.args, node.kwargs), lambda one: known[one].value)
    args, named = tree_map(lambda part: torch.float32 if part is dtype else part, given)
    try:
        with torch.no_grad():
            value = node.target(*args, **named)  # type: ignore[operator]
    except (RuntimeError, TypeError):  # it stays computed at each call
        return None
    if isinstance(value, Tensor) and isinstance(expected, Tensor):
        kind = torch.float32 if expected.dtype == dtype else expected.dtype
        if (value.shape, value.dtype, value.device) != (expected.shape, kind, expected.device):
            return None
    views = node.target is operator.getitem or node.target.is_view  # type: ignore[union-attr]
    return Known(value, read, any(one.computed for one in before) or (bool(before) and not views))


NORM = "aten._native_batch_norm_legit_no_training.default"
TRANSPOSED = ("aten.conv_transpose2d.input", "aten.conv_transpose3d.input")
CONVOLUTIONS = tuple(f"aten.conv{axes}d.{form}" for axes in (2, 3) for form in ("default", "padding")) + TRANSPOSED


def fold_batch_norm(net: ExportedNet) -> Iterator[str]:
    """Multiply a batch norm's scale into the weight of the convolution that it alone reads, in the net's type."""
    for norm in nodes.calls(net.module.graph, NORM):
        conv, answer = norm.args[0], nodes.only_user(norm)
        if not nodes.is_call(conv, *CONVOLUTIONS) or answer is None or answer.target is not operator.getitem:
            continue
        held, known, transposed = net.parameters(conv), batch_norm(net, norm), nodes.is_call(conv, *TRANSPOSED)
        if held is None or known is None or nodes.only_user(conv) is not norm or conv.meta["val"].dtype != net.dtype:
            continue
        if transposed and nodes.arguments(conv)["groups"] != 1:
            continue
        give_weight(net, conv, *fold(*held, known, transposed=transposed))
        nodes.replace(answer, conv)
        net.module.graph.erase_node(norm)
        yield nodes.module_of(conv)


def batch_norm(net: ExportedNet, node: fx.Node) -> BatchNorm | None:
    """Return what a batch norm's node knows; None where it isn't constant."""
    given = nodes.arguments(node)
    parts = [given[name] for name in ROLES]
    scale, shift, mean, variance = map(net.constant, parts)
    if mean is None or variance is None or not net.knows(*parts):
        return None
    return BatchNorm(mean, variance, given["eps"], scale, shift)


def give_weight(net: ExportedNet, conv: fx.Node, weight: Tensor, bias: Tensor) -> None:
    """Give a convolution another weight [out, in, k, k] (transposed: [in, out, k, k]) and bias [out], both fp32."""
    held = net.add_weight(conv, "weight", weight), net.add_weight(conv, "bias", bias)
    conv.args = (conv.args[0], *held, *conv.args[3:])


STRAIGHT = tuple(name for name in CONVOLUTIONS if name not in TRANSPOSED)


class Branch(NamedTuple):
    """One convolution of a sum: its weight [out, in / groups, k, k], of volumes with one more k, and its bias [out]."""

    weight: Tensor
    bias: Tensor
    stride: tuple[int, ...]  # a number for each axis, as of the next two
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int  # of its channels


def add_parallel_convolutions(net: ExportedNet) -> Iterator[str]:
    """Join branches that a sum alone reads, their input where it is by channel, and a batch norm of it."""
    gone: set[fx.Node] = set()

    def taps(conv: fx.Node) -> int:
        return math.prod(nodes.shape_of(nodes.arguments(conv)["weight"])[2:])

    for conv in sorted(nodes.calls(net.module.graph, *STRAIGHT), key=taps, reverse=True):
        largest = None if conv in gone else convolution_of(net, conv)
        if largest is None:
            continue
        root = conv
        while (user := nodes.only_user(root)) is not None and _is_sum(net, user):
            root = user
        values = [value for value in _addends(net, root) if value is not conv] if root is not conv else []
        branches = [(value, _branch(net, value, conv, largest)) for value in values]
        parts = [branch for _, branch in branches if branch is not None]
        if not parts:
            continue
        whole = added([largest, *parts])
        give_weight(net, conv, whole.weight.float(), whole.bias.float())
        total, name = conv, nodes.module_of(conv)
        for value in [value for value, branch in branches if branch is None]:
            total = nodes.put_before(root, torch.ops.aten.add.Tensor, total, value)
        nodes.replace(root, total)
        joined = {value for value, branch in branches if branch is not None}
        net.merged |= {nodes.module_of(value): name for value in joined if nodes.is_call(value, *STRAIGHT)}
        gone |= joined
        yield name


def join_linear_layers(net: ExportedNet) -> Iterator[str]:
    """Make layers of one value, such as queries, keys and values, one product, of which each is a part.

    An activation that is computed several times of one value, as blocks do of a time embedding, is computed once.
    """
    graph, twins, readers = net.module.graph, dict[object, fx.Node](), defaultdict[fx.Node, list[fx.Node]](list)
    for node in nodes.calls(graph, *RECOGNISABLE):
        first = twins.setdefault((node.target, node.args, tuple(node.kwargs.items())), node)
        if first is not node:
            nodes.replace(node, first)
    for linear in nodes.calls(graph, LINEAR):
        x, made = nodes.source(linear), linear.meta["val"]
        if {x.meta["val"].dtype, made.dtype} == {net.dtype} and made.shape[-1] % CHANNELS == 0:
            readers[x].append(linear)
    for layers in readers.values():
        held = [(layer, *found) for layer in layers if (found := net.parameters(layer, axis=-1)) is not None]
        if len(held) < 2:
            continue
        parts, weights, biases = zip(*held, strict=True)
        first, parameters = parts[0], [net.add_weight(parts[0], "weight", torch.cat(weights))]
        if any(nodes.arguments(part)["bias"] is not None for part in parts):
            parameters.append(net.add_weight(first, "bias", torch.cat(biases)))
        # Of its source now: an earlier turn may have made a part of another product of it.
        whole = nodes.put_before(first, torch.ops.aten.linear.default, nodes.source(first), *parameters)
        ends = accumulate(map(len, weights), initial=0)
        for part, (begin, end) in zip(parts, pairwise(ends), strict=True):
            nodes.replace(part, nodes.put_before(part, torch.ops.aten.slice.Tensor, whole, -1, begin, end))
        net.merged |= {nodes.module_of(part): nodes.name_of(whole) for part in parts[1:]}
        yield nodes.name_of(whole)


def added(branches: list[Branch]) -> Branch:
    """Return one convolution that gives the sum of branches, the first with the largest window; in float64."""
    first = branches[0]
    kernels = [placed(branch, first) for branch in branches]
    weight = torch.stack([kernel.double() for kernel in kernels if kernel is not None]).sum(0)
    return first._replace(weight=weight, bias=torch.stack([branch.bias.double() for branch in branches]).sum(0))


def placed(branch: Branch, largest: Branch) -> Tensor | None:
    """Return a branch's weight in the largest's shape, zeros around it; None if its taps lie between the other's."""
    sides = list[int]()
    same = branch.groups == largest.groups and branch.stride == largest.stride
    if not same or len(branch.weight) != len(largest.weight):
        return None
    for axis, (size, room) in enumerate(zip(branch.weight.shape[2:], largest.weight.shape[2:], strict=True)):
        before, between = divmod(largest.padding[axis] - branch.padding[axis], largest.dilation[axis])
        after = room - size - before
        if between or before < 0 or after < 0 or (size > 1 and branch.dilation[axis] != largest.dilation[axis]):
            return None
        sides = [before, after, *sides]  # functional.pad begins with the last axis
    return functional.pad(branch.weight, sides)


def _addends(net: ExportedNet, add: fx.Node) -> Iterator[fx.Node]:
    for value in add.all_input_nodes:
        if _is_sum(net, value) and nodes.only_user(value) is add:
            yield from _addends(net, value)
        else:
            yield value


def _is_sum(net: ExportedNet, node: fx.Node) -> bool:
    """Return whether a node adds two different values of its own shape, in the net's type."""
    values = node.all_input_nodes
    if not nodes.is_call(node, nodes.ADDITION) or node.kwargs or len(values) != 2:
        return False
    return all(
        isinstance(value.meta.get("val"), Tensor)
        and value.meta["val"].dtype == net.dtype
        and nodes.shape_of(value) == nodes.shape_of(node)
        for value in values
    )


def convolution_of(net: ExportedNet, conv: fx.Node) -> Branch | None:
    """Return a convolution's constants; None where they aren't constant, or padding differs between the sides."""
    given, held = nodes.arguments(conv), net.parameters(conv)
    if held is None or conv.meta["val"].dtype != net.dtype:
        return None
    size = held[0].shape[2:]
    stride, dilation = each_axis(given["stride"], len(size)), each_axis(given["dilation"], len(size))
    around = padding(given["padding"], size, dilation)
    uneven = -1 in around or any(given.get("output_padding", ()))
    return None if uneven else Branch(*held, stride, around, dilation, given["groups"])


def _branch(net: ExportedNet, node: fx.Node, conv: fx.Node, largest: Branch) -> Branch | None:
    """Return a value that is added to a convolution's, as a convolution of the same input that joins it; else None."""
    seen, found = nodes.arguments(conv)["input"], None
    if nodes.is_call(node, *STRAIGHT) and nodes.arguments(node)["input"] is seen and nodes.only_user(node) is not None:
        found = convolution_of(net, node)
    elif node is seen and len(largest.weight) == largest.groups:
        found = _identity(largest)
    elif node.target is operator.getitem and nodes.is_call(node.args[0], NORM) and nodes.only_user(node) is not None:
        norm = node.all_input_nodes[0]
        known = batch_norm(net, norm) if norm.args[0] is seen and nodes.only_user(norm) is node else None
        if known is not None:
            weight, bias = fold(_identity(largest).weight, None, known)
            found = _identity(largest)._replace(weight=weight, bias=bias)
    return None if found is None or placed(found, largest) is None else found


def _identity(like: Branch) -> Branch:
    """Return a convolution of one pixel that gives its input, in another's groups and of as many inputs."""
    outer, inner = like.weight.shape[:2]
    axes = like.weight.ndim - 2
    weight = like.weight.new_zeros(outer, inner, *[1] * axes)
    channel = torch.arange(outer, device=weight.device)
    weight[channel, channel % inner] = 1
    return Branch(weight, like.bias.new_zeros(outer), (1,) * axes, (0,) * axes, (1,) * axes, like.groups)
