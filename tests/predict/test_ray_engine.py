"""Masks by Ray Data: the plain engine's bytes in a folder, in an object store and in Parquet, once each."""

import os
import pickle
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.command_line import FAILED, REFUSED
from pipeline.predict.cases import Case
from pipeline.predict.command import main, parser
from tests.predict.made_up_runs import Told, write_image, write_images

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray's own
IMAGES, KILLS = 300, 20


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Of several sizes, one of them spoilt."""
    folder = tmp_path / "images"
    for number in range(40):
        write_image(folder / f"{number:02}.png", 8 + number, 16 + number % 7, seed=number)
    (folder / "spoilt.png").write_bytes(b"no image")
    return folder


@pytest.fixture
def plain(run: Path, images: Path, tmp_path: Path) -> dict[str, bytes]:
    """The plain engine's files of these images."""
    assert main([str(run), str(images), "--out", str(tmp_path / "plain")]) == FAILED
    return files_in(tmp_path / "plain")


@pytest.fixture
def memory() -> Iterator[Any]:
    import fsspec

    store = fsspec.filesystem("memory")
    yield store
    store.store.clear()


def files_in(folder: Path) -> dict[str, bytes]:
    """The masks of a folder by their names."""
    files = [file for file in folder.rglob("[!.]*") if file.is_file() and file.parent.name != ".masks"]
    files = [file for file in files if file.name != "predict.json"]
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@contextmanager
def an_actor(*words: object) -> Iterator[Any]:
    """An actor of Ray in this process."""
    from pipeline.predict.ray_engine import Actor

    actor = Actor(parser().parse_args([*map(str, words), "--engine", "ray"]), threads=1)
    yield actor
    actor.scratch.cleanup()


def blocks_listed(*words: object) -> list[list[Case]]:
    from pipeline.predict.command import loaded
    from pipeline.predict.ray_engine import listed

    asked = parser().parse_args([*map(str, words), "--engine", "ray"])
    return [pickle.loads(row["cases"][0]) for row in listed(asked, loaded(asked.run), {})]


def settled(*words: object) -> dict[str, int]:
    """What has become of all blocks, by an actor in this process."""
    total = Counter(made=0, kept=0, failed=0)
    with an_actor(*words) as actor:
        for block in blocks_listed(*words):
            found = actor.block(block)
            total.update(made=found["made"], kept=found["kept"], failed=len(found["failed"]))
    return {name: total[name] for name in ("made", "kept", "failed")}


def test_a_store_has_equal_files(run: Path, images: Path, plain: dict[str, bytes], memory: Any, tmp_path: Path) -> None:
    words = (run, images, "--out", "memory://bucket/masks")
    assert settled(*words) == {"made": 40, "kept": 0, "failed": 1}
    there = {name.removeprefix("/bucket/masks/"): memory.cat(name) for name in memory.find("/bucket/masks")}
    assert {name for name in there if name not in plain} == {f".masks/{name}.json" for name in plain}
    assert {name: there[name] for name in plain} == plain
    assert settled(*words) == {"made": 0, "kept": 40, "failed": 1}
    memory.rm_file("/bucket/masks/07.png")
    memory.pipe_file("/bucket/masks/08.png", b"other")
    write_image(images / "09.png", 20, 20, seed=99)
    (images / "10.png").unlink()
    assert settled(*words) == {"made": 3, "kept": 36, "failed": 1}
    assert memory.cat("/bucket/masks/08.png") == plain["08.png"]


def test_images_of_a_store_have_the_same_masks(
    run: Path, images: Path, plain: dict[str, bytes], memory: Any, tmp_path: Path
) -> None:
    memory.put(str(images), "/bucket/images", recursive=True)
    (out := tmp_path / "masks").mkdir()
    words = (run, "memory://bucket/images", "--out", out)
    assert settled(*words) == {"made": 40, "kept": 0, "failed": 1}
    masks = {name: content for name, content in plain.items() if name.endswith(".png")}
    assert {name: content for name, content in files_in(out).items() if name.endswith(".png")} == masks
    copies: list[str] = []
    whole = type(memory).get_file

    def get_file(store: Any, name: str, *rest: Any, **more: Any) -> None:
        copies.append(name)
        whole(store, name, *rest, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(memory), "get_file", get_file)
        assert settled(*words) == {"made": 0, "kept": 40, "failed": 1}
    assert copies == ["/bucket/images/spoilt.png"], "an image whose mask is there is not read"


def test_folders_and_lists_keep_their_layout(run: Path, memory: Any, tmp_path: Path) -> None:
    for name in ("a.png", "b/a.png", "b/c/d.png", "b/notes.md"):
        memory.pipe_file(f"/bucket/{name}", write_image(tmp_path / "image.png", 8, 8).read_bytes())
    assert settled(run, "memory://bucket", "--out", "memory://masks")["made"] == 3
    there = {name for name in memory.find("/masks") if name.endswith(".png")}
    assert there == {"/masks/a.png", "/masks/b/a.png", "/masks/b/c/d.png"}
    memory.pipe_file("/bucket/some.txt", b"b/a.png\n\nb/notes.md\ngone.png\n")
    out = tmp_path / "masks"
    assert settled(run, "memory://bucket/some.txt", "--out", out) == {"made": 1, "kept": 0, "failed": 1}
    assert (out / "b" / "a.png").read_bytes() == memory.cat("/masks/b/a.png")
    memory.pipe_file("/bucket/others.txt", b"../image.png\n")
    (error,) = blocks_listed(run, "memory://bucket/others.txt", "--out", out)
    assert "../image.png: names are within the list's own folder" in str(error)


@pytest.mark.slow
def test_a_list_of_ten_million_names_takes_no_more_memory(run: Path, memory: Any) -> None:
    from pipeline.predict.command import loaded
    from pipeline.predict.ray_engine import listed

    memory.pipe_file("/bucket/all.txt", b"\n".join(b"%08d.jpg" % number for number in range(10**7)))
    asked = parser().parse_args([str(run), "memory://bucket/all.txt", "--out", "none", "--engine", "ray"])
    names, first = 0, 0
    for row in listed(asked, loaded(run), {}):
        names += len(pickle.loads(row["cases"][0]))
        first = first or resident_bytes()
    assert names == 10**7
    assert resident_bytes() - first < 10**8


def test_parquet_has_the_plain_engines_masks(run: Path, images: Path, plain: dict[str, bytes], tmp_path: Path) -> None:
    from pyarrow import parquet

    (out := tmp_path / "masks").mkdir()
    words = (run, images, "--out", out, "--format", "parquet")
    assert settled(*words) == {"made": 40, "kept": 0, "failed": 1}
    rows = [row for part in out.glob("*.parquet") for row in parquet.read_table(part).to_pylist()]
    assert {row["name"]: row["mask"] for row in rows} == {name: plain[name] for name in plain if name.endswith(".png")}
    assert settled(*words) == {"made": 0, "kept": 40, "failed": 1}


def test_a_mask_that_another_actor_has_put_meanwhile_stays(memory: Any, tmp_path: Path) -> None:
    from pipeline.predict.ray_engine import Store

    store = Store("memory://bucket/masks")
    assert store.put("a.png", b"first", new=True)
    assert not store.put("a.png", b"second", new=True)
    assert store.get("a.png") == b"first"


def test_images_that_would_share_a_mask_fail_alone(run: Path, memory: Any, tmp_path: Path) -> None:
    for name in ("a-1.png", "a.jpg", "a.png"):
        memory.pipe_file(f"/bucket/{name}", write_image(tmp_path / name, 8, 8).read_bytes())
    (out := tmp_path / "masks").mkdir()
    (block,) = blocks_listed(run, "memory://bucket", "--out", out)
    with an_actor(run, "memory://bucket", "--out", out) as actor:
        found = actor.block(block)
    assert found["made"] == 1
    assert "a.jpg, a.png would share a mask" in found["failed"]["a"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("s3://bucket/images", "--out", "masks"), "s3://bucket/images: a URL, which --engine ray takes"),
        (("images", "--out", "masks", "--engine", "ray", "--shard", "0/2"), "--shard: Ray hands out the images itself"),
        (("images", "--out", "masks", "--engine", "ray", "--profile"), "--profile: of the plain engine alone"),
        (("no://images", "--out", "masks", "--engine", "ray"), "no://images: Protocol not known: no"),
    ],
)
def test_a_wrong_request_is_refused(
    run: Path, words: tuple[str, ...], line: str, told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert line in told(REFUSED, run, *words)


def command(run: Path, images: Path, out: Path) -> list[str]:
    words = [str(run), str(images), "--out", str(out), "--engine", "ray", "--actors", "2"]
    return [sys.executable, "-m", "pipeline.predict", *words]


@pytest.mark.slow
@pytest.mark.fresh_process
def test_ray_makes_the_plain_engines_files(run: Path, images: Path, plain: dict[str, bytes], tmp_path: Path) -> None:
    for out, there in ((tmp_path / "masks", ""), (tmp_path / "masks", ", 40 were there")):
        done = subprocess.run(command(run, images, out), capture_output=True, text=True, check=False)
        assert done.returncode == FAILED, done.stderr
        assert f"{0 if there else 40} masks made{there}, 1 image without" in done.stdout
        assert "no mask of spoilt" in done.stderr
        assert files_in(out) == plain


@pytest.mark.slow
@pytest.mark.fresh_process
@pytest.mark.timeout(1800)
def test_no_mask_is_lost_or_made_twice_whatever_is_killed(run: Path, tmp_path: Path) -> None:
    """Actors, which Ray starts again, and whole calls are killed at random moments; each next call makes the rest."""
    images = write_images(tmp_path / "images", IMAGES, 24, 40)
    began = time.monotonic()
    assert subprocess.run(command(run, images, tmp_path / "whole"), capture_output=True, check=False).returncode == 0
    call_seconds, right = time.monotonic() - began, files_in(tmp_path / "whole")
    out, rng, kills = tmp_path / "masks-0", np.random.default_rng(0), 0
    seen: dict[str, int] = {}
    while kills < KILLS:
        process = subprocess.Popen(command(run, images, out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(rng.uniform(0, call_seconds))
        for victim in actors_of(process.pid)[:1] if rng.random() < 0.5 else ():
            with suppress(ProcessLookupError):  # it has ended, which is another try
                os.kill(victim, signal.SIGKILL)
                kills += 1
            with suppress(subprocess.TimeoutExpired):
                process.wait(rng.uniform(0, call_seconds / 2))
        kills += process.poll() is None
        process.kill()
        process.wait()
        now = {path.name: path.stat().st_ino for path in out.glob("*.png")}
        assert seen.items() <= now.items(), "a mask that was there is lost, or written again"
        seen = now
        if len(seen) == IMAGES:
            assert files_in(out) == right
            out, seen = tmp_path / f"masks-{kills}", {}
    assert subprocess.run(command(run, images, out), capture_output=True, check=False).returncode == 0
    assert seen.items() <= {path.name: path.stat().st_ino for path in out.glob("*.png")}.items()
    assert files_in(out) == right


def actors_of(driver: int) -> list[int]:
    """The processes of a driver's actors."""
    listed = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()[1:]]
    raylets = {row[0] for row in rows if row[1] == str(driver)}
    return [int(pid) for pid, parent, words in rows if parent in raylets and "MapBatches(Actor)" in words]
