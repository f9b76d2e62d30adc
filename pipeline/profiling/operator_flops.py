"""How many floating-point operations one call takes, counted at torch's dispatcher.

By torch's own formulas, and not by its `FlopCounterMode`, which imports Dynamo: seconds that no worker need spend.
"""

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import flop_registry

from pipeline.profiling.dispatch import Dispatched, Operator


class FlopCount:
    """Adds up what it is shown."""

    def __init__(self) -> None:
        self.total = 0

    def see(self, operator: Operator) -> None:
        """Count an operator."""
        self.total += flops(operator) or 0


def flops(operator: Operator) -> int | None:
    """Floating-point operations of a convolution or matrix product, 2 per multiply-add; None of any other operator."""
    formula = flop_registry.get(operator.function._overloadpacket)
    if formula is None:
        return None
    return int(formula(*operator.arguments, **operator.keywords, out_val=operator.result))


def net_flops(net: nn.Module, *image: Tensor) -> int:
    """Those of the convolutions and matrix products of a net for one sample, its inputs of any shape.

    As many as torch.utils.flop_counter counts.
    """
    count = FlopCount()
    with torch.inference_mode(), Dispatched(count.see):
        net(*image)
    return count.total
