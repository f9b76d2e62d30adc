"""The net rewritten for the project's kernels in fp16, what no kernel takes compiled by Inductor, as one CUDA graph."""

from collections.abc import Sequence

import torch

from pipeline.compiler.autotune import Tuner
from pipeline.compiler.half import KeepFp32, named_modules
from pipeline.devices.kinds import is_cuda
from pipeline.kernels.common.capability import supported
from pipeline.measure.torch_device import vendor
from pipeline.stages.api import Runner, Skip, Workload
from pipeline.stages.common.earlier_build import fastest_or_known, without_fp8
from pipeline.stages.common.inductor_search import Search
from pipeline.stages.common.net_candidate import tuner_in
from pipeline.stages.common.rewritten_net import best_form
from pipeline.stages.common.what_ran import owned_up, with_kept


def build(
    workload: Workload,
    *,
    tuning_folder: str | None = None,
    inductor_search: Search = "auto",
    keep_fp32: KeepFp32 = "auto",
) -> Runner:
    """Export, rewrite, measure each layer's candidates, compile the rest, capture.

    Args:
        workload: gives the net and its images.
        tuning_folder: keeps what was measured, for the next build; null is ~/.cache/unet-ladder.
        inductor_search: whether Inductor also times its choices, for minutes: "auto", for six at most and where the
            project's kernels don't take less than 0.9 of what it takes by its defaults, "always" or "never".
        keep_fp32: modules that stay in fp32, as of `half`.

    Raises:
        Skip: no CUDA GPU.
        StageError: the net has no module of that name.
    """
    if not is_cuda(workload.device.type):
        raise Skip("the project's kernels need a CUDA GPU")
    kept = named_modules(keep_fp32)
    runner = rewritten_or_not(workload, tuner_in(tuning_folder), inductor_search, kept)
    return owned_up(with_kept(runner, workload.model, kept), "fp16")


def rewritten_or_not(workload: Workload, tuner: Tuner, search: Search, kept: Sequence[str] = ()) -> Runner:
    """The fastest form of the net; for one that can't be rewritten, all of it by Inductor.

    On a GPU that no kernel runs on, up-samplings are composed by the library, beside all of it by Inductor.
    """

    def barred() -> str | None:
        return supported(torch.cuda.get_device_capability(workload.device), torch.float16, vendor())

    return best_form(workload, tuner, search, kept, barred, lambda net: fastest_or_known(net, without_fp8(net)))
