"""The net rewritten for the project's kernels in fp16, what no kernel takes compiled by Inductor, as one CUDA graph."""

import torch

from pipeline.compiler.exported_net import UnsupportedError
from pipeline.devices.kinds import is_cuda
from pipeline.kernels.common.capability import supported
from pipeline.measure.torch_device import vendor
from pipeline.stages.api import Runner, Skip, Workload
from pipeline.stages.common.earlier_build import fastest_or_known, without_fp8
from pipeline.stages.common.rewritten_net import (
    Rewritten,
    beyond_kernels,
    by_inductor_alone,
    half_instead,
    owned_up,
    tuner_in,
)


def build(workload: Workload, *, tuning_folder: str | None = None) -> Runner:
    """Export, rewrite, measure each layer's candidates, compile the rest, capture.

    Args:
        workload: gives the net and its images.
        tuning_folder: keeps what was measured, for the next build; null is ~/.cache/unet-ladder.

    Raises:
        Skip: no CUDA GPU.
    """
    if not is_cuda(workload.device.type):
        raise Skip("the project's kernels need a CUDA GPU")
    return owned_up(rewritten_or_not(workload, tuning_folder), "fp16")


def rewritten_or_not(workload: Workload, tuning_folder: str | None) -> Runner:
    """The fastest form of the net; for one that can't be rewritten, all of it by Inductor, or the half net."""
    if why := beyond_kernels(workload):
        return by_inductor_alone(workload, why)
    reason = supported(torch.cuda.get_device_capability(workload.device), torch.float16, vendor())
    try:
        rewritten = Rewritten(workload, tuner_in(tuning_folder), reason)
    except UnsupportedError as error:
        return half_instead(workload, str(error))
    return fastest_or_known(rewritten, without_fp8(rewritten))
