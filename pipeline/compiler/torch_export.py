"""Reads a net through torch.export into a graph."""

import operator
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram

from pipeline.compiler.aten import functional_name
from pipeline.compiler.graph import Graph, Node, UnsupportedError

IDENTITIES = {"aten.dropout.default", "aten.clone.default", "aten.contiguous.default", "aten.detach.default"}


def trace(model: nn.Module, batch: Tensor) -> Graph:
    """The net for batches of the shape of `batch` [batch, channels, height, width].

    Raises:
        UnsupportedError: torch can't export the net, the net writes into a part of a value, or it has an operation
            that isn't ATen's.
    """
    try:
        program = torch.export.export(model, (batch,))
    except Exception as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise UnsupportedError(f"torch can't export the net: {said[0]}") from error
    refuse_writes_to_views(program.graph)
    tensors = parameters(program)
    graph = Graph([], {}, {}, "", "")
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name not in tensors:
            graph.input = node.name
            graph.shapes[node.name] = list(batch.shape)
        elif node.op == "call_function":
            read(graph, node, tensors)
        elif node.op == "output":
            graph.output = node.args[0][0].name
    rename(graph, module_names(program.graph))
    for node in [node for node in graph.nodes if node.op in IDENTITIES]:
        graph.drop(node, node.inputs[0])
    return graph


def module_names(graph: fx.Graph) -> dict[str, str]:
    """For the first operation of each of the net's modules the module's name, as the user knows it."""
    named: dict[str, str] = {}
    for node in graph.nodes:
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        module = stack[-1][0] if stack else ""
        if module and module not in named.values():
            named[node.name] = module
    return named


def rename(graph: Graph, named: dict[str, str]) -> None:
    """Give values other names."""
    for node in graph.nodes:
        node.inputs = [named.get(value, value) for value in node.inputs]
        node.output = named.get(str(node.output), node.output)
    graph.shapes = {named.get(value, value): shape for value, shape in graph.shapes.items()}
    graph.output = named.get(graph.output, graph.output)


def parameters(program: ExportedProgram) -> dict[str, Tensor]:
    """The tensors behind the program's placeholders, of any shapes, by the placeholders' names."""
    signature = program.graph_signature
    named = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    found = {place: program.state_dict.get(name, program.constants.get(name)) for place, name in named.items()}
    constants = {place: program.constants[name] for place, name in signature.inputs_to_lifted_tensor_constants.items()}
    return {name: tensor.detach() for name, tensor in {**found, **constants}.items() if isinstance(tensor, Tensor)}


def refuse_writes_to_views(graph: fx.Graph) -> None:
    """An operation in place becomes one that makes a new tensor; where the old one is seen through a view it can't.

    Raises:
        UnsupportedError: there is such an operation.
    """
    for node in graph.nodes:
        if not mutates(node):
            continue
        written = node.args[0]
        if is_view(written) or any(is_view(user) for user in written.users):
            raise UnsupportedError(f"{node.target} writes into a value that is also seen through a view")


def mutates(node: fx.Node) -> bool:
    """Whether an operation writes into its first argument."""
    return isinstance(node.target, torch._ops.OpOverload) and bool(node.target._schema.is_mutable)


def is_view(node: fx.Node) -> bool:
    """Whether an operation gives a window on its argument's memory."""
    if not isinstance(node.target, torch._ops.OpOverload) or mutates(node):
        return False
    return any(given.alias_info is not None for given in node.target._schema.returns)


def read(graph: Graph, node: fx.Node, tensors: dict[str, Tensor]) -> None:
    """Append one call of the exported program, whose parameters, of any shapes, are `tensors` by name.

    Raises:
        UnsupportedError: it calls what isn't an operation of ATen.
    """
    added = Node("getitem" if node.target is operator.getitem else functional_name(node.target), [], node.name)
    added.attributes = {
        "args": encode(graph, added, node.args, tensors),
        "kwargs": encode(graph, added, dict(node.kwargs), tensors),
    }
    graph.nodes.append(added)
    answer = node.meta.get("val")
    if isinstance(answer, Tensor):
        graph.shapes[node.name] = [int(length) for length in answer.shape]


def encode(graph: Graph, node: Node, value: Any, tensors: dict[str, Tensor]) -> Any:
    """An argument as `Node.attributes` keeps it; the values and tensors [any shape] in it are added to the node."""
    if isinstance(value, fx.Node) and value.name in tensors:
        role = f"t{len(node.tensors)}"
        node.tensors[role] = value.name
        graph.tensors[value.name] = tensors[value.name]
        return {"tensor": role}
    if isinstance(value, fx.Node):
        node.inputs.append(value.name)
        return {"input": len(node.inputs) - 1}
    if isinstance(value, list | tuple):
        return [encode(graph, node, part, tensors) for part in value]
    if isinstance(value, dict):
        return {key: encode(graph, node, part, tensors) for key, part in value.items()}
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return {"torch": str(value).removeprefix("torch.")}
    return {"device": True} if isinstance(value, torch.device) else value
