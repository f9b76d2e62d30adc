"""The network rewritten for the project's kernels in fp16, the rest compiled by Inductor, as one CUDA graph."""

from pipeline.compiler import driver
from pipeline.compiler.candidate import Search
from pipeline.compiler.errors import CompileError
from pipeline.stages.api import Runner, Skip, StageError, Workload
from pipeline.stages.common.compiled import request_of, runner_of
from pipeline.stages.common.ends import stage_ends
from pipeline.stages.common.network_forms import KeepFp32


def build(
    workload: Workload, *, tuning_folder: str | None = None, inductor_search: Search = "auto",
    keep_fp32: KeepFp32 = "auto", uint8_in: bool = False, classes_out: bool = False,
) -> Runner:  # fmt: skip
    """Export, rewrite, measure each layer's candidates, compile the rest, capture."""
    if workload.device.type != "cuda":
        raise Skip("the project's kernels need a CUDA GPU")
    ends = stage_ends(workload, uint8_in, classes_out)
    request = request_of(workload, tuning_folder, inductor_search, keep_fp32)
    try:
        return runner_of(driver.build(request), workload, ends)
    except CompileError as error:
        raise StageError(str(error)) from error
