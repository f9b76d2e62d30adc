"""Shares of a folder, of tasks or GPUs, and the sidecars of their masks, in the way of nobody who is killed."""

import json
import os
import subprocess
from itertools import chain
from pathlib import Path
from unittest.mock import MagicMock, Mock

import numpy as np
import pytest

from pipeline.config.request_error import RequestError
from pipeline.predict import shards
from pipeline.predict.given import Given
from pipeline.predict.mask_files import Look, Statements, Writer, give_names, is_made
from pipeline.predict.shards import WHOLE, Shard, alone_in, clear_unfinished, shard_of
from tests.predict.made_up_runs import Call, Told, write_image, write_images


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = write_images(tmp_path / "images", 9)
    (folder / "broken.png").write_bytes(b"no image")
    return folder


@pytest.mark.parametrize("count", [1, 2, 7])
def test_each_name_is_in_one_share(count: int) -> None:
    names = [f"case {number}" for number in range(200)]
    shares = [[name for name in names if Shard(index, count).has(name)] for index in range(count)]
    assert sorted(chain(*shares)) == sorted(names)
    assert min(map(len, shares)) > 200 / count / 2


@pytest.mark.parametrize("text", ["2/2", "1", "0/0", "-1/2", "a/b", "1/2/3"])
def test_a_share_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match=f"--shard {text}: expected I/N"):
        shard_of(text)


def test_shares_make_the_masks_of_the_whole(run: Path, images: Path, tmp_path: Path, call: Call) -> None:
    out = tmp_path / "masks"
    asked = (run, images, "--out", out, "--stage", "eager")
    codes = [call(*asked, "--shard", f"{index}/2")[0] for index in range(2)]
    assert sorted(codes) == [0, 1], "one image is broken"
    assert len([*out.glob("*.png")]) == 9
    manifests = [json.loads((out / f"predict.{index}-of-2.json").read_text()) for index in range(2)]
    assert sum(manifest["made"] for manifest in manifests) == 9
    assert [name for manifest in manifests for name in manifest["failed"]] == ["broken"]
    assert call(*asked)[:2] == (1, f"0 masks made, 9 were there, 1 image without: {out}\n")


def test_who_works_beside_whom(tmp_path: Path) -> None:
    out = tmp_path / "masks"
    with alone_in(out, Shard(0, 2)), alone_in(out, Shard(1, 2)):
        for other in (WHOLE, Shard(0, 2), Shard(0, 3)):
            with pytest.raises(RequestError, match="another process makes masks there"), alone_in(out, other):
                pass
    with alone_in(out, Shard(0, 3)):
        pass
    assert not out.exists(), "nothing was written"


GPUS = [Mock(**{"uuid.return_value": "GPU-1"})] * 2


def test_each_gpu_has_a_process_and_a_share(
    run: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call, told: Told
) -> None:
    monkeypatch.setattr(shards, "visible_gpus", lambda _: GPUS)
    out = tmp_path / "masks"
    asked = (run, images, "--out", out, "--stage", "eager")
    assert call(*asked, "--devices", "all")[:2] == (1, f"9 masks made, 1 image without: {out}\n")
    assert sorted(path.name for path in out.glob("predict.*.json")) == ["predict.0-of-2.json", "predict.1-of-2.json"]
    assert "the process of one GPU ended with code 2" in told(2, *asked[:-1], "nosuch", "--devices=1")
    assert "--devices 9: expected all, or indices; this machine has" in call(*asked, "--devices", "9")[2]
    assert "leave it out beside --devices all" in call(*asked, "--devices", "all", "--shard", "0/2")[2]


@pytest.mark.parametrize(("end", "ended"), [(SystemExit, 2), (KeyboardInterrupt, 0)])  # a Ctrl-C has reached all
def test_no_process_of_a_gpu_outlives_a_call_that_is_ended(
    end: type[BaseException], ended: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Mock(**{"wait.side_effect": [end, 0, 0]})
    monkeypatch.setattr(shards, "visible_gpus", lambda _: GPUS)
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: process)
    with pytest.raises(end):
        shards.on_devices("all", [], tmp_path)
    assert (process.terminate.call_count, process.wait.call_count) == (ended, 3)


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


def test_sidecars_that_a_full_disk_cuts_off_are_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(tmp_path, "eager", "a test", WHOLE.name)
    writer.write(LABELS, "a.png", tmp_path, [])
    monkeypatch.setattr(Path, "open", MagicMock(**{"return_value.__enter__.return_value.write.return_value": 9}))
    with pytest.raises(OSError, match="No space left"):
        writer.flush()


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
