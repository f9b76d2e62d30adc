"""The net's last 1×1 convolution behind a norm, as `head_after_pointwise` wrote it: found again in a lowered graph."""

from typing import NamedTuple

import torch
from torch import Tensor, fx

from pipeline.compiler.fx_graph import ADDITION, CONCATENATION, MULTIPLICATION, is_call, joined, only_user, shape_of
from pipeline.compiler.passes.kernel_folding import TO
from pipeline.kernels import norm_pass
from pipeline.kernels.common.epilogue import Head

SUM = "aten.sum.dim_IntList"


class FoundHead(NamedTuple):
    """The logits that are made of a value alone: their node, and the convolution."""

    logits: fx.Node
    head: Head


def head_of(value: fx.Node) -> FoundHead | None:
    """The head that alone reads a value [N, C, H, W] and that a norm's pass can make; None where there is none."""
    wide = only_user(value)
    if wide is None or not is_call(wide, TO) or wide.args[1] != torch.float32:
        return None
    classes = {found[0]: found[1:] for product in wide.users if (found := _class_of(product, wide)) is not None}
    logits = only_user(next(iter(classes), wide))
    if len(classes) < len(wide.users) or not is_call(logits, CONCATENATION) or logits is None:
        return None
    if logits.args[1:] != (1,) or set(joined(logits)) != classes.keys() or len(joined(logits)) != len(classes):
        return None
    if any(len(total.users) != 1 for total in classes):
        return None
    parts = [classes[total] for total in joined(logits)]
    weight = torch.stack([row for row, _ in parts])
    if not norm_pass.may_head(*weight.shape):
        return None
    return FoundHead(logits, Head(weight, weight.new_tensor([bias for _, bias in parts])))


def _class_of(product: fx.Node, wide: fx.Node) -> tuple[fx.Node, Tensor, float] | None:
    """The sum of a class's products over channels, its row of the weight and its bias."""
    factors = product.args[1] if is_call(product, MULTIPLICATION) and product.args[0] is wide else None
    if not isinstance(factors, fx.Node) or factors.op != "get_attr":
        return None
    module, channels = product.graph.owning_module, shape_of(wide)[1]
    row = dict(module.named_buffers()).get(str(factors.target)) if module is not None else None
    total, share = only_user(product), 0.0
    if is_call(total, ADDITION) and total is not None and not total.kwargs:
        added = total.args[1]
        if not isinstance(added, float):
            return None
        total, share = only_user(total), added
    if row is None or row.dtype != torch.float32 or row.shape != (1, channels, 1, 1):
        return None
    if total is None or not is_call(total, SUM) or total.args[1:] != ([1], True) or total.kwargs:
        return None
    return total, row.flatten(), share * channels
