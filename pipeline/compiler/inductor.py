"""torch.compile by Inductor, with the bytes that its kernels move, and a check that it compiled anything."""

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

import torch
import torch._inductor.metrics
from torch import Tensor, nn
from torch._inductor.runtime.cache_dir_utils import triton_cache_dir

from pipeline.compiler.errors import CompileError

# Where one is 1, torch.compile runs what it was given as it is; by the last, after an error.
LEAVING = ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE", "TORCHDYNAMO_SUPPRESS_ERRORS")
PTXAS = Path(torch.__file__).with_name("bin") / "ptxas"  # in torch's wheels for NVIDIA's GPUs
Mode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]


def triton_as_inductor_has_it(device: torch.device) -> None:
    """Name the folder that Triton keeps programs in, and its ptxas, as Inductor will, unless the environment does."""
    with suppress(OSError, KeyError):
        os.environ.setdefault("TRITON_CACHE_DIR", triton_cache_dir(device.index or 0))
    if os.access(PTXAS, os.X_OK):
        os.environ.setdefault("TRITON_PTXAS_PATH", str(PTXAS))


def count_bytes() -> None:
    """Have Inductor count the bytes that its kernels move, which it does for a log that somebody reads."""
    log = logging.getLogger("torch._inductor.compile_fx.__inductor_metrics")
    log.setLevel(logging.INFO)
    log.propagate = False
    log.addHandler(logging.NullHandler())


def compile_counting_bytes(
    module: nn.Module, *inputs: Tensor, mode: Mode = "default"
) -> tuple[Callable[..., Tensor], int]:
    """Compile a module by a call; return it, and the bytes that a call moves through memory by Inductor's count."""
    count_bytes()
    before = torch._inductor.metrics.num_bytes_accessed
    compiled: Callable[..., Tensor] = torch.compile(module, mode=mode, fullgraph=True)
    compiled(*inputs)
    check_compiled()
    return compiled, int(torch._inductor.metrics.num_bytes_accessed - before)


def compilations() -> int:
    """Return how many graphs Dynamo has compiled in this process, or since its counters were emptied."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def check_compiled() -> None:
    """Raise CompileError if torch.compile, which was called, has left the network eager, as it may without a word."""
    if compilations():
        return
    given = [f"{name}={os.environ[name]}" for name in LEAVING if os.environ.get(name) == "1"]
    why = f"{' '.join(given)} is set; unset it" if given else "the network, or its process, keeps Dynamo from it"
    raise CompileError(f"torch.compile compiled nothing: {why}")
