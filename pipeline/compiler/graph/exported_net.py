"""A net as torch.export gives it: a functional graph of ATen operations in the precision that it is to run in."""

import copy
import operator
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

import torch
from torch import Tensor, fx, nn
from torch._C import DispatchKey
from torch._ops import OpOverload
from torch.fx.node import Argument

from pipeline.compiler.batch import CHANNELS_LAST, Batch, Order, batched, in_dtype, laid_out, net_laid_out, order_of
from pipeline.compiler.errors import UnsupportedError, first_line
from pipeline.compiler.folding import compute_once
from pipeline.compiler.graph import fx_graph as nodes
from pipeline.compiler.half import cast_own_values, in_half
from pipeline.compiler.input_forms import form_of
from pipeline.compiler.network_calls import exported_program

aten = torch.ops.aten
# Operations of constants and views that torch makes of smaller ones, of which passes keep what is small enough.
TAKEN_APART = (aten.meshgrid.indexing, aten.meshgrid.default)
# Operations that torch has to trace again, as the passes know only what it writes then.
TRACED_AGAIN = (*TAKEN_APART, aten.batch_norm.default, aten.lift_fresh_copy.default)
# Views of which torch.export may write either form; `in_known_operations` writes the one that the passes know.
KEPT_WHOLE = ("chunk.default", "contiguous.default", "expand_as.default", "flatten.using_ints", "reshape.default",
              "to.dtype")  # fmt: skip
SHAPED = {"aten.flatten.using_ints": aten.reshape.default, "aten.expand_as.default": aten.expand.default}
DROPOUTS = [f"aten.{kind}dropout.default" for kind in ("", "alpha_", "feature_", "feature_alpha_")]
ENTRY = "net"  # the path of the net in an `Entry`, and so in its graph
CASTS = "cast_own_values"  # the name of that among the passes


class Entry(nn.Module):
    """A copy of a net in `dtype`, but for modules that are `kept`, between the user's inputs and fp32 logits."""

    def __init__(self, net: nn.Module, dtype: torch.dtype, layout: Order = "NHWC", kept: Sequence[str] = ()) -> None:
        super().__init__()
        self.net = in_half(net_laid_out(copy.deepcopy(net), layout), dtype, kept)
        self.dtype = dtype
        self.layout: Order = layout

    def forward(self, batch: Tensor, *others: Tensor) -> Tensor:
        """Return the logits [batch, classes, height, width] in fp32; further inputs are of any shape."""
        logits: Tensor = self.net(*map(self.taken, (batch, *others)))
        return logits.float()

    def taken(self, part: Tensor) -> Tensor:
        """Return an input as the network takes it; images and volumes in one step, which the passes know."""
        if part.is_floating_point() and part.dim() in CHANNELS_LAST:
            wanted = CHANNELS_LAST[part.dim()] if self.layout == "NHWC" else torch.contiguous_format
            return part.to(dtype=self.dtype, memory_format=wanted)
        return laid_out(in_dtype(part, self.dtype), self.layout)


class Normed(NamedTuple):
    """A norm that a pass has written as operations."""

    x: fx.Node  # in fp32, [N, channels, H, W]
    group_width: int  # of how many channels mean and variance are
    weight: fx.Node | None  # constants, [1, channels, 1, 1]
    bias: fx.Node | None
    eps: float
    last: fx.Node  # the value after both


@dataclass
class ExportedNet:
    """The graph, which passes rewrite, and the weights as they were trained."""

    module: fx.GraphModule  # takes the inputs as the user gives them, gives fp32 logits; its weights are in `dtype`
    exact: Mapping[str, Tensor]  # the attributes' tensors in fp32, so that what is folded is rounded once
    dtype: torch.dtype
    device: torch.device
    matched: dict[str, list[str]] = field(default_factory=dict)  # for each pass the layers that it changed
    norms: dict[fx.Node, Normed] = field(default_factory=dict)  # by the nodes of their variance and mean
    merged: dict[str, str] = field(default_factory=dict)  # for modules whose products another's layer does, that other

    def constant(self, node: object) -> Tensor | None:
        """Return the tensor of any shape behind an attribute's node, in fp32 if the network's own; None for others."""
        if not isinstance(node, fx.Node) or node.op != "get_attr":
            return None
        name = str(node.target)
        value = self.exact[name] if name in self.exact else attrgetter(name)(self.module)
        return value.detach() if isinstance(value, Tensor) else None

    def done_by(self, name: str) -> str:
        """Return the layer that does a module's products, by their paths: itself, or what it was merged into."""
        seen = {""}  # what lies between modules has no layer; and a module that runs twice may be merged into itself
        while name in self.merged and name not in seen:
            seen.add(name)
            name = self.merged[name]
        return name

    def knows(self, *given: object) -> bool:
        """Return whether each of an operation's arguments is a constant or not given."""
        return all(node is None or self.constant(node) is not None for node in given)

    def parameters(self, conv: fx.Node, axis: int = 1) -> tuple[Tensor, Tensor] | None:
        """Return the constant weight and bias [out] of a layer, zeros without one; None where one is computed.

        The output's channels lie along `axis`. None, too, of an image without a batch, and of a linear layer's vector.
        """
        given, shape = nodes.arguments(conv), conv.meta["val"].shape
        weight, bias = self.constant(given["weight"]), self.constant(given["bias"])
        if weight is None or not self.knows(given["bias"]) or weight.ndim != (len(shape) if axis == 1 else 2):
            return None
        return weight, weight.new_zeros(shape[axis]) if bias is None else bias

    def add_weight(self, layer: fx.Node, role: str, exact: Tensor) -> fx.Node:
        """Return a node, put before a layer's, that gives its weight in the net's type, which is `exact` in fp32."""
        with self.module.graph.inserting_before(layer):
            node = nodes.add_constant(self.module, f"{nodes.module_of(layer)}.{role}", laid_out(exact.to(self.dtype)))
        self.exact = {**self.exact, str(node.target): exact}
        return node


def export(
    net: nn.Module, inputs: Tensor | Batch, dtype: torch.dtype, layout: Order = "NHWC", kept: Sequence[str] = ()
) -> ExportedNet:
    """Return the graph of a net in eval mode and fp32 for inputs of these shapes; UnsupportedError if torch can't.

    Its own code is traced in `layout`; the kernels' values lie in NHWC either way.
    """
    net, examples = compute_once(copy.deepcopy(net)), batched(inputs)
    with torch.inference_mode(False), torch.no_grad():
        entry = Entry(net, dtype, layout, kept).eval()
        # By a call: torch.export doesn't see each type that differs, such as beside a convolution without a bias.
        matched = {CASTS: [ENTRY]} if cast_own_values(entry, entry.net, dtype, examples) else {}
        try:
            program = exported_program(entry, examples.tensors)
            if any(map(must_be_traced_again, program.graph.nodes)):  # that takes more than half of an export
                known = torch.export.default_decompositions()
                program = program.run_decompositions({target: known[target] for target in TAKEN_APART})
        except Exception as error:  # torch.export raises many kinds, the net's own among them
            traceback.clear_frames(error.__traceback__)  # which hold the net
            raise UnsupportedError(f"torch.export can't take the network: {first_line(error)}") from error
        module = program.module()
    assert isinstance(module, fx.GraphModule)
    in_known_operations(module.graph)
    without_checks(module)
    nodes.name_by_first_paths(module.graph, net, within=ENTRY)
    own = {**dict(net.named_parameters(remove_duplicate=False)), **dict(net.named_buffers(remove_duplicate=False))}
    exact = {f"{ENTRY}.{name}": tensor.detach() for name, tensor in own.items()}
    return ExportedNet(module, exact, dtype, examples.device, matched)


def must_be_traced_again(node: fx.Node) -> bool:
    """Return whether an operation changes a value, is in training, or has no form that the passes know."""
    target = node.target
    if node.op != "call_function" or target is operator.getitem:
        return False
    if not isinstance(target, OpOverload) or target in TRACED_AGAIN or target._schema.is_mutable:
        return True
    view = any(answer.alias_info for answer in target._schema.returns)
    made_of_others = target.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd)
    unknown = view and made_of_others and not nodes.is_call(node, *(f"aten.{name}" for name in KEPT_WHOLE))
    return unknown or bool(nodes.arguments(node).get("train", False))


def in_known_operations(graph: fx.Graph) -> None:
    """Replace operations by those that torch writes when it traces again; no dropout here is in training."""
    for node in [node for node in graph.nodes if isinstance(node.target, OpOverload)]:
        asked, made = nodes.arguments(node), node.meta.get("val")
        if nodes.is_call(node, *DROPOUTS):
            node.replace_all_uses_with(nodes.source(node))
            graph.erase_node(node)
        elif nodes.is_call(node, nodes.TO):
            named: dict[str, Argument] = {name: asked[name] for name in ("dtype", "memory_format")}
            node.target, node.args, node.kwargs = aten._to_copy.default, (nodes.source(node),), named
        elif nodes.is_call(node, "aten.contiguous.default"):
            named = {"memory_format": node.kwargs.get("memory_format", torch.contiguous_format)}
            node.target, node.args, node.kwargs = aten.clone.default, (nodes.source(node),), named
        elif nodes.is_call(node, "aten.chunk.default") and made[0].numel():  # else the size counts no parts
            size = made[0].shape[asked["dim"]]
            node.target, node.args, node.kwargs = aten.split.Tensor, (nodes.source(node), size, asked["dim"]), {}
        elif nodes.is_call(node, *SHAPED):
            node.target, node.args, node.kwargs = SHAPED[str(node.target)], (nodes.source(node), list(made.shape)), {}


def without_checks(module: fx.GraphModule) -> None:
    """Take away what checks the input again, casts that change nothing, and views that hold for one layout alone."""
    graph = module.graph
    for node in list(graph.nodes):
        if nodes.is_call(node, "aten._assert_tensor_metadata.default") or node.op == "call_module":
            graph.erase_node(node)
        elif nodes.is_call(node, nodes.CAST):
            made, before = node.meta["val"], nodes.source(node).meta.get("val")
            if isinstance(before, Tensor) and form_of(made) == form_of(before) and made.stride() == before.stride():
                nodes.replace(node, nodes.source(node))
        elif nodes.is_call(node, "aten.view.default"):
            node.target = aten.reshape.default  # a pass may lay out otherwise what is viewed
        elif nodes.is_call(node, "aten.view_as_complex.default", *nodes.BY_STORAGE):  # which need the export's layout
            with graph.inserting_before(node):
                named: dict[str, Argument] = {"memory_format": _format_for(node)}
                node.args = (graph.call_function(aten.clone.default, node.args[:1], named), *node.args[1:])
    module.recompile()


def _format_for(node: fx.Node) -> torch.memory_format:
    """Return the memory format in which the value lay that `as_strided` reads; others read what is contiguous."""
    strided = nodes.is_call(node, "aten.as_strided.default")
    order = order_of(node.all_input_nodes[0].meta["val"]) if strided else torch.contiguous_format
    if order is None:
        raise UnsupportedError(f"{node.name} reads memory by its own steps, of a value in no memory format of torch")
    return order
