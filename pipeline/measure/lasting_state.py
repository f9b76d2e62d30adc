"""The state of a process that every stage must leave as it is: what is measured, and how, rests on it."""

import gc
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch


def lasting_state() -> dict[str, object]:
    """What no stage may change, by its name; the switches of TF32 and of cuDNN's search are a stage's own."""
    return {
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "gradients": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "threads": torch.get_num_threads(),
        "autocast on the CPU": torch.is_autocast_enabled("cpu"),
        "autocast on the GPU": torch.is_autocast_enabled("cuda"),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "matmul precision of bf16": torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        "garbage collection": gc.isenabled(),
        "processors beyond its own": sorted(processors() - OWN_PROCESSORS),
        "priority": priority(),
        "torch's modes": (torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()),
        "hooks of every layer": sum(map(len, every_layers_hooks())),
        "tracing": (sys.gettrace(), sys.getprofile()),
        "folder": _folder(),
        "clock": _source(time.perf_counter),
        "wait for the GPU": _source(torch.cuda.synchronize),
        "event of the GPU": _source(torch.cuda.Event),
    }


def processors() -> frozenset[int]:
    """Those that this process may use, over all its threads; none where the system doesn't say."""
    if sys.platform != "linux":
        return frozenset()
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # a thread that has ended meanwhile
            found |= os.sched_getaffinity(int(task.name))
    return frozenset(found)


OWN_PROCESSORS = processors()  # as the program was started


def priority() -> tuple[int, ...]:
    """How the system ranks this process: its niceness, and where it says so the way in which it is scheduled."""
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    return (nice, os.sched_getscheduler(0)) if sys.platform == "linux" else (nice,)


def every_layers_hooks() -> list[dict[int, object]]:
    """What torch calls at each call of any layer."""
    names = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")
    return [getattr(torch.nn.modules.module, f"_global_{name}") for name in names]


def _folder() -> str:
    """The folder that this process works in; what was its name, where somebody has removed it meanwhile."""
    try:
        return os.getcwd()  # noqa: PTH109 - as text, which another one is not
    except OSError:
        with suppress(OSError):
            return os.readlink("/proc/self/cwd").removesuffix(" (deleted)")  # noqa: PTH115 - it is no path
        return "none that is there"


def _source(function: Callable[..., object]) -> str:
    """Where a function comes from: another one in its place is seen."""
    return f"{function.__module__}.{getattr(function, '__qualname__', type(function).__name__)}"


def changes(before: dict[str, object], after: dict[str, object]) -> dict[str, tuple[object, object]]:
    """What differs, before and after."""
    return {name: (value, after[name]) for name, value in before.items() if value != after[name]}
