"""What becomes of a stage that fails and of a run that can't go on; what is measured stays, and another run goes on."""

import errno
import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from pipeline.config.load import with_eager
from pipeline.config.request_error import RequestError
from pipeline.devices.accelerators import Accelerator
from pipeline.export.request import no_winner
from pipeline.orchestrate import context, interleave, run, trials
from pipeline.orchestrate.context import RunContext, refuse_baseline, refuse_reference
from pipeline.orchestrate.processes import Use
from pipeline.orchestrate.run import last_words, run_ladder
from pipeline.orchestrate.trials import _gone, kept_peaks
from pipeline.orchestrate.worker_process import WorkerGone
from pipeline.records import codec
from pipeline.records.codec import CLAIM
from pipeline.records.plan import Phase
from pipeline.records.request import REFERENCE_LOGITS, Job, RunConfig
from pipeline.records.run_record import FailureKind, MeasuredPeaks, RunRecord
from pipeline.stats.intervals import samples_of
from pipeline.stats.ranking import ranking
from tests.orchestrate.fake_worker import (
    ENVIRONMENT,
    QUICK,
    REFERENCE,
    FakeWorker,
    Watcher,
    blank,
    config,
    die,
    interrupt,
)
from tests.worker.jobs import EAGER

pytestmark = pytest.mark.usefixtures("fake_workers")


def measured(folder: Path, *names: str, **changes: Any) -> RunRecord:
    return run_ladder(config(*names, **changes), folder, blank(), Watcher())


def test_honest_stages_keep_their_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "contenders", lambda _: ["one", "two"])
    record = measured(tmp_path, "one", "two", plan=replace(QUICK, head_to_head=1))
    assert [(pair.baseline, pair.stage) for pair in record.head_to_head] == [("one", "two")]


@pytest.mark.parametrize(("brief", "role"), [(True, "companion"), (False, "stage")])
def test_eager_that_nobody_asked_for_is_only_sampled_in_a_brief_run(brief: bool, role: str, tmp_path: Path) -> None:
    asked = config("asked", device="cuda", plan=replace(QUICK, aa_pairs=0, brief_beside=brief))
    stages = [replace(spec, devices=["cuda"]) for spec in with_eager(asked.stages, EAGER)]
    record = run_ladder(replace(asked, stages=stages), tmp_path, blank(), Watcher())
    assert [role for role, name in FakeWorker.started if name == "asked"] == ["stage"]
    assert [stage.name for stage in record.stages if stage.usable] == ["eager", "asked"]
    assert FakeWorker.started[2] == (role, "eager")
    calls = [{sample.calls for sample in samples_of(stage.pairs[0], "stage")} for stage in record.stages]
    assert calls == [{1 if brief else 10}, {10}]


def test_a_run_says_what_it_takes_and_records_what_it_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (64.0, 0.0, 0.0))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    watcher = Watcher()
    record = run_ladder(config("one"), tmp_path, blank(), watcher)
    assert re.match(r"on an idle machine at most \d+ s plus the builds, mostly ", watcher.said[0])
    assert "a load of 64.0 on 2 processors before the run: samples take about 33.0 times" in watcher.said[1]
    assert [*record.phase_seconds] == ["reference", "A/A pairs", "baseline", "one", "head to head"]


@pytest.mark.parametrize(
    ("kind", "reason", "roles"),
    [
        ("out of memory", "the library has no room left", ["stage", "stage"]),
        ("killed", "killed by SIGKILL", ["stage", "stage"]),
        ("error", "FileNotFoundError: no such file: runs/out of memory/net.pt", ["stage"]),
    ],
)
def test_only_kinds_of_failure_build_again(kind: FailureKind, reason: str, roles: list[str], tmp_path: Path) -> None:
    FakeWorker.deeds["large"] = Mock(side_effect=WorkerGone(kind, reason))
    record = measured(tmp_path, "large")
    assert [role for role, name in FakeWorker.started if name == "large"] == roles
    assert (record.stages[0].status, record.stages[0].failure, record.stages[0].reason) == ("failed", kind, reason)


def test_what_does_not_fit_beside_the_baseline_alternates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What other programs took is counted over the stage's own process and both of the baseline."""
    here, counted = float(os.cpu_count() or 1), interleave.counted_samples
    uses = iter([Use(1.0, 1.0, here - 0.1), Use(1.0, 1.0, here - 0.3), Use(2.0, 2.0, 2 * here - 0.2)])
    failures = iter([WorkerGone("out of memory", "the library has no room left")])

    def fails_once(_: Job) -> None:
        for failure in failures:
            raise failure

    monkeypatch.setattr(trials, "counted_samples", lambda *asked: (counted(*asked)[0], next(uses)))
    FakeWorker.deeds["large"] = fails_once
    record = measured(tmp_path, "large", "small")
    large, small = (stage.pairs[0] for stage in record.stages)
    assert [stage.status for stage in record.stages] == ["ok", "ok"]
    assert (large.alternated, small.alternated, len(large.blocks)) == (True, False, QUICK.interim_analyses[0])
    assert large.taken_share == pytest.approx(1 - 0.15 / ENVIRONMENT.cpu_threads)
    assert "large" in ranking(record).ratios


def test_eager_takes_the_place_of_a_baseline_that_cannot_run(tmp_path: Path) -> None:
    FakeWorker.deeds["amp"] = die
    record = measured(tmp_path, "one", baseline=replace(EAGER, name="amp"))
    (warning,) = [part for part in record.warnings if part.code == "baseline replaced"]
    assert "amp can't run here: died in build: exit code 3; eager is the baseline" in warning.text
    assert (record.baseline, record.stages[0].pairs[0].baseline, record.finished) == ("eager", "eager", True)


REFUSED = {"status": "inaccurate", "failure": "wrong device", "reason": "did no work on the GPU"}


@pytest.mark.parametrize(
    ("fields", "ending"),
    [
        (REFUSED, REFUSED),
        ({"status": "ok", "failure": None, "reason": ""}, {"status": "ok", "reason": "died in export: exit code 1"}),
    ],
    ids=["refused", "right"],
)
def test_a_worker_that_dies_after_the_check_keeps_its_outcome(fields: dict[str, Any], ending: dict[str, Any]) -> None:
    worker: Any = SimpleNamespace(phase=Phase.EXPORT, fields=fields)
    context: Any = SimpleNamespace(baseline=None)
    assert _gone(WorkerGone("died", "died in export: exit code 1"), worker, context) == ending


def test_what_ends_the_run_names_its_net_and_its_logs_where_they_say_anything(tmp_path: Path) -> None:
    asked = config("one")
    context = RunContext(asked, tmp_path, blank(), Watcher())
    net = f"model.target={asked.model.target}"
    (tmp_path / "log.txt").touch()
    with pytest.raises(RequestError, match=f"^the reference of {net} can't be computed: killed$"):
        refuse_reference(context, "killed")
    (tmp_path / "log.txt").write_text("its last word")
    with pytest.raises(RequestError, match=f"^the reference of {net} can't be computed: killed; the logs are in "):
        refuse_reference(context, "killed")
    with pytest.raises(RequestError, match=f"^the baseline, {context.spec.name} of {net}, can't run: killed"):
        refuse_baseline(context, "killed")
    (tmp_path / "net.pt2").touch()
    filed = replace(asked, model=replace(asked.model, file=str(tmp_path / "net.pt2")))
    assert RunContext(filed, tmp_path, blank(), Watcher()).net == f"model.file={tmp_path / 'net.pt2'}"


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ("ValueError: Invalid log settings: junk, must be", "; TORCH_LOGS=junk is set"),
        ("ValueError: invalid literal for int() with base 10: 'abc'", "; TORCHINDUCTOR_COMPILE_THREADS=abc is set"),
        (
            "NotADirectoryError: [Errno 20] Not a directory: '/dev/null/x'",
            "; TORCHINDUCTOR_CACHE_DIR=/dev/null/x is set",
        ),
        ("/dev/null/x: junk", "; TORCHINDUCTOR_CACHE_DIR=/dev/null/x, TORCH_LOGS=junk are set"),
        ("/mnt/dev/null/x and /dev/null/xy, junky, abcd", ""),
        ("1 of 8, plain", ""),
        ("16 channels for 24, 1.5 times", ""),
        ("TORCH_LOGS: junk is no setting", ""),
    ],
)
def test_a_variable_to_blame_is_named(said: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries tell of the value alone; one that may stand in any text, or in another's word, names nothing."""
    for name, value in {
        "TORCH_LOGS": "junk",
        "TORCHINDUCTOR_COMPILE_THREADS": "abc",
        "TORCHINDUCTOR_CACHE_DIR": "/dev/null/x",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "16",
        "KMP_BLOCKTIME": "1.5",
        "SOME_OTHER": "plain",
    }.items():
        monkeypatch.setenv(name, value)
    context = RunContext(config("one"), tmp_path, blank(), Watcher())
    with pytest.raises(RequestError) as refused:
        refuse_reference(context, said)
    assert str(refused.value).endswith(f"{said}{named}")


def test_a_baseline_that_cannot_be_right_is_told_with_what_was_seen_of_its_net(tmp_path: Path) -> None:
    context = RunContext(config("one"), tmp_path, blank(), Watcher())
    context.warn("net in doubt", "Net answers differently at a second call; aten.bernoulli_ draws at random", "off")
    said = "can't be judged: logits differ; net in doubt: .*aten.bernoulli_ draws at random$"
    with pytest.raises(RequestError, match=said):
        refuse_baseline(context, "logits differ")


def test_a_reference_that_dies_is_told_with_its_last_words(tmp_path: Path) -> None:
    """Such as what torch says of a variable of the environment; a log that is empty, or gone, says nothing."""
    log = tmp_path / "log.txt"
    assert last_words(log) == ""
    log.write_text("\n")
    assert last_words(log) == ""
    log.write_text("Traceback (most recent call last):\n  ...\nValueError: \nInvalid log settings: bogus, not\n  all\n")
    assert last_words(log) == ", and its log ends in ValueError: Invalid log settings: bogus, not all"
    log.write_text("one\ntwo\n")
    assert last_words(log) == ", and its log ends in two"


@pytest.mark.parametrize(("again", "status"), [(2.0, "ok"), (0.5, "inaccurate")])
def test_peaks_are_measured_again(again: float, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first peaks were taken beside other programs; the refusal stands if the second are as low."""
    low = MeasuredPeaks({"fp32": 1e-9}, 1.0, None, None, None)
    work = {"reference": replace(REFERENCE, flops_per_image=10**6), "measured_peaks": low}
    monkeypatch.setattr(run, "found_by_a_worker", lambda _: {"environment": ENVIRONMENT, **work})
    FakeWorker.deeds["peaks"] = replace(low, tflops={"fp32": again if status == "ok" else 1e-10})
    record = measured(tmp_path, "fast", "also", plan=replace(QUICK, aa_pairs=0))
    assert [stage.status for stage in record.stages] == [status, status]
    assert record.measured_peaks.tflops["fp32"] == (again if status == "ok" else 1e-9)
    roles = [role for role, _ in FakeWorker.started]
    assert roles.count("peaks") == (1 if status == "ok" else 2)
    assert ("measured again for fast" in " ".join(each.text for each in record.warnings)) == (status == "ok")


PEAKS = MeasuredPeaks({"fp16": 600.0}, 4e12, None, None, None)


def gpu(uuid: str) -> Accelerator:
    return Accelerator("cuda", 0, "a GPU", cast("Any", SimpleNamespace(uuid=lambda: uuid)))


def test_peaks_are_kept_for_each_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run on a busy GPU knows what it reached before; another GPU has its own, as has one without a UUID."""
    busy = replace(PEAKS, tflops={"fp16": 300.0}, bandwidth_bytes_per_s=5e12)

    def kept(found: Accelerator, measured: MeasuredPeaks) -> MeasuredPeaks:
        monkeypatch.setattr(trials, "cuda_gpus", lambda: [found])
        return kept_peaks("cuda", measured, tmp_path / "peaks")

    assert kept(gpu("one"), PEAKS) == PEAKS
    assert kept(gpu("one"), busy) == replace(PEAKS, bandwidth_bytes_per_s=5e12)
    assert kept(gpu("two"), busy) == busy
    assert kept(replace(gpu(""), telemetry=None), busy) == busy
    assert kept_peaks("cpu", busy, tmp_path / "peaks") == busy


@pytest.mark.parametrize("damaged", ["{", "[]", '{"tflops": {"fp16": "x"}}', '{"tflops": {"fp16": Infinity}}', "\xff"])
def test_a_damaged_file_of_peaks_is_written_anew(damaged: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "cuda_gpus", lambda: [gpu("one")])
    (tmp_path / "one.json").write_text(damaged, encoding="latin-1")
    assert kept_peaks("cuda", PEAKS, tmp_path) == PEAKS
    assert json.loads((tmp_path / "one.json").read_text())["tflops"] == PEAKS.tflops


@pytest.mark.parametrize("home", ["/dev/null", "/proc/none"])
def test_without_a_writable_home_no_peaks_are_kept(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "cuda_gpus", lambda: [gpu("one")])
    monkeypatch.setenv("HOME", home)
    assert kept_peaks("cuda", PEAKS) == PEAKS


@pytest.mark.parametrize(("earlier", "warned"), [(900.0, True), (610.0, False), (300.0, False)])
def test_peaks_are_the_largest(earlier: float, warned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "kept_peaks", lambda *_: replace(PEAKS, tflops={"fp16": earlier}))
    fields = {"environment": ENVIRONMENT, "reference": REFERENCE, "measured_peaks": PEAKS}
    monkeypatch.setattr(run, "found_by_a_worker", lambda _: fields)
    record = measured(tmp_path, plan=replace(QUICK, aa_pairs=0))
    assert record.measured_peaks == replace(PEAKS, tflops={"fp16": max(earlier, 600.0)})
    assert ("the most of all runs on it" in " ".join(each.text for each in record.warnings)) == warned


def ran(folder: Path, asked: RunConfig, record: RunRecord | None = None) -> tuple[RunRecord, Watcher]:
    watcher = Watcher()
    return run_ladder(asked, folder, record or blank(), watcher), watcher


def stages_measured() -> list[str]:
    return [name for role, name in FakeWorker.started if role == "stage"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_takes_nothing_ends_no_run(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every stage is measured, the record is saved where there is room, and one line says so.

    From a disk that is read-only nothing can be removed either, such as the reference's answers at the end.
    """
    kept, remove = codec.save, Path.unlink
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def full(record: RunRecord, folder: Path) -> Path:
        if folder.name == "ran":
            raise OSError(code, os.strerror(code))
        return kept(record, folder)

    def fixed(path: Path, missing_ok: bool = False) -> None:
        if path.name == REFERENCE_LOGITS.name and code == errno.EROFS:
            raise OSError(code, os.strerror(code))
        remove(path, missing_ok)

    monkeypatch.setattr(codec, "save", full)
    monkeypatch.setattr(Path, "unlink", fixed)
    record, watcher = ran(tmp_path / "ran", config("one", "two"))
    assert [stage.status for stage in record.stages] == ["ok", "ok"]
    assert sum(f"can't be saved ({os.strerror(code)})" in line for line in watcher.said) == 1
    (rescued,) = tmp_path.glob("unet-ladder-*")
    assert codec.load(rescued).stages == record.stages
    assert f"the record is in {rescued}; python -m pipeline resume={rescued} resumes it" in watcher.said[-1]


def test_a_process_that_cannot_start_is_a_stage_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Unstartable(FakeWorker):
        def __init__(self, job: Any, *rest: Any) -> None:
            if (job.role, job.stage.name) == ("stage", "two"):
                raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            super().__init__(job, *rest)

    monkeypatch.setattr(context, "WorkerProcess", Unstartable)
    record, _ = ran(tmp_path, config("one", "two", "three"))
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
        ran(earlier, config("one", "two", "three"))
    record = codec.load(earlier)
    assert not record.finished
    assert [(stage.status, stage.failure) for stage in record.stages] == [("ok", None), ("failed", "interrupted")]
    assert record.stages[1].reason == "interrupted in build"
    assert (earlier / "check.py").exists()
    forget()
    resumed, _ = ran(tmp_path / "now", config("one", "two", "three", resume=str(earlier)))
    assert stages_measured() == ["two", "three"]
    assert resumed.finished


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """A run of three stages, of which the second died; FakeWorker has forgotten it."""
    FakeWorker.deeds["two"] = die
    ran(tmp_path / "earlier", config("one", "two", "three"))
    forget()
    return tmp_path / "earlier"


def test_a_resumed_run_does_what_failed_and_takes_over_the_rest(earlier: Path, tmp_path: Path) -> None:
    before = (earlier / "results.json").read_text()
    record, _ = ran(tmp_path / "now", config("one", "two", "three", resume=str(earlier)))
    assert stages_measured() == ["two"]
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
        ran(tmp_path / "now", config("one", "two", "three", resume=str(earlier)))
    assert any(f"measured in {earlier}" in part.text for part in codec.load(tmp_path / "now").warnings)


OTHER = {"config": config(data=replace(config().data, batch_size=2))}


@pytest.mark.parametrize(
    ("part", "fields", "kind", "named"),
    [
        ("environment", {"variables": {"OMP_DYNAMIC": "1"}}, "environment", "OMP_DYNAMIC was not set, is 1"),
        ("record", {"code_sha256": "others"}, "code", "the program's sources have changed"),
        ("record", {"own_code_sha256": "others"}, "code", "your own modules were not recorded"),
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
        ran(tmp_path / "now", config("one", "two", "three", resume=str(earlier)), record)
    assert named in str(refused.value)
    assert f"resume_despite=[{kind}] resumes anyway" in str(refused.value)
    assert not stages_measured()
    told = config("one", "two", "three", resume=str(earlier), resume_despite=[kind])
    resumed, _ = ran(tmp_path / "again", told, record)
    assert stages_measured() == ["two"]
    assert f"despite other {kind}" in resumed.warnings[-1].text


@pytest.mark.parametrize("text", [None, "{", json.dumps({"schema_version": 99})])
def test_what_is_no_run_is_not_resumed(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "results.json").write_text(text)
    with pytest.raises(RequestError, match=r"resume=.*results\.json"):
        ran(tmp_path / "now", config("one", resume=str(tmp_path)))
    assert not FakeWorker.started


@pytest.mark.parametrize("empty", [True, False], ids=["without its samples", "without its pair"])
def test_a_stage_that_lost_its_samples_is_measured_again(empty: bool, tmp_path: Path) -> None:
    earlier = tmp_path / "earlier"
    record, _ = ran(earlier, config("one", "two"))
    one, two = record.stages
    pairs = [replace(pair, blocks=[]) for pair in one.pairs] if empty else []
    codec.save(replace(record, stages=[replace(one, pairs=pairs), two]), earlier)
    forget()
    resumed, _ = ran(tmp_path / "later", config("one", "two", resume=str(earlier)))
    assert stages_measured() == ["one"]
    assert all(pair.blocks for stage in resumed.stages for pair in stage.pairs)


def test_a_masked_variable_is_compared_as_records_have_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, value = "TORCH_CACHE_KEY", "hush-hush-hush"
    monkeypatch.setenv(name, value)
    monkeypatch.setattr(FakeWorker, "environment", replace(ENVIRONMENT, variables={name: value}))
    ran(tmp_path / "earlier", config("one"))
    assert value not in (tmp_path / "earlier" / codec.FILE).read_text()
    forget()
    ran(tmp_path / "later", config("one", resume=str(tmp_path / "earlier")))
    assert stages_measured() == []


def test_a_run_that_is_under_way_is_not_resumed(tmp_path: Path) -> None:
    earlier, refused = tmp_path / "earlier", []
    earlier.mkdir()
    (earlier / CLAIM).touch()
    again = config("one", "two", resume=str(earlier))

    def try_to_resume(_: object) -> None:
        with pytest.raises(RequestError, match=f"resume={earlier}: it is still under way; wait for it, or end it by"):
            ran(tmp_path / "later", again)
        refused.append(True)

    FakeWorker.deeds["two"] = try_to_resume
    ran(earlier, config("one", "two"))
    assert refused
    forget()
    assert [stage.status for stage in ran(tmp_path / "later", again)[0].stages] == ["ok", "ok"]


def test_a_claim_that_is_no_file_holds_nobody_up(tmp_path: Path) -> None:
    """Such as a folder, or one that somebody has removed: what is known of the run is its record."""
    earlier = tmp_path / "earlier"
    ran(earlier, config("one"))
    (earlier / CLAIM).mkdir()
    record, _ = ran(tmp_path / "later", config("one", resume=str(earlier)))
    assert [stage.status for stage in record.stages] == ["ok"]


def test_the_reference_of_a_folder_that_was_removed_is_computed_again(tmp_path: Path) -> None:
    FakeWorker.deeds["one"] = lambda job: shutil.rmtree(Path(job.reference).parents[1])
    ran(tmp_path / "run", config("one", "two"))
    started = [name for role, name in FakeWorker.started if role in ("reference", "stage")]
    assert started == ["eager", "one", "eager", "two"]
    assert len(codec.load(tmp_path / "run").stages) == 2


def test_a_run_without_a_stage_that_can_be_taken_says_so() -> None:
    assert no_winner([]) == "the run names no winner, and none of its stages can be taken"
