"""The program from outside: presets, folders, sweeps; and whatever happens, one line, an exit code and what is done."""

import errno
import io
import os
import runpy
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from hydra.errors import HydraException

from pipeline import compare as comparison
from pipeline.analysis.summary import RunSummary
from pipeline.cli import app, launched
from pipeline.cli.app import claim, failed
from pipeline.cli.arguments import parse
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

pytestmark = pytest.mark.long

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
    said = f"finished stages are saved; {resumed} resumes it, {drawn_again} writes its report"
    assert capfd.readouterr().err == f"error: ended at once; {'nothing is saved' if there == 'nothing' else said}\n"
    assert (f"; {resumed} resumes it" in app.interrupted()) == (there != "nothing")


ENTRIES: dict[str, tuple[Any, str, Callable[[Path], list[str]]]] = {
    "report": (report, "pipeline.report.write.draw", lambda folder: [str(folder)]),
    "compare": (comparison, "pipeline.analysis.run_comparison.compare", lambda folder: [str(folder), str(folder)]),
    "lessons": (lessons, "pipeline.lessons.__main__.run", lambda folder: ["--out", str(folder)]),
}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize(("error", "code"), [(Unforeseen(""), 1), (KeyboardInterrupt(), 130), (BrokenPipeError(), 0)])
def test_every_entry_has_the_same_last_resort(
    entry: str, error: BaseException, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    module, function, words = ENTRIES[entry]
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    codec.save(MEASURED, tmp_path)
    monkeypatch.setattr(function, Mock(side_effect=error))
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


@pytest.mark.parametrize(
    ("program", "imported"),
    [
        *((f"pipeline/{name}/__main__", f"pipeline.{name}.command") for name in ("export", "predict", "slim")),
        ("pipeline/__main__", "pipeline.cli"), ("pipeline/report/__main__", "pipeline.report.write"),
        ("pipeline/compare", "pipeline.analysis"), ("pipeline/track", "pipeline.analysis.summary"),
        ("pipeline/verify", "pipeline.export.bundle"), ("pipeline/lessons/__main__", "pipeline.lessons.contents"),
        ("models/train", "hydra"), ("models/made_inputs", "numpy"),
    ],
)  # fmt: skip
def test_an_interruption_while_a_program_is_imported_is_one_line(
    program: str, imported: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, imported, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Mock(**{"find_spec.side_effect": KeyboardInterrupt})])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(f"{ROOT}/{program}.py", run_name="__main__")
    assert (ended.value.code, capsys.readouterr().err) == (INTERRUPTED, "error: interrupted\n")


def test_an_interruption_ends_a_program_whose_output_nobody_reads() -> None:
    """A pager that was left alone: what waits for it is dropped, as nothing else could end the wait."""
    with subprocess.Popen(
        [sys.executable, "-c", UNREAD], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, text=True,
        preexec_fn=terminal_signals.heed,  # noqa: PLW1509 - this process has no other threads
    ) as held:  # fmt: skip
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


SMOKE = ["preset=smoke", "measure.aa_pairs=0", "threads=1"]
Sweep = tuple[Path, subprocess.CompletedProcess[str]]  # its folder, and how it ended
FAULTY = ["stage=eager", "stage.name=faulty", "stage.target=tests.fault_stages"]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pipeline", *arguments]


def test_runs_that_start_together_get_folders_of_their_own(tmp_path: Path) -> None:
    folders = {claim(tmp_path / "run") for _ in range(3)}
    with pytest.raises(RequestError, match=f"hydra.sweep.dir={tmp_path}: another sweep has its jobs there"):
        claim(tmp_path / "run", of_a_sweep=True)
    assert len(folders) == 3


@pytest.mark.parametrize("name", ["config.yaml", "results.json", "report.md", "reference", "baseline"])
def test_a_folder_with_what_a_run_would_write_over_is_left_alone(name: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    assert claim(tmp_path) == tmp_path
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / name).mkdir() if "." not in name else (theirs / name).write_text("mine")
    with pytest.raises(RequestError, match=f"a run would write over {name} in it"):
        claim(theirs)
    assert [part.name for part in theirs.iterdir()] == [name]


def test_a_folder_that_is_anothers_is_refused_in_one_line(tmp_path: Path, ask: Ask) -> None:
    (tmp_path / "reference").mkdir()
    done = ask("preset=smoke", "stage=eager", f"hydra.run.dir={tmp_path}")
    said = f"error: {tmp_path}: a run would write over reference in it; name another folder\n"
    assert (done.returncode, done.stderr) == (2, said)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """A sweep of two jobs, one whose stage answers wrongly and one whose request is wrong, in a process of its own."""
    folder = tmp_path_factory.mktemp("sweep")
    wrong = command("-m", *SMOKE, *FAULTY, "+stage.fault=zeros", "data.batch_size=1,0", f"hydra.sweep.dir={folder}")
    return folder, subprocess.run(wrong, capture_output=True, text=True, cwd=ROOT, check=False)


def test_a_sweep_ends_in_one_report_also_when_a_job_failed(sweep: Sweep) -> None:
    """The report shows both jobs, its path is the last line, and the exit code is 1."""
    folder, done = sweep
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == str(folder / "report.html")
    assert "batch\\_size=0: expected int" in (folder / "report.md").read_text()
    assert codec.load(folder / "0").finished
    assert (folder / "0" / "report.html").exists()


def test_a_wrong_stage_exits_with_1(sweep: Sweep, tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report names it, and its path is the last line; strict=false forgives it. The run is a job of the sweep."""
    measured = codec.load(sweep[0] / "0")
    right = replace(measured, stages=[replace(measured.stages[0], status="ok")])
    absent = replace(right, stages=[replace(right.stages[0], status="skipped", pairs=[])])
    cases = ((right, "true", 0), (measured, "false", 0), (measured, "true", 1), (absent, "true", 0))
    for record, strict, code in cases:
        monkeypatch.setattr(app, "run_ladder", lambda *_, record=record: record)
        folder = tmp_path / f"{record.stages[0].status}-{strict}"
        done = ask(*SMOKE, "stage=eager", f"strict={strict}", f"hydra.run.dir={folder}")
        assert (done.returncode, done.stdout.splitlines()[-1]) == (code, str(folder / "report.html"))
        assert ("inaccurate" in (folder / "report.md").read_text()) == (record is measured)


def test_a_sweep_fails_where_a_job_does(sweep: Sweep, tmp_path: Path) -> None:
    """A job without a record, one that wasn't finished, or one with a stage that isn't well."""
    measured = codec.load(sweep[0] / "0")
    right = replace(measured, stages=[replace(measured.stages[0], status="ok", accuracy=None)])
    (tmp_path / "0").mkdir()
    assert failed(tmp_path)
    outcomes = []
    for record in (right, measured, replace(right, finished=False)):
        codec.save(record, tmp_path / "0")
        outcomes.append(failed(tmp_path))
    assert outcomes == [False, True, True]


def test_an_interrupted_run_keeps_what_was_finished(tmp_path: Path) -> None:
    """Ctrl-C in mid-run: exit code 130, and the record on disk can be read."""
    process = subprocess.Popen(
        command(*SMOKE, f"hydra.run.dir={tmp_path}"), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, preexec_fn=terminal_signals.heed,  # noqa: PLW1509 - this process has no other threads
    )  # fmt: skip
    while not (tmp_path / "results.json").exists() or not codec.load(tmp_path).stages:
        assert process.poll() is None
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=240)
    assert process.returncode == 130, said
    assert "error: interrupted; what was finished is saved" in said
    record = codec.load(tmp_path)
    assert record.stages
    assert not record.finished


def test_a_job_of_slurm_goes_to_a_gpu_that_this_machine_lacks() -> None:
    assert parse(["-m", "launch=slurm", "stage=half,fp8"], []).typed == ["-m", "launch=slurm", "stage=half,fp8"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("launch=local stage=half", "launch=local: of sweeps alone; add -m"),
        ("-m launch=cloud stage=half,fp8", "launch=cloud: expected local or slurm"),
        ("-m launch=local hydra/sweeper=ax stage=half", "launch=local: takes all jobs of a grid"),
    ],
)
def test_a_wrong_request_is_refused(words: str, line: str, ask: Ask) -> None:
    asked = ask(*words.split())
    assert asked.returncode == 2
    assert line in asked.stderr


class Executor:
    def __init__(self, codes: dict[str, int]) -> None:
        self.codes = codes
        self.on: dict[str, int] = {}
        self.most: dict[str, int] = {}
        self.lock = threading.Lock()

    def submit(self, _: object, command: list[str]) -> Any:
        gpu, name = (command[1], command[2]) if command[0] == "env" else ("", command[0])
        with self.lock:
            self.on[gpu] = self.on.get(gpu, 0) + 1
            self.most[gpu] = max(self.most.get(gpu, 0), self.on[gpu])

        def result() -> int:
            time.sleep(0.02)
            with self.lock:
                self.on[gpu] -= 1
            if name not in self.codes:
                raise RuntimeError("the node is gone\nfar away")
            return self.codes[name]

        return SimpleNamespace(result=result, paths=SimpleNamespace(stdout="out", stderr="err"))


def test_a_gpu_has_one_job_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    executor = Executor({"a": 0, "b": 1, "c": 0, "d": 0})
    started: list[Any] = []
    whole = launched.each_on_a_gpu(executor, [["a"], ["b"], ["lost"], ["c"], ["d"]], ["first", "second"], started)
    assert whole == [True, True, False, True, True]
    assert executor.most == {"CUDA_VISIBLE_DEVICES=first": 1, "CUDA_VISIBLE_DEVICES=second": 1}
    assert len(started) == 5
    assert "error: job 2: the node is gone; its log: err" in capsys.readouterr().err
    executor = Executor({"a": 0, "b": 0})
    launched.each_on_a_gpu(executor, [["a"], ["b"]], [None], started)
    assert executor.most == {"": 1}


@pytest.mark.slow
@pytest.mark.fresh_process
def test_a_sweep_by_processes_ends_in_one_report(tmp_path: Path) -> None:
    """The second job takes the first one's reference over, and times its own baseline."""
    pytest.importorskip("submitit")
    words = ["-m", "launch=local", "model=unet_small", "preset=smoke", "stage=eager,channels_last", "device=cpu"]
    folder = tmp_path / "a sweep"
    command = ["-m", "pipeline", *words, f"hydra.sweep.dir='{folder}'"]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{folder / 'report.html'}\n"
    first, second = (codec.load(folder / name) for name in "01")
    assert (first.described_by, second.described_by) == (None, "0")
    assert second.aa_pairs
    assert second.stages[0].pairs
    assert first.command == second.command == shlex.join(["python", *command])
    assert not (folder / "references").exists()
