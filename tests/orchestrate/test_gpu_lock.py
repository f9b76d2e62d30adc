"""One run at a time on a GPU: the second says who has it, and waits, goes away or shares it."""

import os
import threading
import time
from pathlib import Path

import pytest

from pipeline.config.request_error import RequestError
from pipeline.orchestrate.run import held, lock_folder

GPU = "GPU-1234"


def test_a_gpu_that_nobody_holds_is_held_without_a_word(tmp_path: Path) -> None:
    said: list[str] = []
    for _ in range(2):
        with held(GPU, Path("outputs/a"), "refuse", said.append, tmp_path / "locks") as note:
            assert note == ""
    assert not said
    assert (tmp_path / "locks").stat().st_mode & 0o777 == 0o700


def test_a_second_run_is_refused_with_the_holder_s_name(tmp_path: Path) -> None:
    with held(GPU, Path("outputs/a"), "refuse", print, tmp_path):
        with (
            pytest.raises(RequestError, match=rf"process {os.getpid()}, outputs/a; gpu_busy=wait"),
            held(GPU, Path("outputs/b"), "refuse", print, tmp_path),
        ):
            pass
        with held("GPU-5678", Path("outputs/b"), "refuse", print, tmp_path) as note:
            assert note == ""


def test_a_run_that_shares_the_gpu_says_so(tmp_path: Path) -> None:
    with held(GPU, Path("outputs/a"), "wait", print, tmp_path):
        for _ in range(2):
            with held(GPU, Path("outputs/b"), "share", print, tmp_path) as note:
                assert "outputs/a; both were measured side by side" in note


def test_a_run_that_waits_has_the_gpu_when_it_is_free(tmp_path: Path) -> None:
    said: list[str] = []
    free = threading.Event()

    def say(text: str) -> None:
        said.append(text)
        free.set()

    def hold() -> None:
        with held(GPU, Path("outputs/a"), "wait", print, tmp_path):
            free.wait(120)

    holder = threading.Thread(target=hold)
    holder.start()
    while not (tmp_path / f"{GPU}.lock").exists() or not (tmp_path / f"{GPU}.lock").read_text():
        time.sleep(0.01)
    with held(GPU, Path("outputs/b"), "wait", say, tmp_path) as note:
        assert note == ""
        assert "outputs/b" in (tmp_path / f"{GPU}.lock").read_text()
    holder.join()
    assert "waiting for another run on this GPU" in said[0]
    assert "outputs/a" in said[0]


def test_where_no_lock_can_be_had_the_run_goes_on_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with held(GPU, Path("outputs/a"), "refuse", print, tmp_path / "link") as note:
        assert "could not be locked" in note


def test_the_lock_is_per_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert lock_folder() == Path("/run/user/7/unet-ladder")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert lock_folder().name == f"unet-ladder-{os.getuid()}"
