"""A stage is held to its course and to the run's tolerance."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.orchestrate import context, run, trials
from pipeline.orchestrate.run import run_ladder
from pipeline.orchestrate.trials import tail
from pipeline.orchestrate.worker_process import WorkerGone
from pipeline.protocol import Done, Message
from pipeline.records.goals import AccuracyLimits
from pipeline.records.plan import Phase
from pipeline.records.request import Job
from pipeline.records.run_record import FailureKind, RunRecord
from tests.fake_machine import ACCURACY
from tests.orchestrate.fake_worker import QUICK, FakeWorker, Watcher, blank, config


@pytest.fixture(autouse=True)
def workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "WorkerProcess", FakeWorker)
    monkeypatch.setattr("pipeline.orchestrate.processes.adopt", lambda: None)
    monkeypatch.setattr(FakeWorker, "deeds", {})
    monkeypatch.setattr(FakeWorker, "started", [])


def measured(folder: Path, *names: str, **changes: Any) -> RunRecord:
    return run_ladder(config(*names, **changes), folder, blank(), Watcher())


def test_a_stage_that_says_it_is_done_before_it_was_sampled_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shares its process with who speaks for it: a line of its own ended the job as if all were well."""
    said = FakeWorker._messages

    def speaks(self: FakeWorker) -> Iterator[Message]:
        return iter([Done()]) if (self.job.role, self.name) == ("stage", "hasty") else said(self)

    monkeypatch.setattr(FakeWorker, "_messages", speaks)
    record = measured(tmp_path, "hasty", "fine")
    assert [stage.status for stage in record.stages] == ["failed", "ok"]
    assert record.stages[0].failure == "protocol"
    assert "was done in start, before it could be sampled" in record.stages[0].reason


def test_a_stage_that_leaves_out_its_check_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unchecked(self: FakeWorker) -> None:
        self.phase = Phase.SAMPLING
        self._rest = iter([Done()])

    monkeypatch.setattr(FakeWorker, "end_sampling", unchecked)
    record = measured(tmp_path, "hasty")
    assert "was done in sampling, before it was checked" in record.stages[0].reason


def test_honest_stages_keep_their_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "contenders", lambda _: ["one", "two"])
    record = measured(tmp_path, "one", "two", plan=replace(QUICK, head_to_head=1))
    assert [(pair.baseline, pair.stage) for pair in record.head_to_head] == [("one", "two")]


def test_a_worker_that_said_why_needs_no_course() -> None:
    class Failed:
        fields, phase = {"status": "skipped"}, Phase.BUILD

    trials.check_course(Failed(), sampled=False, whole=True)  # type: ignore[arg-type]
    Failed.fields = {"status": "ok"}
    with pytest.raises(WorkerGone):
        trials.check_course(Failed(), sampled=False, whole=True)  # type: ignore[arg-type]


@pytest.mark.parametrize(("off", "limit", "failure"), [(0.01, None, "wrong answer"), (0.0, 1.1, "accuracy limit")])
def test_the_run_judges_by_its_own_tolerance(
    off: float, limit: float | None, failure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker's is within the reach of the stage that it judges."""
    figures = replace(ACCURACY, relative_l2=off)
    monkeypatch.setattr("tests.orchestrate.fake_worker.ACCURACY", figures)
    record = measured(tmp_path, "mine", accuracy=AccuracyLimits(min_agreement=limit))
    assert (record.stages[0].status, record.stages[0].failure) == ("inaccurate", failure)


@pytest.mark.parametrize(
    ("kind", "reason", "roles"),
    [
        ("out of memory", "the library has no room left", ["stage", "stage"]),
        ("killed", "killed by SIGKILL", ["stage", "stage"]),
        ("error", "FileNotFoundError: no such file: runs/out of memory/net.pt", ["stage"]),
    ],
)
def test_a_stage_is_built_again_by_itself_for_the_kind_of_its_failure_and_not_for_its_words(
    kind: FailureKind, reason: str, roles: list[str], tmp_path: Path
) -> None:
    def fails(_: Job) -> None:
        raise WorkerGone(kind, reason)

    FakeWorker.deeds["large"] = fails
    record = measured(tmp_path, "large")
    assert [role for role, name in FakeWorker.started if name == "large"] == roles
    assert (record.stages[0].status, record.stages[0].failure, record.stages[0].reason) == ("failed", kind, reason)


def test_the_end_of_a_log_is_read_of_files_alone(tmp_path: Path) -> None:
    """A stage may put a pipe, a device, a folder or a file without end in its place: none is waited for, or held."""
    (tmp_path / "log").write_text("first\n" * 50 + "last\n")
    assert tail(tmp_path / "log").splitlines()[-2:] == ["first", "last"]
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    held = sorted(Path("/proc/self/fd").iterdir())
    for name in ("pipe", "device", "folder", "none"):
        assert tail(tmp_path / name) == ""
    assert sorted(Path("/proc/self/fd").iterdir()) == held
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(2**40)
    with (tmp_path / "sparse").open("ab") as file:
        file.write(b"\nwhy it failed\n")
    assert tail(tmp_path / "sparse").endswith("why it failed")
