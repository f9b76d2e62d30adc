"""The network rewritten for the project's kernels in fp16, the rest compiled by Inductor, as one CUDA graph."""

from pipeline.compiler import driver
from pipeline.compiler.candidate import Search
from pipeline.compiler.errors import CompileError
from pipeline.compiler.half import KeepFp32, named_modules
from pipeline.stages.api import Runner, Skip, StageError, Workload
from pipeline.stages.common.compiled import request_of, runner_of


def build(
    workload: Workload,
    *,
    tuning_folder: str | None = None,
    inductor_search: Search = "auto",
    keep_fp32: KeepFp32 = "auto",
) -> Runner:
    """Export, rewrite, measure each layer's candidates, compile the rest, capture.

    Args:
        workload: gives the network and its images.
        tuning_folder: keeps what was measured, for the next build; null is ~/.cache/unet-ladder.
        inductor_search: whether Inductor also times its choices, for minutes: "always", "never", or "auto": for six at
            most, and where no candidate with the project's kernels takes less than 0.9 of the time of its defaults.
        keep_fp32: modules that stay in fp32, as in `half`.

    Raises:
        Skip: no CUDA GPU.
        StageError: the network has no module of that name.
    """
    if workload.device.type != "cuda":
        raise Skip("the project's kernels need a CUDA GPU")
    request = request_of(workload, tuning_folder, inductor_search, named_modules(keep_fp32))
    try:
        return runner_of(driver.build(request), workload)
    except CompileError as error:
        raise StageError(str(error)) from error
