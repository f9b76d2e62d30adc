"""A run whose disk, folder or stages fail keeps what it has measured, and another goes on from there."""

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.request_error import RequestError
from pipeline.export.request import no_winner
from pipeline.orchestrate import context
from pipeline.orchestrate.run import run_ladder
from pipeline.records import codec
from pipeline.records.codec import CLAIM
from pipeline.records.request import REFERENCE_LOGITS, RunConfig
from pipeline.records.run_record import RunRecord
from tests.orchestrate.fake_worker import ENVIRONMENT, FakeWorker, Watcher, blank, config, die, interrupt

pytestmark = pytest.mark.usefixtures("fake_workers")


def run(folder: Path, asked: RunConfig, record: RunRecord | None = None) -> tuple[RunRecord, Watcher]:
    watcher = Watcher()
    return run_ladder(asked, folder, record or blank(), watcher), watcher


def measured() -> list[str]:
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
    class Unstartable(FakeWorker):
        def __init__(self, job: Any, *rest: Any) -> None:
            if (job.role, job.stage.name) == ("stage", "two"):
                raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            super().__init__(job, *rest)

    monkeypatch.setattr(context, "WorkerProcess", Unstartable)
    record, _ = run(tmp_path, config("one", "two", "three"))
    assert [stage.status for stage in record.stages] == ["ok", "failed", "ok"]
    assert "can't start: Resource temporarily unavailable" in record.stages[1].reason
    assert record.stages[1].log_tail == ""


def forget() -> None:
    FakeWorker.deeds.clear()
    FakeWorker.started.clear()


def test_an_interrupted_stage_is_on_record_with_those_before_it_and_the_run_resumed_there(tmp_path: Path) -> None:
    earlier = tmp_path / "earlier"
    FakeWorker.deeds["two"] = interrupt
    with pytest.raises(KeyboardInterrupt):
        run(earlier, config("one", "two", "three"))
    record = codec.load(earlier)
    assert not record.finished
    assert [(stage.status, stage.failure) for stage in record.stages] == [("ok", None), ("failed", "interrupted")]
    assert record.stages[1].reason == "interrupted in build"
    assert (earlier / "check.py").exists()
    forget()
    resumed, _ = run(tmp_path / "now", config("one", "two", "three", resume=str(earlier)))
    assert measured() == ["two", "three"]
    assert resumed.finished


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """A run of three stages, of which the second died; FakeWorker has forgotten it."""
    FakeWorker.deeds["two"] = die
    run(tmp_path / "earlier", config("one", "two", "three"))
    forget()
    return tmp_path / "earlier"


def test_a_resumed_run_does_what_failed_and_takes_over_the_rest(earlier: Path, tmp_path: Path) -> None:
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


OTHER = {"config": config(data=replace(config().data, batch_size=2))}


@pytest.mark.parametrize(
    ("part", "fields", "kind", "named"),
    [
        ("environment", {"variables": {"OMP_DYNAMIC": "1"}}, "environment", "OMP_DYNAMIC was not set, is 1"),
        ("record", {"code_sha256": "others"}, "code", "the program's sources have changed"),
        ("record", OTHER, "config", "data.batch_size was 1, is 2"),
        ("record", {"data_sha256": "others"}, "data", "the images or labels"),
        ("reference", {"weights_sha256": "others"}, "weights", "the weights have changed"),
        ("environment", {"device_name": "another"}, "device", "device name was a processor, is another"),
        ("environment", {"packages": {"torch": "2.12"}, "commit": "def"}, "versions", "torch was 2.11, is 2.12"),
    ],
)
def test_another_question_is_not_resumed_unless_told(
    part: str, fields: dict[str, Any], kind: Any, named: str, earlier: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    record = blank(**fields) if part == "record" else blank()
    if part != "record":
        monkeypatch.setattr(FakeWorker, part, replace(getattr(FakeWorker, part), **fields))
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
    if text is not None:
        (tmp_path / "results.json").write_text(text)
    with pytest.raises(RequestError, match=r"resume=.*results\.json"):
        run(tmp_path / "now", config("one", resume=str(tmp_path)))
    assert not FakeWorker.started


@pytest.mark.parametrize("empty", [True, False], ids=["without its samples", "without its pair"])
def test_a_stage_that_lost_its_samples_is_measured_again(empty: bool, tmp_path: Path) -> None:
    earlier = tmp_path / "earlier"
    record, _ = run(earlier, config("one", "two"))
    one, two = record.stages
    pairs = [replace(pair, blocks=[]) for pair in one.pairs] if empty else []
    codec.save(replace(record, stages=[replace(one, pairs=pairs), two]), earlier)
    forget()
    resumed, _ = run(tmp_path / "later", config("one", "two", resume=str(earlier)))
    assert measured() == ["one"]
    assert all(pair.blocks for stage in resumed.stages for pair in stage.pairs)


def test_a_masked_variable_is_compared_as_records_have_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, value = "TORCH_CACHE_KEY", "hush-hush-hush"
    monkeypatch.setenv(name, value)
    monkeypatch.setattr(FakeWorker, "environment", replace(ENVIRONMENT, variables={name: value}))
    run(tmp_path / "earlier", config("one"))
    assert value not in (tmp_path / "earlier" / codec.FILE).read_text()
    forget()
    run(tmp_path / "later", config("one", resume=str(tmp_path / "earlier")))
    assert measured() == []


def test_a_run_that_is_under_way_is_not_resumed(tmp_path: Path) -> None:
    earlier, refused = tmp_path / "earlier", []
    earlier.mkdir()
    (earlier / CLAIM).touch()
    again = config("one", "two", resume=str(earlier))

    def try_to_resume(_: object) -> None:
        with pytest.raises(RequestError, match=f"resume={earlier}: it is still under way; wait for it, or end it by"):
            run(tmp_path / "later", again)
        refused.append(True)

    FakeWorker.deeds["two"] = try_to_resume
    run(earlier, config("one", "two"))
    assert refused
    forget()
    assert [stage.status for stage in run(tmp_path / "later", again)[0].stages] == ["ok", "ok"]


def test_a_claim_that_is_no_file_holds_nobody_up(tmp_path: Path) -> None:
    """Such as a folder, or one that somebody has removed: what is known of the run is its record."""
    earlier = tmp_path / "earlier"
    run(earlier, config("one"))
    (earlier / CLAIM).mkdir()
    record, _ = run(tmp_path / "later", config("one", resume=str(earlier)))
    assert [stage.status for stage in record.stages] == ["ok"]


def test_a_run_without_a_stage_that_can_be_taken_says_so() -> None:
    assert no_winner([]) == "the run names no winner, and none of its stages can be taken"
