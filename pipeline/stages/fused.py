"""The net rewritten for the project's kernels in fp16, each layer by the faster of kernel and library, as one graph."""

import torch

from pipeline.compiler.graph import UnsupportedError
from pipeline.compiler.lowering import Program
from pipeline.compiler.quantize import Precision
from pipeline.devices.kinds import is_cuda
from pipeline.kernels.common.capability import supported
from pipeline.measure.torch_device import vendor
from pipeline.stages.api import Runner, Skip, Workload
from pipeline.stages.common.rewritten_net import (
    executed,
    half_instead,
    rewritten,
    runner,
    switch_on_the_library,
    tuned,
    tuner_in,
)


def build(workload: Workload, *, tuning_folder: str | None = None) -> Runner:
    """Trace, rewrite, measure each layer's candidates, capture.

    Args:
        workload: gives the net and its images.
        tuning_folder: keeps what was measured, for the next build; null is ~/.cache/unet-ladder.

    Raises:
        Skip: no CUDA GPU.
    """
    if not is_cuda(workload.device.type):
        raise Skip("the project's kernels need a CUDA GPU")
    switch_on_the_library()
    try:
        graph, passes = rewritten(workload)
        program = Program(graph, Precision(), workload.device)
    except UnsupportedError as error:
        return half_instead(workload, str(error))
    tuner = tuner_in(tuning_folder)
    reason = supported(torch.cuda.get_device_capability(workload.device), torch.float16, vendor())
    program = tuned(program, workload.batches[0], tuner, reason)
    execution = executed(program, "fp16")
    return runner(workload, program, {"passes": passes}, reason, "fp16", execution, tuner.measured)
