"""The program from the outside: presets, folders, exit codes, sweeps, interruption."""

import signal
import subprocess
import sys
import time
from pathlib import Path

from pipeline.cli.app import claim
from pipeline.records import codec
from tests.cli.conftest import ROOT, Ask

SMOKE = ["preset=smoke", "measure.aa_pairs=0", "threads=1"]
PLANTED = ["stage=eager", "stage.name=planted", "stage.target=tests.fault_stages"]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pipeline", *arguments]


def test_runs_that_start_together_get_folders_of_their_own(tmp_path: Path) -> None:
    """Hydra gives both the same name."""
    folders = {claim(tmp_path / "run") for _ in range(3)}
    assert len(folders) == 3


def test_a_wrong_stage_leaves_with_1_and_a_whole_report(tmp_path: Path, ask: Ask) -> None:
    """The report's path is the last line; the stage is named as inaccurate in it."""
    done = ask(*SMOKE, *PLANTED, "+stage.plant=zeros", f"hydra.run.dir={tmp_path}")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == str(tmp_path / "report.html")
    assert "inaccurate" in (tmp_path / "report.md").read_text()
    assert codec.load(tmp_path).stages[0].status == "inaccurate"


def test_a_sweep_ends_in_one_report_also_when_a_job_failed(tmp_path: Path, ask: Ask) -> None:
    """One job whose request is wrong, one that runs: the report shows both, and the exit code is 1."""
    done = ask("-m", *SMOKE, "stage=eager", "data.batch_size=1,0", f"hydra.sweep.dir={tmp_path}")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == str(tmp_path / "report.html")
    assert "expected an integer ≥ 1" in (tmp_path / "report.md").read_text()
    assert codec.load(tmp_path / "0").finished


def heeds_interrupts() -> None:
    """What a shell starts in the background ignores Ctrl-C, and so would whatever the tests start there."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_an_interrupted_run_keeps_what_was_finished(tmp_path: Path) -> None:
    """Ctrl-C in mid-run: exit code 130, and the record on disk can be read."""
    process = subprocess.Popen(
        command(*SMOKE, f"hydra.run.dir={tmp_path}"),
        cwd=ROOT,
        preexec_fn=heeds_interrupts,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not (tmp_path / "results.json").exists() or not codec.load(tmp_path).stages:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=60)
    assert process.returncode == 130, complaint
    assert "error: interrupted; what was finished is saved" in complaint
    record = codec.load(tmp_path)
    assert record.stages
    assert not record.finished
