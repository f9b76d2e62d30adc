"""Activations and weights in NHWC, the layout that tensor cores read without a transposition."""

import copy

from torch import Tensor, nn

from pipeline.compiler.batch import laid_out, net_laid_out
from pipeline.compiler.network_calls import allow_tf32
from pipeline.stages.api import Runner, StageError, Workload
from pipeline.stages.common.network_forms import eager_execution


def build(workload: Workload) -> Runner:
    """Run the network in fp32, channels_last; on a GPU with TF32, as the rung before."""
    if workload.layout_choice.take() == "NCHW":
        raise StageError(workload.layout_choice.why, "unsupported")
    on_gpu = workload.device.type == "cuda"
    allow_tf32(on_gpu)
    run = InChannelsLast(workload.model).eval()
    execution = eager_execution("tf32" if on_gpu else "fp32", "NHWC")
    return Runner(run, f"fp32{' with TF32' if on_gpu else ''}, channels_last", execution, module=run.net)


class InChannelsLast(nn.Module):
    """A copy of the network in NHWC; it converts the layout of its inputs itself."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.net = net_laid_out(copy.deepcopy(model))

    def forward(self, batch: Tensor, *others: Tensor) -> Tensor:
        """Return logits [batch, classes, height, width] of a batch [batch, channels, height, width]."""
        logits: Tensor = self.net(*map(laid_out, (batch, *others)))
        return logits
