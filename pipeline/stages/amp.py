"""Autocast with channels_last and cudnn.benchmark: common practice today, and the baseline on a GPU."""

import copy

import torch
from torch import Tensor

from pipeline.compiler.batch import IN_WORDS, laid_out, net_laid_out
from pipeline.compiler.half import short
from pipeline.compiler.network_calls import allow_tf32
from pipeline.stages.api import Runner, Workload
from pipeline.stages.common.precision import Dtype, eager_execution, half_dtype, why_fp32


def build(workload: Workload, *, dtype: Dtype = "auto", cudnn_benchmark: bool = True) -> Runner:
    """Run the fp32 network under autocast.

    Args:
        workload: gives the net.
        dtype: "fp16", "bf16", or "auto": fp16 on a GPU, bf16 on a CPU with units for it, else no autocast.
        cudnn_benchmark: let cuDNN time its algorithms for each new shape.
    """
    half, device = half_dtype(dtype, workload.device), workload.device.type
    allow_tf32(device == "cuda")
    torch.backends.cudnn.benchmark = cudnn_benchmark
    layout = workload.layout_choice.take()
    model = net_laid_out(copy.deepcopy(workload.model), layout)

    def run(*inputs: Tensor) -> Tensor:
        with torch.autocast(device, half, enabled=half != torch.float32):
            logits: Tensor = model(*[laid_out(part, layout) for part in inputs])
        return logits

    execution, fp32 = eager_execution(short(half), layout), why_fp32(half)
    ran = "no autocast: fp32" if fp32 else f"{short(half)} autocast"
    return Runner(run, f"{ran}, {IN_WORDS[layout]}", execution, dict(fp32), module=model)
