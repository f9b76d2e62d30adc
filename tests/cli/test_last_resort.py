"""No traceback reaches a user, no folder of a refused run stays, and no closed terminal ends a run."""

import errno
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hydra.errors import HydraException

from pipeline import compare as comparison
from pipeline.analysis.summary import RunSummary
from pipeline.cli import app
from pipeline.cli.progress import Progress, SteadyConsole
from pipeline.command_line import INTERRUPTED, REFUSED, Parser, guarded, unforeseen
from pipeline.config.request_error import RequestError
from pipeline.lessons import __main__ as lessons
from pipeline.records import codec
from pipeline.records.disk import elsewhere
from pipeline.records.request import RunConfig
from pipeline.records.run_record import RunRecord
from pipeline.report import write
from pipeline.report import write as report
from pipeline.report.write import write_report
from tests import terminal_signals
from tests.cli.conftest import ROOT, Ask
from tests.fake_machine import run_record, stage_record, steady_pair

ARGUMENTS = ["preset=smoke", "stage=eager"]
MEASURED = run_record([stage_record("eager", steady_pair(1.0))])


class Unforeseen(Exception):  # noqa: N818
    """An unforeseen error."""


def fails(with_error: BaseException, record: RunRecord | None = None) -> Callable[..., Any]:

    def run(_: RunConfig, invocation: app.Invocation) -> RunRecord:
        if record:
            codec.save(record, invocation.folder)
        raise with_error

    return run


def drawn(_: RunSummary, folder: Path) -> Path:
    (folder / "report.html").touch()
    return folder / "report.html"


def test_an_unforeseen_error_is_one_line(tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_refused_run_is_one_line(error: Exception, tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it is refused after its record was begun; files of the user's stay."""
    (tmp_path / "mine").touch()
    monkeypatch.setattr(app, "run", fails(error, replace(MEASURED, stages=[])))
    done = ask(*ARGUMENTS, f"hydra.run.dir={tmp_path}")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "Error executing job" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


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
    monkeypatch.setattr(write, "write_report", drawn)
    monkeypatch.setattr(app, "run", fails(error, MEASURED))
    done = ask(*ARGUMENTS, f"hydra.run.dir={tmp_path}")
    assert done.returncode == code
    assert said in done.stderr
    assert done.stdout.splitlines()[-1] == str(tmp_path / "report.html")
    assert codec.load(tmp_path) == MEASURED


def test_an_interrupted_sweep_ends_in_a_report(tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first job failed in an unforeseen way and left a record that says so; the second was interrupted."""
    monkeypatch.setattr(write, "write_report", drawn)
    runs = iter([fails(Unforeseen("odd")), fails(KeyboardInterrupt(), MEASURED)])

    def run(*given: Any) -> RunRecord:
        return next(runs)(*given)

    monkeypatch.setattr(app, "run", run)
    done = ask("-m", *ARGUMENTS, "seed=1,2,3", f"hydra.sweep.dir={tmp_path}")
    assert done.returncode == 130
    assert done.stdout.splitlines()[-1] == str(tmp_path / "report.html")
    assert "Unforeseen: odd" in (tmp_path / "report.md").read_text()
    assert codec.load(tmp_path / "1") == MEASURED
    assert not (tmp_path / "2").exists()


@pytest.mark.parametrize("rescued", [False, True])
def test_a_report_that_its_folder_does_not_take_is_written_elsewhere(
    rescued: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside the record, if that had to be saved elsewhere too; the exit code is 1."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (folder := tmp_path / "run").mkdir()
    place = elsewhere(folder) if rescued else folder
    codec.save(MEASURED, place)

    def full(summary: Any, at: Path) -> Path:
        if at == folder:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write_report(summary, at)

    monkeypatch.setattr(write, "write_report", full)
    invocation = app.Invocation(folder, "a test", of_a_sweep=False)
    app.report(MEASURED, invocation)
    shown = capsys.readouterr()
    assert invocation.code == 1
    again = f"the report is written elsewhere; python -m pipeline.report {place} writes it again"
    assert f"error: {folder}: No space left on device; {again}" in shown.err
    assert Path(shown.out.splitlines()[-1]).exists()


@pytest.mark.parametrize("there", ["run", "sweep", "nothing"])
def test_who_ends_a_run_at_once_is_told_how_to_go_on(
    there: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("leave_unread", "kill_all"):  # which act on the streams and children of this process
        monkeypatch.setattr(app, name, lambda: None)
    monkeypatch.setattr(app.Invocation, "under_way", tmp_path)
    if there != "nothing":
        codec.save(MEASURED, tmp_path / "0" if there == "sweep" else tmp_path)
    app.end_at_once()
    resumed, drawn_again = f"python -m pipeline resume={tmp_path}", f"python -m pipeline.report {tmp_path}"
    said = f"finished stages are saved; {resumed} goes on, {drawn_again} reports them"
    assert capfd.readouterr().err == f"error: ended at once; {'nothing is saved' if there == 'nothing' else said}\n"
    assert (f"; {resumed} goes on" in app.interrupted()) == (there != "nothing")


ENTRIES: dict[str, tuple[Any, str, Callable[[Path], list[str]]]] = {
    "report": (report, "pipeline.report.write.draw", lambda folder: [str(folder)]),
    "compare": (comparison, "pipeline.compare.compare", lambda folder: [str(folder), str(folder)]),
    "lessons": (lessons, "pipeline.lessons.__main__.run", lambda folder: ["--out", str(folder)]),
}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize(
    ("error", "code"), [(Unforeseen("odd"), 1), (KeyboardInterrupt(), 130), (BrokenPipeError(), 0)]
)
def test_every_entry_has_the_same_last_resort(
    entry: str, error: BaseException, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
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


def test_an_error_whose_log_no_disk_takes_is_still_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    assert len(unforeseen(Unforeseen("x" * 1_000_000), tmp_path)) < 300 + 40 + len(str(tmp_path))
    assert unforeseen(OSError(errno.EROFS, "Read-only file system", "outputs"), tmp_path).startswith(
        "outputs: Read-only file system; the traceback is in "
    )
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert guarded(lambda: 0) == REFUSED
    assert capsys.readouterr().err == "error: the current folder was removed; change into another one\n"


WRITES = "import sys; from pipeline.command_line import guarded; sys.exit(guarded(lambda: print('± ' * 99999) or 0))"


@pytest.mark.parametrize(
    "shell",
    ['"$0" -c "$1" >&- 2>&-', '"$0" -c "$1" | true', 'PYTHONIOENCODING=ascii "$0" -c "$1"'],
    ids=["closed", "nobody reads", "ascii"],
)
def test_a_program_outlasts_its_terminal(shell: str) -> None:
    """Closed, unread or of a poor encoding: nothing on stderr, and the exit code is the program's."""
    command = ["bash", "-o", "pipefail", "-c", shell, sys.executable, WRITES]
    done = subprocess.run(command, capture_output=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_progress_outlasts_its_terminal() -> None:
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


@pytest.mark.parametrize(("columns", "width"), [("0", 20), ("7", 20), ("93", 93), ("999999999", 400), ("many", 80)])
def test_a_line_is_as_wide_as_can_be_written(columns: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In none nothing would be seen, and a thousand million would be filled up with spaces."""
    monkeypatch.setenv("COLUMNS", columns)
    assert SteadyConsole(file=io.StringIO()).width == width


UNREAD = """
import sys
from pipeline.command_line import guarded
def program():
    print("begins", file=sys.stderr, flush=True)
    print("x" * 10**6, flush=True)
sys.exit(guarded(program))
"""


def test_an_interruption_ends_a_program_whose_output_nobody_reads() -> None:
    """A pager that was left alone: what waits for it is dropped, as nothing else could end the wait."""
    with subprocess.Popen(
        [sys.executable, "-c", UNREAD],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        text=True,
        preexec_fn=terminal_signals.heed,  # noqa: PLW1509 - this process has no other threads
    ) as held:
        assert held.stderr.readline() == "begins\n"
        time.sleep(0.2)
        assert held.poll() is None
        held.send_signal(signal.SIGINT)
        assert held.wait(timeout=60) == INTERRUPTED
        assert "error: interrupted" in held.stderr.read()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--hlep"], "--hlep: no such flag; did you mean --help? python -m x --help lists all"),
        (["run", "--batch=x"], "--batch: invalid int value: 'x'; python -m x --help lists all"),
        ([], "the following arguments are required: run; python -m x --help lists all"),
        (["run", "--batch=1", "--batch", "2"], "--batch: given twice; leave one out"),
        (["run", "--bat", "2"], "--bat: no such flag; did you mean --batch?"),
        (["lr=1", "lr=2"], "lr: given twice, '1' and '2'; leave one out"),
        (["run", "--objective", "memory"], "--objective: no such flag; write objective=memory"),
    ],
)
def test_a_wrong_command_line_is_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of every other program: a wrong flag is told first, and no last of two values is taken in silence."""
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(words)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"error: {said}")


def test_what_is_no_repetition_is_taken() -> None:
    asked = parser().parse_args(["out/lr=1", "out/lr=2", "--each", "a", "--each", "b"])
    assert (asked.run, asked.each) == (["out/lr=1", "out/lr=2"], ["a", "b"])


def parser() -> Parser:
    made = Parser(prog="python -m x")
    made.keys = ("objective",)
    made.add_argument("run", nargs="+")
    made.add_argument("--batch", type=int)
    made.add_argument("--each", action="append")
    return made
