"""The program from the outside: presets, folders, exit codes, sweeps in a row and by submitit, interruption."""

import shlex
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.cli import app, launched
from pipeline.cli.app import claim, failed
from pipeline.cli.arguments import parse
from pipeline.config.request_error import RequestError
from pipeline.records import codec
from tests import terminal_signals
from tests.cli.conftest import ROOT, Ask

pytestmark = pytest.mark.long

SMOKE = ["preset=smoke", "measure.aa_pairs=0", "threads=1"]
Sweep = tuple[Path, subprocess.CompletedProcess[str]]  # its folder, and how it ended
FAULTY = ["stage=eager", "stage.name=faulty", "stage.target=tests.fault_stages"]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pipeline", *arguments]


def test_runs_that_start_together_get_folders_of_their_own(tmp_path: Path) -> None:
    folders = {claim(tmp_path / "run") for _ in range(3)}
    assert len(folders) == 3


@pytest.mark.parametrize("name", ["config.yaml", "results.json", "report.md", "reference", "baseline"])
def test_a_folder_with_what_a_run_would_write_over_is_left_alone(name: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    assert claim(tmp_path) == tmp_path
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / name).mkdir() if "." not in name else (theirs / name).write_text("mine")
    with pytest.raises(RequestError, match=f"a run would write over {name} in it"):
        claim(theirs)
    assert [part.name for part in theirs.iterdir()] == [name]


def test_a_folder_that_is_anothers_is_refused_in_one_line(tmp_path: Path, ask: Ask) -> None:
    (tmp_path / "reference").mkdir()
    done = ask("preset=smoke", "stage=eager", f"hydra.run.dir={tmp_path}")
    said = f"error: {tmp_path}: a run would write over reference in it; name another folder\n"
    assert (done.returncode, done.stderr) == (2, said)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """A sweep of two jobs, one whose stage answers wrongly and one whose request is wrong, in a process of its own."""
    folder = tmp_path_factory.mktemp("sweep")
    wrong = command("-m", *SMOKE, *FAULTY, "+stage.fault=zeros", "data.batch_size=1,0", f"hydra.sweep.dir={folder}")
    return folder, subprocess.run(wrong, capture_output=True, text=True, cwd=ROOT, check=False)


def test_a_sweep_ends_in_one_report_also_when_a_job_failed(sweep: Sweep) -> None:
    """The report shows both jobs, its path is the last line, and the exit code is 1."""
    folder, done = sweep
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == str(folder / "report.html")
    assert "batch\\_size=0: expected int" in (folder / "report.md").read_text()
    assert codec.load(folder / "0").finished
    assert (folder / "0" / "report.html").exists()


def test_a_wrong_stage_exits_with_1(sweep: Sweep, tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report names it, and its path is the last line; strict=false forgives it. The run is a job of the sweep."""
    measured = codec.load(sweep[0] / "0")
    right = replace(measured, stages=[replace(measured.stages[0], status="ok")])
    absent = replace(right, stages=[replace(right.stages[0], status="skipped", pairs=[])])
    cases = ((right, "true", 0), (measured, "false", 0), (measured, "true", 1), (absent, "true", 0))
    for record, strict, code in cases:
        monkeypatch.setattr(app, "run_ladder", lambda *_, record=record: record)
        folder = tmp_path / f"{record.stages[0].status}-{strict}"
        done = ask(*SMOKE, "stage=eager", f"strict={strict}", f"hydra.run.dir={folder}")
        assert (done.returncode, done.stdout.splitlines()[-1]) == (code, str(folder / "report.html"))
        assert ("inaccurate" in (folder / "report.md").read_text()) == (record is measured)


def test_a_sweep_fails_where_a_job_does(sweep: Sweep, tmp_path: Path) -> None:
    """A job without a record, one that wasn't finished, or one with a stage that isn't well."""
    measured = codec.load(sweep[0] / "0")
    right = replace(measured, stages=[replace(measured.stages[0], status="ok", accuracy=None)])
    (tmp_path / "0").mkdir()
    assert failed(tmp_path)
    outcomes = []
    for record in (right, measured, replace(right, finished=False)):
        codec.save(record, tmp_path / "0")
        outcomes.append(failed(tmp_path))
    assert outcomes == [False, True, True]


def test_an_interrupted_run_keeps_what_was_finished(tmp_path: Path) -> None:
    """Ctrl-C in mid-run: exit code 130, and the record on disk can be read."""
    process = subprocess.Popen(
        command(*SMOKE, f"hydra.run.dir={tmp_path}"),
        cwd=ROOT,
        preexec_fn=terminal_signals.heed,  # noqa: PLW1509 - this process has no other threads
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (tmp_path / "results.json").exists() or not codec.load(tmp_path).stages:
        assert process.poll() is None
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=240)
    assert process.returncode == 130, said
    assert "error: interrupted; what was finished is saved" in said
    record = codec.load(tmp_path)
    assert record.stages
    assert not record.finished


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
