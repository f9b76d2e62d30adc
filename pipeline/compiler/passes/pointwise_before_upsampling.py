"""A 1×1 convolution after an up-sampling goes before it, where a quarter of the pixels are."""

from torch import fx

from pipeline.compiler.exported_net import ExportedNet
from pipeline.compiler.fx_graph import arguments, calls, is_call, like, module_of, only_user, shape_of, source
from pipeline.compiler.passes.kernel_folding import RECOGNISABLE
from pipeline.compiler.passes.kernel_matching import CONV2D, SAME_CONV2D, UPSAMPLING, describe
from pipeline.compiler.passes.upsampling_composition import NEAREST


def pointwise_before_upsampling(net: ExportedNet) -> list[str]:
    """Exchange them where the convolution doesn't add channels and no activation waits to be folded into it.

    Source: each pixel that an up-sampling makes is a sum of others with weights that add up to 1, and is the same sum
    for every channel; a 1×1 convolution mixes the channels of one pixel. So they commute, the bias included.
    """
    matched = []
    for conv in calls(net.module.graph, CONV2D, SAME_CONV2D):
        up = source(conv)
        if is_call(up, UPSAMPLING, NEAREST) and only_user(up) is conv and _gains(net, conv, up):
            _exchange(conv, up)
            matched.append(module_of(conv))
    return matched


def _gains(net: ExportedNet, conv: fx.Node, up: fx.Node) -> bool:
    seen, small = describe(net, conv), shape_of(source(up))
    if seen is None or not seen.is_square(1, 1, 0) or is_call(only_user(conv), *RECOGNISABLE):
        return False
    grows = shape_of(up)[2] * shape_of(up)[3] > small[2] * small[3]
    return grows and seen.outer <= seen.inner


def _exchange(conv: fx.Node, up: fx.Node) -> None:
    """Put the same convolution in front of the same up-sampling."""
    graph, small = conv.graph, source(up)
    batch, _, height, width = shape_of(small)
    asked = arguments(up)
    with graph.inserting_before(conv):
        first = graph.create_node("call_function", conv.target, (small, *conv.args[1:]), conv.kwargs)
        rest = [asked[name] for name in asked if name != "input"]
        last = graph.create_node("call_function", up.target, (first, *rest))
    first.meta = {**conv.meta, "val": like(conv, (batch, shape_of(conv)[1], height, width))}
    last.meta = {**up.meta, "val": conv.meta["val"]}
    conv.replace_all_uses_with(last)
    graph.erase_node(conv)
    graph.erase_node(up)
