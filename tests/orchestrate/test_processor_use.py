"""What works beside one side alone is told, and a side that takes more processors than the run gives."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from pipeline.orchestrate import interleave
from pipeline.orchestrate.context import RunContext
from pipeline.orchestrate.processes import TICKS, Use, between, more_threads, now, taken_share
from pipeline.orchestrate.worker_process import WorkerProcess
from pipeline.records.samples import Sample
from tests.orchestrate.fake_worker import ENVIRONMENT, FakeWorker, Watcher, blank, config, stage


@pytest.fixture(autouse=True)
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)


def counts(folder: Path, busy: int, own: int) -> Path:
    """A /proc in which one process, 7, and all together have used so many hundredths of a second."""
    (folder / "7").mkdir(exist_ok=True)
    (folder / "stat").write_text(f"cpu  {busy} 0 0 9999 9999 0 0 0 0 0\ncpu0 1 2 3\n")
    (folder / "7" / "stat").write_text(f"7 (a (name) S 1 7 7 0 -1 0 0 0 0 0 {own} 0 0 0 20 0 1 0\n")
    return folder


def test_what_a_side_and_others_use_is_told_apart(tmp_path: Path) -> None:
    """Of a process that has ended meanwhile nothing is known; where there are no counts, nothing is said."""
    before = now(7, counts(tmp_path, 1000, 100))
    found = between(before, now(7, counts(tmp_path, 1000 + 3 * TICKS, 100 + TICKS)))
    assert found.own == pytest.approx(1.0)
    assert found.others == pytest.approx(2.0)
    assert now(7, tmp_path / "nowhere") is None
    assert between(None, before) == between(before, None) == Use()
    assert Use(1, 2, 3).further(Use(1, 1, 1)) == Use(2, 3, 4)


@pytest.mark.skipif(sys.platform != "linux", reason="the counts are Linux's")
def test_the_system_s_own_counts_are_read() -> None:
    with subprocess.Popen([sys.executable, "-SEc", "while True: pass"]) as child:
        before = now(child.pid)
        while between(before, now(child.pid)).wall < 0.3:
            pass
        used = between(before, now(child.pid))
        child.kill()
    assert used.own > 0
    assert used.others > 0


@pytest.mark.parametrize(
    ("used", "threads", "share"),
    [
        (Use(4.0, 8.0, 0.0), 2, 0.0),
        (Use(4.0, 4.0, 4.0), 2, 0.5),
        (Use(4.0, 4.0, 4.0), 1, 0.0),  # who leaves a processor idle loses nothing by another program there
        (Use(4.0, 2.0, 6.0), 1, 0.5),
        (Use(4.0, 0.4, 16.0), 2, 1.0),
        (Use(0.5, 0.5, 0.5), 2, None),  # too short to be counted in hundredths of a second
        (Use(), 2, None),
        (Use(4.0, 0.0, 0.0), 2, None),  # a system that keeps no counts
    ],
)
def test_what_others_leave_too_little_of_is_taken(used: Use, threads: int, share: float | None) -> None:
    assert taken_share(used, threads) == share


def test_a_side_that_takes_more_processors_than_it_is_given_is_told() -> None:
    greedy = Use(2.0, 3.8, 0.2)
    found = more_threads("mine", greedy, 1)
    assert found is not None
    assert (found.code, found.text) == ("unfair", "mine used 1.9 processors, and threads=1")
    assert more_threads("mine", greedy, None) is None
    assert more_threads("mine", greedy, 2) is None
    assert more_threads("mine", Use(2.0, 2.0, 0.2), 1) is None
    assert more_threads("mine", Use(0.5, 5.0, 0.5), 1) is None


@pytest.mark.parametrize(("device", "share"), [("cpu", 0.5), ("cuda", None)])
def test_a_pair_keeps_what_others_took_while_it_was_sampled(
    device: str, share: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interleave, "counted_samples", lambda *_: ([Sample(1, 0.01, None)], Use(2.0, 2.0, 2.0)))
    record = blank(environment=replace(ENVIRONMENT, device=device, cpu_threads=2))
    asked = config("one", device=device)
    context = RunContext(asked, tmp_path, record, Watcher())
    sides = [
        cast("WorkerProcess", FakeWorker(asked.job(stage("one"), "companion", tmp_path), tmp_path / name, {}))
        for name in "ab"
    ]
    assert context.interleave(sides[0], sides[1], "mine").taken_share == share
