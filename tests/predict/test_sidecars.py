"""Sidecars of many masks in few files: found by name, whoever wrote them, and in the way of nobody who is killed."""

import os
from pathlib import Path

import numpy as np
import pytest

from pipeline.config.request_error import RequestError
from pipeline.predict.given import Given
from pipeline.predict.mask_files import Look, Statements, Writer, give_names, is_made
from pipeline.predict.shards import WHOLE, Shard, clear_unfinished
from tests.predict.made_up_runs import write_image

LABELS = np.zeros((4, 4), np.uint8)


def written(out: Path, mask: str, share: str = WHOLE.name, made_by: str = "a test", *, name: bool = True) -> Writer:
    writer = Writer(out, "eager", made_by, share, Look(overlay=True))
    names = writer.write(LABELS, mask, out, [], np.zeros((4, 4, 3), np.uint8))
    writer.flush()
    if name:
        give_names(out, names)
    return writer


def test_the_sidecars_of_all_shares_and_calls_are_found(tmp_path: Path) -> None:
    written(tmp_path, "a/b.png", "0-of-2", "the first")
    written(tmp_path, "a/b.png", "0-of-3", "another")
    written(tmp_path, "c.png")
    statements = Statements(tmp_path)
    assert {found.made_by for found in statements.about("a/b.png")} == {"the first", "another"}
    assert statements.about("b.png") == ()
    assert (tmp_path / "a" / "overlays" / "b.png").exists()
    written(tmp_path, "d.png")
    assert statements.check("d.png")[0].mask == "d.png", "another process has written it meanwhile"


def test_a_line_that_a_killed_process_left_costs_its_own_mask(tmp_path: Path) -> None:
    """Whose file is made again; one whose name is in no line is not ours."""
    written(tmp_path, "a.png")
    for name in ("torn.png", "other.png"):
        (tmp_path / name).touch()
    with (tmp_path / ".masks" / "0-of-1.jsonl").open("ab") as file:
        file.write(b'\n{"mask":"oth\n{"mask":"torn.png","sta')
    for _ in range(2):
        statements = Statements(tmp_path)
        assert not is_made(tmp_path / "torn.png", [], "", statements.check("torn.png"))
        with pytest.raises(RequestError, match="no mask of pipeline"):
            statements.check("other.png")
        written(tmp_path, "b.png")
    assert [len(Statements(tmp_path).about(f"{name}.png")) for name in ("a", "torn", "b")] == [1, 1, 2]


def test_names_that_a_killed_process_has_given_stay(tmp_path: Path) -> None:
    writer = Writer(tmp_path, "eager", "a test", WHOLE.name)
    names = writer.write(LABELS, "a.png", tmp_path, []) | writer.write(LABELS, "b.png", tmp_path, [])
    writer.flush()
    first, *_ = names
    (tmp_path / ".masks" / first).rename(tmp_path / names[first])
    inode = (tmp_path / "a.png").stat().st_ino
    give_names(tmp_path, names)
    assert (tmp_path / "a.png").stat().st_ino == inode
    assert (tmp_path / "b.png").exists()
    (tmp_path / "b.png").unlink()
    with pytest.raises(FileNotFoundError):
        give_names(tmp_path, names)


def test_only_shares_that_may_be_at_work_keep_what_has_no_name(tmp_path: Path) -> None:
    for share in ("0-of-2", "1-of-2", "0-of-1", "1-of-3"):
        written(tmp_path, f"{share}.png", share, name=False)
    clear_unfinished(tmp_path, Shard(0, 2))
    assert [path.name for path in (tmp_path / ".masks").glob("*.parts")] == ["1-of-2.parts"]
    clear_unfinished(tmp_path)
    assert not [*(tmp_path / ".masks").glob("*.parts")]


def test_a_name_that_is_no_text_has_a_sidecar(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    write_image(folder / "a.png", 4, 4).rename(os.fsdecode(os.fsencode(folder) + b"/\xff.png"))
    (case,) = Given(folder, volumes=False)
    written(tmp_path, case.mask)
    (found,) = Given(folder, volumes=False, statements=Statements(tmp_path))
    assert found.sidecars[0].mask == "\\xff.png"


@pytest.mark.parametrize("shard", [WHOLE, Shard(1, 2)])
def test_cases_are_listed_once_and_are_the_same(shard: Shard, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    for name in ("a", "b\nc", "d", "\n", "e "):
        write_image(folder / f"{name}.png", 4, 4)
    given = Given(folder, volumes=False, shard=shard)
    before = [*given]
    assert len(given) == len(before)
    assert [*given] == before
