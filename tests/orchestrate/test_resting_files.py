"""What every worker reads anew is what it was when the run began, or the run says that it isn't."""

import os
import shutil
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from pipeline.config.request_error import RequestError
from pipeline.orchestrate import context, resting_files
from pipeline.orchestrate.resting_files import RestingFiles
from pipeline.orchestrate.run import run_ladder
from pipeline.records import codec
from pipeline.records.content_digest import data_digest
from pipeline.records.request import DataSpec, ModelSpec
from tests.orchestrate.fake_worker import REFERENCE, FakeWorker, Watcher, blank, config

SHIPPED = Path("models/weights/unet_small.safetensors")


@pytest.fixture(autouse=True)
def workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "WorkerProcess", FakeWorker)
    monkeypatch.setattr("pipeline.orchestrate.offspring.adopt", lambda: None)
    monkeypatch.setattr(FakeWorker, "deeds", {})
    monkeypatch.setattr(FakeWorker, "started", [])


def test_weights_that_a_stage_writes_over_end_the_run(tmp_path: Path) -> None:
    """The next stage would be called wrong for it; what was measured is kept."""
    weights = tmp_path / "net.safetensors"
    shutil.copy(SHIPPED, weights)
    model = ModelSpec("small", "models.unet.UNet", {}, str(weights))
    FakeWorker.deeds["saboteur"] = lambda _: weights.write_bytes(b"x" * weights.stat().st_size)
    with pytest.raises(RequestError, match=r"net\.safetensors: it was written over while the run was on its way"):
        run_ladder(config("one", "saboteur", "three", model=model), tmp_path / "run", blank(), Watcher())
    assert [stage.name for stage in codec.load(tmp_path / "run").stages] == ["one", "saboteur"]


def test_a_file_that_is_merely_touched_is_what_it_was(tmp_path: Path) -> None:
    """Also one that got another link; of one that was written or removed it is said."""
    (image := tmp_path / "images" / "a.png").parent.mkdir()
    image.write_bytes(b"pixels")
    data = DataSpec("folder", str(image.parent), None, size=64, batch_size=1, batches=3)
    files, record = RestingFiles(config(data=data)), blank(data_sha256=data_digest([str(image.parent)]))
    files.check_inputs(record)
    os.utime(image)
    os.link(image, tmp_path / "b.png")
    files.check_inputs(record)
    image.write_bytes(b"PIXELS")
    with pytest.raises(RequestError, match=r"a\.png: it was written over"):
        files.check_inputs(record)
    shutil.rmtree(image.parent)
    with pytest.raises(RequestError):
        files.check_inputs(record)


def test_weights_that_are_merely_touched_are_what_they_were(tmp_path: Path) -> None:
    weights = tmp_path / "net.safetensors"
    shutil.copy(SHIPPED, weights)
    files = RestingFiles(config(model=ModelSpec("small", "models.unet.UNet", {}, str(weights))))
    known = replace(REFERENCE, weights_sha256=sha256(weights.read_bytes()).hexdigest())
    os.utime(weights)
    files.check_inputs(blank(reference=known))
    weights.unlink()
    with pytest.raises(RequestError, match=r"net\.safetensors: it was written over"):
        files.check_inputs(blank(reference=known))


def test_the_program_s_own_files_are_watched_and_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody edits a checkout: the run goes on, and says what it means."""
    (source := tmp_path / "clock.py").write_text("now = 1")
    monkeypatch.setattr(resting_files, "sources", lambda: [source])
    FakeWorker.deeds["two"] = lambda _: source.write_text("now = 2")
    record = run_ladder(config("one", "two", "three"), tmp_path / "run", blank(), Watcher())
    assert [stage.status for stage in record.stages] == ["ok", "ok", "ok"]
    (warning,) = [part for part in record.warnings if part.code == "files changed"]
    assert "clock.py: this program's own file was written over" in warning.text


def test_the_files_of_a_run_are_found(tmp_path: Path) -> None:
    """What isn't there is no file."""
    assert Path("pipeline/orchestrate/run.py").resolve() in resting_files.sources()
    assert resting_files.files_of(SHIPPED) == [SHIPPED]
    assert resting_files.files_of(tmp_path / "gone") == []
