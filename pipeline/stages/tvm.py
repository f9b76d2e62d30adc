"""Apache TVM: the exported net in Relax, compiled by LLVM; its schedules tuned where trials are asked for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.records.error_line import first_line
from pipeline.records.run_record import CompileFacts, Execution
from pipeline.stages.api import Runner, Skip, StageError, Workload, no_traffic
from pipeline.stages.common.optional_library import library
from pipeline.stages.common.precision import AsItLies

EXTRA = "tvm"
ARTEFACT = "tvm.so"


def build(workload: Workload, *, trials: int = 0) -> Runner:
    """Export, import into Relax, tune, compile for this CPU, load the library that was written.

    Args:
        workload: gives the net, and the folder for the library.
        trials: programs that TVM's MetaSchedule may measure; 0 takes TVM's default schedules, which nobody tuned.

    Raises:
        Skip: not on a CPU, as the wheel of PyPI is built without CUDA, or no TVM.
        StageError: TVM can't take the net.
    """
    if workload.device.type != "cpu":
        raise Skip("PyPI's wheel of apache-tvm is built without CUDA; device=cpu runs it")
    tvm, relax = library("tvm", EXTRA), library("tvm.relax", EXTRA)
    library("tvm.relax.frontend.torch", EXTRA)
    threads = torch.get_num_threads()
    target = tvm.target.Target({"kind": "llvm", "mcpu": host_cpu(tvm), "num-cores": threads})
    workload.folder.mkdir(parents=True, exist_ok=True)
    try:
        library_file = compiled(tvm, relax, workload, target, trials)
    except Exception as error:  # TVM raises many kinds, for an operator that it lacks as well
        raise StageError(f"TVM can't take the net: {first_line(error)}", "unsupported") from error
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(library_file)), tvm.cpu())
    how = f"{trials} trials of MetaSchedule" if trials else "default schedules, untuned"
    return Runner(
        called(tvm, machine["main"]),
        description=f"TVM {tvm.__version__}, LLVM for {target.attrs['mcpu']}, fp32, {how}",
        execution=Execution("fp32", {}, "NCHW", "TVM", captured=False, fuses=True),
        details={"target": str(target)},
        compile_facts=lambda: CompileFacts(candidates_measured=trials),
        save=lambda folder: [folder / ARTEFACT] if (folder / ARTEFACT).exists() else [],
        traffic=no_traffic,
    )


def host_cpu(tvm: Any) -> str:
    """The processor by LLVM's name."""
    return str(tvm.get_global_func("target.llvm_get_system_cpu")())


def compiled(tvm: Any, relax: Any, workload: Workload, target: Any, trials: int) -> Path:
    """The net as a library in the stage's folder, for batches of this shape alone."""
    model, path = AsItLies(workload.model, torch.float32).eval(), workload.folder / ARTEFACT
    with torch.inference_mode(False), torch.no_grad():
        program = torch.export.export(model, (workload.batches[0].clone(),))
        net = relax.frontend.torch.from_exported_program(program, unwrap_unit_return_tuple=True)
    workload.progress(f"{trials} trials" if trials else "default schedules")
    with target:
        if trials:
            settings = {"total_trials": trials, "target": target, "work_dir": str(workload.caches / "tvm")}
            net = relax.get_pipeline("static_shape_tuning", **settings)(net)
        tvm.compile(net, target=target).export_library(str(path))
    return path


def called(tvm: Any, main: Any) -> Callable[[Tensor], Tensor]:
    """A call of the compiled net on torch's memory: from [batch, channels, height, width] to [batch, classes, H, W]."""

    def run(batch: Tensor) -> Tensor:
        return torch.from_dlpack(main(tvm.runtime.from_dlpack(batch)))

    return run
