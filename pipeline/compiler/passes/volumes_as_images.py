"""Takes a net's volumes for images where own kernels have its convolutions: their slices one below the other.

A volume [N, channels, D, H, W] in NDHWC and the image [N, channels, D · H, W] in NHWC are the same memory. What works
on single voxels, or sums over all of them, runs on images; what doesn't, such as a pool, gets a view of the volume.

Signals [batch, channels, length] become images of height 1, which Inductor keeps in NHWC from layer to layer: cuDNN
changes the layout before and after each 1-D convolution. On an H100 this took 1.63 of the 3.2 ms of a 1-D U-Net
(docs/hard-nets.md). What lies between convolutions works on signals, which are views of the images.
"""

from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.fx.node import map_arg
from torch.nn import functional

from pipeline.compiler.graph import fx_graph as nodes
from pipeline.compiler.graph.exported_net import ExportedNet
from pipeline.compiler.graph.fx_graph import arguments, is_call, like, shape_of
from pipeline.compiler.graph.layers import KernelLayer, put_layer
from pipeline.compiler.passes.constant_folding import Branch, convolution_of
from pipeline.compiler.passes.kernel_folding import RECOGNISABLE, image_of, uncast
from pipeline.compiler.passes.norms import GROUP, INSTANCE
from pipeline.kernels import conv3x3, conv_by_slice, conv_first, polyphase, upconv2x2
from pipeline.kernels.common.block_statistics import ROWS
from pipeline.kernels.common.kernel_op import CHANNELS, KernelOp, LayerDescription

aten = torch.ops.aten
CONV3D, SAME_CONV3D, TRANSPOSED = "aten.conv3d.default", "aten.conv3d.padding", "aten.conv_transpose3d.input"
ELEMENTWISE = (nodes.ADDITION, nodes.MULTIPLICATION)
BY_VOXEL = RECOGNISABLE | {*ELEMENTWISE, nodes.TO, nodes.CAST, INSTANCE, GROUP, nodes.CONCATENATION}
RANK = 5
volume = partial(nodes.gives_image, axes=RANK)  # whether a node gives one
Axes = tuple[int, int, int]  # a number for depth, height and width
NONE, ONE, TWO = (0, 0, 0), (1, 1, 1), (2, 2, 2)
CUBE, SQUARE, FLAT, WIDE = (3, 3, 3), (1, 3, 3), (1, 2, 2), (5, 5, 5)  # windows, and a stride within slices


class Form(NamedTuple):
    """The convolutions of volumes that a kernel takes: odd windows are padded by half, even ones are of transposed."""

    op: KernelOp
    window: Axes
    stride: Axes
    pieces: Axes = ONE  # sides are multiples of these

    def fits(self, node: fx.Node, found: Branch) -> bool:
        """Return whether a convolution by a weight [out, in, d, h, w] or [in, out, d, h, w] is one."""
        transposed = is_call(node, TRANSPOSED)
        around = NONE if transposed else tuple(side // 2 for side in self.window)
        geometry = (found.weight.shape[2:], found.stride, found.padding, found.dilation, found.groups)
        return transposed == (self.window[1] % 2 == 0) and geometry == (self.window, self.stride, around, ONE, 1)


FORMS = (
    Form(conv3x3.VOLUME_OP, CUBE, ONE), Form(polyphase.STRIDED_VOLUMES, CUBE, TWO, (2, 2 * ROWS, 2)),
    Form(polyphase.STRIDED_IN_SLICES, CUBE, FLAT, (1, 2 * ROWS, 2)), Form(upconv2x2.VOLUME_OP, TWO, TWO, (1, ROWS, 1)),
    Form(conv_by_slice.OP, SQUARE, ONE), Form(conv_by_slice.STRIDED_OP, SQUARE, FLAT, FLAT),
    Form(conv_by_slice.TRANSPOSED_OP, FLAT, FLAT), Form(conv3x3.WIDE_VOLUME_OP, WIDE, ONE),
)  # fmt: skip
INNER = (conv3x3.VOLUME_OP, conv_by_slice.OP, conv3x3.WIDE_VOLUME_OP)  # for one of these alone volumes become images


def volumes_as_images(net: ExportedNet) -> list[str]:
    """Make convolutions of volumes layers of kernels, if an `INNER` beyond the first is there; else none."""
    graph = net.module.graph
    found = {node: kernel_for(net, node) for node in nodes.calls(graph, CONV3D, SAME_CONV3D, TRANSPOSED)}
    kernels = {node: op for node, op in found.items() if op is not None}
    if not any(op in kernels.values() for op in INNER):
        return []
    names = list(map(nodes.name_of, kernels))
    walk = _Walk(net, kernels)
    for node in list(graph.nodes):
        walk.visit(node)
    return names


def kernel_for(net: ExportedNet, node: fx.Node) -> KernelOp | None:
    """Return the kernel that takes a convolution of fitting channels and sides, whose slices fill half of a tile."""
    source, found = node.all_input_nodes[0], convolution_of(net, node)
    if found is None or not volume(node) or not volume(source):
        return None
    form = next((form for form in FORMS if form.fits(node, found)), None)
    inner, outer = shape_of(source)[1], shape_of(node)[1]
    if form is None or (outer % CHANNELS and form.window != WIDE):  # channels of 5×5×5 are filled up with zeros
        return None
    sides, least = shape_of(source)[2:], min(shape_of(source)[3], shape_of(node)[3])
    if least < ROWS or any(length % piece for length, piece in zip(sides, form.pieces, strict=True)):
        return None
    return _first(form, source, outer) or (form.op if inner % CHANNELS == 0 else None)


def _first(form: Form, source: fx.Node, outer: int) -> KernelOp | None:
    """Return the kernel that takes a convolution of the user's volumes; None for another value, or without one."""
    inner, size = shape_of(source)[1], (shape_of(source)[3], shape_of(source)[4])
    if form.op not in INNER[:2] or image_of(source) is None or conv_first.OP.accepts is None:
        return None
    by_slice = form.op is conv_by_slice.OP
    planes = inner if by_slice else 3 * inner
    seen = LayerDescription("conv2d", planes, outer, size, size, (3, 3), padding=(1, 1), reads_image=True)
    if not conv_first.OP.accepts(seen) or (by_slice and inner > 1):
        return None
    return conv_by_slice.FIRST_OP if by_slice else conv_first.VOLUME_OP


class _Walk:
    def __init__(self, net: ExportedNet, kernels: dict[fx.Node, KernelOp]) -> None:
        self.net, self.kernels = net, kernels
        self.graph = net.module.graph
        self.images: dict[fx.Node, fx.Node] = {}  # of what was a volume
        self.shapes: dict[fx.Node, tuple[int, ...]] = {}  # of the volumes that nodes gave which now give images

    def visit(self, node: fx.Node) -> None:
        """Let a node work on images, if it can, or on volumes that are views of them."""
        if node in self.kernels:
            self._put_layer(node)
        elif volume(node) and (pointwise := self._pointwise(node)) is not None:
            self._put_conv(node, pointwise)
        elif volume(node) and self._by_voxel(node):
            self._on_images(node)
        else:
            node.args = map_arg(node.args, lambda value: self._volume_before(value, node))
            node.kwargs = map_arg(node.kwargs, lambda value: self._volume_before(value, node))

    def _by_voxel(self, node: fx.Node) -> bool:
        """Return whether a node does to an image what it does to the volume that it is."""
        if not is_call(node, *BY_VOXEL) or (is_call(node, nodes.CAST) and arguments(node)["memory_format"] is not None):
            return False
        values = [self.shapes.get(value, shape_of(value)) for value in node.all_input_nodes if self._is_volume(value)]
        if is_call(node, nodes.CONCATENATION):
            return arguments(node)["dim"] in (1, 1 - RANK) and len(values) == len(node.all_input_nodes)
        if is_call(node, *ELEMENTWISE):
            return len(values) == len(node.all_input_nodes) and len(set(values)) == 1
        return bool(values) and values[0] == shape_of(node)

    def _is_volume(self, value: fx.Node) -> bool:
        return value in self.shapes or volume(value)

    def _on_images(self, node: fx.Node) -> None:
        shape = shape_of(node)
        node.args = map_arg(node.args, self._image)
        node.kwargs = map_arg(node.kwargs, self._image)
        if is_call(node, nodes.CONCATENATION):
            node.args = (node.args[0], 1)
        node.meta = {**node.meta, "val": like(node, _flat(shape))}
        self.images[node], self.shapes[node] = node, shape

    def _put_layer(self, node: fx.Node) -> None:
        shape, x, op, held = shape_of(node), arguments(node)["input"], self.kernels[node], self.net.parameters(node)
        assert held is not None
        short = -shape[1] % CHANNELS
        weight, bias = (functional.pad(part, (0, 0) * (part.ndim - 1) + (0, short)) for part in held)
        layer = KernelLayer(nodes.name_of(node), op, weight, bias)
        layer.slices = self.shapes.get(x, shape_of(x))[2]
        batch, channels, *size = _flat(shape)
        node.meta = {**node.meta, "val": like(node, (batch, channels + short, *size))}
        out = put_layer(self.net, node, layer, [uncast(x) if op.reads_image else self._image(x)])
        if short:
            whole, out = out, nodes.put_before(out.next, aten.slice.Tensor, out, 1, 0, channels)
            whole.replace_all_uses_with(out, delete_user_cb=lambda user: user is not out)
        self.images[out], self.shapes[out] = out, shape

    def _pointwise(self, node: fx.Node) -> Tensor | None:
        """Return the weight [out, in, 1, 1] of a convolution of 1×1×1 in the net's type; None for what isn't one."""
        found = convolution_of(self.net, node) if is_call(node, CONV3D, SAME_CONV3D) else None
        if found is None or (found.weight.shape[2:], found.stride, found.padding, found.groups) != (ONE, ONE, NONE, 1):
            return None
        return found.weight[:, :, 0]

    def _put_conv(self, node: fx.Node, weight: Tensor) -> None:
        given, shape = arguments(node), shape_of(node)
        seen, taps = self._image(given["input"]), self.net.add_weight(node, "weight", weight)
        conv = nodes.put_before(node, aten.conv2d.default, seen, taps, given["bias"])
        nodes.replace(node, conv)
        self.images[conv], self.shapes[conv] = conv, shape

    def _image(self, value: fx.Node) -> fx.Node:
        """Return the image that a value is, or a view of a volume; what is neither stays as it is."""
        if not self._is_volume(value):
            return value
        if value not in self.images:
            self.images[value] = nodes.put_before(value.next, aten.reshape.default, value, [*_flat(shape_of(value))])
        return self.images[value]

    def _volume_before(self, value: fx.Node, node: fx.Node) -> fx.Node:
        """Return the volume of a value that is an image by now; what isn't stays as it is."""
        if value not in self.shapes:
            return value
        seen = value
        if is_call(node, CONV3D, SAME_CONV3D):  # without a gap: the library's own copy took 0.33 ms of 5.1 (H200)
            seen = nodes.put_before(node, aten.contiguous.default, value, memory_format=torch.channels_last)
        return nodes.put_before(node, aten.reshape.default, seen, list(self.shapes[value]))


def _flat(shape: tuple[int, ...]) -> tuple[int, ...]:
    batch, channels, depth, height, width = shape
    return batch, channels, depth * height, width


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
        given = arguments(node) if str(node.target) in WIDER and nodes.gives_image(node, axes=3) else {}
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
