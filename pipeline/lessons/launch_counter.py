"""How many kernels a call runs."""

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import TypeVar

import torch
from torch._C._autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

from pipeline.lessons.lesson_records import Row
from pipeline.lessons.variant_bench import Bench, Call

# A CPU's operators that hand out memory and compute nothing.
NO_WORK = ("aten::empty", "aten::resize_", "aten::detach", "aten::as_strided")


Given = TypeVar("Given")
Made = TypeVar("Made")


def inductor_metrics() -> ModuleType:
    """Inductor's counters; imported here because importing Inductor takes as long as importing torch."""
    from torch._inductor import metrics

    return metrics


def compiled_afresh(function: Callable[[Given], Made]) -> Callable[[Given], Made]:
    """The function under torch.compile, after Inductor's count of generated kernels was reset to 0."""
    inductor_metrics().reset()
    compiled: Callable[[Given], Made] = torch.compile(function, dynamic=False)
    return compiled


def on_device(event: FunctionEvent) -> bool:
    """Whether it is a kernel, a copy or a fill; annotations of compiled code show on the device's timeline, too."""
    return event.device_type == DeviceType.CUDA and not event.is_user_annotation


def counted(row: Row, call: Call, bench: Bench) -> Row:
    """The row with the kernels of one call, which must be warm; unchanged where they can't be counted.

    On a GPU the profiler counts them. On a CPU it counts operators that call no other; of compiled code, which it
    doesn't see there, Inductor says how many kernels it generated since `compiled_afresh`.
    """
    if not row.samples:
        return row
    activities = [ProfilerActivity.CUDA, ProfilerActivity.CPU] if bench.on_gpu else [ProfilerActivity.CPU]
    with torch.inference_mode(), profile(activities=activities) as session:
        call()
        if bench.on_gpu:
            torch.cuda.synchronize(bench.device)
    events = session.events() or []
    if bench.on_gpu:
        return replace(row, kernels=sum(map(on_device, events)) or None)
    leaves = [event.name for event in events if not event.cpu_children and event.name.startswith("aten::")]
    seen = sum(not name.startswith(NO_WORK) for name in leaves)
    return replace(row, kernels=seen or inductor_metrics().generated_kernel_count or None)
