"""Trials of a stage, and what becomes of one that fails."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.orchestrate import run
from pipeline.orchestrate.run import run_ladder
from pipeline.orchestrate.trials import tail
from pipeline.orchestrate.worker_process import WorkerGone
from pipeline.records.request import Job
from pipeline.records.run_record import FailureKind, RunRecord
from tests.orchestrate.fake_worker import QUICK, FakeWorker, Watcher, blank, config

pytestmark = pytest.mark.usefixtures("fake_workers")


def measured(folder: Path, *names: str, **changes: Any) -> RunRecord:
    return run_ladder(config(*names, **changes), folder, blank(), Watcher())


def test_honest_stages_keep_their_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "contenders", lambda _: ["one", "two"])
    record = measured(tmp_path, "one", "two", plan=replace(QUICK, head_to_head=1))
    assert [(pair.baseline, pair.stage) for pair in record.head_to_head] == [("one", "two")]


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


def test_the_end_of_a_log_is_kept(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("first\n" * 50 + "last\n")
    assert tail(tmp_path / "log").splitlines()[-2:] == ["first", "last"]
    assert len(tail(tmp_path / "log").splitlines()) == 30
    assert tail(tmp_path / "none") == ""
