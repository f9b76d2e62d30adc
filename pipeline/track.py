"""Send a run's figures to MLflow or Weights & Biases: `python -m pipeline.track outputs/DATE/TIME --to mlflow`.

Either library is needed only by this command.
"""

import importlib
import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from pipeline.command_line import Parser, guarded, importing, show

with importing():
    from pipeline.analysis.summary import RunSummary, summarize
    from pipeline.config.request_error import RequestError
    from pipeline.errors import shortened, text_of, type_of
    from pipeline.records import codec
    from pipeline.report import DRAWN
    from pipeline.report.csv_table import rows
    from pipeline.report.formatting import visible

EXPERIMENT = "unet-ladder"
FILES = (codec.FILE, *DRAWN, "config.yaml")
MOST_CHARACTERS = 1000  # of what a tracker says where it takes nothing
LONGEST_VALUE = 500  # characters of a parameter, which every version of MLflow takes


@dataclass(frozen=True)
class Tracked:
    """A run as a tracker takes it."""

    name: str  # of the run
    params: dict[str, str]  # what was asked and where it ran, as text
    metrics: dict[str, float]  # STAGE/COLUMN of results.csv, and the Dice of each class; plain finite numbers
    files: list[Path]  # the record and its report, as far as they are there


def tracked(summary: RunSummary, folder: Path) -> Tracked:
    """Return what a tracker is given of a run."""
    files = [folder / name for name in FILES if (folder / name).is_file()]
    return Tracked(folder.resolve().name, params_of(summary), metrics_of(summary), files)


def params_of(summary: RunSummary) -> dict[str, str]:
    """Return what was asked, where it ran, and the winner; unknown values are left out."""
    run = summary.run
    model, data, there = run.config.model, run.config.data, run.environment
    known = {
        "model": model.target, "checkpoint": model.checkpoint, "data": data.path or data.name,
        "image_size": data.size, "batch_size": data.batch_size, "preset": run.config.preset,
        "baseline": summary.baseline, "winner": summary.ranking.winner,
        "weights_sha256": run.reference and run.reference.weights_sha256,
        "device": there and there.device_name, "driver": there and there.driver, "commit": there and there.commit,
        **{f"version/{name}": version for name, version in (there.packages if there else {}).items()},
    }  # fmt: skip
    return {key: str(value)[:LONGEST_VALUE] for key, value in known.items() if value not in (None, "")}


def metrics_of(summary: RunSummary) -> dict[str, float]:
    """Return every figure of every stage that is a finite number."""
    found: dict[str, object] = {}
    header, *lines = rows(summary)
    for stage, cells in zip(summary.stages, lines, strict=True):
        found |= {f"{stage.name}/{column}": cell for column, cell in zip(header, cells, strict=True)}
        dice = stage.stage.accuracy.dice if stage.stage.accuracy else None
        found |= {f"{stage.name}/dice_of_class_{index}": value for index, value in enumerate(dice or [])}
    return {name: float(value) for name, value in found.items() if is_figure(value)}


def is_figure(value: object) -> TypeGuard[float]:
    """Return whether it is a finite number, and no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def to_mlflow(given: Tracked, experiment: str, library: Any) -> None:
    """Add a run to MLflow, where MLFLOW_TRACKING_URI says."""
    library.set_experiment(experiment)
    with library.start_run(run_name=given.name):
        library.log_params(given.params)
        library.log_metrics(given.metrics)
        for path in given.files:
            library.log_artifact(str(path))


def to_wandb(given: Tracked, experiment: str, library: Any) -> None:
    """Add a run to Weights & Biases, as the user who is logged in."""
    run = library.init(project=experiment, name=given.name, config=given.params)
    try:
        run.summary.update(given.metrics)
        artefact = library.Artifact(re.sub(r"[^\w.-]", "_", f"{EXPERIMENT}-{given.name}"), type="run")
        for path in given.files:
            artefact.add_file(str(path))
        run.log_artifact(artefact)
    finally:
        run.finish()


TRACKERS: dict[str, Callable[[Tracked, str, Any], None]] = {"mlflow": to_mlflow, "wandb": to_wandb}


def track(folder: Path, tracker: str, experiment: str = EXPERIMENT) -> Tracked:
    """Give a run to a tracker."""
    given = tracked(summarize(codec.load(folder)), folder)
    try:
        library = importlib.import_module(tracker)
    except ImportError as error:
        raise RequestError(f"--to {tracker}: {error}; pip install {tracker}") from None
    try:
        TRACKERS[tracker](given, experiment, library)
    except Exception as error:  # each library raises kinds of its own, whose text says at its end what to set
        said = " ".join(text_of(error).split())
        raise RequestError(shortened(f"--to {tracker}: {type_of(error)}: {said}", MOST_CHARACTERS)) from error
    return given


def main(arguments: list[str] | None = None) -> int:
    """Give a run to a tracker; 2 with one line where the request was wrong."""
    return guarded(lambda: told(arguments))


def told(arguments: list[str] | None) -> int:
    """Return the exit code of `main`."""
    parser = Parser(prog="python -m pipeline.track", description=__doc__)
    parser.add_argument("run", type=Path, help="the folder of a run, such as outputs/DATE/TIME")
    parser.add_argument("--to", choices=TRACKERS, required=True)
    parser.add_argument("--experiment", default=EXPERIMENT, help="MLflow's experiment, or the project of W&B")
    asked = parser.parse_args(arguments)
    given = track(asked.run, asked.to, asked.experiment)
    said = f"{len(given.params)} parameters, {len(given.metrics)} figures, {len(given.files)} files"
    show(f"{visible(given.name)}: {said} to {asked.to}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
