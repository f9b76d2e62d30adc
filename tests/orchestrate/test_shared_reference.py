"""The jobs of a sweep find out machine, peaks and reference once, and anew for whatever is another question."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from pipeline.orchestrate import context, shared_reference
from pipeline.orchestrate.context import RunContext
from pipeline.orchestrate.run import as_now, describe_run, run_ladder
from pipeline.records.request import REFERENCE_LOGITS, RunConfig
from pipeline.records.run_record import RunRecord, RunWarning
from tests.orchestrate.fake_worker import ENVIRONMENT, FakeWorker, Watcher, blank, config

Change = Callable[[Path, RunConfig, pytest.MonkeyPatch], RunConfig]
FOUND = RunWarning("files left out", "a pipe", "name another folder")


class DescribingWorker(FakeWorker):
    def _messages(self) -> Any:
        for message in super()._messages():
            if self.job.role == "reference":
                folder = Path(self.job.reference).parent
                (folder / "image_0.png").write_text("a picture")
                self.run_fields["warnings"] = [FOUND]
            yield message


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_workers: None) -> Path:
    """Where a user keeps a net, its arguments, weights and images; workers are fake ones."""
    for name in ("plans", "weights.pt", "labels.png"):
        (tmp_path / name).write_text(name)
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "one.png").write_text("one")
    monkeypatch.setattr(context, "WorkerProcess", DescribingWorker)
    monkeypatch.setattr("pipeline.orchestrate.run.cuda_gpus", list)
    return tmp_path


def run_config(place: Path) -> RunConfig:
    asked = config("one", sweep=str(place / "sweep"))
    return replace(
        asked,
        plan=replace(asked.plan, aa_pairs=0),
        model=replace(asked.model, options={"plans": [str(place / "plans")]}, checkpoint=str(place / "weights.pt")),
        data=replace(asked.data, name="folder", path=str(place / "images"), labels=str(place / "labels.png")),
    )


def job(number: int, asked: RunConfig) -> RunRecord:
    assert asked.sweep
    return run_ladder(asked, Path(asked.sweep, str(number)), blank(), Watcher())


def described(name: str, asked: RunConfig) -> RunRecord:
    job_of = RunContext(asked, Path(asked.sweep or "none", name), blank(), Watcher())
    describe_run(job_of)
    return job_of.record


def computed() -> int:
    return [role for role, _ in FakeWorker.started].count("reference")


def test_a_later_job_takes_over_what_the_first_has_found(place: Path) -> None:
    asked = run_config(place)
    first, second = job(0, asked), job(1, replace(asked, goal=replace(asked.goal, objective="latency")))
    assert computed() == 1
    assert (first.described_by, second.described_by) == (None, "0")
    assert second.environment == first.environment == ENVIRONMENT
    assert second.reference == first.reference
    assert FOUND in first.warnings  # others tell of the machine's load
    assert FOUND in second.warnings
    assert (place / "sweep" / "1" / "reference" / "image_0.png").read_text() == "a picture"
    assert not (place / "sweep" / "1" / REFERENCE_LOGITS).exists()
    assert [stage.status for stage in second.stages] == ["ok"]
    shutil.rmtree(place / "sweep" / shared_reference.FOLDER)
    assert sorted(path.name for path in (place / "sweep").iterdir()) == ["0", "1"]
    assert described("2", run_config(place)).described_by is None


def rewritten(name: str) -> Change:
    def change(place: Path, asked: RunConfig, _: pytest.MonkeyPatch) -> RunConfig:
        (place / name).write_text("others, and more of them")
        return asked

    return change


def asked_otherwise(**fields: Any) -> Change:
    return lambda _, asked, __: replace(asked, **fields)


def part_otherwise(part: str, **fields: Any) -> Change:
    return lambda _, asked, __: replace(asked, **{part: replace(getattr(asked, part), **fields)})


def told(_: Path, asked: RunConfig, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    monkeypatch.setenv("ONEDNN_DEFAULT_FPMATH_MODE", "BF16")
    return asked


CHANGES: list[Change] = [
    part_otherwise("model", options={"base": 4}), part_otherwise("model", checkpoint=None),
    part_otherwise("data", size=64), part_otherwise("data", batch_size=2),
    part_otherwise("data", contract=replace(config().data.contract, channels=1)),
    part_otherwise("task", name="regression"), part_otherwise("plan", measured_peaks=True),
    *map(rewritten, ("weights.pt", "plans", "images/one.png", "images/two.png", "labels.png")),
    asked_otherwise(seed=1), asked_otherwise(device="cuda"), asked_otherwise(threads=2),
    asked_otherwise(launcher="joblib"), told, asked_otherwise(sweep=None),
    lambda place, asked, _: replace(asked, sweep=str(place / "another")),
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_another_question_has_its_own_reference(change: Change, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = run_config(place)
    described("0", asked)
    assert described(str(place / "1"), change(place, asked, monkeypatch)).described_by is None
    assert computed() == 2


def test_a_removed_answer_is_found_out_anew(place: Path) -> None:
    described("0", run_config(place))
    shutil.rmtree(place / "sweep" / shared_reference.FOLDER)
    assert described("1", run_config(place)).described_by is None
    assert described("2", run_config(place)).described_by == "1"
    assert computed() == 2


def test_a_disk_that_is_full_shares_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.copytree", Mock(side_effect=OSError(28, "No space left on device")))
    assert [described(name, run_config(place)).described_by for name in "01"] == [None, None]
    assert not [path for path in (place / "sweep").glob("references/*") if path.is_dir()]


def test_who_uses_the_gpu_is_asked_anew() -> None:
    environment = replace(ENVIRONMENT, device="cuda", others_on_device=["trainer (7): 900 MiB"])
    assert as_now(environment).others_on_device == []
