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
from pipeline.stages import Runner
from pipeline.stages.common.graph_capture import Captured
from pipeline.stages.common.precision import Half, allow_tf32
from pipeline.worker.workload import Workload

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
    return Runner(run, description=f"fp16 half net in one CUDA graph: {why}", details={"not_rewritten": why})


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


def runner(workload: Workload, program: Program, details: dict[str, Any], reason: str | None, precision: str) -> Runner:
    """The captured program; or the captured half net, where much is left to ATen and that is faster."""
    torch.cuda.empty_cache()  # the weights of the programs that were tried
    run = Captured(program, workload.batches[0])
    left = sorted({node.op for node in program.graph.nodes if node.op not in BY_NAME and node.op not in BORDERS})
    ours = sum(choice != Backend.LIBRARY for choice in program.choices.values())
    barred = reason or missing()
    details |= {"choices": describe(program.choices), "left_to_torch": left, "kernels_barred": barred or ""}
    description = (
        f"{precision}, {ours} layers by own kernels, {len(program.choices) - ours} by the library, one CUDA graph"
    )
    description += f"; the fastest kernels are barred: {barred}" if barred else ""
    if left and (faster := faster_half(workload, run)):
        description = (
            f"fp16 half net in one CUDA graph: the rewritten net, with {ours} layers by own kernels, was slower"
        )
        return Runner(faster, description=description, details=details)
    return Runner(
        run,
        description=description,
        details=details,
        save=lambda folder: save(program, folder / "net"),
        uncaptured=program,
        traffic=lambda image: (program.moved(image), "what each operation of the rewritten graph reads and writes"),
    )


def faster_half(workload: Workload, ours: Captured) -> Captured | None:
    """The half net's own graph, where it takes less time than the rewritten one's."""
    half = Captured(Half(workload.model, torch.float16).eval(), workload.batches[0])
    faster = captured_ms(half.graph, REPLAYS) < captured_ms(ours.graph, REPLAYS)
    return half if faster else None
