"""The eager network with TF32 allowed: the tensor cores take fp32 inputs, rounded to 10 bits of mantissa."""

import torch

from pipeline.compiler.network_calls import allow_tf32
from pipeline.measure.torch_device import has_compute
from pipeline.stages.api import Runner, Skip, Workload
from pipeline.stages.common.network_forms import eager_execution


def build(workload: Workload) -> Runner:
    """Run the network unchanged, with the process's TF32 switches on."""
    if workload.device.type == "cuda" and not has_compute(workload.device, (8, 0)):
        raise Skip(f"TF32 needs compute capability 8.0, {torch.cuda.get_device_name()} has less")
    allow_tf32(True)
    execution = eager_execution("tf32" if workload.device.type == "cuda" else "fp32", "NCHW")
    return Runner(workload.model, "fp32 with TF32, contiguous", execution, module=workload.model)
