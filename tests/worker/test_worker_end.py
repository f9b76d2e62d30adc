"""How a worker's process ends, whatever its stage raises: in a record where it can, by its code or signal where not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.records.plan import Phase
from pipeline.records.request import job_document
from pipeline.stages import Skip, StageError
from pipeline.worker import __main__ as worker
from tests.worker.jobs import EAGER, Recorder, job


class CancelledError(BaseException):
    """As asyncio's: no Exception."""


class SecretiveError(Exception):
    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """One that would end the process."""
        return KeyboardInterrupt

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        raise RuntimeError("no fields")


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Phase, BaseException], dict[str, Any]]:
    def end(phase: Phase, error: BaseException) -> dict[str, Any]:
        line = Recorder()

        class Line:
            def __init__(self, _: int) -> None:
                self.phase, self.report, self.done = phase, line.report, lambda: None

            def job(self) -> object:
                return job_document(job(EAGER, tmp_path))

        def fails(*_: object) -> None:
            raise error

        monkeypatch.setattr(worker, "PipeReporter", Line)
        monkeypatch.setattr(worker, "die_with_the_parent", lambda: None)
        monkeypatch.setattr(worker, "import_module", fails if phase == Phase.START else lambda _: None)
        monkeypatch.setattr(worker, "run_stage", fails)
        worker.main(0)
        return line.fields

    return end


Ended = Callable[[Phase, BaseException], dict[str, Any]]


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (CancelledError(), "error", "CancelledError"),
        (GeneratorExit(), "error", "GeneratorExit"),
        (SecretiveError("hidden"), "error", "SecretiveError"),
        (StageError("it can't", "no such kind"), "error", "it can't"),  # type: ignore[arg-type]
        (StageError("it can't", ["a"]), "error", "it can't"),  # type: ignore[arg-type]
    ],
)
def test_whatever_is_raised_is_told(error: BaseException, kind: str, reason: str, ended: Ended) -> None:
    fields = ended(Phase.SAMPLING, error)
    assert (fields["status"], fields["failure"], fields["reason"]) == ("failed", kind, reason)


@pytest.mark.parametrize("error", [SystemExit(0), KeyboardInterrupt()])
def test_who_ends_the_process_ends_it(error: BaseException, ended: Ended) -> None:
    with pytest.raises(type(error)):
        ended(Phase.BUILD, error)


def test_only_a_build_says_that_it_has_no_form_here(ended: Ended) -> None:
    """A stage that gives up once it has run has failed: a skipped one costs no exit code."""
    assert ended(Phase.BUILD, Skip("needs a GPU"))["status"] == "skipped"
    late = ended(Phase.SAMPLING, Skip("not today"))
    assert (late["status"], late["failure"], late["reason"]) == ("failed", "unsupported", "not today")


def test_a_cache_that_compilers_cannot_make_is_named(ended: Callable[[Phase, BaseException], dict[str, Any]]) -> None:
    """Torch makes it as it is imported: the worker left with code 1, and the run said no more."""
    said = ended(Phase.START, FileNotFoundError(2, "No such file or directory", "/proc/x"))
    assert said["status"] == "failed"
    assert said["reason"] == "FileNotFoundError: [Errno 2] No such file or directory: '/proc/x'"
