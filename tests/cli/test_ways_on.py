"""Who loses a report is told how to go on, in the words of the command line."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli import app, ways_on
from pipeline.records import codec
from pipeline.records.elsewhere import elsewhere
from pipeline.report.write import write_report
from tests.fake_machine import run_record, stage_record, steady_pair

MEASURED = run_record([stage_record("eager", steady_pair(1.0))])


def test_a_report_is_drawn_beside_the_record_that_was_rescued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A disk that has become read-only takes neither: one folder has both, and can be drawn again."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tmp_path / "run"
    folder.mkdir()
    codec.save(MEASURED, place := elsewhere(folder))

    def fixed(summary: Any, at: Path) -> Path:
        if at == folder:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return write_report(summary, at)

    monkeypatch.setattr(app, "write_report", fixed)
    app.report(MEASURED, app.Invocation(folder, "a test", "basic", of_a_sweep=False))
    shown = capsys.readouterr()
    assert shown.err == (
        f"error: {folder}: Read-only file system; the report is drawn elsewhere; "
        f"python -m pipeline.report {place} draws it again\n"
    )
    assert shown.out.splitlines()[-1] == str(place / "report.html")


@pytest.mark.parametrize("there", ["run", "sweep", "nothing"])
def test_who_ends_a_run_at_once_is_told_how_to_go_on(
    there: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """No report is drawn then, and nothing else says where the record is."""
    monkeypatch.setattr(ways_on, "leave_unread", lambda: None)  # which looks at this process's own streams
    monkeypatch.setattr(ways_on.UnderWay, "folder", tmp_path)
    if there != "nothing":
        codec.save(MEASURED, tmp_path / "0" if there == "sweep" else tmp_path)
    ways_on.end_at_once()
    resumed, drawn_again = f"python -m pipeline resume={tmp_path}", f"python -m pipeline.report {tmp_path}"
    said = f"what was finished is saved; {resumed} goes on, {drawn_again} draws it"
    assert capfd.readouterr().err == f"error: ended at once; {'nothing is saved' if there == 'nothing' else said}\n"
    assert (f"; {resumed} goes on" in ways_on.interrupted()) == (there != "nothing")
