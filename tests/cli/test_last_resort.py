"""No traceback reaches a user, no folder of a refused run stays, and no closed terminal ends a run."""

import errno
import io
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hydra.errors import HydraException

from models import train
from pipeline.analysis.summary import RunSummary
from pipeline.cli import app
from pipeline.cli.progress import Progress, SteadyConsole
from pipeline.command_line import unforeseen
from pipeline.config.request_error import RequestError
from pipeline.lessons import lessons_command as lessons
from pipeline.records import codec
from pipeline.records.request import RunConfig
from pipeline.records.run_record import RunRecord
from pipeline.records.run_settings import DataSettings
from pipeline.report import comparison
from pipeline.report import redraw_command as report
from pipeline.report.write import write_report
from tests.cli.conftest import ROOT, Ask
from tests.fake_machine import run_record, stage_record, steady_pair

ARGUMENTS = ["preset=smoke", "stage=eager"]
MEASURED = run_record([stage_record("eager", steady_pair(1.0))])


class Unforeseen(Exception):  # noqa: N818
    """What nobody foresaw."""


def fails(with_error: BaseException, record: RunRecord | None = None) -> Callable[..., Any]:
    """A run that leaves a record, and then this error."""

    def run(_: RunConfig, invocation: app.Invocation) -> RunRecord:
        if record:
            codec.save(record, invocation.folder)
        raise with_error

    return run


def drawn(_: RunSummary, folder: Path) -> Path:
    """A report at no cost."""
    (folder / "report.html").touch()
    return folder / "report.html"


def test_an_error_that_nobody_foresaw_is_one_line_with_its_log(
    tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 1, the traceback in the run's folder, and none of Hydra's words."""
    monkeypatch.setattr(app, "run", fails(Unforeseen("first line\nsecond line")))
    done = ask(*ARGUMENTS, f"hydra.run.dir={tmp_path}")
    log = tmp_path / "traceback.txt"
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: Unforeseen: first line; the traceback is in {log}\n"
    assert "second line" in log.read_text()
    assert "in fails" not in done.stderr
    assert not (tmp_path / "claimed").exists()


@pytest.mark.parametrize("error", [RequestError("the key is wrong"), HydraException("the key\nis wrong")])
def test_a_refused_run_leaves_no_folder_and_one_line(
    error: Exception, tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is refused after its record was begun."""
    monkeypatch.setattr(app, "run", fails(error, replace(MEASURED, stages=[])))
    done = ask(*ARGUMENTS, f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "Error executing job" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_refused_run_leaves_what_is_not_its_own(tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's file in the folder, and the log of a worker that had something to say."""
    (tmp_path / "mine").touch()
    (tmp_path / "reference").mkdir()
    (tmp_path / "reference" / "log.txt").write_text("why")
    monkeypatch.setattr(app, "run", fails(RequestError("the baseline can't run"), replace(MEASURED, stages=[])))
    ask(*ARGUMENTS, f"hydra.run.dir={tmp_path}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "reference"]


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "interrupted; what was finished is saved"),
        (RequestError("the baseline can't run any more"), 2, "any more"),
        (Unforeseen("odd"), 1, "Unforeseen: odd"),
    ],
)
def test_what_was_measured_is_in_a_report_however_the_run_ended(
    error: BaseException, code: int, said: str, tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its path is the last line."""
    monkeypatch.setattr(app, "write_report", drawn)
    monkeypatch.setattr(app, "run", fails(error, MEASURED))
    done = ask(*ARGUMENTS, f"hydra.run.dir={tmp_path}")
    assert done.returncode == code
    assert said in done.stderr
    assert done.stdout.splitlines()[-1] == str(tmp_path / "report.html")
    assert codec.load(tmp_path) == MEASURED


def test_an_interrupted_sweep_ends_in_the_report_of_its_jobs(
    tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first job failed in an unforeseen way and left a record that says so; the second was interrupted."""
    monkeypatch.setattr(app, "write_report", drawn)
    runs = iter([fails(Unforeseen("odd")), fails(KeyboardInterrupt(), MEASURED)])

    def run(*given: Any) -> RunRecord:
        record: RunRecord = next(runs)(*given)
        return record

    monkeypatch.setattr(app, "run", run)
    done = ask("-m", *ARGUMENTS, "seed=1,2,3", f"hydra.sweep.dir={tmp_path}")
    assert done.returncode == 130
    assert done.stdout.splitlines()[-1] == str(tmp_path / "report.html")
    assert "Unforeseen: odd" in (tmp_path / "report.md").read_text()
    assert codec.load(tmp_path / "1") == MEASURED
    assert not (tmp_path / "2").exists()


def test_a_report_that_its_folder_does_not_take_is_drawn_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A full disk: the path that is printed is the one that can be opened, and the exit code is 1."""
    tried: list[Path] = []
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def full(summary: Any, folder: Path) -> Path:
        tried.append(folder)
        if len(tried) == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write_report(summary, folder)

    monkeypatch.setattr(app, "write_report", full)
    (tmp_path / "run").mkdir()
    invocation = app.Invocation(tmp_path / "run", "a test", "basic", of_a_sweep=False)
    app.report(MEASURED, invocation)
    shown = capsys.readouterr()
    assert invocation.code == 1
    again = f"the report is drawn elsewhere; python -m pipeline.report {tmp_path / 'run'} draws it again"
    assert f"No space left on device; {again}" in shown.err
    assert Path(shown.out.splitlines()[-1]).exists()


ENTRIES: dict[str, tuple[Any, str, Callable[[Path], list[str]]]] = {
    "report": (report, "pipeline.report.redraw_command.draw", lambda folder: [str(folder)]),
    "compare": (comparison, "pipeline.report.comparison.compare", lambda folder: [str(folder), str(folder)]),
    "lessons": (lessons, "pipeline.lessons.session.run", lambda folder: ["--out", str(folder)]),
}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize(
    ("error", "code"), [(Unforeseen("odd"), 1), (KeyboardInterrupt(), 130), (BrokenPipeError(), 0)]
)
def test_every_entry_has_the_same_last_resort(
    entry: str, error: BaseException, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """One line at most, and an exit code that tells."""
    module, function, words = ENTRIES[entry]
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    codec.save(MEASURED, tmp_path)

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(function, fail)
    assert module.main(words(tmp_path)) == code
    said = capsys.readouterr().err
    assert said.count("\n") == (1 if code else 0)
    assert "Traceback" not in said
    assert len(list(tmp_path.glob("unet-ladder-*/traceback.txt"))) == (code == 1)


def test_training_has_it_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A net that isn't there is 2 with its line, whatever else 1."""
    monkeypatch.setattr(sys, "argv", ["train", "model=unett", "--out", "x.safetensors"])
    assert train.main() == 2
    assert capsys.readouterr().err.startswith("error: model=unett: ")


def test_an_error_whose_log_no_disk_takes_is_still_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one whose text fails, or never ends."""

    class Unspeakable(Exception):  # noqa: N818
        def __str__(self) -> str:
            raise ValueError

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    assert unforeseen(Unspeakable()) == "Unspeakable; no disk takes its traceback"
    assert len(unforeseen(Unforeseen("x" * 1_000_000), tmp_path)) < 300 + 40 + len(str(tmp_path))
    assert unforeseen(OSError(errno.EROFS, "Read-only file system", "outputs"), tmp_path).startswith(
        "outputs: Read-only file system; the traceback is in "
    )


WRITES = "import sys; from pipeline.command_line import guarded; sys.exit(guarded(lambda: print('± ' * 99999) or 0))"


@pytest.mark.parametrize(
    "shell",
    ['"$0" -c "$1" >&- 2>&-', '"$0" -c "$1" | true', 'PYTHONIOENCODING=ascii "$0" -c "$1"'],
    ids=["closed", "nobody reads", "ascii"],
)
def test_a_program_outlasts_its_terminal(shell: str) -> None:
    """Closed, unread or of a poor encoding: nothing on stderr, and the exit code is the program's."""
    command = ["bash", "-o", "pipefail", "-c", shell, sys.executable, WRITES]
    done = subprocess.run(command, capture_output=True, cwd=ROOT, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_progress_outlasts_its_terminal(tmp_path: Path) -> None:
    """Its reader is gone, the disk that it goes to is full, its stream is closed."""
    reader, writer = os.pipe()
    os.close(reader)
    progress = Progress(1)
    full = os.open("/dev/full", os.O_WRONLY)
    for stream in (os.fdopen(writer, "w", buffering=1), os.fdopen(full, "w", buffering=1)):
        progress.console.file = stream
        progress.say("nobody reads this")
        with suppress(OSError):
            stream.close()
        progress.console.quiet = False
        progress.say("nor this")
        assert stream.closed


def test_no_other_program_ends_otherwise_for_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The exit code of a comparison is that of its runs: 1 is a regression."""
    codec.save(MEASURED, tmp_path)
    with open("/dev/full", "w", buffering=1) as full:  # noqa: PTH123 - a device
        monkeypatch.setattr(sys, "stdout", full)
        assert comparison.main([str(tmp_path), str(tmp_path)]) == 0
        assert report.main([str(tmp_path)]) == 0


def test_an_answer_that_no_disk_takes_is_no_error() -> None:
    """Unbuffered, stdout on a full disk fails where it is written."""
    with open("/dev/full", "w", buffering=1) as full:  # noqa: PTH123 - a device
        console = SteadyConsole(file=full)
        console.print("the answer")
        console.print("and its path")
        with pytest.raises(OSError, match="No space left"):
            full.flush()
        with suppress(OSError):
            full.close()


@pytest.mark.parametrize(("columns", "width"), [("0", 20), ("7", 20), ("93", 93), ("999999999", 400), ("many", 80)])
def test_a_line_is_as_wide_as_can_be_written(columns: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In none nothing would be seen, and a thousand million would be filled up with spaces."""
    monkeypatch.setenv("COLUMNS", columns)
    assert SteadyConsole(file=io.StringIO()).width == width


@pytest.mark.parametrize("argument", ["gpu_busy=maybe", "resume_despite=[weather]", "resume_despite=[code]"])
def test_how_a_run_is_resumed_is_checked(argument: str, tmp_path: Path, ask: Ask) -> None:
    """Before anything runs."""
    done = ask(*ARGUMENTS, argument, f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {argument.partition('=')[0]}")
    assert not (tmp_path / "run").exists()


def test_a_hostile_neighbour_spoils_no_report(tmp_path: Path) -> None:
    """A record beside the run's own, of the right types and without sense, or none at all."""
    for name, run in (("now", MEASURED), ("then", replace(MEASURED, started_at="0", finished=True))):
        settings = replace(run.settings, data=DataSettings(batch_size=2))
        codec.save(replace(run, settings=settings), tmp_path / name)
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "results.json").write_text("[" * 100_000)
    assert report.main([str(tmp_path / "now")]) == 0
