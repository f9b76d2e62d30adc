"""The state of a process that every stage must leave as it is: what is measured, and how, rests on it."""

import gc
import time
from collections.abc import Callable
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
        "folder": Path.cwd(),
        "clock": _source(time.perf_counter),
        "wait for the GPU": _source(torch.cuda.synchronize),
        "event of the GPU": _source(torch.cuda.Event),
    }


def _source(function: Callable[..., object]) -> str:
    """Where a function comes from: another one in its place is seen."""
    return f"{function.__module__}.{getattr(function, '__qualname__', type(function).__name__)}"


def changes(before: dict[str, object], after: dict[str, object]) -> dict[str, tuple[object, object]]:
    """What differs, before and after."""
    return {name: (value, after[name]) for name, value in before.items() if value != after[name]}
