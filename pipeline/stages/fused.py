"""The net rewritten for the project's kernels in fp16, each layer by the faster of kernel and library, as one graph."""

import gc
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.deploy.fused import save
from pipeline.kernels.capability import supported
from pipeline.kernels.gluon_boxes import missing
from pipeline.kernels.tuning import HOME, Tuner
from pipeline.records.run_record import CompileFacts, Execution
from pipeline.records.run_record import Precision as PrecisionName
from pipeline.rewrites import rewrite
from pipeline.rewrites.choose import choose, describe, milliseconds, with_choices
from pipeline.rewrites.graph import Graph, UnsupportedError, trace
from pipeline.rewrites.layers import LIBRARY
from pipeline.rewrites.precision import Precision
from pipeline.rewrites.program import OURS, Program
from pipeline.stages.api import Runner, Skip, Workload
from pipeline.stages.common.precision import Half, allow_tf32, eager_execution
from pipeline.stages.cuda_graph import Captured

BORDERS = {"aten.pad.default", "aten.slice.Tensor", "joined"}  # that cost next to nothing and need no kernel


def build(workload: Workload, *, tuning_folder: str | None = None) -> Runner:
    """Trace, rewrite, measure each layer's candidates, capture.

    Args:
        workload: gives the net and its images.
        tuning_folder: keeps what was measured, for the next build; null is ~/.cache/unet-ladder.

    Raises:
        Skip: no CUDA GPU.
    """
    if workload.device.type != "cuda":
        raise Skip("the project's kernels need a CUDA GPU")
    switch_on_the_library()
    try:
        graph, passes = rewritten(workload)
    except UnsupportedError as error:
        return half_instead(workload, str(error))
    tuner = Tuner(Path(tuning_folder) if tuning_folder else HOME)
    reason = supported(torch.cuda.get_device_capability(workload.device), torch.float16)
    program = tuned(Program(graph, Precision(), workload.device, {}), workload.batches[0], tuner, reason)
    return runner(workload, program, {"passes": passes}, reason, "fp16", executed(program, "fp16"), tuner.measured)


def switch_on_the_library() -> None:
    """CuDNN may time its algorithms, and round what is left in fp32 to TF32."""
    allow_tf32(True)
    torch.backends.cudnn.benchmark = True


def rewritten(workload: Workload) -> tuple[Graph, dict[str, list[str]]]:
    """The net's graph after all passes, and what each matched."""
    with torch.no_grad():
        graph = trace(workload.model, workload.batches[0])
        passes = rewrite(graph)
    graph.tensors = {name: tensor.cpu() for name, tensor in graph.tensors.items()}  # each program takes what it needs
    return graph, passes


def half_instead(workload: Workload, why: str) -> Runner:
    """The half net, for a net that can't be rewritten."""
    run = Captured(Half(workload.model, torch.float16).eval(), workload.batches[0])
    execution = eager_execution("fp16", "NHWC", captured=True)
    return Runner(run, f"fp16 half net in one CUDA graph: {why}", execution, {"not_rewritten": why})


def tuned(program: Program, image: Tensor, tuner: Tuner, reason: str | None) -> Program:
    """The program with each operation's fastest way of running; the library's alone where `reason` bars the kernels."""
    with torch.inference_mode():
        if reason:
            return with_choices(program, dict.fromkeys(program.layers, LIBRARY))
        return with_choices(program, choose(program, image, tuner))


def executed(program: Program, precision: PrecisionName, kept: list[str] | None = None) -> Execution:
    """How the program runs; the layers of `kept` stay in fp16."""
    ours = sum(choice != LIBRARY for choice in program.choices.values())
    layers: dict[str, PrecisionName] = dict.fromkeys(kept or [], "fp16")
    return Execution(precision, layers, "NHWC", "own kernels", captured=True, fuses=True, own_kernels=ours)


def runner(
    workload: Workload,
    program: Program,
    details: dict[str, Any],
    reason: str | None,
    precision: str,
    execution: Execution,
    measured: int,
) -> Runner:
    """The captured program; or the captured half net, where much is left to ATen and that is faster."""
    free_what_was_tried()
    run = Captured(program, workload.batches[0])
    left = sorted({node.op for node in program.graph.nodes if node.op not in OURS | BORDERS})
    ours, facts = execution.own_kernels, CompileFacts(candidates_measured=measured)
    barred = reason or missing()
    details |= {"choices": describe(program.choices), "left_to_torch": left, "kernels_barred": barred or ""}
    ran = f"{precision}, {ours} layers by own kernels, {len(program.choices) - ours} by the library, one CUDA graph"
    ran += f"; the fastest kernels are barred: {barred}" if barred else ""
    if left and (faster := faster_half(workload, run)):
        ran = f"fp16 half net in one CUDA graph: of its operations too few match a rewrite ({ours} by own kernels lost)"
        half = eager_execution("fp16", "NHWC", captured=True)
        return Runner(faster, ran, half, details, compile_facts=lambda: facts)
    return Runner(
        run,
        description=ran,
        details=details,
        save=lambda folder: save(program, folder / "net"),
        uncaptured=program,
        traffic=lambda image: (program.moved(image), "rewritten graph"),
        execution=execution,
        compile_facts=lambda: facts,
    )


def free_what_was_tried() -> None:
    """Programs hold themselves through their steps, so that only a collection frees the weights of those tried."""
    gc.collect()
    torch.cuda.empty_cache()


def faster_half(workload: Workload, ours: Captured) -> Captured | None:
    """The half net's own graph, where it takes less time than the rewritten one's."""
    half = Captured(Half(workload.model, torch.float16).eval(), workload.batches[0])
    best = {run: min(milliseconds(run.graph.replay) for _ in range(3)) for run in (half, ours)}
    return half if best[half] < best[ours] else None
