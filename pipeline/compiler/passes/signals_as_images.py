"""Signals [batch, channels, length] as images of height 1, which Inductor keeps in NHWC from layer to layer.

cuDNN changes the layout before and after each 1-D convolution. On an H100 this took 1.63 of the 3.2 ms of a 1-D U-Net
(docs/hard-nets.md). What lies between convolutions works on signals, which are views of the images.
"""

from operator import attrgetter
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from pipeline.compiler.graph import fx_graph as nodes
from pipeline.compiler.graph.fx_graph import arguments, gives_image

aten = torch.ops.aten
WIDER = {
    "aten.conv1d.default": aten.conv2d.default,
    "aten.conv1d.padding": aten.conv2d.padding,
    "aten.conv_transpose1d.default": aten.conv_transpose2d.input,
    "aten.max_pool1d.default": aten.max_pool2d.default,
    "aten.avg_pool1d.default": aten.avg_pool2d.default,
    nodes.CONCATENATION: aten.cat.default,
}
ALONG_HEIGHT = {"kernel_size": 1, "stride": 1, "dilation": 1, "padding": 0, "output_padding": 0}


def signals_as_images(module: fx.GraphModule) -> bool:
    """Make 1-D convolutions, pools and concatenations work on images; return whether there was a convolution."""
    found = False
    for node in list(module.graph.nodes):
        given = arguments(node) if str(node.target) in WIDER and gives_image(node, axes=3) else {}
        if given and given.get("dim", 1) in (1, -2):
            found |= "conv" in str(node.target)
            with module.graph.inserting_before(node):
                parts = tuple(_wider(module, name, value) for name, value in given.items())
                image = module.graph.call_function(WIDER[str(node.target)], parts)
                signal = module.graph.call_function(aten.squeeze.dim, (image, 2))
            nodes.replace(node, signal)
    module.graph.lint()
    module.recompile()
    return found


def _wider(module: fx.GraphModule, name: str, value: Any) -> Any:
    """Return an argument of a 1-D operation for its 2-D form; a constant weight becomes one in NHWC."""
    if name in ALONG_HEIGHT:
        return [ALONG_HEIGHT[name], *value] if isinstance(value, list | tuple) and value else value
    if name == "dim":
        return 1
    if name == "weight" and value.op == "get_attr":
        weight = attrgetter(value.target)(module).detach().unsqueeze(2)
        return nodes.add_constant(module, value.name, weight.contiguous(memory_format=torch.channels_last))
    if name in ("input", "self", "tensors", "weight"):
        return map_arg(value, lambda part: module.graph.call_function(aten.unsqueeze.default, (part, 2)))
    return value
