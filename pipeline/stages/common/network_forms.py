"""The workload's network in another precision or in a runtime's form, which is refused or checked on extreme inputs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from pipeline.compiler import half
from pipeline.compiler.agreement import distance
from pipeline.compiler.batch import Batch
from pipeline.compiler.errors import CompileError
from pipeline.compiler.half import FULL, Half
from pipeline.devices import host
from pipeline.errors import first_line
from pipeline.records.run_record import Execution, Layout, Precision
from pipeline.stages.api import Skip, StageError, Workload

Dtype = Literal["auto", "fp16", "bf16"]
HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}
KeepFp32 = Literal["auto", "none"] | list[str]  # "auto": where a wrong answer begins
BRIGHTER = 10  # times; much more would overflow in fp16
GROSS = 0.1  # relative L2 of an export's answer beyond rounding
FROM_ROUNDING = 4  # times what rounded inputs change


def named_modules(keep_fp32: object) -> list[str]:
    """Return the paths of modules that an option names; none at first for "auto"."""
    return keep_fp32 if isinstance(keep_fp32, list) else []


def half_dtype(asked: str, device: torch.device) -> torch.dtype:
    """Return the half precision asked for; "auto" is fp16 on a GPU, bf16 on a CPU with units for it, else fp32."""
    if asked != "auto":
        return HALVES[asked]
    if device.type == "cuda":
        return torch.float16
    return torch.float32 if host.why_no_bf16() else torch.bfloat16


def why_fp32(half: torch.dtype) -> dict[str, str]:
    """Return for the record why `half_dtype` gave fp32; nothing if it didn't."""
    return {"dtype": f"fp32, as {host.why_no_bf16()}; stage.dtype=bf16 emulates it"} if half == FULL else {}


def eager_execution(
    precision: Precision, layout: Layout, captured: bool = False, casts: bool | None = None
) -> Execution:
    """Return how a network runs that torch calls operator by operator; `casts` tells of values of its own."""
    return Execution(precision, {}, layout, "PyTorch eager", captured, fuses=False, casts_own_values=casts)


def half_net(workload: Workload, dtype: torch.dtype, keep_fp32: object = "none") -> Half:
    """Return the workload's network as `Half`, in the layout that it takes, and with the casts that it needs."""
    kept = named_modules(keep_fp32)
    try:
        return half.half_net(workload.model, dtype, workload.inputs[0], kept, workload.layout_choice.take())
    except CompileError as error:
        raise StageError(str(error)) from error


@contextmanager
def taken_by(runtime: str, cure: str = "") -> Iterator[None]:
    """Raise StageError, of kind unsupported, where a runtime fails on a network; out of memory and I/O errors pass."""
    try:
        yield
    except (Skip, StageError, torch.OutOfMemoryError, MemoryError, OSError, ImportError):
        raise
    except Exception as error:
        said = first_line(error)
        said = said if said.startswith(runtime) else f"{runtime} can't take the network: {said}"
        raise StageError(f"{said}{cure}", "unsupported") from error


def changed(inputs: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    """Return inputs whose floating values are changed; whole numbers stay, as they may be indices."""
    return inputs.mapped(lambda part: change(part) if part.is_floating_point() else part)


def extremes(inputs: Batch) -> dict[str, Batch]:
    """Return a call's inputs and three others of these shapes, by their names."""
    return {
        "the first batch": inputs,
        "zeros": changed(inputs, torch.zeros_like),
        "its largest value everywhere": changed(inputs, lambda part: torch.full_like(part, float(part.max()))),
        f"{BRIGHTER} times its values": changed(inputs, lambda part: part * BRIGHTER),
    }


def nudge(part: Tensor, by: float, size: float) -> Tensor:
    """Return values moved by rounding's part of `size`: of zeros a norm may make anything."""
    waves = torch.arange(part.numel(), device=part.device).sin().reshape(part.shape)
    return part + by * size * waves.to(part.dtype)


def fault(run: Callable[..., Tensor], net: nn.Module, inputs: Batch, gross: float = GROSS) -> str:
    """Return how a converted network's answers, by `run`, differ from the network's, as `difference` does."""
    return difference(lambda _, given, __: run(*given), net, extremes(inputs), gross)


def difference(
    answer: Callable[[str, Batch, Tensor], Tensor], net: nn.Module, inputs: dict[str, Batch], gross: float = GROSS
) -> str:
    """Return how an exported network's `answer` to inputs, given by name, differs from that of `net`; else empty."""
    usual, dtype = 0.0, next((part.dtype for part in net.parameters() if part.is_floating_point()), torch.float32)
    first = next(iter(inputs.values()))
    largest = max((float(part.abs().max()) for part in first if part.is_floating_point()), default=0.0)
    for name, given in inputs.items():
        with torch.inference_mode():
            try:
                want = net(*given).float()
            except Exception:  # noqa: BLE001, S112 - a network may refuse such images
                continue
            got, finite = answer(name, given, want).float().to(want.device), want.isfinite()
            usual = max(usual, float(want[finite].norm()))
            if not bool(got[finite].isfinite().all()):
                return f"answers NaN or infinity to {name}, and the network doesn't"
            off = float((got - want)[finite].norm()) / (usual or 1.0)
            if off > gross:
                nudged = changed(given, partial(nudge, by=FROM_ROUNDING * torch.finfo(dtype).eps, size=largest))
                if not off <= gross + FROM_ROUNDING * distance(net(*nudged).float(), want):
                    return f"is {off:.2g} (relative L2) off the network on {name}"
    return ""


def checked_form(
    run: Callable[..., Tensor], workload: Workload, runtime: str, like: torch.dtype | nn.Module, gross: float = GROSS
) -> Callable[..., Tensor]:
    """Return `run` if it answers as the network, also on extreme inputs."""
    # Every stage that converts a network asks it. `gross` is infinite for a quantized network, which clips values.
    inputs = workload.inputs[0]
    net = like if isinstance(like, nn.Module) else half.half_net(workload.model, like, inputs, layout="NCHW")
    if found := fault(run, net, inputs, gross):
        raise StageError(f"{runtime}'s form of the network {found}", "wrong answer")
    return run
