"""Questions that passes ask of an fx graph of ATen operations, and changes that they make to it."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor, fx, nn
from torch.fx.node import Argument, map_arg
from torch.nn.modules.conv import _ConvNd

Shape = tuple[int, ...]
CONCATENATION, CLONE, PAD = "aten.cat.default", "aten.clone.default", "aten.pad.default"
ADDITION, MULTIPLICATION = "aten.add.Tensor", "aten.mul.Tensor"
CAST, TO = "aten._to_copy.default", "aten.to.dtype"
CONV2D, SAME_CONV2D, TRANSPOSED = "aten.conv2d.default", "aten.conv2d.padding", "aten.conv_transpose2d.input"
PIXEL_UNSHUFFLE = "aten.pixel_unshuffle.default"
BY_STORAGE = ("aten.as_strided.default", "aten.view.dtype")  # what they read depends on how a tensor lies in memory


def is_call(node: object, *names: str) -> TypeGuard[fx.Node]:
    """Return whether a node calls one of these operations, such as "aten.relu.default"."""
    return isinstance(node, fx.Node) and node.op == "call_function" and str(node.target) in names


def calls(graph: fx.Graph, *names: str) -> Iterator[fx.Node]:
    """Return the nodes that call one of these operations, as they stood at the start."""
    yield from [node for node in graph.nodes if is_call(node, *names)]


def arguments(node: fx.Node) -> dict[str, Any]:
    """Return an ATen operation's arguments by their names in its schema, the defaults among them."""
    schema = getattr(node.target, "_schema").arguments  # noqa: B009 - an fx target's type doesn't know it
    return {
        argument.name: node.args[place]
        if place < len(node.args)
        else node.kwargs.get(argument.name, argument.default_value)
        for place, argument in enumerate(schema)
    }


def source(node: fx.Node, place: int = 0) -> fx.Node:
    """Return the value that is a node's argument at a place; raise TypeError where it is none."""
    given = node.args[place]
    if not isinstance(given, fx.Node):
        raise TypeError(f"{node.name}: argument {place} is {given!r}, no value")
    return given


def part_of_answer(node: fx.Node) -> int:
    """Which part of an answer of several a getitem takes."""
    place = node.args[1]
    assert isinstance(place, int), f"{node.name} takes {place!r}"
    return place


def joined(cat: fx.Node) -> list[fx.Node]:
    """Return the values that a concatenation joins, in order."""
    parts = cat.args[0]
    assert isinstance(parts, Sequence), f"{cat.name} joins {parts!r}"
    return [part for part in parts if isinstance(part, fx.Node)]


def shape_of(node: fx.Node) -> Shape:
    """Return the shape of the tensor that a node gives."""
    return tuple(int(length) for length in node.meta["val"].shape)


def steps_of(node: fx.Node) -> list[int]:
    """Return the strides of the map [N, C, H, W] that a node gives, its channels side by side."""
    _, channels, height, width = shape_of(node)
    return [channels * height * width, 1, channels * width, channels]


def gives_image(node: object, axes: int = 4) -> bool:
    """Return whether a node gives one tensor [batch, channels, height, width]; with a depth before, of five axes."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return isinstance(value, Tensor) and value.ndim == axes


def like(node: fx.Node, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
    """Return a new node's `meta["val"]`: a tensor without memory, of a node's type unless another is given."""
    return torch.empty(list(shape), dtype=dtype or node.meta["val"].dtype, device="meta")


def only_user(node: fx.Node) -> fx.Node | None:
    """Return the one node that reads a value, where there is just one."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def as_word(name: str) -> str:
    """Return a path as one word: a module may be called anything without a dot, such as timm's "slice(1, 4, None)"."""
    return re.sub(r"[^A-Za-z0-9_]", "_", name)


def add_constant(module: fx.GraphModule, name: str, tensor: Tensor) -> fx.Node:
    """Return a node that gives a tensor of any shape, from now on the module's own, at the graph's insertion point."""
    name = f"constant_{len(list(module.buffers()))}_{as_word(name)}"
    module.register_buffer(name, tensor)
    node = module.graph.get_attr(name)
    node.meta["val"] = tensor
    return node


def put_before(node: fx.Node, target: Callable[..., object], *args: Argument, **named: Argument) -> fx.Node:
    """Return a new call of an ATen operation, put before a node, as whose module's it counts."""
    with node.graph.inserting_before(node):
        made = node.graph.call_function(target, args, named)
    given, by_name = map_arg((args, named), lambda value: like(value, shape_of(value)))
    made.meta = {STACK: node.meta.get(STACK, {}), "val": target(*given, **by_name)}
    return made


def replace(old: fx.Node, new: fx.Node) -> None:
    """Let all who read one value read another, and take the old node away."""
    old.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)
    old.graph.erase_node(old)


def channel_concatenations(graph: fx.Graph) -> list[fx.Node]:
    """Return the concatenations of images along their channels, all parts of one type; masks are no images."""
    return [
        node
        for node in calls(graph, CONCATENATION)
        if gives_image(node) and arguments(node)["dim"] in (1, -3)
        if {part.meta["val"].dtype for part in joined(node)} == {node.meta["val"].dtype}
        if node.meta["val"].is_floating_point()
    ]


# One layer each, whatever modules a subclass puts inside: its padding, say.
WHOLE = (_ConvNd, nn.Linear, nn.MultiheadAttention)
MATRIX_OPERATORS = re.compile(
    r"aten\.(conv\d?d?|convolution|conv_transpose\d?d?|linear|mm|addmm|bmm|baddbmm|matmul|einsum)\."
)
STACK = "nn_module_stack"


def layers(net: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the modules without modules of their own, and torch's layers, with their paths; "" of the net itself."""
    whole_layers, inside = [], set[int]()
    for name, part in net.named_modules():
        whole = isinstance(part, WHOLE)
        if id(part) not in inside and (whole or not list(part.children())):
            whole_layers.append((name, part))
        inside |= {id(inner) for inner in part.modules() if inner is not part} if whole else set()
    return whole_layers


def name_by_first_paths(graph: fx.Graph, net: nn.Module, within: str = "") -> None:
    """Let nodes of torch.export tell their modules by the first of each one's paths in the net, which lay `within`."""
    first = {id(module): path for path, module in net.named_modules()}
    known = {path: first[id(module)] for path, module in net.named_modules(remove_duplicate=False)}
    for node in graph.nodes:
        if stack := node.meta.get(STACK):
            paths = {key: path.partition("@")[0] for key, (path, _) in stack.items()}  # @1: of a module's second call
            if within:
                paths = {key: f"{path}.".removeprefix(f"{within}.").rstrip(".") for key, path in paths.items()}
            node.meta[STACK] = {key: (known.get(path, path), stack[key][1]) for key, path in paths.items()}


def module_of(node: fx.Node) -> str:
    """Return the path of the innermost module that an exported node is from; empty of what lies between modules."""
    stack = list((node.meta.get(STACK) or {}).values())
    return str(stack[-1][0]) if stack else ""


def name_of(node: fx.Node) -> str:
    """Return the path of a node's module; the node's own name where it lies between modules."""
    return module_of(node) or node.name


def is_matrix_work(node: fx.Node) -> bool:
    """Return whether a node is a convolution or a matrix product; attention that is one operation isn't."""
    return node.op == "call_function" and bool(MATRIX_OPERATORS.match(f"{node.target}."))
