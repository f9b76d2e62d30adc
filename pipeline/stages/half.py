"""Weights and activations in half precision, batch norm folded into the convolutions, channels_last."""

import torch

from pipeline.devices.kinds import is_cuda
from pipeline.stages.api import Runner, Workload
from pipeline.stages.common.precision import Dtype, Half, allow_tf32, eager_execution, half_dtype, short, why_fp32


def build(workload: Workload, *, dtype: Dtype = "auto", cudnn_benchmark: bool = True) -> Runner:
    """The net in half precision, eager.

    Args:
        workload: gives the net.
        dtype: "fp16", "bf16", or "auto": fp16 on a GPU, bf16 on a CPU with units for it, else fp32.
        cudnn_benchmark: let cuDNN time its algorithms for each new shape.
    """
    half = half_dtype(dtype, workload.device)
    allow_tf32(is_cuda(workload.device.type))
    torch.backends.cudnn.benchmark = cudnn_benchmark
    model = Half(workload.model, half).eval()
    ran = f"{short(half)} weights, channels_last, {model.folds} batch norms folded"
    execution = eager_execution(short(half), "NHWC")
    return Runner(model, ran, execution, {"folded_batch_norms": model.folds, **why_fp32(half)}, module=model.net)
