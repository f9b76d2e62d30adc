"""Lowers a graph of layers to one that torch compiles: buffers, the kernels' operations, and ATen for all the rest.

A concatenation of channels is a view of a wide buffer, of which every part is written where it belongs as soon as it
is computed. Concatenations within each other (DenseNet, UNet++) are channels of the last one's buffer. A value that
several buffers want lies in the widest of them, and its own bytes are copied for another when that is read.
"""

import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import torch
import torch._inductor.inductor_prims  # registers prims::inductor_force_stride_order
from torch import Tensor, fx, nn
from torch.fx.node import Argument

from pipeline.compiler.custom_ops import OUTPUTS, REFERENCE, operation
from pipeline.compiler.graph import fx_graph as nodes
from pipeline.compiler.graph import layers
from pipeline.compiler.graph.exported_net import ExportedNet
from pipeline.compiler.graph.fp8_values import reads_fp8, writes_fp8
from pipeline.kernels.common.kernel_op import CHANNELS
from pipeline.kernels.common.nhwc import FP8_MAX


class Place(NamedTuple):
    """Channels of the wide buffer that a concatenation fills, from the first."""

    widest: fx.Node
    first: int


class Copy(NamedTuple):
    """A copy of `channels` channels from `source` to `target`."""

    source: Place
    target: Place
    channels: int

    def after(self) -> tuple[Place, Place]:
        """Return where the channels after these lie, and where they would be wanted."""
        ends = (Place(place.widest, place.first + self.channels) for place in (self.source, self.target))
        return next(ends), next(ends)


@dataclass(frozen=True)
class Places:
    """Where the values lie that a graph joins."""

    homes: dict[fx.Node, Place] = field(default_factory=dict)  # where each joined value is written and read
    joined: dict[fx.Node, Place] = field(default_factory=dict)  # of each concatenation that never happens
    copies: dict[fx.Node, list[Copy]] = field(default_factory=dict)  # what is to be copied before such a one is read


def find_places(net: ExportedNet, scales: Mapping[str, float]) -> Places:
    """Return places in shared buffers for the parts of concatenations, so that these copy less or nothing.

    The widest comes first; one whose channels lie in an earlier buffer is a view of it. Another gets its own, the home
    of its parts that have none yet; if all have one, it stays a concatenation.
    """
    places, filled, parts_of = Places(), dict[fx.Node, list[fx.Node]](), _flat(net, scales)
    for cat in sorted(parts_of, key=lambda cat: nodes.shape_of(cat)[1], reverse=True):
        parts = parts_of[cat]
        within = [
            Place(wide, first)
            for wide, there in filled.items()
            for place, (_, first) in enumerate(_with_firsts(there))
            if there[place : place + len(parts)] == parts and first % CHANNELS == 0  # so that kernels can read it
        ]
        if within:
            places.joined[cat] = within[0]
        elif not places.homes.keys() >= set(parts):
            places.joined[cat], filled[cat] = Place(cat, 0), parts
            for part, first in _with_firsts(parts):
                places.homes.setdefault(part, Place(cat, first))
    done: set[Place] = set()
    for cat in [cat for cat in parts_of if cat in places.joined]:
        places.copies[cat] = _missing(places, cat, parts_of[cat], done)
    return places


def _flat(net: ExportedNet, scales: Mapping[str, float]) -> dict[fx.Node, list[fx.Node]]:
    """Return, in graph order, the values that each avoidable concatenation joins, nested ones included."""
    flat: dict[fx.Node, list[fx.Node]] = {}
    for cat in nodes.channel_concatenations(net.module.graph):
        if _can_lie(net, cat, scales, flat):
            flat[cat] = [value for part in nodes.joined(cat) for value in flat.get(part, [part])]
    return flat


def _can_lie(net: ExportedNet, cat: fx.Node, scales: Mapping[str, float], inner: Collection[fx.Node]) -> bool:
    """Return whether a concatenation's parts have one type and scale, and lie so that kernels write and read them."""
    if cat.meta["val"].dtype != net.dtype or 0 in nodes.shape_of(cat) or nodes.shape_of(cat)[1] % CHANNELS:
        return False
    if len({scales.get(value.name) for value in (cat, *nodes.joined(cat))}) > 1:
        return False

    def is_of_kernels(value: fx.Node) -> bool:
        """Return whether a kernel writes a value or reads it where it lies: TMA moves whole steps of 16 bytes."""
        made = layers.layer_behind(net.module, value) is not None
        readers = [layers.layer_of(net.module, user) for user in value.users]
        read = any(layer is not None and not layer.op.reads_image for layer in readers)
        return read or (made and nodes.part_of_answer(value) in (layers.OUT, layers.POOLED))

    bound = [first for part, first in _with_firsts(nodes.joined(cat)) if part in inner or is_of_kernels(part)]
    return all(first % CHANNELS == 0 for first in bound)


def _with_firsts(parts: list[fx.Node]) -> Iterator[tuple[fx.Node, int]]:
    return zip(parts, accumulate((nodes.shape_of(part)[1] for part in parts), initial=0), strict=False)


def _missing(places: Places, cat: fx.Node, parts: list[fx.Node], done: set[Place]) -> list[Copy]:
    """Return the copies that still fill a concatenation's place in its buffer; adjacent parts make one copy."""
    widest, begin = places.joined[cat]
    copies: list[Copy] = []
    for part, first in _with_firsts(parts):
        home, target, channels = places.homes[part], Place(widest, begin + first), nodes.shape_of(part)[1]
        if home == target or target in done:
            continue
        done.add(target)
        if copies and copies[-1].after() == (home, target):
            channels += copies[-1].channels
            home, target, _ = copies.pop()
        copies.append(Copy(home, target, channels))
    return copies


aten = torch.ops.aten


@dataclass(frozen=True)
class Plan:
    """The choices by which a graph is lowered."""

    scales: Mapping[str, float] = field(default_factory=dict)  # of values in fp8, by their nodes' names
    tiles: Mapping[str, str] = field(default_factory=dict)  # their texts, by the layers' nodes; else `REFERENCE`
    by_library: Collection[str] = ()  # layers' nodes that the library runs
    failed: Mapping[str, str] = field(default_factory=dict)  # why the kernels of layers failed that it runs
    library_ms: float = 0.0  # that all layers take, one after the other, where the library runs them
    slower: Collection[str] = ()  # names of layers of tokens that take longer in fp8 than by the library in fp16


def lower(net: ExportedNet, plan: Plan) -> fx.GraphModule:
    """Return a module of its own that computes what `net` does; an operation's node holds its layer in `meta`."""
    with torch.no_grad():
        return _Lowering(net, plan).run()


class _Lowering:
    def __init__(self, net: ExportedNet, plan: Plan) -> None:
        self.net, self.plan = net, plan
        self.held: dict[str, nn.Module | Tensor] = {}  # the new module's own, by the names of its graph
        self.graph = fx.Graph()
        self.graph.set_codegen(net.module.graph._codegen)  # how a call's inputs and answer are packed
        self.stored: dict[fx.Node, fx.Node] = {}  # the values by the old graph's nodes, perhaps in fp8
        self.converted: dict[fx.Node, fx.Node] = {}  # those in fp8, as ATen reads them
        self.wide: dict[fx.Node, fx.Node] = {}  # the buffers of the concatenations that fill them
        self.places = find_places(net, plan.scales)
        self.laid_out: set[fx.Node] = set()  # values whose channels are known to lie side by side
        self.copies: dict[fx.Node, fx.Node] = {}  # of others that a kernel reads, laid out so

    def run(self) -> fx.GraphModule:
        """Write the new graph, and return its module."""
        for node in self.net.module.graph.nodes:
            layer = layers.layer_of(self.net.module, node)
            if layer is not None and node.name in self.plan.by_library:
                self._call_library(node, layer)
            elif layer is not None:
                self._call_kernel(node, layer)
            elif node in self.places.joined:
                for copy in self.places.copies[node]:  # of parts that are at home elsewhere
                    self._put(self._part(copy.source, copy.channels), copy.target, copy.channels)
                self.stored[node] = self._part(self.places.joined[node], nodes.shape_of(node)[1])
            elif node not in self.stored:
                self._keep(node, self.graph.node_copy(node, self.read))
        named = [str(node.target) for node in self.graph.nodes if node.op in ("get_attr", "call_module")]
        exported = {name: operator.attrgetter(name)(self.net.module) for name in named if name not in self.held}
        module = fx.GraphModule(self.held | exported, self.graph)
        module.training = self.net.module.training
        self.graph.lint()
        return module

    def read(self, value: fx.Node) -> fx.Node:
        """Return a value of the old graph as ATen reads it."""
        if value.name not in self.plan.scales:
            return self.copies.get(self.stored[value], self.stored[value])
        if value not in self.converted:
            in_fp32 = self._call(aten.to.dtype, self.stored[value], torch.float32)
            scaled = self._call(aten.mul.Tensor, in_fp32, self.plan.scales[value.name])
            self.converted[value] = self._call(aten.to.dtype, scaled, self.net.dtype)
        return self.converted[value]

    def _kernel_stores(self, value: fx.Node, layer: layers.KernelLayer) -> bool:
        """Return whether a layer's kernel stores a value in the type in which it is kept."""
        return value.name not in self.plan.scales or writes_fp8(layer)

    def _call_library(self, node: fx.Node, layer: layers.KernelLayer) -> None:
        name, added = f"library_{node.name}", layers.residual_of(node)
        self.held[name] = layers.LibraryLayer(layer, self.net.dtype)
        values = tuple(self.read(value) for value in layers.inputs_of(node))
        answer = self.graph.call_module(name, values, {"residual": self.read(added) if added else None})
        for part in list(node.users):
            self._keep(part, self.graph.call_function(operator.getitem, (answer, nodes.part_of_answer(part))))

    def _call_kernel(self, node: fx.Node, layer: layers.KernelLayer) -> None:
        values, parts = layers.inputs_of(node), list(node.users)
        in_fp8 = reads_fp8(layer) and all(value.name in self.plan.scales for value in values)
        in_scales = [self.plan.scales[value.name] for value in values] if in_fp8 else None
        images = layers.maps_of(node)  # of one scale
        in_type = [part for part in images[:1] if self._kernel_stores(part, layer)]
        out_scale = self.plan.scales.get(in_type[0].name, 1.0) if in_type else 1.0
        activation, before = layer.activation.divided_by(out_scale)
        packed = layer.packed(self.net.dtype, in_scales, before, nodes.shape_of(values[0])[1])
        head = layer.head or (None, None)
        tensors = {**packed._asdict(), "head_weight": head[0], "head_bias": head[1], "slopes": layer.slopes}
        added = layers.residual_of(node)
        inputs = [self.stored[value] if in_fp8 else self.read(value) for value in values]
        if not layer.op.reads_image:
            inputs = list(map(self._laid_out, values, inputs))
        outputs = {OUTPUTS[nodes.part_of_answer(part)]: self._memory(part, layer) for part in parts}
        call = self.graph.call_function(
            operation(layer.op.name),
            (inputs[0],),
            {
                "second": inputs[1] if len(inputs) > 1 else None,
                **{role: self._constant(f"{layer.name}.{role}", tensor) for role, tensor in tensors.items()},
                "residual": self._laid_out(added, self.stored[added]) if added else None,
                "residual_scale": self.plan.scales.get(added.name, 1.0) / before if added else 1.0,
                "activation": activation.name, "slope": activation.slope, "layer": layer.name,
                "slices": layer.slices, "dilation": layer.dilation, "tile": self.plan.tiles.get(node.name, REFERENCE),
                "padding_mode": layer.padding_mode,
                **{name: outputs.get(name) for name in OUTPUTS},
            },
        )  # fmt: skip
        call.meta |= {"layer": layer, "origin": node.name}
        for part in parts:
            made = outputs[OUTPUTS[nodes.part_of_answer(part)]]
            if nodes.part_of_answer(part) == layers.STATISTICS and out_scale != 1.0:
                units = torch.tensor([[out_scale], [out_scale**2]])  # of a mean, and of squared deviations
                made = self._call(aten.mul.Tensor, made, self._constant(f"{layer.name}.units", units))
            self._keep(part, made, part in images and self._kernel_stores(part, layer))

    def _laid_out(self, value: fx.Node, x: fx.Node) -> fx.Node:
        """Return what is kept of a value, channels side by side; forced where Inductor would copy it often."""
        if x in self.laid_out or nodes.shape_of(value)[2:] == (1, 1):
            return x
        if sum(layers.layer_of(self.net.module, user) is not None for user in value.users) == 1:
            return self.graph.call_function(aten.contiguous.default, (x,), {"memory_format": torch.channels_last})
        if x not in self.copies:
            self.copies[x] = self._noted(torch.ops.prims.inductor_force_stride_order.default, x, nodes.steps_of(value))
        return self.copies[x]

    def _keep(self, value: fx.Node, made: fx.Node, as_stored: bool = False) -> None:
        """Note where a value of the old graph is, once it has its type and lies in its place, as `as_stored` says."""
        if not as_stored and value.name in self.plan.scales:  # by ATen, in Inductor's kernel that makes the value
            in_fp32 = self._call(aten.to.dtype, made, torch.float32)
            scaled = self._call(aten.mul.Tensor, in_fp32, 1.0 / self.plan.scales[value.name])
            made = self._call(aten.to.dtype, self._call(aten.clamp.default, scaled, -FP8_MAX, FP8_MAX), layers.FP8)
        home = None if as_stored else self.places.homes.get(value)
        self.stored[value] = made if home is None else self._put(made, home, nodes.shape_of(value)[1])

    def _put(self, made: fx.Node, place: Place, length: int) -> fx.Node:
        """Write into channels of a wide buffer; by as_strided in place, where Inductor copies by slice."""
        batch, _, height, width = nodes.shape_of(place.widest)
        wide, sizes = self._wide(place.widest), [batch, length, height, width]
        view = self._noted(aten.as_strided.default, wide, sizes, nodes.steps_of(place.widest), place.first)
        self._call(aten.copy_.default, view, made)
        return view

    def _part(self, place: Place, length: int) -> fx.Node:
        wide = self._wide(place.widest)
        if length == nodes.shape_of(place.widest)[1]:
            return wide
        return self._noted(aten.slice.Tensor, wide, 1, place.first, place.first + length)

    def _memory(self, part: fx.Node, layer: layers.KernelLayer) -> fx.Node:
        if nodes.part_of_answer(part) == layers.LOGITS:
            return self._empty(part, torch.float32, contiguous=True)
        if nodes.part_of_answer(part) == layers.STATISTICS:
            made = self._call(aten.empty.memory_format, list(nodes.shape_of(part)))
            made.kwargs = {"dtype": torch.float32, "device": self.net.device}
            return made
        if part in self.places.homes and self._kernel_stores(part, layer):
            return self._part(self.places.homes[part], nodes.shape_of(part)[1])
        fp8 = part.name in self.plan.scales and self._kernel_stores(part, layer)
        return self._empty(part, layers.FP8 if fp8 else self.net.dtype)

    def _wide(self, cat: fx.Node) -> fx.Node:
        if cat not in self.wide:
            self.wide[cat] = self._empty(cat, layers.FP8 if cat.name in self.plan.scales else self.net.dtype)
        return self.wide[cat]

    def _empty(self, value: fx.Node, dtype: torch.dtype, contiguous: bool = False) -> fx.Node:
        """Memory for a value, by empty_strided: Inductor turns torch.empty of a memory format into NCHW, and copies."""
        shape = list(nodes.shape_of(value))
        steps = [math.prod(shape[1:]), shape[2] * shape[3], shape[3], 1] if contiguous else nodes.steps_of(value)
        how: dict[str, Argument] = {"dtype": dtype, "device": self.net.device}
        made = self.graph.call_function(aten.empty_strided.default, (shape, steps), how)
        if not contiguous:
            self.laid_out.add(made)
        return made

    def _noted(self, target: Callable[..., object], *args: Argument) -> fx.Node:
        made = self._call(target, *args)
        self.laid_out.add(made)
        return made

    def _call(self, target: Callable[..., object], *args: Argument) -> fx.Node:
        return self.graph.call_function(target, args)

    def _constant(self, name: str, tensor: Tensor | None) -> fx.Node | None:
        if tensor is None:
            return None
        name = f"packed_{nodes.as_word(name)}_{len(self.graph.nodes)}"
        self.held[name] = tensor.to(self.net.device)
        return self.graph.get_attr(name)
