"""Signals [batch, channels, length] as images of height 1, which Inductor keeps in NHWC from layer to layer.

cuDNN changes the layout before and after each 1-D convolution. On an H100 this took 1.63 of the 3.2 ms of a 1-D U-Net
(docs/h100/small-gains.json).
"""

from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from pipeline.compiler.graph import fx_graph as nodes
from pipeline.compiler.graph.fx_graph import arguments, is_call, like, shape_of

aten = torch.ops.aten
WIDER = {
    "aten.conv1d.default": aten.conv2d.default,
    "aten.conv1d.padding": aten.conv2d.padding,
    "aten.conv_transpose1d.default": aten.conv_transpose2d.input,
    "aten.max_pool1d.default": aten.max_pool2d.default,
    "aten.avg_pool1d.default": aten.avg_pool2d.default,
}
ALONG_HEIGHT = {"kernel_size": 1, "stride": 1, "dilation": 1, "padding": 0, "output_padding": 0}
BY_CHANNEL = tuple(f"aten.{name}.default" for name in ("batch_norm", "group_norm", "instance_norm", "prelu", "dropout"))
signal = partial(nodes.gives_image, axes=3)  # whether a node gives one


def signals_as_images(module: fx.GraphModule) -> bool:
    """Make 1-D convolutions, pools and what lies between work on images; return whether there was a convolution."""
    walk, found = _Walk(module), False
    for node in list(module.graph.nodes):
        walk.visit(node)
        found |= "conv" in str(node.target) and node in walk.shapes
    module.graph.eliminate_dead_code()
    module.graph.lint()
    module.recompile()
    return found


class _Walk:
    def __init__(self, module: fx.GraphModule) -> None:
        self.module, self.graph = module, module.graph
        self.views: dict[tuple[fx.Node, bool], fx.Node] = {}  # of signals as images, and of images as signals
        self.shapes: dict[fx.Node, tuple[int, ...]] = {}  # of the signals that nodes gave which now give images

    def visit(self, node: fx.Node) -> None:
        """Let a node work on images if it can, else on signals that are views of them."""
        wider = WIDER.get(str(node.target)) if signal(node) else None
        lifted = wider is not None or self._by_place(node)
        seen = partial(self._seen, before=node, as_image=lifted)
        if wider is not None:
            node.args, node.target = tuple(self._wider(name, value) for name, value in arguments(node).items()), wider
            node.kwargs = {}
        node.args, node.kwargs = map_arg(node.args, seen), map_arg(node.kwargs, seen)
        if lifted:
            self.shapes[node] = shape_of(node)
            node.meta = {**node.meta, "val": like(node, _height_one(shape_of(node)))}
            if is_call(node, nodes.CONCATENATION):
                node.args = (node.args[0], 1)

    def _wider(self, name: str, value: Any) -> Any:
        """Return an argument of a 1-D operation for its 2-D form; a weight becomes a constant in NHWC."""
        if name in ALONG_HEIGHT and isinstance(value, list | tuple) and value:
            return [ALONG_HEIGHT[name], *value]
        if name != "weight" or value.op != "get_attr":
            return value
        weight = attrgetter(value.target)(self.module).detach().unsqueeze(2)
        with self.graph.inserting_before(value.next):
            return nodes.add_constant(self.module, value.name, weight.contiguous(memory_format=torch.channels_last))

    def _by_place(self, node: fx.Node) -> bool:
        """Return whether a node does to an image what it does to the signal that it is."""
        if not signal(node) or node.op != "call_function":
            return False
        values = [self.shapes.get(value, shape_of(value)) for value in node.all_input_nodes if self._is_signal(value)]
        if is_call(node, *BY_CHANNEL):
            return bool(values) and values[0] == shape_of(node)
        if len(values) != len(node.all_input_nodes):
            return False
        if is_call(node, nodes.CONCATENATION):
            return arguments(node)["dim"] in (1, -2)
        return torch.Tag.pointwise in getattr(node.target, "tags", ()) and set(values) == {shape_of(node)}

    def _is_signal(self, value: fx.Node) -> bool:
        return value in self.shapes or signal(value)

    def _seen(self, value: fx.Node, before: fx.Node, *, as_image: bool) -> fx.Node:
        """Return a signal's value as an image or as a signal, by a view if needed; return other values unchanged."""
        if not self._is_signal(value) or as_image == (value in self.shapes):
            return value
        if (value, as_image) not in self.views:
            with self.graph.inserting_before(before):
                view = self.graph.call_function(aten.unsqueeze.default if as_image else aten.squeeze.dim, (value, 2))
            shape = _height_one(shape_of(value)) if as_image else self.shapes[value]
            view.meta = {"nn_module_stack": value.meta.get("nn_module_stack", {}), "val": like(value, shape)}
            self.views[value, as_image] = view
        return self.views[value, as_image]


def _height_one(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:2], 1, *shape[2:])
