"""Activations and weights in NHWC, the layout that tensor cores read without a transposition."""

import copy

from torch import Tensor

from pipeline.compiler.batch import laid_out, net_laid_out
from pipeline.compiler.network_calls import allow_tf32
from pipeline.stages.api import Runner, StageError, Workload
from pipeline.stages.common.precision import eager_execution


def build(workload: Workload) -> Runner:
    """Run the network in fp32, channels_last; on a GPU with TF32, as the rung before."""
    if workload.layout_choice.take() == "NCHW":
        raise StageError(workload.layout_choice.why, "unsupported")
    on_gpu = workload.device.type == "cuda"
    allow_tf32(on_gpu)
    model = net_laid_out(copy.deepcopy(workload.model))

    def run(*inputs: Tensor) -> Tensor:
        logits: Tensor = model(*map(laid_out, inputs))
        return logits

    execution = eager_execution("tf32" if on_gpu else "fp32", "NHWC")
    return Runner(run, f"fp32{' with TF32' if on_gpu else ''}, channels_last", execution, module=model)
