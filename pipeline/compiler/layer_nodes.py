"""The nodes of a graph that call layers of the kernels, and the values that they read and give."""

import operator

from torch import fx

from pipeline.compiler.exported_net import ExportedNet
from pipeline.compiler.fx_graph import is_call
from pipeline.compiler.kernel_layer import OUT, KernelLayer

GETITEM = "<built-in function getitem>"


def layer_of(module: fx.GraphModule, node: object) -> KernelLayer | None:
    """The layer that a node calls; None where it calls none."""
    if not isinstance(node, fx.Node) or node.op != "call_module":
        return None
    found = module.get_submodule(str(node.target))
    return found if isinstance(found, KernelLayer) else None


def inputs_of(node: fx.Node) -> list[fx.Node]:
    """The values that a layer's node multiplies, in order."""
    return [value for value in node.args if isinstance(value, fx.Node)]


def residual_of(node: fx.Node) -> fx.Node | None:
    """The value that a layer's node adds."""
    value = node.kwargs.get("residual")
    return value if isinstance(value, fx.Node) else None


def layer_behind(module: fx.GraphModule, value: object) -> KernelLayer | None:
    """The layer of whose answer a value is a part; None where it is of none."""
    return layer_of(module, value.args[0]) if isinstance(value, fx.Node) and is_call(value, GETITEM) else None


def producer(module: fx.GraphModule, value: object) -> tuple[fx.Node, KernelLayer] | None:
    """The layer's node, and the layer, that gives a value as its output; None where no layer does."""
    layer = layer_behind(module, value)
    if layer is None or not isinstance(value, fx.Node) or value.args[1] != OUT:
        return None
    return value.all_input_nodes[0], layer


def put_layer(net: ExportedNet, node: fx.Node, layer: KernelLayer, inputs: list[fx.Node], place: int = OUT) -> fx.Node:
    """Put a layer that reads these values, or rather that part of its answer, in a node's place; the part's node."""
    graph, target = net.module.graph, f"kernel_layer_{node.name}"
    net.module.add_submodule(target, layer)
    with graph.inserting_before(node):
        answer = graph.call_module(target, (net.dtype, *inputs))
        out = graph.call_function(operator.getitem, (answer, place))
    out.meta, answer.meta = dict(node.meta), {"nn_module_stack": node.meta.get("nn_module_stack", {})}
    node.replace_all_uses_with(out)
    graph.erase_node(node)
    return out
