"""Shares of a folder: of tasks of a cluster, and of the GPUs of a machine."""

import json
import subprocess
from itertools import chain
from pathlib import Path
from unittest.mock import Mock

import pytest

from pipeline.config.request_error import RequestError
from pipeline.predict import shards
from pipeline.predict.shards import WHOLE, Shard, alone_in, shard_of
from tests.predict.made_up_runs import Call, Told, write_images


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


class Gpu:
    """A GPU of a machine."""

    def uuid(self) -> str:
        """Return its name for CUDA."""
        return "GPU-1"


def test_each_gpu_has_a_process_and_a_share(
    run: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call, told: Told
) -> None:
    monkeypatch.setattr(shards, "visible_gpus", lambda _: [Gpu(), Gpu()])
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
    monkeypatch.setattr(shards, "visible_gpus", lambda _: [Gpu(), Gpu()])
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: process)
    with pytest.raises(end):
        shards.on_devices("all", [], tmp_path)
    assert (process.terminate.call_count, process.wait.call_count) == (ended, 3)
