"""The choice of a tile: by time, once, kept on disk, and honest where nothing runs."""

import json
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.compiler.tuning.autotune import NothingRunsError, Tuner

TIMES = {"slow": 3.0, "fast": 1.0, "middling": 2.0}


def clock(call: Callable[[], None]) -> float:
    ran.clear()
    call()
    return TIMES[ran[0]]


ran: list[str] = []


def run(name: str) -> None:
    if name == "too big":
        raise RuntimeError("out of resource: shared memory\nand more")
    ran.append(name)


def test_the_fastest_is_chosen(tmp_path: Path) -> None:
    assert Tuner(tmp_path, clock).best("conv 64", TIMES, run) == "fast"


def test_a_choice_is_measured_once_and_found_on_disk(tmp_path: Path) -> None:
    """A second process, with the same GPU and versions, measures nothing."""
    Tuner(tmp_path, clock).best("conv 64", TIMES, run)
    again = Tuner(tmp_path, clock)
    assert again.best("conv 64", TIMES, run) == "fast"
    assert again.measured == 0
    assert again.best("conv 128", ["slow"], run) == "slow"
    assert again.measured == 1


def test_a_choice_that_is_no_longer_offered_is_measured_anew(tmp_path: Path) -> None:
    Tuner(tmp_path, clock).best("conv 64", TIMES, run)
    assert Tuner(tmp_path, clock).best("conv 64", ["slow", "middling"], run) == "middling"


def test_a_candidate_that_cannot_run_is_passed_over(tmp_path: Path) -> None:
    tuner = Tuner(tmp_path, clock)
    assert tuner.best("conv 64", ["too big", "slow"], run) == "slow"
    assert tuner.refused["conv 64"] == "'too big': out of resource: shared memory"


def test_where_nothing_runs_the_reason_is_said(tmp_path: Path) -> None:
    with pytest.raises(NothingRunsError, match="shared memory"):
        Tuner(tmp_path, clock).best("conv 64", ["too big"], run)


@pytest.mark.parametrize("text", ['{"conv 64": {"cho', '{"conv 64": [1]}', '{"conv 64": {"choice": {}}}', "[]", ""])
def test_a_poisoned_file_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    """Whatever it holds, the choice is measured, and the file is right afterwards."""
    Tuner(tmp_path, clock).path().write_text(text)
    assert Tuner(tmp_path, clock).best("conv 64", TIMES, run) == "fast"
    again = Tuner(tmp_path, clock)
    assert (again.best("conv 64", TIMES, run), again.measured) == ("fast", 0)


def test_a_folder_that_cannot_be_used_costs_no_choice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file in its way, a home that can't be written, a link: said once, and nothing is measured twice."""
    (tmp_path / "file").touch()
    (tmp_path / "theirs").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    for place in (tmp_path / "file", Path("/proc/nohome/cache"), tmp_path / "link", Path("~nobody-at-all/x")):
        tuner = Tuner(place, clock)
        assert [tuner.best("conv 64", TIMES, run) for _ in range(2)] == ["fast", "fast"]
        assert tuner.measured == len(TIMES)
        assert tuner.unkept
        assert capsys.readouterr().err.count("can't be kept") == 1


def test_a_file_that_is_not_the_user_s_own_is_not_read(tmp_path: Path) -> None:
    """A link, or a file in which everybody may write; the folder is closed to others."""
    tmp_path.chmod(0o777)
    tuner = Tuner(tmp_path, clock)
    poisoned = json.dumps({"conv 64": {"choice": "'slow'"}})
    (tmp_path / "elsewhere").write_text(poisoned)
    tuner.path().symlink_to(tmp_path / "elsewhere")
    assert tuner.best("conv 64", TIMES, run) == "fast"
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    tuner.path().unlink()
    tuner.path().write_text(poisoned)
    tuner.path().chmod(0o666)
    assert Tuner(tmp_path, clock).best("conv 64", TIMES, run) == "fast"
    Tuner(tmp_path / "new", clock).best("conv 64", TIMES, run)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


def test_no_choice_is_lost_among_processes(tmp_path: Path) -> None:
    """Six writers at once, each of its own operations: the file holds them all."""

    def tune(number: int) -> None:
        for index in range(8):
            Tuner(tmp_path).keep(f"{number}-{index}", {"choice": "fast"})

    writers = [threading.Thread(target=tune, args=(number,)) for number in range(6)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(Tuner(tmp_path).read()) == 48
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".lock"]


def test_other_sources_make_other_choices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed kernel, or another process's Triton, asks again."""
    before = Tuner(tmp_path).path()
    monkeypatch.setattr("pipeline.compiler.tuning.autotune.code_digest", lambda *_: "0" * 64)
    assert Tuner(tmp_path).path() != before
