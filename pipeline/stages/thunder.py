"""Lightning Thunder: traces the network into operations for executors, nvFuser among them if it is installed."""

import torch

from pipeline.compiler.batch import IN_WORDS
from pipeline.compiler.half import SHORT
from pipeline.compiler.network_calls import allow_tf32
from pipeline.records.run_record import Execution
from pipeline.stages.api import Runner, StageError, Workload, images_alone, library
from pipeline.stages.common.network_forms import Dtype, checked_form, half_dtype, half_net, taken_by, why_fp32


def build(workload: Workload, *, dtype: Dtype = "auto", nvfuser: bool = False) -> Runner:
    """Trace, and make the call that compiles."""
    images_alone(workload, "Thunder")
    thunder = library("thunder", "thunder")
    executors = [str(found.name) for found in thunder.get_default_executors()]  # in the order in which it asks them
    if nvfuser and "nvfuser" not in executors:
        raise StageError(
            f"stage.nvfuser=true, and Thunder has {', '.join(executors)}; nvFuser's wheels must match torch "
            f"{torch.__version__.partition('+')[0]}",
            "missing library",
        )
    half = half_dtype(dtype, workload.device)
    allow_tf32(workload.device.type == "cuda")
    torch.backends.cudnn.benchmark = True
    model = half_net(workload, half)
    compiled = thunder.jit(model)
    with taken_by("Thunder"), torch.inference_mode():
        checked_form(compiled, workload, "Thunder", model)
    fuses, said = "nvfuser" in executors, f"{SHORT[half]} weights, {IN_WORDS[model.layout]}{model.and_casts}"
    return Runner(
        compiled,
        description=f"Thunder {thunder.__version__} with {', '.join(executors)}, {said}",
        execution=Execution(SHORT[half], {}, model.layout, "Thunder", captured=False, fuses=fuses),
        details={"executors": executors, **why_fp32(half)},
        compilations=lambda: int(thunder.cache_misses(compiled)),
    )
