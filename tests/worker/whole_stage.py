"""A stage in half precision that is one piece, as a compiled one is: nobody sees its modules."""

import torch
from torch import Tensor

from pipeline.records.run_record import Execution, Precision
from pipeline.stages.api import Runner, Workload
from pipeline.stages.common.kept_fp32 import KeepFp32, named_modules
from pipeline.stages.common.precision import half_net


def build(workload: Workload, *, says: Precision, keep_fp32: KeepFp32 = "auto") -> Runner:
    """The half net, whatever precision it `says` it has."""
    net = half_net(workload, torch.float16, named_modules(keep_fp32))

    def run(*inputs: Tensor) -> Tensor:
        answer: Tensor = net(*inputs)
        return answer

    how = Execution(says, layout="NHWC", provider="of a test", captured=False, fuses=True)
    return Runner(run, "in one piece", how, steps_aside=True)
