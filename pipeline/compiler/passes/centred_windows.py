"""A window that begins a pixel late becomes one that lies around its pixel, where a kernel then takes the layer."""

import torch
from torch import fx
from torch.nn import functional

from pipeline.compiler.exported_net import ExportedNet
from pipeline.compiler.fx_graph import add_constant, arguments, calls, is_call, only_user, shape_of, source
from pipeline.compiler.passes.kernel_matching import CONV2D, PAD, describe, pair
from pipeline.kernels import conv_first, depthwise
from pipeline.measure.net_layers import module_of

OFFERED = (depthwise.STRIDED_OP, conv_first.STRIDED_OP)


def centre_windows(net: ExportedNet) -> list[str]:
    """A pad of one more row below and column right than above and left, and a convolution of stride 2 after it.

    As nets from TensorFlow pad ("same"): EfficientNet's. The window gets two more rows and columns, of zeros, above and
    left, and is padded alike on all sides. Exact, on even sizes; the kernels that take it wait for memory anyway.
    """
    matched = []
    for pad in calls(net.module.graph, PAD):
        conv, margin = only_user(pad), _late(pad)
        if conv is None or margin is None or not is_call(conv, CONV2D):
            continue
        given = arguments(conv)
        weight, side = net.constant(given["weight"]), 2 * margin + 3
        plain = (
            pair(given["stride"]) == (2, 2) and pair(given["padding"]) == (0, 0) and pair(given["dilation"]) == (1, 1)
        )
        if weight is None or not plain or tuple(weight.shape[2:]) != (side, side):
            continue
        before = conv.args
        with net.module.graph.inserting_before(conv):
            wider = functional.pad(weight, (2, 0, 2, 0)).contiguous(memory_format=torch.channels_last)
            kernel = add_constant(net.module, f"{module_of(conv)}.weight", wider.to(net.dtype))
        net.exact = {**net.exact, str(kernel.target): wider}
        conv.args = (source(pad), kernel, given["bias"], [2, 2], [margin + 2] * 2, [1, 1], given["groups"])
        seen = describe(net, conv)
        if seen is not None and any(op.accepts is not None and op.accepts(seen) for op in OFFERED):
            net.module.graph.erase_node(pad)
            matched.append(module_of(conv))
        else:
            conv.args = before
            net.module.graph.erase_node(kernel)
    return matched


def _late(pad: fx.Node) -> int | None:
    """How many rows a pad of zeros adds above, where it adds one more below, and columns alike, to an even size."""
    given = arguments(pad)
    if given["mode"] != "constant" or given["value"] or len(given["pad"]) != 4:
        return None
    left, right, above, below = given["pad"]
    even = all(length % 2 == 0 for length in shape_of(source(pad))[2:])
    return above if even and left == above >= 0 and right == below == above + 1 else None
