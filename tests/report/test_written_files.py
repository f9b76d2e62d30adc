"""What is written where: reports of runs and sweeps, drawn again, the comparison of runs, and figures for trackers."""

import csv
import io
import math
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from pipeline import compare as comparison
from pipeline import track as trackers
from pipeline.analysis.run_comparison import since
from pipeline.analysis.sweeps import curves, read_jobs
from pipeline.config.request_error import RequestError
from pipeline.records import codec
from pipeline.records.data_words import IMAGES
from pipeline.records.run_record import RunRecord, StageRecord
from pipeline.report.sweep import knees
from pipeline.report.write import main, write_report, write_sweep_report
from tests.report import made_up_run
from tests.report import made_up_run as made_up

RUN = made_up.run()


def of_batch(size: int, rate: float) -> RunRecord:
    """A job with this batch, whose one stage makes `rate` images a second."""
    pair = made_up.pair("eager", "compile", (10 * size / rate, size / rate))
    stage = replace(RUN.stages[7], pairs=[pair], latencies=[size / rate] * 20, energy=None)
    return made_up.with_settings(replace(RUN, stages=[stage]), data={"batch_size": size})


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Six jobs: three batches, one that was refused, one that left nothing and one that left half a record."""
    for number, job in enumerate((of_batch(1, 100.0), of_batch(8, 480.0), of_batch(32, 500.0))):
        codec.save(job, tmp_path / str(number))
    for number in (3, 4, 5):
        (tmp_path / str(number)).mkdir()
    (tmp_path / "3" / codec.REFUSAL).write_text("stage.mode=fast: did you mean 'default'?")
    (tmp_path / "5" / "results.json").write_text('{"schema_version": 1', encoding="utf-8")
    return tmp_path


def test_a_stored_record_draws_the_same_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = replace(RUN, stages=[RUN.stages[0], RUN.stages[7]])
    before = write_report(made_up.summary(few), tmp_path).read_text()
    assert {part.name for part in tmp_path.iterdir()} == {"report.html", "report.md", "results.csv"}
    codec.save(few, tmp_path)
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text() == before


@pytest.mark.parametrize(("name", "reason"), [("6", "no such file"), ("5", "not a run's record")])
def test_no_record_is_one_line(name: str, reason: str, sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(sweep / name)
    for program, words in ((main, [folder]), (comparison.main, [folder, folder])):
        wrong = program(words)
        said = capsys.readouterr().err
        assert (wrong, said.count("\n")) == (2, 1)
        assert f"{name}/results.json: {reason}" in said


def test_a_report_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    codec.save(replace(RUN, stages=RUN.stages[:1]), tmp_path)
    (tmp_path / "report.html").mkdir()
    assert main([str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"error: {tmp_path / 'report.html'}: Is a directory\n"


def test_a_sweep_s_report_holds_every_job(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(sweep)]) == 0
    assert capsys.readouterr().out == f"{sweep / 'report.html'}\n"
    html = (sweep / "report.html").read_text()
    assert "http" not in html.replace("http-equiv", "")
    assert "6 jobs, 3 with a record." in html
    assert "Job 3 has no report: stage.mode=fast" in html
    assert "Job 4 has no report: it left no record" in html
    assert "not a run&#39;s record" in html
    assert "Throughput against batch size" in html
    assert [(sweep / job / "report.html").exists() for job in "05"] == [True, False]
    rows = list(csv.DictReader(io.StringIO((sweep / "results.csv").read_text())))
    assert [(row["job"], row["batch_size"]) for row in rows] == [("0", "1"), ("1", "8"), ("2", "32")]


def test_the_knee_is_the_least_batch_near_the_best(sweep: Path) -> None:
    """8 gives 96 % of what 32 gives."""
    (row,) = knees(curves(read_jobs(sweep), "batch", "throughput"), IMAGES).rows
    assert [cell.text for cell in row] == ["torch.compile at 512", "8 (96 %)", "500"]


def test_a_sweep_of_which_nothing_is_left_still_says_so(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    text = write_sweep_report(read_jobs(tmp_path), tmp_path).read_text()
    assert "1 job, 0 with a record." in text


def compared(first: RunRecord, second: RunRecord, tmp_path: Path, *more: str) -> int:
    for name, run in (("a", first), ("b", second)):
        codec.save(run, tmp_path / name)
    return comparison.main([str(tmp_path / "a"), str(tmp_path / "b"), *more])


def slower() -> list[StageRecord]:
    """Return the stages, of which compile is 9 and not 10.8 times as fast as eager."""
    slow = made_up.pair("eager", "compile", (made_up.BASELINE_SECONDS, made_up.BASELINE_SECONDS / 9))
    return [replace(stage, pairs=[slow]) if stage.name == "compile" else stage for stage in RUN.stages]


def test_a_slower_stage_is_a_regression(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compared(RUN, replace(RUN, stages=slower()), tmp_path) == 1
    said = capsys.readouterr().out
    assert "Regressed: compile." in said
    assert "0.83" in said
    assert "warning" not in said


def test_a_stage_that_broke_is_a_regression_in_markdown_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stages = [
        replace(stage, status="failed", reason="out | of <b>memory") if stage.name == "half" else stage
        for stage in RUN.stages
    ]
    assert compared(RUN, replace(RUN, stages=stages), tmp_path, "--markdown") == 1
    said = capsys.readouterr().out
    assert "broken: out \\| of &lt;b&gt;memory" in said
    assert "Regressed: half" in said


def test_comparing_different_machines_warns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = replace(made_up.environment(), device_name="NVIDIA L4", packages={"torch": "2.15.0", "onnx": "1.2"})
    compared(RUN, replace(RUN, environment=other, config=made_up.settings(size=256)), tmp_path, "--across")
    said = capsys.readouterr().out
    versions = ("torch: 2.11.0 and 2.15.0", "onnx: not on record and 1.2")
    for part in ("device name: NVIDIA H200 and NVIDIA L4", *versions, "data.size: 512 and 256"):
        assert f"warning: these runs differ in {part}" in said


OF_BATCH_1 = {
    name: getattr(made_up.with_settings(RUN, data={"batch_size": 1}), name) for name in ("config", "command", "stages")
}


@pytest.mark.parametrize(
    ("told", "changed"),
    [
        ("device: NVIDIA H200 and NVIDIA L4", {"environment": replace(made_up.environment(), device_name="NVIDIA L4")}),
        ("kind of device: cuda and cpu", {"environment": replace(made_up.environment(), device="cpu")}),
        ("data.batch_size: 8 and 1", OF_BATCH_1),
        ("data.size: 512 and 256", {"config": made_up.settings(size=256)}),
        (
            f"the weights' SHA-256: {RUN.reference.weights_sha256} and 0a1b",
            {"reference": replace(RUN.reference, weights_sha256="0a1b")},
        ),
    ],
)
def test_runs_that_asked_something_else_are_refused_unless_told_otherwise(
    told: str, changed: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compared(RUN, replace(RUN, **changed), tmp_path) == 2
    said = capsys.readouterr()
    assert said.err == f"error: these runs measured different things ({told}); --across compares them anyway\n"
    assert said.out == ""
    assert comparison.main([str(tmp_path / "a"), str(tmp_path / "b"), "--across"]) == 0


def test_a_run_that_measured_nothing_is_told_as_that(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compared(RUN, replace(RUN, environment=None, reference=None, stages=[]), tmp_path) == 2
    said = f"these runs can't be compared: {tmp_path / 'b'} ended before anything was measured"
    assert said in capsys.readouterr().err


def test_a_report_says_what_changed_since_the_run_before_it(tmp_path: Path) -> None:
    """That asked the same, had finished and is older, on another day or clock; one line, on page and in Markdown."""
    runs = {
        "2026-11-19/10-00-00": replace(RUN, started_at="2026-11-19T10:00:00+00:00"),
        "2026-11-20/10-00-00": replace(RUN, started_at="2026-11-21T11:59:00+02:00", stages=slower()),
        "2026-11-20/11-00-00": replace(RUN, started_at="2026-11-20T11:00:00+00:00", finished=False),
        "2026-11-20/12-00-00": replace(RUN, started_at="2026-11-20T12:00:00Z", config=made_up.settings(batch_size=1)),
        "2026-11-21/10-00-00": replace(RUN, started_at="2026-11-21T10:00:00+00:00"),
    }
    for age, (name, run) in enumerate(reversed(runs.items())):  # an export has written the oldest one last
        codec.save(run, tmp_path / name)
        os.utime(tmp_path / name / "results.json", (age, age))
    newest = tmp_path / "2026-11-21/10-00-00"
    found = since(codec.load(newest), newest)
    assert (found.started_at, found.improved, found.regressed) == ("2026-11-21T11:59:00+02:00", ["compile"], [])
    assert main([str(newest)]) == 0
    line = "Since 10-00-00, the last run of the same request, faster or right again: torch.compile."
    assert line in " ".join((newest / "report.md").read_text().split())
    first = tmp_path / "2026-11-19/10-00-00"
    assert since(codec.load(first), first) is None


def test_what_a_run_that_was_cut_off_did_not_come_to_is_not_broken(tmp_path: Path) -> None:
    cut = replace(RUN, started_at="2030-01-01T00:00:00+00:00", finished=False)
    runs = {"whole": RUN, "cut": replace(cut, stages=RUN.stages[:3]), "slower": replace(cut, stages=slower()[:8])}
    for name, run in runs.items():
        codec.save(run, tmp_path / name)
    found, worse = (since(runs[name], tmp_path / name) for name in ("cut", "slower"))
    assert (found.folder, found.measured, found.regressed) == ("whole", 3, [])
    assert worse.regressed == ["compile"]


def test_links_that_lead_nowhere_lie_beside_a_run_and_do_not_matter(tmp_path: Path) -> None:
    for name, aim in (("gone", "nothing"), ("circle", "results.json")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").symlink_to(aim)
    for name, year in (("earlier", 2029), ("newer", 2030)):
        codec.save(replace(RUN, started_at=f"{year}-01-01T00:00:00+00:00"), tmp_path / name)
    found = since(codec.load(tmp_path / "newer"), tmp_path / "newer")
    assert found.folder == "earlier"


Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a made-up run of few stages, whose report was never drawn."""
    found = tmp_path_factory.mktemp("run")
    few = [stage for stage in made_up_run.run().stages if stage.name in ("eager", "half", "hung")]
    codec.save(made_up_run.run(stages=few, head_to_head=[]), found)
    return found


def test_mlflow_gets_flat_figures(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = MagicMock()
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    assert trackers.main([str(folder), "--to", "mlflow", "--experiment", "nets"]) == 0
    mlflow.set_experiment.assert_called_once_with("nets")
    mlflow.start_run.assert_called_once_with(run_name=folder.name)
    [params], [metrics] = mlflow.log_params.call_args.args, mlflow.log_metrics.call_args.args
    assert params["winner"] == "half"
    assert params["device"] == "NVIDIA H200"
    assert all(type(value) is float and math.isfinite(value) for value in metrics.values())
    assert metrics["half/ratio"] == pytest.approx(7.1, rel=0.05)
    assert metrics["half/dice_of_class_1"] == 0.94
    assert "half/legacy" not in metrics, "a truth is no figure"
    mlflow.log_artifact.assert_called_once_with(str(folder / "results.json"))


def test_wandb_is_finished_whatever_happens(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = MagicMock()
    seen: dict[str, Any] = {}
    wandb = SimpleNamespace(init=lambda **given: seen.update(given) or run, Artifact=MagicMock())
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    given = trackers.track(folder, "wandb")
    assert (seen["project"], seen["config"]) == ("unet-ladder", given.params)
    run.summary.update.assert_called_once_with(given.metrics)
    run.log_artifact.side_effect = ConnectionError("gone")
    with pytest.raises(RequestError, match=r"^--to wandb: ConnectionError: gone$"):
        trackers.track(folder, "wandb")
    assert run.finish.call_count == 2


def test_a_tracker_that_takes_nothing_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """In one line: what is to be set stands there, as in MLflow's refusal of folders (3.17), of 510 characters."""
    refusal = RuntimeError("The file store\nis closed. " + "Please migrate. " * 30 + "If you must, set MLFLOW_X=true.")
    monkeypatch.setitem(sys.modules, "mlflow", MagicMock(set_experiment=MagicMock(side_effect=refusal)))
    assert trackers.main([str(folder), "--to", "mlflow"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: --to mlflow: RuntimeError: The file store is closed. Please migrate. ")
    assert line.endswith("If you must, set MLFLOW_X=true.")


def test_what_is_absent_is_said(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    assert trackers.main([str(folder), "--to", "mlflow"]) == 2
    assert "pip install mlflow" in capsys.readouterr().err
    assert trackers.main([str(tmp_path), "--to", "mlflow"]) == 2
    assert "no such file; name the folder of a run" in capsys.readouterr().err
