"""A finished run, as a notebook looks at it."""

import io
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rich.console import Console

from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary, summarize
from pipeline.records import codec
from pipeline.records.run_record import RunRecord
from pipeline.report.terminal import WIDTH, ladder
from pipeline.report.write import write_report


@dataclass(frozen=True)
class Run:
    """A run: its folder and its record."""

    folder: Path  # results.json, the report and what the stages left
    record: RunRecord  # all samples, the machine and the request; `docs/results.schema.json` says what each field is

    @cached_property
    def summary(self) -> RunSummary:
        """Every figure that the report shows."""
        return summarize(self.record)

    @property
    def winner(self) -> str | None:
        """The fastest stage whose answer is right; None where none may be named."""
        return self.summary.ranking.winner

    @property
    def stages(self) -> dict[str, StageSummary]:
        """Every stage by its name: `run.stages["half"].ratio`, `.images_per_second`, `.status`, `.stage.accuracy`."""
        return {stage.name: stage for stage in self.summary.stages}

    @property
    def report(self) -> Path:
        """report.html; drawn now where it isn't there."""
        path = self.folder / "report.html"
        return path if path.exists() else write_report(self.summary, self.folder)

    def table(self) -> str:
        """Return the ladder in 80 columns of plain text, as on the terminal."""
        out = io.StringIO()
        plain = Console(file=out, width=WIDTH, color_system=None, force_terminal=False, force_jupyter=False)
        plain.print(ladder(self.summary))
        return out.getvalue()

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}: {', '.join(self.stages)}; winner {self.winner})"


def load_run(path: str | Path) -> Run:
    """Load the run in a folder such as outputs/DATE/TIME, finished or not.

    Raises:
        pipeline.records.codec.RecordError: the folder holds no run's record; one line.
    """
    return Run(Path(path), codec.load(Path(path)))
