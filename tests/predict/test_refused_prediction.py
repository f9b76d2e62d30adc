"""A prediction that is refused leaves everything as it was."""

from pathlib import Path

import pytest

from pipeline.predict.command import main
from pipeline.predict.folder import LOCK, alone_in
from tests.predict.made_up_runs import SIZE, write_image, write_run


@pytest.fixture
def asked(tmp_path: Path) -> list[str]:
    (tmp_path / "images").mkdir()
    write_image(tmp_path / "images" / "a.png", SIZE, SIZE)
    return [str(write_run(tmp_path)), str(tmp_path / "images"), "--out", str(tmp_path / "masks")]


def test_no_folder_is_left_of_a_request_that_is_refused(asked: list[str], tmp_path: Path) -> None:
    """One of the user's own stays, empty as it was but for the lock."""
    assert main([*asked, "--stage", "hlaf"]) == 2
    assert not (tmp_path / "masks").exists()
    (tmp_path / "masks").mkdir()
    assert main([*asked, "--stage", "hlaf"]) == 2
    assert [path.name for path in (tmp_path / "masks").iterdir()] == [LOCK]


def test_a_lock_that_another_holds_stays(tmp_path: Path) -> None:
    with alone_in(tmp_path / "masks"):
        with pytest.raises(Exception, match="another process"), alone_in(tmp_path / "masks"):
            pass
        assert (tmp_path / "masks" / LOCK).exists()
    assert not (tmp_path / "masks").exists()


@pytest.mark.parametrize(
    ("place", "said"), [("a.txt", "File exists"), ("a.txt/masks", "Not a directory"), ("/proc/masks", "No such file")]
)
def test_a_folder_that_cannot_be_made_is_named_by_its_word(
    asked: list[str], tmp_path: Path, place: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where it was Python's "[Errno 17]"."""
    (tmp_path / "a.txt").touch()
    out = tmp_path / place
    assert main([*asked[:-1], str(out), "--stage", "eager"]) == 2
    assert f"error: --out {out}: no masks can be written there: {said}" in capsys.readouterr().err


def test_a_link_that_leads_nowhere_is_an_image_without_a_mask(
    asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was left out as no image, and the exit code said that all had their masks."""
    gone = tmp_path / "images" / "gone.png"
    gone.symlink_to(tmp_path / "disk" / "gone.png")
    assert main([*asked, "--stage", "eager"]) == 1
    said = capsys.readouterr()
    assert f"no mask of gone: {gone}: No such file or directory" in said.err
    assert said.out.startswith("1 mask made, 1 image without: ")
