"""Which candidate is fastest on the GPU at hand: measured once, kept on disk by GPU, versions, shape and dtype.

The file is this user's own, and what is wrong in it counts as not known. A folder that can't be used costs the next
build its searches, and nothing else.
"""

import json
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
import triton

from pipeline.compiler.cuda_graphs import graph_replay_ms
from pipeline.compiler.errors import first_line
from pipeline.compiler.machine import code_digest, locked, private_folder, private_text, processors, write_json

Candidate = TypeVar("Candidate")

FORMAT = 4  # of the file and of the tiles' fields; a change makes old choices unknown
MOST_BYTES = 16 * 2**20  # of the file; a whole net's choices take some 30 KiB
MOST_AT_ONCE = 16  # programs that are compiled, each in up to 0.3 GB
HOME = Path("~/.cache/unet-ladder")


class NothingRunsError(Exception):
    """No candidate ran; the text says what the last of them said."""


@dataclass
class Tuner:
    """The choices made so far, on disk in `folder`."""

    folder: Path = HOME  # of one JSON file for each GPU and set of versions
    clock: Callable[[Callable[[], None]], float] | None = None  # milliseconds that a call takes; a test gives a fake
    measured: int = 0  # candidates that were run since the start: 0 for a warm build
    refused: dict[str, str] = field(default_factory=dict)  # the last candidate that didn't run, and why
    chosen: dict[str, dict[str, object]] = field(default_factory=dict)  # since the start
    unkept: str = ""  # why the folder keeps nothing

    def best(self, op: str, options: Iterable[Candidate], run: Callable[[Candidate], None]) -> Candidate:
        """Return the candidate whose `run` takes the least time, from disk where `op` is known; a repr tells it apart.

        Raises:
            NothingRunsError: every candidate failed.
        """
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
            raise NothingRunsError(
                f"{op}: none of {len(by_name)} candidates ran: {self.refused.get(op, 'no candidates')}"
            )
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
        return self.folder.expanduser() / f"{gpu}-{versions}-v{FORMAT}.json".replace(" ", "_").replace("/", "_")

    def read(self) -> dict[str, dict[str, object]]:
        """Return all choices on disk; none where the file is missing, torn or not this user's own."""
        try:
            known = json.loads(private_text(self.path(), MOST_BYTES))
        except (OSError, RuntimeError, ValueError):
            return {}
        entries = known.items() if isinstance(known, dict) else ()
        return {op: entry for op, entry in entries if isinstance(entry, dict)}

    def keep(self, op: str, entry: dict[str, object]) -> None:
        """Keep a choice beside those that other processes keep at the same time; say so once where none can be kept."""
        self.chosen[op] = entry
        try:
            path = self.path()
            private_folder(path.parent)
            with locked(path.with_suffix(".lock")):
                write_json(self.read() | {op: entry}, path)
        except (OSError, RuntimeError) as error:  # RuntimeError: this user has no home
            if not self.unkept:
                sys.stderr.write(f"the choices of tiles can't be kept: {first_line(error)}\n")
            self.unkept = first_line(error)


def build_side_by_side(calls: Iterable[Callable[[], object]]) -> None:
    """Call each once, in threads: the compiler releases Python's lock. What fails will fail again when it is timed."""

    def build(call: Callable[[], object]) -> None:
        with suppress(RuntimeError, ValueError, triton.TritonError):
            call()

    with compiling_threads() as pool:
        list(pool.map(build, calls))
    torch.cuda.synchronize()


def compiling_threads() -> ThreadPoolExecutor:
    """Return threads that compile kernels for the current device.

    Triton has its driver before the first of them asks: those that meet none build one each, into the same object.
    """
    on_device = partial(torch.cuda.set_device, torch.cuda.current_device()) if torch.cuda.is_available() else None
    pool = ThreadPoolExecutor(min(MOST_AT_ONCE, processors()), initializer=on_device)
    pool.submit(lambda: triton.runtime.driver.active).exception()
    return pool
