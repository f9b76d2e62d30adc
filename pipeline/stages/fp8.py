"""The network rewritten for the project's kernels in fp8 (e4m3): values stay in fp8 wherever a kernel reads them."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from pipeline.compiler import fp8_build
from pipeline.compiler.agreement import Budget
from pipeline.compiler.batch import Batch
from pipeline.compiler.candidate import Search
from pipeline.compiler.errors import CompileError
from pipeline.compiler.fp8_build import Fp8, UnsupportedDeviceError
from pipeline.stages.api import CalibrationImages, Runner, Skip, StageError, Workload
from pipeline.stages.common.compiled import request_of, runner_of
from pipeline.stages.common.ends import stage_ends
from pipeline.stages.common.fewer_bits import calibration, images_given
from pipeline.stages.common.network_forms import KeepFp32


def build(  # noqa: PLR0913 - the options of conf/stage
    workload: Workload, *, calibration_images: int = 32, keep_fp16: str | list[str] = "auto", budget: float = 7e-4,
    error_budget: float = 5e-2, tuning_folder: str | None = None, inductor_search: Search = "auto",
    keep_fp32: KeepFp32 = "auto", uint8_in: bool = False, classes_out: bool = False,
) -> Runner:  # fmt: skip
    """Export, rewrite, calibrate, decide what stays in fp16, measure each layer's candidates, capture."""
    if workload.device.type != "cuda":
        raise Skip("the project's fp8 kernels need a CUDA GPU")
    allowed = Budget(budget, error_budget).of_answers(workload.has_masks)
    ends = stage_ends(workload, uint8_in, classes_out)
    request = request_of(workload, tuning_folder, inductor_search, keep_fp32)

    @cache
    def images() -> CalibrationImages:
        return images_given(workload, calibration_images)

    def batches() -> Sequence[Batch]:
        return images().batches

    try:
        built, chosen_by = fp8_build.build(request, Fp8(batches, allowed, keep_fp16))
        runner = runner_of(built, workload, ends)
    except UnsupportedDeviceError as error:
        raise Skip(str(error)) from error
    except CompileError as error:
        raise StageError(str(error)) from error
    if chosen_by is None:
        return runner
    used = calibration(images(), chosen_by.for_scales, chose=chosen_by.chose, kept=chosen_by.kept)
    return replace(runner, calibration=used, left_out=images().left_out)
