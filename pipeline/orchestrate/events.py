"""What a run tells whoever watches it: the command line draws it, a test keeps it."""

from typing import Protocol

from pipeline.records.run_record import RunRecord, StageRecord


class Observer(Protocol):
    """Is told where the run is."""

    def say(self, text: str) -> None:
        """Something that a person should know now."""

    def stage_started(self, name: str, adds: str) -> None:
        """The next stage begins; `adds` is what it adds to the one before."""

    def phase_entered(self, title: str, phase: str, detail: str = "") -> None:
        """What `title` names enters a phase, or is as far in it as `detail` says."""

    def stage_finished(self, run: RunRecord, stage: StageRecord) -> None:
        """A stage has come to an end, whatever it is; `run` holds the stages before it."""
