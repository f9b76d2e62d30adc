"""Workers that answer at once."""

import pytest

from pipeline.orchestrate import context
from tests.orchestrate.fake_worker import FakeWorker


@pytest.fixture
def fake_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are fake ones, of a run that has just begun; nothing of this process is adopted."""
    monkeypatch.setattr(context, "WorkerProcess", FakeWorker)
    monkeypatch.setattr("pipeline.orchestrate.processes.adopt", lambda: None)
    monkeypatch.setattr("pipeline.orchestrate.trials.cuda_gpus", list)  # of whose peaks nothing is kept
    monkeypatch.setattr(FakeWorker, "deeds", {})
    monkeypatch.setattr(FakeWorker, "started", [])
