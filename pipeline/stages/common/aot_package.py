"""A net compiled ahead of time by AOTInductor: the package, how it is loaded, and what a fresh process takes for it.

As a program, `python aot_package.py PACKAGE DEVICE SHAPE`, it loads a package in a process that has done nothing else,
calls it once, and prints what each step took, as JSON.
"""

import json
import re
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # a cold start imports torch by the clock
    from torch import Tensor, nn

LIMIT_SECONDS = 300


class ColdStart(NamedTuple):
    """What a fresh process took to its first answer.

    Attributes:
        seconds: of each step.
        died: of what it died once it had answered, and where; empty where it ended well.
    """

    seconds: dict[str, float]
    died: str = ""

    @property
    def details(self) -> dict[str, object]:
        """The same as a record shows it."""
        return {"cold_start_seconds": self.seconds} | ({"cold_start_died": self.died} if self.died else {})


def build_package(
    model: "nn.Module", inputs: "Sequence[Tensor]", path: Path, freezing: bool, max_autotune: bool
) -> Path:
    """Export a net and compile it into a package that runs without Python's source of it.

    Args:
        model: in eval mode.
        inputs: of one call, of any shape; the package takes these shapes and types alone, contiguous, on this device,
            and asks nothing of what it is given.
        path: of the package; ends in .pt2.
        freezing: fold what depends on weights alone, and pack them as oneDNN likes them.
        max_autotune: time the candidates of matrix products and convolutions.

    Raises:
        torch._dynamo.exc.UserError: torch.export can't take the net.
        RuntimeError: every C++ compiler links what would make the package crash.
    """
    import torch
    from torch._inductor import aoti_compile_and_package

    from pipeline.compiler.network_calls import exported_program
    from pipeline.stages.common.cpp_compiler import package_compiler

    path.parent.mkdir(parents=True, exist_ok=True)
    with torch.inference_mode(False), torch.no_grad():
        program = exported_program(model, [part.contiguous() for part in inputs])
        # One program a package: to compile its headers beforehand would cost a minute and save nothing.
        configs: dict[str, object] = {
            "freezing": freezing,
            "max_autotune": max_autotune,
            "cpp_cache_precompile_headers": False,
            "cpp.cxx": (package_compiler().used,),
        }
        return Path(aoti_compile_and_package(program, package_path=str(path), inductor_configs=configs))


def load_package(path: Path) -> "Callable[..., Tensor]":
    """The net of a package, as `aot_loading` loads it: from its inputs of any shape to its answer."""
    loading = runpy.run_path(str(Path(__file__).with_name("aot_loading.py")))  # a cold start knows no other module
    loaded: Callable[..., Tensor] = loading["load_package"](path)
    return loaded


def cold_start(path: Path, device: str, inputs: "Sequence[Tensor]") -> ColdStart:
    """Take the package to its first answer in a fresh process.

    Args:
        path: of the package.
        device: "cuda" or "cpu".
        inputs: of a call, of any shape, for their shapes and types.

    Raises:
        RuntimeError: the process gave no answer; with what it died of, or the last line that it wrote.
    """
    words = [f"{part.dtype}:{','.join(map(str, part.shape))}".removeprefix("torch.") for part in inputs]
    command = [sys.executable, "-P", "-X", "faulthandler", __file__, str(path), device, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    sys.stderr.write(done.stderr)  # into the stage's log
    answer = done.stdout.strip().splitlines()[-1:]
    if not answer:
        raise RuntimeError(f"the package does not load in a fresh process: {cause_of_death(done)}")
    return ColdStart(json.loads(answer[0]), cause_of_death(done) if done.returncode else "")


def cause_of_death(done: "subprocess.CompletedProcess[str]") -> str:
    """The signal that ended a process, and where Python was; without one, the last line that it wrote, or its code."""
    if done.returncode >= 0:
        return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    where = re.search(r'Current thread .*\n  File "[^"]*?([^/"]+)", line (\d+) in (\S+)', done.stderr)
    said = f" in {where[3]} ({where[1]}:{where[2]})" if where else ""
    return f"killed by {signal.Signals(-done.returncode).name}{said}"


def steps(path: Path, device: str, words: Sequence[str]) -> dict[str, float]:
    """Seconds of each step of what `cold_start` does, measured in this process, which should have imported no torch.

    Args:
        path: as there.
        device: as there.
        words: of each input its type and its shape, such as "float32:1,3,8,8".
    """
    started = time.perf_counter()
    import torch

    imported = time.perf_counter()
    import torch._inductor.package

    compiler_imported = time.perf_counter()
    kinds = [word.partition(":") for word in words]
    inputs = [
        torch.zeros([int(length) for length in shape.split(",")], dtype=getattr(torch, dtype), device=device)
        for dtype, _, shape in kinds
    ]
    on_device = time.perf_counter()
    loaded = load_package(path)
    ready = time.perf_counter()
    with torch.inference_mode():
        answer = loaded(*inputs)
    answer.sum().item()  # waits for the device
    answered = time.perf_counter()
    return {
        "import torch": imported - started,
        "import torch._inductor": compiler_imported - imported,
        "open the device": on_device - compiler_imported,
        "load": ready - on_device,
        "first call": answered - ready,
    }


if __name__ == "__main__":
    print(json.dumps(steps(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])), flush=True)  # noqa: T201
