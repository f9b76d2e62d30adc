"""Ends before the last mask: full disks, read-only targets, vanished sources, Ctrl-C and kill -9 at any moment."""

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from pipeline.command_line import INTERRUPTED
from pipeline.predict import mask_files, sources
from pipeline.predict.command import main
from pipeline.records.disk import file_digest
from pipeline.records.request import ExportKind
from tests.predict.made_up_runs import SIZE, write_bundle, write_image, write_images
from tests.terminal_signals import heed

IMAGES, AT = 24, 9  # files, and the number of masks after which something happens
MANY, LARGE = 2 * IMAGES, 6 * SIZE  # files, and the side of those whose windows are many
HELD = """
import runpy, sys, time
from pathlib import Path
from pipeline.predict.loop import Network, Prediction, Workers
begin, start, calls, go = Workers.begin, Network.start, [], Path(sys.argv[-1]).with_suffix(".go")
def held(*words):  # before the last masks, however late the test does something
    calls.append(1)
    while len(calls) > 600 and not go.exists():
        time.sleep(0.01)
    return start(*words)
Network.start = held
"""
IN_PROCESSES = """
Workers.begin = lambda workers, work, _: begin(workers, work, 2)
Prediction.new_workers = lambda _: Workers(in_threads=False)
"""
RUN = "runpy.run_module('pipeline.predict', run_name='__main__')"
THREADS = [sys.executable, "-c", f"{HELD}{RUN}"]
PROCESSES = [sys.executable, "-c", f"{HELD}{IN_PROCESSES}{RUN}"]  # workers as they are beside a GPU
WITH_A_MESSAGE = f"""
import os, runpy, signal
from multiprocessing.connection import Connection
from pipeline.predict.case_work import Settled
receive = Connection.recv
def received(line):
    message = receive(line)
    if isinstance(message, Settled) and message.made:
        Connection.recv = receive  # a second signal may end the naming
        os.kill(os.getpid(), signal.SIGINT)
    return message
Connection.recv = received
{RUN}
"""
LAST = f"{IMAGES - 1:03}.png"
KILLED_IMAGES, KILLS = 1500, 20
ENDED = ("", "Z", "X")  # a process that only its parent has not asked about yet has ended, too
Net = Callable[[Tensor], Tensor]


@pytest.fixture
def asked(run: Path, tmp_path: Path) -> list[str]:
    folder = write_images(tmp_path / "images", IMAGES)
    return [str(write_bundle(tmp_path / "bundle", run)), str(folder), "--out", str(tmp_path / "masks")]


def whole_masks(out: Path) -> int:
    """The number of masks, each of which its sidecar describes."""
    masks, statements = [*out.glob("*.png")], mask_files.Statements(out)
    for mask in masks:
        assert file_digest(mask) in [sidecar.mask_sha256 for sidecar in statements.about(mask.name)]
    return len(masks)


def resumed(asked: list[str], kept: int, capsys: pytest.CaptureFixture[str]) -> None:
    """The next call keeps what was finished and makes the rest."""
    capsys.readouterr()
    assert main(asked) == 0
    there = f", {kept} were there" if kept else ""
    assert capsys.readouterr().out.startswith(f"{IMAGES - kept} masks made{there}: ")
    assert not [*Path(asked[3]).rglob("*.part*")]


@pytest.mark.parametrize("place", ["write_bytes", "sync_files", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO])
def test_a_disk_that_takes_no_more_ends_in_one_line(
    place: str, code: int, asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = 0
    owner = mask_files if place == "sync_files" else Path
    given = getattr(owner, place)

    def failing(target: object, *rest: object) -> object:
        nonlocal calls
        calls += str(tmp_path / "masks") in str(target)
        if calls > (0 if place == "sync_files" else AT):  # one sync is of many masks
            raise OSError(code, os.strerror(code), *[str(tmp_path / "masks" / "some.png")][: place != "write_bytes"])
        return given(target, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, place, failing)
        assert main(asked) == 2
    (line,) = lines(capsys.readouterr().err)
    assert line.startswith("error: ")
    assert line.endswith(f": {os.strerror(code)}")
    assert str(tmp_path / "masks") in line
    resumed(asked, whole_masks(tmp_path / "masks"), capsys)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_vanished_source_is_told(
    kind: str, asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file costs its own mask; a folder ends in one line, and the masks of what was read are kept."""
    images, calls, load = tmp_path / "images", 0, sources.loaded
    shutil.copytree(images, tmp_path / "copy")

    def loaded(folder: Path, form: ExportKind) -> Net:
        net = load(folder, form)

        def run(batch: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            if calls == AT // 2:
                (images / LAST).unlink() if kind == "file" else shutil.rmtree(images)
            return net(batch)

        return run

    with monkeypatch.context() as patch:
        patch.setattr(sources, "loaded", loaded)
        code = main(asked)
    said = capsys.readouterr()
    last = f"{LAST[:-4]}: {images}/{LAST}: No such file or directory"
    if kind == "file":
        assert code == 1
        assert f"no mask of {last}" in said.err
        assert said.out.startswith(f"{IMAGES - 1} masks made, 1 image without: ")
        return
    assert code == 2
    (line,) = lines(said.err)
    made = whole_masks(tmp_path / "masks")
    counts = f"{made} masks made, {IMAGES - made} images without"
    assert line == f"error: {images}: gone since the start; {counts}, and finished masks are kept"
    (tmp_path / "copy").rename(images)
    resumed(asked, whole_masks(tmp_path / "masks"), capsys)


@pytest.fixture
def many(asked: list[str], tmp_path: Path) -> list[str]:
    """The same words, with links to a large image."""
    large = write_image(tmp_path / "large.png", LARGE, LARGE)
    for copy in range(IMAGES, MANY):
        os.link(large, tmp_path / "images" / f"{copy}.png")
    return asked


@contextmanager
def begun(command: list[str], out: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a call in a group of its own; go on once a mask is written, which may wait long for the disk's sync."""
    (scratch := out.parent / "scratch").mkdir()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env=os.environ | {"TMPDIR": str(scratch)},
        preexec_fn=heed,  # noqa: PLW1509 - the test's process has no other threads
    ) as process:  # fmt: skip
        while not [*out.rglob(f"*{mask_files.PARTS}/*/*")] and process.poll() is None:
            time.sleep(0.01)
        yield process


def lines(said: str) -> list[str]:
    """The lines of a text that are no notes, and don't tell how far it is, as of a call that takes its time."""
    return [line for line in said.splitlines() if not re.match(r"note: |\d+ of \d+ images", line)]


def children(process: int) -> list[int]:
    return [*map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split())]


def state_of(process: int) -> str:
    """The kernel's letter for the state of a process; empty once it is gone."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return ""


@pytest.mark.fresh_process
@pytest.mark.parametrize("program", [THREADS, PROCESSES], ids=["threads", "processes"])
@pytest.mark.parametrize(
    ("signals", "codes", "told"),
    [
        ([signal.SIGINT], [INTERRUPTED], ["error: interrupted"]),
        ([signal.SIGINT] * 2, [INTERRUPTED], ["error: interrupted"]),
        ([signal.SIGTERM], [128 + signal.SIGTERM], []),
        ([signal.SIGTERM] * 2, [128 + signal.SIGTERM, -signal.SIGTERM], []),
    ],
    ids=["Ctrl-C", "Ctrl-C twice", "TERM", "TERM twice"],
)
def test_a_call_that_is_ended_keeps_what_is_done(
    program: list[str], signals: list[signal.Signals], codes: list[int], told: list[str],
    many: list[str], tmp_path: Path,
) -> None:  # fmt: skip
    with begun([*program, *many], tmp_path / "masks") as process:
        workers = children(process.pid)
        for number in signals:
            (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
            time.sleep(0.05)
        _, said = process.communicate(timeout=120)
    assert process.returncode in codes, said
    assert lines(said) == told
    assert len(signals) > 1 or not [*(tmp_path / "scratch").iterdir()]
    assert bool(workers) == (program is PROCESSES)
    ends_by = time.monotonic() + 60  # a worker that waits for a busy disk ends after it
    while states := [state for worker in workers if (state := state_of(worker)) not in ENDED]:
        assert time.monotonic() < ends_by, f"workers stay, in the states {states}"
        time.sleep(0.05)
    assert 2 - len(signals) <= whole_masks(tmp_path / "masks") < MANY, "a second signal may end the naming"


@pytest.mark.fresh_process
def test_a_ctrl_c_loses_no_message(many: list[str], tmp_path: Path) -> None:
    with begun([sys.executable, "-c", WITH_A_MESSAGE, *many], tmp_path / "masks") as process:
        _, said = process.communicate(timeout=120)
    assert (process.returncode, lines(said)) == (INTERRUPTED, ["error: interrupted"])
    assert 0 < whole_masks(tmp_path / "masks") < MANY


@pytest.mark.fresh_process
def test_images_of_a_worker_that_is_killed_are_made_by_another(many: list[str], tmp_path: Path) -> None:
    with begun([*PROCESSES, *many], tmp_path / "masks") as process:
        os.kill(children(process.pid)[0], signal.SIGKILL)
        (tmp_path / "masks.go").touch()
        made, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert "without" not in made
    assert whole_masks(tmp_path / "masks") == MANY


@pytest.mark.fresh_process
@pytest.mark.parametrize("program", [THREADS, PROCESSES], ids=["threads", "processes"])
def test_a_target_that_vanishes_ends_in_one_line(program: list[str], many: list[str], tmp_path: Path) -> None:
    with begun([*program, *many], tmp_path / "masks") as process:
        (tmp_path / "masks").rename(tmp_path / "moved")
        (tmp_path / "masks.go").touch()
        _, said = process.communicate(timeout=120)
    assert process.returncode == 2
    (line,) = lines(said)
    assert line.startswith(f"error: {tmp_path}/masks/")
    assert line.endswith(": No such file or directory")
    assert whole_masks(tmp_path / "moved") < MANY


def inodes(out: Path) -> dict[str, int]:
    """The files that hold the masks, by name: a mask that is written again lies in another file."""
    return {path.name: path.stat().st_ino for path in out.glob("*.png")}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("shards", [1, 2])
def test_no_mask_is_lost_or_written_twice(run: Path, tmp_path: Path, shards: int) -> None:
    images = write_images(tmp_path / "images", KILLED_IMAGES, 24, 40)
    whole, out, rng = tmp_path / "whole", tmp_path / "masks", np.random.default_rng(shards)
    asked = [sys.executable, "-m", "pipeline.predict", str(run), str(images), "--overlap", "0", "--out"]
    words = [["--shard", f"{number}/{shards}"] for number in range(shards)] if shards > 1 else [[]]
    assert subprocess.run([*asked, whole], check=False, capture_output=True).returncode == 0
    kills = 0
    while kills < KILLS:
        before = inodes(out)
        assert len(before) < KILLED_IMAGES, "all masks were made before the last kill"
        processes = [subprocess.Popen([*asked, out, *word], stderr=subprocess.DEVNULL) for word in words]
        until = len(before) + int(rng.integers(1, KILLED_IMAGES // KILLS // 2))
        while len(inodes(out)) < until and any(process.poll() is None for process in processes):
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.05))
        for process in processes:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
            process.wait()
        assert before.items() <= inodes(out).items(), "a finished mask is lost, or written again"
    seen = inodes(out)
    for word in words:
        assert subprocess.run([*asked, out, *word], check=False, capture_output=True).returncode == 0
    assert seen.items() <= inodes(out).items()
    assert not list(out.rglob("*.part*"))
    there = {path.name: path.read_bytes() for path in out.glob("*.png")}
    assert there == {path.name: path.read_bytes() for path in whole.glob("*.png")}
    assert len(there) == KILLED_IMAGES
