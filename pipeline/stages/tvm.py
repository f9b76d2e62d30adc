"""Apache TVM: the exported network in Relax, compiled by LLVM, with a plain schedule for CPUs or a searched one."""

import os
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from pipeline.compiler.half import half_net
from pipeline.compiler.network_calls import exported_program
from pipeline.records.run_record import CompileFacts, Execution
from pipeline.stages.api import Runner, Skip, Workload, images_alone, library, no_traffic
from pipeline.stages.common.network_forms import checked_form, taken_by

EXTRA = "tvm"
ARTEFACT = "tvm.so"
LANES = 16  # pixels of a row that are computed at once: fp32 in an AVX-512 register


def build(workload: Workload, *, trials: int = 0) -> Runner:
    """Export, import into Relax, schedule, compile for this CPU, load the library that was written."""
    if workload.device.type != "cpu":
        raise Skip("PyPI's wheel of apache-tvm is built without CUDA; device=cpu runs it")
    images_alone(workload, "TVM")
    os.environ["TVM_NUM_THREADS"] = str(torch.get_num_threads())
    tvm, relax = library("tvm", EXTRA), library("tvm.relax", EXTRA)
    library("tvm.relax.frontend.torch", EXTRA)
    cpu = str(tvm.get_global_func("target.llvm_get_system_cpu")())
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": torch.get_num_threads()})
    path = workload.folder / ARTEFACT
    workload.folder.mkdir(parents=True, exist_ok=True)
    with taken_by("TVM"), target:
        tvm.compile(lowered(tvm, relax, workload, target, trials), target=target).export_library(str(path))
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())

    def run(batch: Tensor) -> Tensor:  # on torch's memory
        return from_dlpack(machine["main"](tvm.runtime.from_dlpack(batch)))

    how = f"{trials} trials of MetaSchedule" if trials else "rows in parallel, 16 pixels at a time"
    return Runner(
        checked_form(run, workload, "TVM", torch.float32),
        description=f"TVM {tvm.__version__}, LLVM for {cpu}, fp32, {how}",
        execution=Execution("fp32", {}, "NCHW", "TVM", captured=False, fuses=True),
        details={"target": str(target)},
        compile_facts=lambda: CompileFacts(candidates_measured=trials),
        save=lambda _: [path],
        traffic=no_traffic,
    )


def lowered(tvm: ModuleType, relax: ModuleType, workload: Workload, target: object, trials: int) -> object:
    """Lower the network to scheduled programs, for batches of this shape alone."""
    model = half_net(workload.model, torch.float32, workload.inputs[0], layout="NCHW")
    with torch.inference_mode(False), torch.no_grad():
        program = exported_program(model, (workload.batches[0],))
        net = relax.frontend.torch.from_exported_program(program, unwrap_unit_return_tuple=True)
    if trials:
        workload.progress(f"{trials} trials")
        settings = {"total_trials": trials, "target": target, "work_dir": str(workload.caches / "tvm")}
        return relax.get_pipeline("static_shape_tuning", **settings)(net)
    steps = relax.transform
    passes = [
        steps.DecomposeOpsForInference(), steps.LegalizeOps(), steps.AnnotateTIROpPattern(), steps.FoldConstant(),
        steps.FuseOps(), steps.FuseTIR(),
    ]  # fmt: skip
    return scheduled(tvm, tvm.transform.Sequential(passes)(net))


def scheduled(tvm: ModuleType, module: Any) -> object:
    """Schedule each loop nest: rows in parallel, sums outside the pixels of a row, `LANES` pixels at a time."""
    # Left as TVM lowers them, the loops run on one core, pixel by pixel.
    schedule = library("tvm.s_tir", EXTRA).Schedule(module)
    for variable, function in module.functions_items():
        if not isinstance(function, tvm.tirx.PrimFunc):
            continue
        for block in schedule.get_child_blocks(schedule.get_sblock("root", variable.name_hint)):
            loops = schedule.get_loops(block)
            kinds = [int(axis.iter_type) for axis in schedule.get(block).iter_vars]
            spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == 0]
            sums = [loop for loop, kind in zip(loops, kinds, strict=True) if kind != 0]
            if len(spatial) < 2:
                continue
            *outer, pixels = spatial
            if sums:
                schedule.reorder(*outer, *sums, pixels)
            _, lanes = schedule.split(pixels, [None, LANES])
            schedule.vectorize(lanes)
            schedule.parallel(schedule.fuse(*outer))
            if sums:
                schedule.decompose_reduction(block, sums[0])
    return schedule.mod
