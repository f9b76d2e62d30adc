"""Autocast with channels_last and cudnn.benchmark: common practice today, and the baseline on a GPU."""

import copy

import torch
from torch import Tensor

from pipeline.compiler.batch import IN_WORDS, laid_out, net_laid_out
from pipeline.compiler.half import SHORT, Cast, in_other_ways
from pipeline.compiler.network_calls import allow_tf32, refuses
from pipeline.stages.api import Runner, Workload
from pipeline.stages.common.network_forms import Dtype, eager_execution, half_dtype, why_fp32


def build(workload: Workload, *, dtype: Dtype = "auto", cudnn_benchmark: bool = True) -> Runner:
    """Run the fp32 network under autocast."""
    half = half_dtype(dtype, workload.device)
    allow_tf32(workload.device.type == "cuda")
    torch.backends.cudnn.benchmark = cudnn_benchmark
    run = Autocast(workload, half)
    execution, fp32 = eager_execution(SHORT[half], run.layout), why_fp32(half)
    ran = "no autocast: fp32" if fp32 else f"{SHORT[half]} autocast"
    description = f"{ran}, {IN_WORDS[run.layout]}{run.and_casts}"
    return Runner(run, description, execution, dict(fp32), module=run.net)


class Autocast(Cast):
    """A copy of the network in fp32, called under autocast; what fails in half precision there runs in fp32."""

    def __init__(self, workload: Workload, half: torch.dtype) -> None:
        super().__init__()
        self.dtype, self.layout = half, workload.layout_choice.take()
        self.net = net_laid_out(copy.deepcopy(workload.model), self.layout)
        inputs = workload.inputs[0]
        if half != torch.float32 and refuses(self, inputs, finite=half == torch.float16):
            self.casts = in_other_ways(self, self.net, half, inputs, finite=not refuses(self, inputs))

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return logits [batch, classes, height, width] of a network's inputs."""
        with torch.autocast(inputs[0].device.type, self.dtype, enabled=self.dtype != torch.float32):
            logits: Tensor = self.net(*[laid_out(part, self.layout) for part in inputs])
        return logits
