"""The benchmarks' programs: nets are recorded once, figures follow from inputs, and the soak sees what a run leaves."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.benchmarks import net_records
from tests.benchmarks.fleet import Inputs, drawn, table
from tests.benchmarks.net_records import GpuQueue, finished
from tests.benchmarks.soak import counted, leaks

WRITES = """
import json, pathlib, sys
STAGES = [{"name": "fused", "status": "ok"}, {"name": "fp8", "status": "failed"}, {"name": "xla", "status": "ok"}]
given = dict(word.split("=", 1) for word in sys.argv if word.startswith(("hydra.run.dir=", "resume=")))
run = given["hydra.run.dir"]
pathlib.Path(run).mkdir(parents=True)  # a run claims a folder that no other has
if "resume" in given:
    pathlib.Path(run, "resumed").write_text(pathlib.Path(given["resume"], "results.json").read_text())
pathlib.Path(run, "results.json").write_text(json.dumps({"finished": "base24" not in run, "stages": STAGES}))
print("the ladder of", run, *sys.argv)
"""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, str]]:
    """The steps that were called, by net; the ladder alone runs, as a program that writes a record and no more."""
    steps: list[tuple[str, str]] = []
    real, ladder = GpuQueue.called, tmp_path / "ladder.py"
    ladder.write_text(WRITES)

    def called(self: GpuQueue, name: str, step: str, words: list[str], gpu: str) -> int:
        steps.append((name, step))
        if step != "ladder":
            (self.out / name / f"{step}.txt").write_text("unknown\n0.5 ms")
            if step == "train":
                Path(words[-1]).touch()
            return 0
        return real(self, name, step, [str(ladder), *words], gpu)

    monkeypatch.setattr(GpuQueue, "called", called)
    return steps


def told(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["net_records", *words])
    return net_records.main()


def test_each_net_is_trained_measured_and_checked_once(
    asked: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second call goes on with what has no finished record, and trains no net anew."""
    out = tmp_path / "records"
    further = ["--further", "stage.rungs.fp8.budget=9e-4", "measure.aa_pairs=0"]
    assert told(monkeypatch, "--out", str(out), "--nets", "nnunet", "base24", "--check", "3", *further) == 1
    assert " ".join(further[1:]) in (out / "nnunet" / "ladder.txt").read_text()
    checks = ["check-fused", "check-xla"]  # fp8 failed
    assert asked == [(net, step) for net in ("nnunet", "base24") for step in ("train", "ladder", *checks)]
    assert finished(out / "nnunet")
    assert not finished(out / "base24")
    assert json.loads((out / "nnunet" / "results.json").read_text())["finished"] is True
    assert "nnunet: 0.5 ms" in capsys.readouterr().out
    asked.clear()
    told(monkeypatch, "--out", str(out), "--nets", "nnunet", "base24")
    assert asked == [("base24", "ladder")]
    assert [path.parent.name for path in (out / "runs").glob("*/resumed")] == ["base24"]
    assert told(monkeypatch, "--out", str(out), "--nets", "nnunet") == 0


def test_no_net_begins_once_the_time_is_over(asked: list[tuple[str, str]], tmp_path: Path) -> None:
    """What is left stays for the next call."""
    work = GpuQueue(["smp"], tmp_path, ends=time.monotonic())
    work.work("0", 0.3, 0)
    assert asked == []
    assert work.left.get_nowait() == "smp"


def test_the_gpus_are_those_that_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sees two of eight gets no third."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert net_records.gpus(2) == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert net_records.gpus(1) == ["3"]
    assert net_records.gpus(4) == ["3", "5"]


def test_a_program_ends_with_the_time(tmp_path: Path) -> None:
    """By a signal that it may heed."""
    (tmp_path / "smp").mkdir()
    code = GpuQueue([], tmp_path, time.monotonic()).called("smp", "ladder", ["-c", "import time; time.sleep(60)"], "0")
    assert code == -signal.SIGTERM


PAGE = Path(__file__).resolve().parents[2] / "docs" / "a-billion-images.md"


def test_twice_the_rate_takes_half_the_gpus() -> None:
    once, twice = ({name: value for name, _, value in table(Inputs(rate=rate))} for rate in (500.0, 1000.0))
    assert (once["GPUs"], twice["GPUs"]) == ("29", "15")
    assert once["network in, Gbit/s"] == twice["network in, Gbit/s"] == "5.8"
    assert once["GPU hours, price a day"] == "2,088"


def test_the_page_has_the_table_of_its_inputs() -> None:
    assert drawn(Inputs()) in PAGE.read_text(encoding="utf-8")


def test_what_is_left_behind_is_counted(tmp_path: Path) -> None:
    """A process, a descriptor, a thread, a file; memory only beyond what an allocator keeps."""
    before = counted(tmp_path)
    assert not leaks(before, before | {"resident bytes": before["resident bytes"] + 2**20}, 10)
    child = subprocess.Popen([sys.executable, "-SEc", "input()"], stdin=subprocess.PIPE)
    (tmp_path / "file").touch()
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    after = counted(tmp_path)
    grown = {line.partition(":")[0] for line in leaks(before, after | {"resident bytes": 2**40}, 10)}
    os.close(descriptor)
    ended.set()
    thread.join()
    child.communicate()
    assert grown == {"children", "descriptors", "threads", "temporary files", "resident bytes"}
