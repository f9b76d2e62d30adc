"""Sweeps by submitit: the words of each job, one job a GPU at a time, errors in one line, and one report."""

import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.cli import launched
from pipeline.cli.arguments import parse
from pipeline.records import codec
from tests.cli.conftest import Ask


def test_a_job_of_slurm_goes_to_a_gpu_that_this_machine_lacks() -> None:
    assert parse(["-m", "launch=slurm", "stage=half,fp8"], []).typed == ["-m", "launch=slurm", "stage=half,fp8"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("launch=local stage=half", "launch=local: of sweeps alone; add -m"),
        ("-m launch=cloud stage=half,fp8", "launch=cloud: expected local or slurm"),
        ("-m launch=local hydra/sweeper=ax stage=half", "launch=local: takes all jobs of a grid"),
    ],
)
def test_a_wrong_request_is_refused(words: str, line: str, ask: Ask) -> None:
    asked = ask(*words.split())
    assert asked.returncode == 2
    assert line in asked.stderr


class Executor:
    def __init__(self, codes: dict[str, int]) -> None:
        self.codes = codes
        self.on: dict[str, int] = {}
        self.most: dict[str, int] = {}
        self.lock = threading.Lock()

    def submit(self, _: object, command: list[str]) -> Any:
        gpu, name = (command[1], command[2]) if command[0] == "env" else ("", command[0])
        with self.lock:
            self.on[gpu] = self.on.get(gpu, 0) + 1
            self.most[gpu] = max(self.most.get(gpu, 0), self.on[gpu])

        def result() -> int:
            time.sleep(0.02)
            with self.lock:
                self.on[gpu] -= 1
            if name not in self.codes:
                raise RuntimeError("the node is gone\nfar away")
            return self.codes[name]

        return SimpleNamespace(result=result, paths=SimpleNamespace(stdout="out", stderr="err"))


def test_a_gpu_has_one_job_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    executor = Executor({"a": 0, "b": 1, "c": 0, "d": 0})
    started: list[Any] = []
    whole = launched.each_on_a_gpu(executor, [["a"], ["b"], ["lost"], ["c"], ["d"]], ["first", "second"], started)
    assert whole == [True, True, False, True, True]
    assert executor.most == {"CUDA_VISIBLE_DEVICES=first": 1, "CUDA_VISIBLE_DEVICES=second": 1}
    assert len(started) == 5
    assert "error: job 2: the node is gone; its log: err" in capsys.readouterr().err
    executor = Executor({"a": 0, "b": 0})
    launched.each_on_a_gpu(executor, [["a"], ["b"]], [None], started)
    assert executor.most == {"": 1}


@pytest.mark.slow
@pytest.mark.fresh_process
def test_a_sweep_by_processes_ends_in_one_report(tmp_path: Path) -> None:
    """The second job takes the first one's reference over, and times its own baseline."""
    pytest.importorskip("submitit")
    words = ["-m", "launch=local", "model=unet_small", "preset=smoke", "stage=eager,channels_last", "device=cpu"]
    folder = tmp_path / "a sweep"
    command = ["-m", "pipeline", *words, f"hydra.sweep.dir='{folder}'"]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{folder / 'report.html'}\n"
    first, second = (codec.load(folder / name) for name in "01")
    assert (first.described_by, second.described_by) == (None, "0")
    assert second.aa_pairs
    assert second.stages[0].pairs
    assert first.command == second.command == shlex.join(["python", *command])
    assert not (folder / "references").exists()
