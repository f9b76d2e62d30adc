"""Stages that cheat, sabotage or are merely odd, for `tests.benchmarks.cheats`: each does what its name says."""

import atexit
import ctypes
import gc
import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from pipeline.records.run_record import Tolerance
from pipeline.stages import Runner
from pipeline.stages.api import Workload

PTRACE_SEIZE = 0x4206  # linux/ptrace.h
Run = Callable[[Tensor], Tensor]
HOPS = """
import os, time
ends = time.time() + 120
while time.time() < ends:
    if os.fork():
        os._exit(0)
    os.setsid()
    began = time.perf_counter()
    while time.perf_counter() - began < 0.003: pass
"""
WAKES = "import os, signal, sys, time\nwhile True: os.kill(int(sys.argv[1]), signal.SIGCONT); time.sleep(0.001)"
ENDS = "import os, signal, sys, time\ntime.sleep(0.1)\nos.kill(int(sys.argv[1]), signal.SIGSTOP)"


def say(**message: object) -> None:
    """A line to the run, in the worker's name."""
    os.write(int(sys.argv[1]), (json.dumps(message) + "\n").encode())


def siblings() -> list[int]:
    """Other children of the run, of which one is the baseline's worker."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        told = entry.read_text().rpartition(")")[2].split()
        if int(told[1]) == os.getppid() and int(entry.parent.name) != os.getpid():
            found.append(int(entry.parent.name))
    return found


def child(program: str, *words: object) -> object:
    return subprocess.Popen([sys.executable, "-SEc", program, *map(str, words)], start_new_session=True)


def write(process: int, name: str, text: str) -> int:
    return (Path("/proc") / str(process) / name).write_text(text)


def lenient() -> None:
    """Widen the tolerance that this worker judges by."""
    for part in gc.get_objects():
        if isinstance(part, Tolerance):
            object.__setattr__(part, "relative_l2", 1.0)
            object.__setattr__(part, "flipped_share", 1.0)


def within(name: str) -> bool:
    """Whether a function of that name is under way."""
    frame = sys._getframe()
    while frame := frame.f_back:  # type: ignore[assignment]
        if frame.f_code.co_name == name:
            return True
    return False


def last_of_its_sample() -> bool:
    """Whether the call that is timed now is the one whose answer is looked at."""
    frame = sys._getframe()
    while frame.f_code.co_name != "time_and_keep":
        frame = frame.f_back  # type: ignore[assignment]
    asked = len(frame.f_locals["most"]) + 1
    COUNT[0] += 1
    return COUNT[0] % asked == 0


def cycle() -> list[object]:
    """Garbage that only the collector finds."""
    found: list[object] = [*range(50)]
    found.append(found)
    return found


COUNT, BEGAN = [0], time.monotonic()
# What is done in the build; the stage then runs the net.
DEEDS: dict[str, Callable[[], object]] = {
    "says_that_it_is_done": lambda: say(type="done"),
    "says_a_sample": lambda: say(type="sample", sample={"calls": 9, "seconds": 1e-3, "device_seconds": None}),
    "says_it_is_another": lambda: say(type="stage", fields={"name": "eager"}),
    "says_the_run_is_on_a_gpu": lambda: say(type="run", fields={"finished": True}),
    "hops": lambda: child(HOPS),
    "wakes_itself": lambda: child(WAKES, os.getpid()),
    "stops_the_baseline": lambda: [child(ENDS, process) for process in siblings()],
    "renices_the_run": lambda: os.setpriority(os.PRIO_PROCESS, os.getppid(), 3),
    "takes_the_run_s_processors": lambda: os.sched_setaffinity(os.getppid(), {0}),
    "limits_the_run": lambda: resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (10**6, 10**6)),
    "ignores_signals": lambda: [signal.signal(one, signal.SIG_IGN) for one in (signal.SIGTERM, signal.SIGHUP)],
    "hangs_at_its_exit": lambda: atexit.register(time.sleep, 600),
    "keeps_a_thread": lambda: threading.Thread(target=time.sleep, args=(600,)).start(),
    "takes_every_descriptor": lambda: [os.dup(0) for _ in range(10**6)],
    "closes_every_descriptor": lambda: os.closerange(3, 4096),
    "closes_stdin": lambda: os.close(0),
    "reads_the_commands": lambda: threading.Thread(target=os.read, args=(0, 2**16), daemon=True).start(),
    "handles_the_resumption": lambda: signal.signal(signal.SIGCONT, lambda *_: time.sleep(0.01)),
    "draws_no_chance": lambda: setattr(random.Random, "randrange", lambda *_: 0),
    "mixes_no_pictures": lambda: setattr(Tensor, "lerp_", lambda part, *_: part),
    "is_lenient_with_itself": lenient,
    "puts_a_folder_in_the_record_s_place": lambda: None,
    "starts_slowly": lambda: time.sleep(1.5),
    "has_idle_children": lambda: [child("import time; time.sleep(600)") for _ in range(3)],
}
# What is done at each call, to the baseline's worker among others.
AT_WORK: dict[str, Callable[[], object]] = {
    "limits_the_baseline": lambda: [resource.prlimit(one, resource.RLIMIT_CPU, (10**5, 10**5)) for one in siblings()],
    "traces_the_baseline": lambda: [ctypes.CDLL(None).ptrace(PTRACE_SEIZE, one, None, None) for one in siblings()],
    "sends_the_baseline_to_the_back": lambda: [write(one, "autogroup", "19") for one in siblings()],
    "offers_the_baseline_to_the_killer": lambda: [write(one, "oom_score_adj", "1000") for one in siblings()],
    "schedules_the_baseline_as_idle": lambda: [
        ctypes.CDLL(None).sched_setscheduler(one, os.SCHED_IDLE, ctypes.byref(ctypes.c_int(0))) for one in siblings()
    ],
    "jitters": lambda: time.sleep(random.random() * 0.004),
    "has_two_paces": lambda: time.sleep(0.004 if random.random() < 0.5 else 0.0),
    "changes_its_pace": lambda: time.sleep(0.003 if int(time.monotonic() / 0.7) % 2 else 0.0),
    "makes_garbage": lambda: [cycle() for _ in range(300)],
    "starts_a_process_at_each_call": lambda: subprocess.run(["true"], check=True),
    "grows_slower": lambda: time.sleep(min(0.004, 0.001 * (time.monotonic() - BEGAN))),
}
POOL = ThreadPoolExecutor(2)


def build(workload: Workload, *, fault: str) -> Runner:
    """A stage that does one of `DEEDS`, `AT_WORK` or of those below, and runs the net."""
    net: Run = workload.model
    if fault in DEEDS:
        DEEDS[fault]()
    if fault == "puts_a_folder_in_the_record_s_place":
        (record := workload.folder.parent / "results.json").unlink(missing_ok=True)
        record.mkdir()
    deed = AT_WORK.get(fault, lambda: None)

    def run(batch: Tensor) -> Tensor:
        deed()
        if fault == "computes_what_is_looked_at" and within("time_and_keep") and not last_of_its_sample():
            return torch.zeros(batch.shape[0], 2, *batch.shape[2:])
        if fault in ("halves_by_threads", "halves_by_threads_with_its_due"):
            return torch.cat([*POOL.map(net, batch.split(batch.shape[0] // 2))])
        return net(batch) + (0.01 if fault == "is_lenient_with_itself" else 0.0)

    return Runner(run=run, description="a fault")
