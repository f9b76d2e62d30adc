"""Every second of the path has one part; where all masks are there the command says so, and builds no net."""

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipeline.predict import case_work, cases, loop, mask_files, run_source, sources
from pipeline.predict.report import PARTS, TIMER, Outcome, Progress, Rate, Timer
from pipeline.records import codec
from tests.export.recorded import rewritten
from tests.predict.made_up_runs import SIZE, Call, write_bundle, write_image, write_images, write_run, write_volumes_run

SLOW = 0.03  # seconds
Seconds = list[float]  # one: what a clock shows


def rate(network: float, suffix: str = ".png", workers: int = 16, on_gpu: bool = True, **seconds: float) -> Rate:
    """Made-up figures of 10 s in which 35,090 masks are made: seconds of the network and of parts."""
    made = Rate()
    made.began, made.first, made.last = 1.0, (1.0, 0), (11.0, 35_090)
    made.network, made.workers, made.on_gpu = network, workers, on_gpu
    made.kinds, made.level, made.volumes = Counter({suffix: 3, ".bmp": 1}), seconds.pop("level", 1), suffix == ".nii"
    parts = {name.replace("_", " "): spent for name, spent in seconds.items()}
    made.of_workers = Counter({part: spent for part, spent in parts.items() if part in PARTS})
    made.of_feeder = parts
    return made


@pytest.mark.parametrize(
    ("figures", "bottleneck", "what", "cure"),
    [
        (rate(9.7, on_gpu=False, decode=80), "network", "works 97% of the time", "take a faster stage, or a GPU"),
        (rate(3.7, decode=150, write=5), "decode", "decoding PNG, which takes 15.0 of 16 workers",
         "store JPEG or tiled TIFF, or give 42 cores for the network's rate"),
        (rate(5, ".nii", decode=150, write=5), "decode", "decoding NII, which takes 15.0 of 16 workers",
         "store files without compression, or give 31 cores for the network's rate"),
        (rate(2, workers=1, on_gpu=False, decode=9), "decode", "decoding PNG, which takes 0.9 of 1 workers",
         "store JPEG or tiled TIFF, or give it several processes (--shard) for the network's rate"),
        (rate(3, read=100, decode=50), "read", "reading PNG files, which takes 10.0 of 16", "a faster disk"),
        (rate(3, put_together=100, decode=55), "put together", "putting masks together, which takes 10.0 of 16 workers",
         "take a smaller --overlap, or give 52 cores for the network's rate"),
        (rate(3, ".nii", put_together=155), "put together", "putting masks together, which takes 15.5 of 16 workers",
         "take a larger --step, or give 52 cores for the network's rate"),
        (rate(3, encode=155), "encode", "encoding masks", "16 workers: give 52 cores for the network's rate"),
        (rate(3, encode=155, level=9), "encode", "encoding masks, which takes 15.5 of 16 workers",
         "take --compression 1, or give 52 cores for the network's rate"),
        (rate(3, write=100), "write", "writing masks, which takes 10.0 of 16", "take a faster disk for --out"),
        (rate(3, sync=100), "sync", "syncing masks, which takes 10.0 of 16", "take a faster disk for --out"),
        (rate(3, assemble=5, start=2, hand_out=1), "feeder", "works 80%", "--batch, or more GPUs (--devices all)"),
        (rate(3, assemble=1, wait_for_the_decoder=6), "decoder", "waits 60%", "take more GPUs (--devices all)"),
    ],
)  # fmt: skip
def test_each_limit_is_named_with_its_cure(figures: Rate, bottleneck: str, what: str, cure: str) -> None:
    assert figures.bottleneck == bottleneck
    assert what in figures.advice().split(": ")[0]
    assert figures.advice().endswith(cure)
    assert figures.told() == f"3,509 masks a second after the first; the limit is {figures.advice()}"
    assert figures.network_per_second == pytest.approx(35_090 / figures.network)
    profile = figures.profile()
    assert sum(profile["seconds_of_workers"].values()) == pytest.approx(10 * figures.workers)  # type: ignore[attr-defined]
    assert sum(profile["occupancy"].values()) == pytest.approx(figures.workers)  # type: ignore[attr-defined]


def test_too_few_masks_name_no_limit() -> None:
    brief = rate(3, decode=1)
    brief.last = (1.1, 35_090)
    for few in (Rate(), brief):
        assert few.bottleneck == few.advice() == few.told() == ""
        assert few.profile()["masks_per_second"] is None


@pytest.fixture
def clock() -> Iterator[Seconds]:
    """A clock on which nothing takes any time but what a test makes slow."""
    shown = [1.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "perf_counter", lambda: shown[0])
        TIMER.taken()
        yield shown
    TIMER.taken()


def test_a_second_counts_for_the_inner_part_alone(clock: Seconds) -> None:
    timer = Timer()
    timer.taken()
    with timer.within("put together"):
        clock[0] += 1
        with timer.within("write"):
            clock[0] += 2
    assert timer.taken() == {timer.part: 0, "put together": 1, "write": 2}
    assert timer.taken() == {timer.part: 0}


def slowed(place: Any, name: str, clock: Seconds, seconds: float = SLOW) -> Any:
    """Return a function that takes longer."""
    given = getattr(place, name)

    def slow(*words: Any, **named: Any) -> Any:
        clock[0] += seconds
        return given(*words, **named)

    return slow


@pytest.mark.parametrize(
    ("place", "name", "bottleneck"),
    [
        (cases, "read_case", "decode"),
        (mask_files, "described", "read"),
        (mask_files, "content_of", "encode"),
        (mask_files, "sync_files", "sync"),
        (sources, "loaded", "network"),
    ],
)
def test_a_slow_part_of_a_real_call_is_its_limit(
    place: Any, name: str, bottleneck: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call,
    clock: Seconds,
) -> None:  # fmt: skip
    monkeypatch.setattr(case_work, "HELD", -1)  # one case at a time: of network and worker one works
    folder = write_images(tmp_path / "images", 40)
    bundle, load = write_bundle(tmp_path / "bundle", run), sources.loaded
    if bottleneck == "network":
        monkeypatch.setattr(sources, "loaded", lambda *words: slowed(SimpleNamespace(run=load(*words)), "run", clock))
    elif bottleneck == "sync":
        monkeypatch.setattr(loop, "NAMED_EVERY", 0.0)  # masks are named with each message
        monkeypatch.setattr(place, name, slowed(place, name, clock, 10 * SLOW))
    else:
        monkeypatch.setattr(place, name, slowed(place, name, clock))
    code, said, told = call(bundle, folder, "--out", tmp_path / "masks", "--profile")
    assert code == 0
    (profile,) = json.loads(said)
    assert profile["bottleneck"] == bottleneck
    assert f"the limit is {profile['advice']}" in told
    assert "40 masks made: " in told
    assert profile == json.loads((tmp_path / "masks" / "predict.json").read_text())["profile"]
    assert {"list files", "load or build the network", "write"} <= {*profile["seconds_before_the_first_mask"]}


Predict = Callable[..., tuple[int, bool, str, str]]
SAID = "nothing is left to do: every"
COMPILERS = ("torch._dynamo", "torch._inductor", "torch.onnx", "triton", "pipeline.worker.run_stage")


@pytest.fixture
def predict(monkeypatch: pytest.MonkeyPatch, call: Call) -> Predict:
    """Runs the command; its exit code, whether a net was built or loaded, and what it said."""
    built: list[str] = []

    def count(place: Any, name: str) -> None:
        given = getattr(place, name)

        def counted(*words: Any) -> Any:
            built.append("a net")
            return given(*words)

        monkeypatch.setattr(place, name, counted)

    count(run_source, "built")
    count(sources, "loaded")

    def run(*words: str | Path) -> tuple[int, bool, str, str]:
        built.clear()
        code, said, told = call(*words)
        return code, bool(built), said, told

    return run


def test_no_stage_is_built_for_masks_that_are_there(predict: Predict, run: Path, images: Path, tmp_path: Path) -> None:
    """What is told and kept is what it would be, had the net been built to no avail."""
    out = tmp_path / "masks"
    asked = (run, images, "--out", out, "--stage", "eager")
    assert predict(*asked)[:2] == (0, True)
    before = (out / "same.png").stat().st_mtime_ns
    (killed := out / ".masks" / "1-of-2.parts" / "77").mkdir(parents=True)
    (killed / "0").write_bytes(b"what a killed process had written")
    code, built, said, told = predict(*asked)
    assert (code, built, said) == (0, False, f"0 masks made, 2 were there: {out}\n")
    assert f"{SAID} image has its mask by eager" in told
    kept = json.loads((out / "predict.json").read_text())
    assert (kept["finished"], kept["made"], kept["kept"], kept["failed"]) == (True, 0, 2, {})
    assert (out / "same.png").stat().st_mtime_ns == before
    assert not killed.exists()


def test_a_stage_is_built_where_anything_is_left(predict: Predict, images: Path, tmp_path: Path) -> None:
    run, out = write_run(tmp_path), tmp_path / "masks"
    asked = (run, images, "--out", out, "--stage", "eager")
    predict(*asked)
    (out / "same.png").unlink()
    assert predict(*asked)[:3] == (0, True, f"1 mask made, 1 were there: {out}\n")
    write_image(images / "same.png", SIZE, SIZE, seed=12)
    assert predict(*asked)[1]
    assert predict(*asked, "--overlap", "2")[1]
    assert not predict(*asked, "--overlap", "2")[1]
    assert predict(*asked[:-1], "half")[1]
    assert not predict(*asked[:-1], "half")[1]


def test_images_of_their_own_size_need_the_network(predict: Predict, images: Path, tmp_path: Path) -> None:
    run, out = write_run(tmp_path), tmp_path / "masks"
    rewritten(run, data=replace(codec.load(run).config.data, size=None))
    asked = (run, images, "--out", out, "--stage", "eager")
    assert predict(*asked)[:2] == (0, True)
    assert predict(*asked)[:3] == (0, True, f"0 masks made, 2 were there: {out}\n")


def test_whole_images_need_no_window_to_be_known(predict: Predict, images: Path, tmp_path: Path) -> None:
    run, out = write_run(tmp_path), tmp_path / "masks"
    asked = (run, images, "--out", out, "--stage", "eager", "--whole")
    assert predict(*asked)[:2] == (0, True)
    assert predict(*asked)[:2] == (0, False)
    code, built, _, told = predict(*asked[:-2], "torchscript", "--whole")
    assert (code, built) == (2, False)
    assert "--whole: torchscript is built for images of one size" in told


def test_no_bundle_is_loaded_either(predict: Predict, images: Path, tmp_path: Path) -> None:
    bundle, out = write_bundle(tmp_path / "bundle", write_run(tmp_path)), tmp_path / "masks"
    asked = (bundle, images, "--out", out)
    assert predict(*asked)[:2] == (0, True)
    (out / "predict.json").unlink()
    assert predict(*asked)[:3] == (0, False, f"0 masks made, 2 were there: {out}\n")
    first, *others = (bundle / "SHA256SUMS").read_text().splitlines(keepends=True)
    (bundle / "SHA256SUMS").write_text("".join([*others, first]))
    assert predict(*asked)[:2] == (0, True), "another bundle"


def test_masks_of_volumes_that_are_there_need_no_compiler(predict: Predict, tmp_path: Path) -> None:
    run, scans, out = write_volumes_run(tmp_path), tmp_path / "scans", tmp_path / "masks"
    scans.mkdir()
    np.save(scans / "a.npy", np.random.default_rng(1).normal(size=(8, 12, 8)))
    asked = (run, scans, "--out", out, "--stage", "eager")
    assert predict(*asked)[:2] == (0, True)
    said, told, modules = in_a_process(*asked)
    assert said == f"0 masks made, 1 were there: {out}"
    assert f"{SAID} volume has its mask by eager" in told
    assert not modules.intersection(COMPILERS)


def test_a_bundle_needs_nothing_of_the_measuring_worker(images: Path, tmp_path: Path) -> None:
    bundle, out = write_bundle(tmp_path / "bundle", write_run(tmp_path)), tmp_path / "masks"
    said, _, modules = in_a_process(bundle, images, "--out", out)
    assert said == f"2 masks made: {out}"
    rooms = tuple(f"pipeline.{name}" for name in ("worker", "compiler", "orchestrate", "stages"))
    assert not [name for name in modules if name.startswith(rooms)]
    memory = json.loads((out / "predict.json").read_text())["memory_mib"]
    assert 0 < memory["network_loaded"] <= memory["peak"]


def in_a_process(*asked: object) -> tuple[str, str, set[str]]:
    """Run the command; what it said on stdout and stderr, and the modules that it imported."""
    code = "import sys; from pipeline.predict.command import main; main(sys.argv[1:]); print(*sys.modules)"
    command = [sys.executable, "-c", code, *map(str, asked)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    said, modules = done.stdout.splitlines()
    return said, done.stderr, {*modules.split()}


def test_progress_tells_the_pace_and_the_time_left() -> None:
    said: list[str] = []
    seconds = iter([0.0, 4.0, 10.0])
    progress = Progress(150, said.append, lambda: next(seconds))
    outcome = Outcome(made=20, kept=10)
    progress.tell(outcome)
    progress.tell(outcome, "; b: window 2 of 3")
    assert said == ["30 of 150 images, 2 masks a second, 0:01:00 left; b: window 2 of 3"]
