"""One way to run a whole net, compiled and captured, as `fused` and `fp8` compare them."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._inductor.async_compile import shutdown_compile_workers

from pipeline.compiler.autotune import HOME, Tuner
from pipeline.compiler.capture import Captured
from pipeline.compiler.custom_ops import layout
from pipeline.compiler.half import CAST_OWN_VALUES
from pipeline.compiler.lowering import Plan
from pipeline.compiler.network_calls import allow_tf32
from pipeline.measure.fingerprint import held_by
from pipeline.records.error_line import typed_line
from pipeline.records.run_record import INDUCTOR, Execution, Order
from pipeline.records.run_record import Precision as PrecisionName
from pipeline.records.samples import Calibration
from pipeline.stages.common.inductor import Mode, compile_counting_bytes
from pipeline.stages.common.time_limit import TooLongError, within

QUOTED_CHARACTERS = 200  # of a compiler's error


@dataclass
class Candidate:
    """One way to run the net, compiled and captured.

    Attributes:
        name: for the record.
        captured: its CUDA graph.
        execution: its properties.
        call: the same, kernel by kernel.
        moved_bytes: through the GPU's memory in a call, by Inductor's own count.
        lowered: the graph with the kernels' operations; None where there are none.
        plan: how it was lowered.
        details: what the record keeps of how it came about.
        calibration: the images that it was chosen on.
        left_out: batches that it must not be judged on, by their number among the evaluation batches.
    """

    name: str
    captured: Captured
    execution: Execution
    call: Callable[..., Tensor]
    moved_bytes: int
    lowered: fx.GraphModule | None = None
    plan: Plan = field(default_factory=Plan)
    details: dict[str, Any] = field(default_factory=dict)
    calibration: Calibration | None = None
    left_out: tuple[int, ...] = ()


def switch_on_the_library() -> None:
    """CuDNN may time its algorithms, and round what is left in fp32 to TF32."""
    allow_tf32(True)
    torch.backends.cudnn.benchmark = True


def tuner_in(folder: str | None) -> Tuner:
    """A tuner that keeps what it measures in a folder; without one, where all builds of this user do."""
    return Tuner(Path(folder) if folder else HOME)


def execution(
    precision: PrecisionName, ours: int, layers: dict[str, PrecisionName] | None = None, order: Order = "NHWC"
) -> Execution:
    """How a candidate runs, `ours` of its layers by own kernels and `layers` in other precisions."""
    provider = "own kernels" if ours else INDUCTOR
    return Execution(precision, layers or {}, order, provider, captured=True, fuses=True, own_kernels=ours)


def captured(
    name: str,
    module: nn.Module,
    how: Execution,
    *inputs: Tensor,
    mode: Mode = "default",
    most_seconds: float | None = None,
) -> Candidate:
    """A candidate, compiled for inputs of any shape, these, in a mode of torch.compile, and captured.

    Raises:
        TooLongError: it took more than `most_seconds` to compile.
    """
    with torch.inference_mode():
        try:
            call, moved = within(most_seconds, partial(compile_counting_bytes, module, *inputs, mode=mode))
        except TooLongError:
            shutdown_compile_workers()  # what they still compile would be timed beside the other candidates
            raise
        return Candidate(name, Captured(call, *inputs), how, call, moved)


def quoted(error: Exception) -> str:
    """A compiler's error in a short line."""
    return typed_line(error)[:QUOTED_CHARACTERS]


def net_digest(structure: str, net: nn.Module, inputs: Iterable[Tensor], others: Iterable[str]) -> str:
    """SHA-256 of a net's structure, of its weights' shapes and types those of inputs of any shape, and texts."""
    shapes = [f"{name} {layout(value)}" for name, value in held_by(net).items()]
    text = "\n".join([structure, *shapes, *map(layout, inputs), *others])
    return hashlib.sha256(text.encode()).hexdigest()


def described(best: Candidate, barred: str, refused: Mapping[str, str], *, casts: bool = False) -> str:
    """What runs, in a line, and what could not: candidates that were refused, layers whose kernel failed.

    Args:
        best: what runs.
        barred: why kernels are.
        refused: candidates, and why.
        casts: whether the net's own fp32 values are cast.
    """
    ours = best.execution.own_kernels or 0
    precision = best.execution.precision
    text = f"{precision}, {ours} layers by own kernels, the rest by Inductor, one CUDA graph"
    if not ours:
        text = f"{precision}, all by {best.name}, one CUDA graph"
    parts = [text, *([CAST_OWN_VALUES] if casts else []), *([f"kernels are barred: {barred}"] if barred else [])]
    parts += [f"{name} was refused: {why}" for name, why in refused.items()]
    if best.plan.failed:
        layer, why = next(iter(best.plan.failed.items()))
        parts.append(f"by the library as the kernel failed: {len(best.plan.failed)}, such as {layer} ({why})")
    return "; ".join(parts)
