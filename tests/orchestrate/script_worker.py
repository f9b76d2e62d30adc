"""A worker that does as a script says, in an interpreter without anything: it starts at once."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.orchestrate import worker_process
from pipeline.orchestrate.worker_process import WorkerProcess
from pipeline.records.plan import Phase
from tests.worker.jobs import EAGER, PLAN, job

LIMITS = {**PLAN.phase_limits, Phase.START: 20.0, Phase.SAMPLING: 20.0}
PRELUDE = """
import os, signal, subprocess, sys, time
def say(line):
    os.write(int(sys.argv[4]), line.encode())
def heard():
    return sys.stdin.readline()
heard()
"""
Start = Callable[..., WorkerProcess]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts a worker that does as its script says, in an interpreter without anything."""
    monkeypatch.setattr(worker_process, "GRACE_SECONDS", 0.3)
    workers: list[WorkerProcess] = []
    python = sys.executable

    def started(script: str, log: Path | None = None, limits: dict[Phase, float] = LIMITS) -> WorkerProcess:
        program = tmp_path / f"python{len(workers)}"
        program.write_text(f"#!{python} -SE\n{PRELUDE}{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr("sys.executable", str(program))
        workers.append(WorkerProcess(job(EAGER, tmp_path), log or tmp_path / "log.txt", limits))
        return workers[-1]

    yield started
    for worker in workers:
        worker.stop()
