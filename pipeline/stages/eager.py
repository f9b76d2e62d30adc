"""fp32 without TF32, contiguous: the baseline of every ratio and the reference of every check."""

import torch

from pipeline.stages import Runner
from pipeline.stages.common.precision import allow_tf32
from pipeline.worker.workload import Workload


def build(workload: Workload) -> Runner:
    """The net as it is."""
    allow_tf32(False)
    torch.backends.cudnn.benchmark = False
    return Runner(workload.model, description="fp32, TF32 off, contiguous", module=workload.model)
