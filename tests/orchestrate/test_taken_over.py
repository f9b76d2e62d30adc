"""What a resumed run takes over of the earlier one's stages, and what it measures again."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.orchestrate import context
from pipeline.orchestrate.run import run_ladder
from pipeline.records import codec
from tests.orchestrate.fake_worker import ENVIRONMENT, FakeWorker, Watcher, blank, config


@pytest.fixture(autouse=True)
def fake_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "WorkerProcess", FakeWorker)
    monkeypatch.setattr("pipeline.orchestrate.processes.adopt", lambda: None)
    monkeypatch.setattr(FakeWorker, "deeds", {})


@pytest.mark.parametrize("empty", [True, False], ids=["without its samples", "without its pair"])
def test_a_stage_that_lost_its_samples_is_measured_again(
    empty: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was taken over as right, and then had no time."""
    earlier = tmp_path / "earlier"
    record = run_ladder(config("one", "two"), earlier, blank(), Watcher())
    one, two = record.stages
    pairs = [replace(pair, blocks=[]) for pair in one.pairs] if empty else []
    codec.save(replace(record, stages=[replace(one, pairs=pairs), two]), earlier)
    monkeypatch.setattr(FakeWorker, "started", [])
    resumed = run_ladder(config("one", "two", resume=str(earlier)), tmp_path / "later", blank(), Watcher())
    assert [name for role, name in FakeWorker.started if role == "stage"] == ["one"]
    assert all(pair.blocks for stage in resumed.stages for pair in stage.pairs)


def test_a_variable_whose_value_no_record_keeps_is_compared_as_records_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It differed from itself, and the line that said so told the value."""
    name, value = "TORCH_CACHE_KEY", "hush-hush-hush"
    monkeypatch.setenv(name, value)
    monkeypatch.setattr(FakeWorker, "environment", replace(ENVIRONMENT, variables={name: value}))
    run_ladder(config("one"), tmp_path / "earlier", blank(), Watcher())
    assert value not in (tmp_path / "earlier" / codec.FILE).read_text()
    monkeypatch.setattr(FakeWorker, "started", [])
    run_ladder(config("one", resume=str(tmp_path / "earlier")), tmp_path / "later", blank(), Watcher())
    assert [role for role, _ in FakeWorker.started if role == "stage"] == []
