"""Autocast with channels_last and cudnn.benchmark: what people run today, and the second baseline."""

import copy

import torch
from torch import Tensor

from pipeline.devices.kinds import is_cuda
from pipeline.stages.api import Runner, Workload
from pipeline.stages.common.precision import Dtype, allow_tf32, eager_execution, half_dtype, in_channels_last, short


def build(workload: Workload, *, dtype: Dtype = "auto", cudnn_benchmark: bool = True) -> Runner:
    """The fp32 net under autocast.

    Args:
        workload: gives the net.
        dtype: "fp16", "bf16", or "auto": fp16 on a GPU, bf16 on a CPU.
        cudnn_benchmark: let cuDNN time its algorithms for each new shape.
    """
    half, device = half_dtype(dtype, workload.device), workload.device.type
    allow_tf32(is_cuda(device))
    torch.backends.cudnn.benchmark = cudnn_benchmark
    model = in_channels_last(copy.deepcopy(workload.model))

    def run(batch: Tensor) -> Tensor:
        with torch.autocast(device, half):
            logits: Tensor = model(batch.contiguous(memory_format=torch.channels_last))
        return logits

    execution = eager_execution(short(half), "NHWC")
    return Runner(run, f"{short(half)} autocast, channels_last", execution, module=model)
