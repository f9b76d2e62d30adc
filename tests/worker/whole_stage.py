"""A stage in half precision that is one piece, as a compiled one is: nobody sees its modules."""

import torch
from torch import Tensor

from pipeline.compiler.half import KeepFp32, named_modules
from pipeline.records.run_record import Execution, Precision
from pipeline.stages.api import Runner, Workload
from pipeline.stages.common.precision import half_net


def build(
    workload: Workload, *, says: Precision, keep_fp32: KeepFp32 = "auto", keeps: bool = True, factor: float = 1.0
) -> Runner:
    """The half net, whatever precision it `says` it has; it answers so many times too much."""
    kept = named_modules(keep_fp32)
    net = half_net(workload, torch.float16, kept)

    def run(*inputs: Tensor) -> Tensor:
        return net(*inputs) * factor

    how = Execution(says, layout="NHWC", provider="of a test", captured=False, fuses=True)
    return Runner(run, "in one piece", how, {"kept_in_fp32": kept} if keeps else {}, steps_aside=True)
