"""A run that is under way isn't resumed: two would disturb each other, and neither would know."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.config.request_error import RequestError
from pipeline.export.request import no_winner
from pipeline.orchestrate import context
from pipeline.orchestrate.run import run_ladder
from pipeline.records.codec import CLAIM
from tests.orchestrate.fake_worker import FakeWorker, Watcher, blank, config


@pytest.fixture(autouse=True)
def workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake ones; nothing of this process is adopted."""
    monkeypatch.setattr(context, "WorkerProcess", FakeWorker)
    monkeypatch.setattr("pipeline.orchestrate.processes.adopt", lambda: None)
    monkeypatch.setattr(FakeWorker, "deeds", {})


def test_a_run_that_is_under_way_is_not_resumed(tmp_path: Path) -> None:
    """In its second stage; once it has ended it is."""
    earlier, later = tmp_path / "earlier", tmp_path / "later"
    earlier.mkdir()
    (earlier / CLAIM).touch()

    def resumed() -> Any:
        return run_ladder(config("one", "two", resume=str(earlier)), later, blank(), Watcher())

    refused = []

    def try_to_resume(_: object) -> None:
        with pytest.raises(RequestError, match=f"resume={earlier}: it is still under way; wait for it, or end it by"):
            resumed()
        refused.append(True)

    FakeWorker.deeds["two"] = try_to_resume
    run_ladder(config("one", "two"), earlier, blank(), Watcher())
    assert refused
    FakeWorker.deeds.clear()
    assert [stage.status for stage in resumed().stages] == ["ok", "ok"]


def test_a_claim_that_is_no_file_holds_nobody_up(tmp_path: Path) -> None:
    """Such as a folder, or one that somebody has removed: what is known of the run is its record."""
    earlier = tmp_path / "earlier"
    earlier.mkdir()
    run_ladder(config("one"), earlier, blank(), Watcher())
    (earlier / CLAIM).mkdir()
    record = run_ladder(config("one", resume=str(earlier)), tmp_path / "later", blank(), Watcher())
    assert [stage.status for stage in record.stages] == ["ok"]


def test_a_run_without_a_stage_that_can_be_taken_says_so() -> None:
    assert no_winner([]) == "the run names no winner, and none of its stages can be taken"
    assert no_winner(["half"]) == "the run names no winner; --stage takes one of: half"
