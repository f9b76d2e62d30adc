"""Batch norms in eval mode become part of the convolutions before them."""

import operator

from torch import Tensor, fx

from pipeline.compiler.batch import laid_out
from pipeline.compiler.exported_net import ExportedNet
from pipeline.compiler.folding import BatchNorm, fold
from pipeline.compiler.fx_graph import add_constant, arguments, calls, is_call, module_of, only_user, replace

NORM = "aten._native_batch_norm_legit_no_training.default"
TRANSPOSED = ("aten.conv_transpose2d.input", "aten.conv_transpose3d.input")
CONVOLUTIONS = tuple(f"aten.conv{axes}d.{form}" for axes in (2, 3) for form in ("default", "padding")) + TRANSPOSED


def fold_batch_norm(net: ExportedNet) -> list[str]:
    """A convolution that a batch norm alone reads takes over its scale and shift; rounded once, from fp32.

    A convolution's weight [out, in / groups, k, k] has its outputs first, in groups or not; a transposed one's has not.
    One that computes in another type than the net's, as the net's own code may ask, stays as it is.
    """
    matched = []
    for norm in calls(net.module.graph, NORM):
        conv, answer = norm.args[0], only_user(norm)
        if not is_call(conv, *CONVOLUTIONS) or answer is None or answer.target is not operator.getitem:
            continue
        assert isinstance(conv, fx.Node)
        given = arguments(conv)
        weight, known = net.constant(given["weight"]), batch_norm(net, norm)
        transposed = is_call(conv, *TRANSPOSED)
        if weight is None or known is None or not net.knows(given["bias"]) or only_user(conv) is not norm:
            continue
        if conv.meta["val"].dtype != net.dtype:
            continue
        if transposed and given["groups"] != 1:
            continue
        before = weight.transpose(0, 1) if transposed else weight
        scaled, shift = fold(before, net.constant(given["bias"]), known)
        give_weight(net, conv, scaled.transpose(0, 1) if transposed else scaled, shift)
        replace(answer, conv)
        net.module.graph.erase_node(norm)
        matched.append(module_of(conv))
    return matched


def batch_norm(net: ExportedNet, node: fx.Node) -> BatchNorm | None:
    """What a batch norm's node knows; None where it isn't constant."""
    given = arguments(node)
    parts = [given[name] for name in ("weight", "bias", "running_mean", "running_var")]
    scale, shift, mean, variance = map(net.constant, parts)
    return (
        None
        if mean is None or variance is None or not net.knows(*parts)
        else BatchNorm(mean, variance, given["eps"], scale, shift)
    )


def give_weight(net: ExportedNet, conv: fx.Node, weight: Tensor, bias: Tensor) -> None:
    """Give a convolution another weight [out, in, k, k] (transposed: [in, out, k, k]) and bias [out], both fp32."""
    name, graph = module_of(conv), net.module.graph
    with graph.inserting_before(conv):
        kernel = add_constant(net.module, f"{name}.weight", laid_out(weight.to(net.dtype)))
        shift = add_constant(net.module, f"{name}.bias", bias.to(net.dtype))
    net.exact = {**net.exact, str(kernel.target): weight, str(shift.target): bias}
    conv.update_arg(1, kernel)
    conv.args = (*conv.args[:2], shift, *conv.args[3:])
