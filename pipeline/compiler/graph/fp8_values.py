"""Which values are stored in fp8 (e4m3), and with which scales."""

import math
from collections.abc import Container, Iterable
from typing import TypeVar

from torch import fx

from pipeline.compiler.graph import fx_graph as nodes
from pipeline.compiler.graph.exported_net import ExportedNet
from pipeline.compiler.graph.layers import LEAST, KernelLayer, inputs_of, layer_behind, layer_calls, layer_of, maps_of
from pipeline.kernels.common.kernel_op import CHANNELS_IN_FP8
from pipeline.kernels.common.nhwc import FP8_MAX

Group = set[fx.Node]
Member = TypeVar("Member")
ATTENTION = "aten.scaled_dot_product_attention."


def groups(net: ExportedNet) -> list[Group]:
    """Return the groups of images that must share a type: a layer's output and its pool, a concatenation's parts.

    None is empty, an answer, the batch or a constant.
    """
    made = [node for node in net.module.graph.nodes if node.op == "call_function" and nodes.gives_image(node)]
    inner = [node for node in made if all(user.op != "output" for user in node.users)]
    computed = [node for node in inner if node.meta["val"].dtype == net.dtype and 0 not in nodes.shape_of(node)]
    cats = [{cat, *cat.all_input_nodes} for cat in nodes.channel_concatenations(net.module.graph)]
    barred: Group = set().union(*(together for together in cats if not together <= set(computed)))
    found = united(computed, [*(set(maps_of(node)) for node, _ in layer_calls(net.module)), *cats])
    return [group for group in found if not group & barred]


def united(members: Iterable[Member], sets: Iterable[set[Member]]) -> list[set[Member]]:
    """Return the sets that the members are in once those are joined that share one, in the order of the members."""
    found = {member: {member} for member in members}
    for each in sets:
        together = set().union(*(found.get(member, set()) for member in each))
        found.update(dict.fromkeys(together, together))
    return list({id(each): each for each in found.values()}.values())


def fp8_groups(net: ExportedNet, keep: Iterable[str]) -> list[Group]:
    """Return the groups to be stored in fp8 where layers in `keep` aren't: some layer reads it so, and all can."""
    kept = set(keep)
    while True:
        stored = []
        for group in groups(net):
            layers = _readers(net, group)
            whole = all(nodes.shape_of(value)[1] % CHANNELS_IN_FP8 == 0 for value in group)
            if whole and layers and all(reads_fp8(layer) and layer.name not in kept for layer in layers):
                stored.append(group)
        values: Group = set().union(*stored)
        mixed = set()
        for node, layer in layer_calls(net.module):
            held = [value in values for value in inputs_of(node)]
            mixed |= {layer.name} if any(held) and not all(held) else set()
        if mixed <= kept:
            return stored
        kept |= mixed


def _readers(net: ExportedNet, group: Group) -> list[KernelLayer]:
    """Return the layers that multiply a value of the group."""
    found = [layer_of(net.module, user) for value in group for user in value.users if value in inputs_of(user)]
    return [layer for layer in found if layer is not None]


def reads_fp8(layer: KernelLayer) -> bool:
    """Return whether a layer's kernel reads values in fp8."""
    whole = layer.bias is None or len(layer.bias) % CHANNELS_IN_FP8 == 0
    return "fp8" in layer.op.reads and whole


def writes_fp8(layer: KernelLayer) -> bool:
    """Return whether a layer's kernel stores fp8: its activation must take the scale of its output."""
    return "fp8" in layer.op.writes and layer.activation.takes_scale


def quantisable(net: ExportedNet) -> list[str]:
    """Return the layers that can read fp8, in the order of the graph."""
    return layers_in_fp8(net, {value.name for group in fp8_groups(net, []) for value in group})


def quantisable_together(net: ExportedNet) -> list[list[str]]:
    """Return the same in sets of which all read fp8 or none, since they share values."""
    known = quantisable(net)
    sets = united(known, [{layer.name for layer in _readers(net, group)} for group in fp8_groups(net, [])])
    return [[name for name in known if name in names] for names in sets]


def layers_in_fp8(net: ExportedNet, stored: Container[str]) -> list[str]:
    """Return the layers that read fp8, in the graph's order, where the values with these names are stored in it."""
    calls = layer_calls(net.module)
    return [layer.name for node, layer in calls if all(value.name in stored for value in inputs_of(node))]


def left_to_inductor(net: ExportedNet) -> list[str]:
    """Return the modules of convolutions, matrix products and attention that are no layer: none of them reads fp8."""
    work = [node for node in net.module.graph.nodes if nodes.is_matrix_work(node) or ATTENTION in str(node.target)]
    return list(dict.fromkeys(map(nodes.module_of, work)))


def scales(net: ExportedNet, keep: Iterable[str], largest: dict[str, float]) -> dict[str, float]:
    """Return the scale of each value in fp8, by its node's name: `largest` lies at e4m3's end or near it."""
    by_name = {}
    endless = {name for name, amount in largest.items() if not math.isfinite(amount)}
    together = [group for group in groups(net) if endless and any(value.name in endless for value in group)]
    without = [layer.name for group in together for layer in _readers(net, group)]
    for group in fp8_groups(net, [*keep, *without]):
        amount = max(largest[value.name] for value in group)
        scale = max(amount, LEAST) / FP8_MAX
        # The next power of two, by which fp8 rounds alike, where it is a gain of an activation's: a kernel's constant.
        behind = [layer for value in group if (layer := layer_behind(net.module, value)) is not None]
        if any(writes_fp8(layer) and not layer.activation.kind.homogeneous for layer in behind):
            scale = 2.0 ** max(math.ceil(math.log2(scale)), -126)
        by_name.update({value.name: scale for value in group})
    return by_name
