"""A net rewritten for the project's kernels, as `fused` and `fp8` build it, and the half net in its place."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.compiler.artifact import save
from pipeline.compiler.autotune import HOME, Tuner
from pipeline.compiler.choose import choose, describe, with_choices
from pipeline.compiler.graph import Graph
from pipeline.compiler.kernel_layer import Backend
from pipeline.compiler.lowering import Program
from pipeline.compiler.ops import BY_NAME
from pipeline.compiler.passes import rewrite
from pipeline.compiler.torch_export import trace
from pipeline.kernels.common.tma import missing
from pipeline.measure.timers import captured_ms
from pipeline.records.run_record import CompileFacts, Execution
from pipeline.records.run_record import Precision as PrecisionName
from pipeline.stages.api import Runner, Workload
from pipeline.stages.common.graph_capture import Captured
from pipeline.stages.common.precision import Half, allow_tf32, eager_execution

BORDERS = {"aten.pad.default", "aten.slice.Tensor", "joined"}  # that cost next to nothing and need no kernel
REPLAYS = 20  # of each net's graph, where the half net might be faster


def switch_on_the_library() -> None:
    """CuDNN may time its algorithms, and round what is left in fp32 to TF32."""
    allow_tf32(True)
    torch.backends.cudnn.benchmark = True


def rewritten(workload: Workload) -> tuple[Graph, dict[str, list[str]]]:
    """The net's graph after all passes, and what each matched.

    Raises:
        UnsupportedError: the net can't be rewritten.
    """
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


def tuner_in(folder: str | None) -> Tuner:
    """A tuner that keeps what it measures in a folder; without one, where all builds of this user do."""
    return Tuner(Path(folder) if folder else HOME)


def tuned(program: Program, image: Tensor, tuner: Tuner, reason: str | None) -> Program:
    """The program with each operation's fastest way of running.

    Args:
        program: made without choices.
        image: a batch [batch, channels, height, width].
        tuner: measures.
        reason: why no kernel runs on this GPU: the library runs all; None where they do.

    Raises:
        NothingRunsError: an operation has no candidate that runs and is right.
    """
    with torch.inference_mode():
        if reason:
            return with_choices(program, dict.fromkeys(program.layers, Backend.LIBRARY))
        return with_choices(program, choose(program, image, tuner))


def executed(program: Program, precision: PrecisionName, kept: list[str] | None = None) -> Execution:
    """How the program runs; the layers of `kept` stay in fp16."""
    ours = sum(choice != Backend.LIBRARY for choice in program.choices.values())
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
    """The captured program; or the captured half net, where much is left to ATen and that is faster.

    Args:
        workload: gives the net, for the half net.
        program: tuned.
        details: what the record keeps of how the program came about; added to.
        reason: why no kernel runs on this GPU; None where they do.
        precision: of the program, in words.
        execution: of the program.
        measured: how many candidates were timed for it.
    """
    torch.cuda.empty_cache()  # the weights of the programs that were tried
    run = Captured(program, workload.batches[0])
    left = sorted({node.op for node in program.graph.nodes if node.op not in BY_NAME and node.op not in BORDERS})
    ours, facts = execution.own_kernels, CompileFacts(candidates_measured=measured)
    barred = reason or missing()
    details |= {"choices": describe(program.choices), "left_to_torch": left, "kernels_barred": barred or ""}
    if left and (faster := faster_half(workload, run)):
        text = f"fp16 half net in one CUDA graph: the rewritten net, with {ours} layers by own kernels, was slower"
        half = eager_execution("fp16", "NHWC", captured=True)
        return Runner(faster, text, half, details, compile_facts=lambda: facts)
    return Runner(
        run,
        description=described(program, precision, ours, barred),
        execution=execution,
        details=details,
        compile_facts=lambda: facts,
        save=lambda folder: save(program, folder / "net"),
        uncaptured=program,
        traffic=lambda image: (program.moved(image), "rewritten graph"),
    )


def described(program: Program, precision: str, ours: int, barred: str | None) -> str:
    """What runs, in a line: `ours` of the program's layers by own kernels."""
    by_library = len(program.choices) - ours
    text = f"{precision}, {ours} layers by own kernels, {by_library} by the library, one CUDA graph"
    return text + (f"; the fastest kernels are barred: {barred}" if barred else "")


def faster_half(workload: Workload, ours: Captured) -> Captured | None:
    """The half net's own graph, where it takes less time than the rewritten one's."""
    half = Captured(Half(workload.model, torch.float16).eval(), workload.batches[0])
    faster = captured_ms(half.graph, REPLAYS) < captured_ms(ours.graph, REPLAYS)
    return half if faster else None
