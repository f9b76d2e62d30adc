"""Which candidate is fastest on the GPU at hand: measured once, kept on disk by GPU, versions, shape and dtype.

What is wrong in the file, or others may write, counts as not known. A folder that can't be used costs the next build
its searches, and nothing else.
"""

import fcntl
import hashlib
import json
import math
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

import torch
import triton

import pipeline.kernels
from pipeline.compiler.cuda_graphs import graph_replay_ms
from pipeline.compiler.errors import first_line
from pipeline.kernels.common.program import only_noted

QUOTA = Path("/sys/fs/cgroup/cpu.max")  # such as "200000 100000" or "max 100000" (the kernel's cgroup-v2.rst)


def write_json(value: object, path: Path) -> None:
    """Write plain JSON values in one step: an interrupted write leaves the old file."""
    scratch = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        scratch.write_text(json.dumps(value, indent=1), encoding="utf-8")
        scratch.replace(path)
    finally:
        with suppress(OSError):
            scratch.unlink(missing_ok=True)


@cache
def code_digest() -> str:
    """Return the SHA-256 of the library's sources, which decide which tile is fastest."""
    # Installed, the second lies within the first.
    homes = {Path(__file__).parents[1], Path(pipeline.kernels.__path__[0])}
    named = {path: path.relative_to(home) for home in homes for path in home.rglob("*.py")}
    whole = hashlib.sha256()
    for path, name in sorted(named.items()):
        whole.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()


def use_torchs_ptxas() -> None:
    """Have Triton assemble programs by the ptxas in torch's wheels, as Inductor has it, unless the environment does."""
    ptxas = Path(torch.__file__).with_name("bin") / "ptxas"
    if os.access(ptxas, os.X_OK):
        os.environ.setdefault("TRITON_PTXAS_PATH", str(ptxas))


def processors() -> int:
    """Return how many processors this process may use: its affinity, and a container's quota of processor time."""
    seen = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    with suppress(OSError, ValueError):
        quota, period = map(int, QUOTA.read_text(encoding="utf-8").split())  # "max" is no number
        return min(seen, max(1, math.ceil(quota / period)))
    return seen


Candidate = TypeVar("Candidate")

FORMAT = 4  # of the file and of the tiles' fields; a change makes old choices unknown
MOST_AT_ONCE = 16  # programs that are compiled, each in up to 0.3 GB
HOME = Path("~/.cache/unet-ladder")


class NothingRunsError(Exception):
    """No candidate ran; the text says what the last of them said."""


@dataclass
class Tuner:
    """The choices made so far, on disk in `folder`."""

    folder: str | Path | None = HOME  # of one JSON file for each GPU and set of versions; None is `HOME`
    clock: Callable[[Callable[[], None]], float] | None = None  # milliseconds that a call takes; a test gives a fake
    measured: int = 0  # candidates that were run since the start: 0 for a warm build
    refused: dict[str, str] = field(default_factory=dict)  # the last candidate that didn't run, and why
    chosen: dict[str, dict[str, object]] = field(default_factory=dict)  # since the start
    unkept: str = ""  # why the folder keeps nothing

    def best(self, op: str, options: Iterable[Candidate], run: Callable[[Candidate], None]) -> Candidate:
        """Return the candidate whose `run` takes the least time, known or measured; NothingRunsError if all failed."""
        by_name = {repr(option): option for option in options}
        known = str(self.known(op).get("choice"))
        if known in by_name:
            return by_name[known]
        calls = {name: partial(run, option) for name, option in by_name.items()}
        if self.clock is None:
            build_side_by_side(list(calls.values()))
        times = {name: self.time(op, name, call) for name, call in calls.items()}
        finite = {name: took for name, took in times.items() if took is not None}
        if not finite:
            why = self.refused.get(op, "no candidates")
            raise NothingRunsError(f"{op}: none of {len(by_name)} candidates ran: {why}")
        choice = min(finite, key=finite.__getitem__)
        entry = {"choice": choice, "ms": finite[choice], "tried_ms": finite}
        self.keep(op, entry | ({"refused": self.refused[op]} if op in self.refused else {}))
        return by_name[choice]

    def known(self, name: str) -> dict[str, object]:
        """Return what is kept under a name; empty where nothing is."""
        return self.chosen.get(name) or self.read().get(name, {})

    def time(self, op: str, name: str, call: Callable[[], None]) -> float | None:
        """Return the milliseconds of one candidate, or None where it can't run (too much shared memory, most often)."""
        self.measured += 1
        try:
            return (self.clock or graph_replay_ms)(call)
        except (RuntimeError, ValueError, triton.TritonError) as error:
            self.refused[op] = f"{name}: {first_line(error)}"
            return None

    def path(self) -> Path:
        """Return the file for this GPU, these versions and these sources of the kernels."""
        gpu = "cpu"
        if torch.cuda.is_available():
            units = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
            gpu = f"{torch.cuda.get_device_name()}-{units}"
        versions = f"torch{torch.__version__}-triton{triton.__version__}-{code_digest()[:12]}"
        name = re.sub("[ /]", "_", f"{gpu}-{versions}-v{FORMAT}.json")
        return Path(self.folder or HOME).expanduser() / name

    def read(self) -> dict[str, dict[str, object]]:
        """Return all choices on disk; none where the file is missing or torn, or others may write it."""
        try:
            path = self.path()
            status = path.lstat()
            own = status.st_uid == os.getuid() and not status.st_mode & stat.S_IWOTH and stat.S_ISREG(status.st_mode)
            known = json.loads(path.read_text(encoding="utf-8")) if own else {}
        except (OSError, RuntimeError, ValueError):
            return {}
        entries = known.items() if isinstance(known, dict) else ()
        return {op: entry for op, entry in entries if isinstance(entry, dict)}

    def keep(self, op: str, entry: dict[str, object]) -> None:
        """Keep a choice beside those that other processes keep at the same time; say so once where none can be kept."""
        self.chosen[op] = entry
        try:
            path = self.path()
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with path.with_suffix(".lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed, or the process ends
                write_json(self.read() | {op: entry}, path)
        except (OSError, RuntimeError) as error:  # RuntimeError: this user has no home
            if not self.unkept:
                sys.stderr.write(f"the choices of tiles can't be kept: {first_line(error)}\n")
            self.unkept = first_line(error)


def build_side_by_side(calls: Iterable[Callable[[], object]]) -> None:
    """Compile in threads all that the calls launch, which releases Python's lock. What fails will fail when timed."""
    with only_noted() as programs:
        for call in calls:
            with suppress(Exception):
                call()
    with compiling_threads() as pool:
        for program in programs.values():
            pool.submit(program.compile, launcher=True)


def compiling_threads() -> ThreadPoolExecutor:
    """Return threads that compile for the current device, once Triton has the driver that each would else build."""
    on_device = partial(torch.cuda.set_device, torch.cuda.current_device()) if torch.cuda.is_available() else None
    pool = ThreadPoolExecutor(min(MOST_AT_ONCE, processors()), initializer=on_device)
    pool.submit(lambda: triton.runtime.driver.active).exception()
    return pool
