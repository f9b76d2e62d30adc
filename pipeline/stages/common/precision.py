"""The workload's network in another precision, and how a network runs that torch calls operator by operator."""

from collections.abc import Callable, Sequence
from typing import Literal

import torch

from pipeline.compiler import half
from pipeline.compiler.errors import CompileError
from pipeline.compiler.half import FULL, HALVES, Half
from pipeline.devices import host
from pipeline.records.run_record import Execution, Layout, Precision
from pipeline.stages.api import StageError, Workload

Dtype = Literal["auto", "fp16", "bf16"]


def half_dtype(asked: str, device: torch.device, computes_bf16: Callable[[], bool] = host.computes_bf16) -> torch.dtype:
    """Return the half precision asked for; "auto" is fp16 on a GPU, bf16 on a CPU with units for it, else fp32."""
    if asked != "auto":
        return HALVES[asked]
    if device.type == "cuda":
        return torch.float16
    return torch.bfloat16 if computes_bf16() else torch.float32


def why_fp32(half: torch.dtype) -> dict[str, str]:
    """Return for the record why `half_dtype` gave fp32; nothing if it didn't."""
    return {"dtype": f"fp32, as {host.why_no_bf16()}; stage.dtype=bf16 emulates it"} if half == FULL else {}


def eager_execution(precision: Precision, layout: Layout, captured: bool = False) -> Execution:
    """Return how a network runs that torch calls operator by operator."""
    return Execution(precision, layout=layout, provider="PyTorch eager", captured=captured, fuses=False)


def half_net(workload: Workload, dtype: torch.dtype, kept: Sequence[str] = ()) -> Half:
    """Return the workload's network as `Half`, in the layout that it takes, and with the casts that it needs."""
    try:
        return half.half_net(workload.model, dtype, workload.inputs[0], kept, workload.layout_choice.take())
    except CompileError as error:
        raise StageError(str(error)) from error
