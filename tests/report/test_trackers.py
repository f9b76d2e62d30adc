"""A run's figures for MLflow and W&B: flat numbers from the record, by libraries that nobody must have."""

import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from pipeline import track as trackers
from pipeline.config.request_error import RequestError
from pipeline.records import codec
from tests.report import made_up_run

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
