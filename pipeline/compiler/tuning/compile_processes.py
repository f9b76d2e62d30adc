"""Compiles noted programs in processes of their own, from where they get into Triton's cache on disk.

A program holds Python's lock for a third of its time: a hundred in threads would slow Inductor beside them.
"""

import io
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.cache import triton_key
from triton.runtime.jit import JITFunction

from pipeline.compiler.tuning.autotune import MOST_AT_ONCE, processors
from pipeline.kernels.common.program import Program

DIGITS = 10  # of a number's line; what else is printed is none
FEWEST_PROCESSORS = 4  # on fewer processors they would be in each other's way, and in Inductor's


def target_alone(target: GPUTarget) -> SimpleNamespace:
    """Return as much of Triton's driver as compiling asks for, without the GPU that it is for."""
    return SimpleNamespace(
        get_current_target=lambda: target,
        get_current_device=lambda: 0,
        get_current_stream=lambda _=None: 0,
        get_active_torch_device=lambda: torch.device("cpu"),  # where the operands are
    )


class CompilingProcesses:
    """A process that compiles programs in others, and says which it is through with; raises what starting it raises.

    It imports torch first, which takes seconds, so it is started before there are programs.
    """

    def __init__(self) -> None:
        self.given, self.target = b"", triton.runtime.driver.active.get_current_target()
        path = os.pathsep.join(folder or str(Path.cwd()) for folder in sys.path)
        nvidia = import_module("triton.backends.nvidia.compiler")  # which a Triton for AMD's GPUs may lack
        # By the same version of ptxas it names programs in the cache as this process does.
        named_alike = {"TRITON_MOCK_PTX_VERSION": nvidia.get_ptxas_version(self.target.arch)}
        environment = os.environ | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", **named_alike}
        environment["PYTHONDONTWRITEBYTECODE"] = "1"  # none of ours is left in a bundle
        command = [sys.executable, "-P", "-m", __name__]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)

    def give(self, programs: Sequence[Program]) -> None:
        """Set the programs that it is to compile; raise what pickling them raises."""
        buffer = io.BytesIO()
        _ByName(buffer).dump((self.target, list(programs)))
        self.given = buffer.getvalue()

    def finished(self) -> Iterator[int]:
        """Yield each program's number once it is in the cache or has failed; end early if the process ends."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with self.process.stdout as numbers:
            with suppress(BrokenPipeError), self.process.stdin as given:
                given.write(self.given)
            yield from (int(line) for line in numbers if len(line) <= DIGITS and line.strip().isdigit())
        self.process.wait()

    def stop(self) -> None:
        """Stop starting programs; `finished` ends when those being compiled are done."""
        self.process.terminate()

    def close(self) -> None:
        """End it, whatever it was given; nobody may be in `finished`."""
        self.stop()
        with self.process:
            pass


class _ByName(pickle.Pickler):
    """Names kernels, and the functions within them, by their modules, which hold them in place of what they wrap."""

    def reducer_override(self, obj: object) -> object:  # type: ignore[override]
        if isinstance(obj, JITFunction):
            return _named, (obj.fn.__module__, obj.fn.__name__)
        return NotImplemented


def _named(module: str, name: str) -> object:
    return getattr(import_module(module), name)


def main() -> None:
    """Compile what the standard input has; each program's number as a line, once it is compiled or has failed."""
    triton_key()  # a digest of all of Triton, most of a second's work that each process would else repeat
    target, programs = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the process that started this one
    triton.runtime.driver.set_active(target_alone(target))
    count, at_work = min(MOST_AT_ONCE, processors()), dict[int, int]()
    for number, program in enumerate(programs):
        if len(at_work) == count:
            _tell_next(at_work)
        hash(program.kernel)  # of its whole source, which each process would else reckon again
        if child := os.fork():
            at_work[child] = number
            continue
        try:  # in the process of this program, whose failure shows at the launch
            program.compile()
        finally:
            os._exit(0)
    while at_work:
        _tell_next(at_work)


def _tell_next(at_work: dict[int, int]) -> None:
    child, _ = os.wait()
    sys.stdout.write(f"{at_work.pop(child)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
