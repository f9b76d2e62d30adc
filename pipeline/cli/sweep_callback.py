"""Hydra's callback that ends a sweep in one report."""

from pathlib import Path

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from pipeline.cli.app import NOT_OK
from pipeline.cli.late_reports import end_of_sweep
from pipeline.cli.progress import print_error
from pipeline.command_line import FAILED, show, unforeseen
from pipeline.records import codec
from pipeline.report.formatting import visible


class SweepReport(Callback):
    """Draws the report of all jobs of a sweep, also of those that failed, and leaves with their worst exit code."""

    def on_multirun_end(self, config: DictConfig, **_: object) -> None:
        """Called once, after the last job."""
        folder = Path(config.hydra.sweep.dir)
        try:
            show(f"{visible(end_of_sweep(folder))}\n")
        except Exception as error:  # noqa: BLE001 - Hydra would pass over it
            print_error(unforeseen(error, folder))
            raise SystemExit(FAILED) from None
        if failed(folder):
            raise SystemExit(FAILED)


def failed(folder: Path) -> bool:
    """Whether a job of the sweep left no finished record, or one with a stage that isn't well."""
    jobs = [path for path in folder.iterdir() if path.is_dir() and path.name.isdigit()]
    for job in jobs:
        try:
            record = codec.load(job)
        except codec.RecordError:
            return True
        if not record.finished or any(stage.status in NOT_OK for stage in record.stages):
            return True
    return False
