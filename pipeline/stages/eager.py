"""fp32 without TF32, contiguous: the reference of every check, and the baseline on a CPU."""

import torch

from pipeline.compiler.network_calls import allow_tf32
from pipeline.stages.api import Runner, Workload
from pipeline.stages.common.network_forms import eager_execution


def build(workload: Workload) -> Runner:
    """Run the network unchanged."""
    allow_tf32(False)
    torch.backends.cudnn.benchmark = False
    return Runner(workload.model, "fp32, TF32 off, contiguous", eager_execution("fp32", "NCHW"), module=workload.model)
