"""The jobs of a sweep find out machine, peaks and reference once, and anew for whatever is another question."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.orchestrate import context, shared_reference
from pipeline.orchestrate.context import RunContext
from pipeline.orchestrate.run import as_now, describe_run, run_ladder
from pipeline.records.request import REFERENCE_LOGITS, REFERENCE_MODULES, RunConfig
from pipeline.records.run_record import RunRecord, RunWarning
from tests.orchestrate.fake_worker import ENVIRONMENT, FakeWorker, Watcher, blank, config

Change = Callable[[Path, RunConfig, pytest.MonkeyPatch], RunConfig]
FOUND = RunWarning("files left out", "a pipe", "name another folder")


class DescribingWorker(FakeWorker):
    """One whose reference says which modules it had imported, and draws a picture."""

    module: Path

    def _messages(self) -> Any:
        for message in super()._messages():
            if self.job.role == "reference":
                folder = Path(self.job.reference).parent
                (folder / REFERENCE_MODULES.name).write_text(f"{self.module}\n{__file__}")
                (folder / "image_0.png").write_text("a picture")
                self.run_fields["warnings"] = [FOUND]
            yield message


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a user keeps a net, its arguments, weights and images; workers are fake ones."""
    for name in ("net.py", "plans", "weights.pt", "labels.png"):
        (tmp_path / name).write_text(name)
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "one.png").write_text("one")
    packages = tmp_path / "packages"
    packages.mkdir()
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(packages))
    monkeypatch.setattr(shared_reference, "code_digest", SimpleNamespace(__wrapped__=lambda: "the code"))
    monkeypatch.setattr(DescribingWorker, "module", tmp_path / "net.py", raising=False)
    monkeypatch.setattr(context, "WorkerProcess", DescribingWorker)
    monkeypatch.setattr("pipeline.orchestrate.offspring.adopt", lambda: None)
    monkeypatch.setattr("pipeline.orchestrate.run.cuda_gpus", list)
    monkeypatch.setattr(FakeWorker, "started", [])
    monkeypatch.setattr(FakeWorker, "deeds", {})
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
    """What a job knows before its first stage."""
    job_of = RunContext(asked, Path(asked.sweep or "none", name), blank(), Watcher())
    describe_run(job_of)
    return job_of.record


def computed() -> int:
    return [role for role, _ in FakeWorker.started].count("reference")


def test_a_later_job_takes_over_what_the_first_has_found(place: Path) -> None:
    """With its files and warnings; the record says whose they are, and nothing is left once the sweep is over."""
    first, second = job(0, run_config(place)), job(1, replace(run_config(place), goal=first_goal(place)))
    assert computed() == 1
    assert (first.described_by, second.described_by) == (None, "0")
    assert second.environment == first.environment == ENVIRONMENT
    assert (second.reference, second.warnings) == (first.reference, first.warnings)
    assert FOUND in second.warnings
    assert (place / "sweep" / "1" / "reference" / "image_0.png").read_text() == "a picture"
    assert not (place / "sweep" / "1" / REFERENCE_LOGITS).exists()
    assert [stage.status for stage in second.stages] == ["ok"]
    shared_reference.drop_all(place / "sweep")
    assert sorted(path.name for path in (place / "sweep").iterdir()) == ["0", "1"]
    assert described("2", run_config(place)).described_by is None


def first_goal(place: Path) -> Any:
    """Another objective, which no reference depends on."""
    return replace(run_config(place).goal, objective="latency")


def rewritten(name: str) -> Change:
    def change(place: Path, asked: RunConfig, _: pytest.MonkeyPatch) -> RunConfig:
        (place / name).write_text("others")
        return asked

    return change


def asked_otherwise(**fields: Any) -> Change:
    return lambda _, asked, __: replace(asked, **fields)


def part_otherwise(part: str, **fields: Any) -> Change:
    return lambda _, asked, __: replace(asked, **{part: replace(getattr(asked, part), **fields)})


def surroundings(name: str, value: object) -> Change:
    def change(_: Path, asked: RunConfig, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
        monkeypatch.setattr(f"pipeline.orchestrate.shared_reference.{name}", value)
        return asked

    return change


def moved(place: Path, asked: RunConfig, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    monkeypatch.chdir(place)
    return asked


def searched(place: Path, asked: RunConfig, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    monkeypatch.setattr(sys, "path", [*sys.path, str(place)])
    return asked


def told(_: Path, asked: RunConfig, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    monkeypatch.setenv("ONEDNN_DEFAULT_FPMATH_MODE", "BF16")
    return asked


GPUS = [SimpleNamespace(telemetry=SimpleNamespace(uuid=lambda: "GPU-1"))]
# Of each part of the question, what makes it another.
CHANGES: dict[str, list[Change]] = {
    "code": [surroundings("code_digest", SimpleNamespace(__wrapped__=lambda: "others"))],
    "model": [
        part_otherwise("model", target="models.unet.Other"),
        part_otherwise("model", options={"base": 4}),
        part_otherwise("model", output=0),
        part_otherwise("model", trained=False),
    ],
    "weights": [rewritten("weights.pt"), part_otherwise("model", checkpoint=None)],
    "files of the net's arguments": [rewritten("plans")],
    "data": [
        part_otherwise("data", size=64),
        part_otherwise("data", batch_size=2),
        part_otherwise("data", batches=4),
        part_otherwise("data", contract=replace(config().data.contract, channels=1)),
        part_otherwise("data", label_rules=replace(config().data.label_rules, ignore=7)),
    ],
    "images and labels": [rewritten("images/one.png"), rewritten("images/two.png"), rewritten("labels.png")],
    "task": [part_otherwise("task", name="regression")],
    "seed": [asked_otherwise(seed=1)],
    "device": [asked_otherwise(device="cuda")],
    "threads": [asked_otherwise(threads=2)],
    "measured peaks": [part_otherwise("plan", measured_peaks=True)],
    "launcher": [asked_otherwise(launcher="joblib")],
    "machine": [
        surroundings("cpu_name", lambda: "another"),
        surroundings("processors", lambda: [0]),
        surroundings("driver_version", lambda: "1.2"),
        surroundings("cuda_gpus", lambda: GPUS),
    ],
    "packages": [rewritten("packages/torch-2.12.dist-info")],
    "environment": [told],
    "started in": [moved, searched],
    "modules": [rewritten("net.py")],
    "sweep": [lambda place, asked, _: replace(asked, sweep=str(place / "another"))],
    "no sweep": [asked_otherwise(sweep=None)],
}
OF_NO_PART = {"modules", "sweep", "no sweep"}


@pytest.mark.parametrize(
    ("part", "change"), [(part, change) for part, changes in CHANGES.items() for change in changes]
)
def test_another_question_has_a_reference_of_its_own(
    part: str, change: Change, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever differs of that on which the reference depends; what the part holds of it is what differs."""
    asked = run_config(place)
    before = shared_reference.question(asked)
    described("0", asked)
    other = change(place, asked, monkeypatch)
    after = shared_reference.question(other)
    if part not in OF_NO_PART:
        assert before[part] != after[part]
    assert described(str(place / "1"), other).described_by is None
    assert computed() == 2


def test_every_part_of_the_question_is_tried(place: Path) -> None:
    """A part that is added to it has a change of its own here."""
    assert CHANGES.keys() - OF_NO_PART == shared_reference.question(run_config(place)).keys()


def test_nothing_is_kept_that_may_be_of_files_written_meanwhile(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module, weights or images that are written over while the reference is computed may be old or new in it."""
    written: list[Path] = []

    class Meddling(DescribingWorker):
        def _messages(self) -> Any:
            if self.job.role == "reference":
                written[-1].write_text("while it was computed")
            yield from super()._messages()

    monkeypatch.setattr(context, "WorkerProcess", Meddling)
    for number, name in enumerate(("net.py", "images/one.png")):
        written.append(place / name)
        described(str(number), run_config(place))
        assert not (place / "sweep" / shared_reference.FOLDER).exists()


@pytest.mark.parametrize("spoil", ["writes over it", "removes it", "puts a link in its place"])
def test_a_spoilt_answer_is_found_out_anew(spoil: str, place: Path) -> None:
    """By the digests that the run's own process keeps, whatever lies in the sweep's folder; and shared again."""
    described("0", run_config(place))
    (kept,) = (place / "sweep" / shared_reference.FOLDER).glob("*/logits.safetensors")
    if spoil == "writes over it":
        kept.write_text("forged")
    else:
        kept.unlink()
    if spoil == "puts a link in its place":
        (place / "forged").write_text("forged")
        kept.symlink_to(place / "forged")
    assert described("1", run_config(place)).described_by is None
    assert described("2", run_config(place)).described_by == "1"
    assert computed() == 2


def test_a_stage_that_writes_over_the_reference_costs_no_second_one(place: Path) -> None:
    """The run's own copy is made again from the sweep's."""
    asked = replace(run_config(place), stages=config("one", "two").stages)
    job(0, asked)
    FakeWorker.deeds["one"] = lambda of: Path(of.reference).write_text("its own")
    record = job(1, asked)
    assert (computed(), record.described_by) == (1, "0")
    assert [stage.status for stage in record.stages] == ["ok", "ok"]


def test_a_disk_that_is_full_shares_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each job then finds out for itself, and nothing half written is left."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", full)
    assert [described(name, run_config(place)).described_by for name in "01"] == [None, None]
    assert not any((place / "sweep" / shared_reference.FOLDER).iterdir())


def test_who_uses_the_gpu_is_asked_anew() -> None:
    """Others come and go between jobs."""
    environment = replace(ENVIRONMENT, device="cuda", others_on_device=["trainer (7): 900 MiB"])
    assert as_now(environment).others_on_device == []
