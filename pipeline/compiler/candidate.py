"""One way to run a whole network, compiled and captured, and the end of work that takes too long."""

import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, fx, nn
from torch._inductor.async_compile import shutdown_compile_workers

from pipeline.compiler.batch import Order
from pipeline.compiler.cuda_graphs import Captured
from pipeline.compiler.graph.lowering import Plan
from pipeline.compiler.half import CAST_OWN_VALUES, Precision
from pipeline.compiler.inductor import Mode, compile_counting_bytes

Provider = Literal["own kernels", "Inductor", "PyTorch eager"]

# Whether Inductor also times its own choices (max-autotune).
Search = Literal["auto", "always", "never"]
INDUCTOR, SEARCHED = "Inductor", "Inductor that times its choices"
MODES: dict[str, Mode] = {INDUCTOR: "default", SEARCHED: "max-autotune-no-cudagraphs"}

Made = TypeVar("Made")
AGAIN = 1.0  # seconds until the alarm rings again, where a compiler took it for an error of its own


@dataclass(frozen=True)
class Properties:
    """Properties of a compiled network."""

    precision: Precision  # of the inputs to most FLOPs of convolutions and matrix products
    layer_precision: dict[str, Precision] = field(default_factory=dict)  # of layers where it differs, by their paths
    layout: Order = "NHWC"  # of the maps that convolutions read
    provider: Provider = "Inductor"  # of most kernels
    captured: bool = True  # whether a call replays a CUDA graph
    fuses: bool = True  # whether anything does several operators in one pass over memory
    own_kernels: int = 0  # how many layers run by kernels of this library
    layer_flops: dict[str, float] = field(default_factory=dict)  # an image, of layers that multiply less
    instead: str = ""  # what runs in place of own kernels in the wanted precision, and why


@dataclass
class Candidate:
    """One way to run the network, compiled and captured."""

    name: str  # in the details of the build
    captured: Captured  # its CUDA graph
    properties: Properties
    call: Callable[..., Tensor]  # the same, kernel by kernel
    moved_bytes: int  # through the GPU's memory in a call, by Inductor's own count
    lowered: fx.GraphModule | None = None  # the graph with the kernels' operations; None where there are none
    plan: Plan = field(default_factory=Plan)  # how it was lowered
    details: dict[str, Any] = field(default_factory=dict)  # how it was chosen

    def described(self, barred: str, refused: Mapping[str, str], *, casts: bool = False) -> str:
        """Return what runs and what could not, in a line: candidates that were refused, layers whose kernel failed."""
        ours, precision = self.properties.own_kernels, self.properties.precision
        text = f"{precision}, {ours} layers by own kernels, the rest by Inductor, one CUDA graph"
        if not ours:
            text = f"{precision}, all by {self.name}, one CUDA graph"
        parts = [text, *([CAST_OWN_VALUES] if casts else []), *([f"kernels are barred: {barred}"] if barred else [])]
        parts += [f"{name} was refused: {why}" for name, why in refused.items()]
        if self.plan.failed:
            layer, why = next(iter(self.plan.failed.items()))
            parts.append(f"by the library as the kernel failed: {len(self.plan.failed)}, such as {layer} ({why})")
        return "; ".join(parts)


def captured(
    name: str, module: nn.Module, properties: Properties, *inputs: Tensor, mode: Mode = "default",
    most_seconds: float | None = None,
) -> Candidate:  # fmt: skip
    """Compile for these inputs in a mode of torch.compile, and capture; raise TooLongError after `most_seconds`."""
    with torch.inference_mode():
        try:
            call, moved = within(most_seconds, partial(compile_counting_bytes, module, *inputs, mode=mode))
        except TooLongError:
            shutdown_compile_workers()  # what they still compile would be timed beside the other candidates
            raise
        return Candidate(name, Captured(call, *inputs), properties, call, moved)


class TooLongError(RuntimeError):
    """Work that was given up; one line."""


class _Alarm(BaseException):
    """The end of the work: compilers catch every Exception in many places, and go on."""


def within(seconds: float | None, work: Callable[[], Made]) -> Made:
    """Return what `work` gives; raise TooLongError at its next step of Python after `seconds`, where they aren't None.

    Only the main thread has a limit; an alarm that was set before rings late if it was due.
    """
    if seconds is None or threading.current_thread() is not threading.main_thread():
        return work()
    over = False

    def ring(_: int, frame: FrameType | None) -> None:
        """Raise in the running code, unless the work is over or the signal came while this file's own code ran."""
        if not over and (frame is None or frame.f_code.co_filename != __file__):
            raise _Alarm

    began, before = time.monotonic(), signal.signal(signal.SIGALRM, ring)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
    try:
        return work()
    except _Alarm:
        raise TooLongError(f"given up after {seconds:g} s") from None
    finally:
        over = True
        others = max(left - (time.monotonic() - began), 1e-6) if left else 0.0
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, others, interval)
