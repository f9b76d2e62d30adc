"""A run whose disk, folder or stages fail keeps what it has measured, and another goes on from there."""

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.request_error import RequestError
from pipeline.orchestrate import context
from pipeline.orchestrate.run import run_ladder
from pipeline.records import codec
from pipeline.records.request import REFERENCE_LOGITS, RunConfig
from pipeline.records.run_record import RunRecord
from tests.orchestrate.fake_worker import ENVIRONMENT, REFERENCE, FakeWorker, Watcher, blank, config, die, interrupt


@pytest.fixture(autouse=True)
def workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake ones, of a run that has just begun; nothing of this process is adopted."""
    monkeypatch.setattr(context, "WorkerProcess", FakeWorker)
    monkeypatch.setattr("pipeline.orchestrate.processes.adopt", lambda: None)
    monkeypatch.setattr(FakeWorker, "deeds", {})
    monkeypatch.setattr(FakeWorker, "started", [])


def run(folder: Path, asked: RunConfig, record: RunRecord | None = None) -> tuple[RunRecord, Watcher]:
    watcher = Watcher()
    return run_ladder(asked, folder, record or blank(), watcher), watcher


def measured() -> list[str]:
    """The stages that a worker was started for."""
    return [name for role, name in FakeWorker.started if role == "stage"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_takes_nothing_ends_no_run(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every stage is measured, the record is saved where there is room, and one line says so.

    From a disk that is read-only nothing can be removed either, such as the reference's answers at the end.
    """
    kept, remove = codec.save, Path.unlink
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def full(record: RunRecord, folder: Path) -> Path:
        if folder.name == "run":
            raise OSError(code, os.strerror(code))
        return kept(record, folder)

    def fixed(path: Path, missing_ok: bool = False) -> None:
        if path.name == REFERENCE_LOGITS.name and code == errno.EROFS:
            raise OSError(code, os.strerror(code))
        remove(path, missing_ok)

    monkeypatch.setattr(codec, "save", full)
    monkeypatch.setattr(Path, "unlink", fixed)
    record, watcher = run(tmp_path / "run", config("one", "two"))
    assert [stage.status for stage in record.stages] == ["ok", "ok"]
    assert sum(f"can't be saved ({os.strerror(code)})" in line for line in watcher.said) == 1
    (rescued,) = tmp_path.glob("unet-ladder-*")
    assert codec.load(rescued).stages == record.stages
    assert f"the record is in {rescued}; python -m pipeline resume={rescued} goes on from it" in watcher.said[-1]


def test_a_process_that_cannot_start_is_a_stage_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the system has no process left to give; the others are measured."""

    class Unstartable(FakeWorker):
        def __init__(self, job: Any, *rest: Any) -> None:
            if (job.role, job.stage.name) == ("stage", "two"):
                raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            super().__init__(job, *rest)

    monkeypatch.setattr(context, "WorkerProcess", Unstartable)
    record, _ = run(tmp_path, config("one", "two", "three"))
    assert [stage.status for stage in record.stages] == ["ok", "failed", "ok"]
    assert "can't start: Resource temporarily unavailable" in record.stages[1].reason


def test_an_interrupted_stage_is_on_record_with_those_before_it(tmp_path: Path) -> None:
    """What it was at is its reason; what the run had measured stays."""
    FakeWorker.deeds["two"] = interrupt
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, config("one", "two", "three"))
    record = codec.load(tmp_path)
    assert not record.finished
    assert [(stage.status, stage.failure) for stage in record.stages] == [("ok", None), ("failed", "interrupted")]
    assert record.stages[1].reason == "interrupted in build"
    assert (tmp_path / "check.py").exists()


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """A run of three stages, of which the second died; FakeWorker has forgotten it."""
    FakeWorker.deeds["two"] = die
    run(tmp_path / "earlier", config("one", "two", "three"))
    FakeWorker.deeds.clear()
    FakeWorker.started.clear()
    return tmp_path / "earlier"


def test_a_resumed_run_does_what_failed_and_takes_over_the_rest(earlier: Path, tmp_path: Path) -> None:
    """With its files and the A/A pairs; the earlier run stays as it was, and the record says which is whose."""
    before = (earlier / "results.json").read_text()
    record, _ = run(tmp_path / "now", config("one", "two", "three", resume=str(earlier)))
    assert measured() == ["two"]
    assert [(stage.name, stage.status) for stage in record.stages] == [("one", "ok"), ("two", "ok"), ("three", "ok")]
    assert record.aa_pairs == codec.load(earlier).aa_pairs
    (warning,) = [part for part in record.warnings if part.code == "resumed"]
    assert "one, three" in warning.text
    assert str(earlier) in warning.text
    assert (tmp_path / "now" / "one" / "log.txt").samefile(earlier / "one" / "log.txt")
    assert (earlier / "results.json").read_text() == before


def test_a_resumed_run_that_is_interrupted_says_whose_stages_it_has(earlier: Path, tmp_path: Path) -> None:
    FakeWorker.deeds["two"] = interrupt
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "now", config("one", "two", "three", resume=str(earlier)))
    assert any(f"measured in {earlier}" in part.text for part in codec.load(tmp_path / "now").warnings)


def test_an_interrupted_run_is_resumed_where_it_stopped(tmp_path: Path) -> None:
    """The stage that was on its way, and those that it never came to."""
    FakeWorker.deeds["two"] = interrupt
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "earlier", config("one", "two", "three"))
    FakeWorker.deeds.clear()
    FakeWorker.started.clear()
    record, _ = run(tmp_path / "now", config("one", "two", "three", resume=str(tmp_path / "earlier")))
    assert measured() == ["two", "three"]
    assert record.finished


def other_code(_: pytest.MonkeyPatch) -> RunRecord:
    return blank(code_sha256="others")


def other_config(_: pytest.MonkeyPatch) -> RunRecord:
    return blank(config=config(data=replace(config().data, batch_size=2)))


def other_data(_: pytest.MonkeyPatch) -> RunRecord:
    return blank(data_sha256="others")


def other_weights(monkeypatch: pytest.MonkeyPatch) -> RunRecord:
    monkeypatch.setattr(FakeWorker, "reference", replace(REFERENCE, weights_sha256="others"))
    return blank()


def other_environment(**fields: Any) -> Any:
    def change(monkeypatch: pytest.MonkeyPatch) -> RunRecord:
        monkeypatch.setattr(FakeWorker, "environment", replace(ENVIRONMENT, **fields))
        return blank()

    return change


@pytest.mark.parametrize(
    ("change", "kind", "named"),
    [
        (other_environment(variables={"OMP_DYNAMIC": "1"}), "environment", "OMP_DYNAMIC was not set, is 1"),
        (other_code, "code", "the program's sources have changed"),
        (other_config, "config", "data.batch_size was 1, is 2"),
        (other_data, "data", "the images or labels"),
        (other_weights, "weights", "the weights have changed"),
        (other_environment(device_name="another"), "device", "device name was a processor, is another"),
        (other_environment(packages={"torch": "2.12"}, commit="def"), "versions", "torch was 2.11, is 2.12"),
    ],
)
def test_another_question_is_not_resumed_unless_told(
    change: Any, kind: Any, named: str, earlier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line names what differs and how to go on all the same; then the record says so."""
    record = change(monkeypatch)
    with pytest.raises(RequestError) as refused:
        run(tmp_path / "now", config("one", "two", "three", resume=str(earlier)), record)
    assert named in str(refused.value)
    assert f"resume_despite=[{kind}] resumes anyway" in str(refused.value)
    assert not measured()
    told = config("one", "two", "three", resume=str(earlier), resume_despite=[kind])
    resumed, _ = run(tmp_path / "again", told, record)
    assert measured() == ["two"]
    assert f"despite other {kind}" in resumed.warnings[-1].text


@pytest.mark.parametrize("text", [None, "{", json.dumps({"schema_version": 99})])
def test_what_is_no_run_is_not_resumed(text: str | None, tmp_path: Path) -> None:
    """One line that names it."""
    if text is not None:
        (tmp_path / "results.json").write_text(text)
    with pytest.raises(RequestError, match=r"resume=.*results\.json"):
        run(tmp_path / "now", config("one", resume=str(tmp_path)))
    assert not FakeWorker.started
