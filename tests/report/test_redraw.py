"""Drawing a sweep's report again when some of its jobs left nothing to draw."""

from pathlib import Path

import pytest

from pipeline.records import codec
from pipeline.report.write import main
from tests.report import made_up_run as made_up


def sweep_of(folder: Path) -> Path:
    """Job 0 is well, 1 left no record, 2 half a record, 3 was refused for a batch that is no number."""
    for number in range(4):
        (folder / str(number)).mkdir()
    whole = made_up.run(stages=made_up.run().stages[:2])
    codec.save(whole, folder / "0")
    (folder / "2" / "results.json").write_text('{"schema_version": 1', encoding="utf-8")
    (folder / "3" / codec.REFUSAL).write_text("data.batch_size=abc: a whole number")
    return folder


def test_sweep_is_drawn_again_though_jobs_left_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = sweep_of(tmp_path)
    assert main([str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder / 'report.html'}\n"
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert "it left no record" in text
    assert "not a run&#39;s record" in text
    assert "data.batch_size=abc: a whole number" in text
    assert (folder / "0" / "report.html").exists()
    assert not (folder / "2" / "report.html").exists()


def test_single_broken_record_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run, unlike a sweep, has nothing else to show: one line, exit code 2."""
    folder = sweep_of(tmp_path) / "2"
    assert main([str(folder)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_report_that_cannot_be_written_is_told_by_its_own_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    codec.save(made_up.run(stages=made_up.run().stages[:1]), tmp_path)
    (tmp_path / "report.html").mkdir()
    assert main([str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"error: {tmp_path / 'report.html'}: Is a directory\n"
