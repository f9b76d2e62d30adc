"""The profile of the path: every second has one part, and each part that may limit the rate is named with a cure."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.predict import case_work, cases, loop, mask_files, sources
from pipeline.predict.report import PARTS, TIMER, Rate, Timer
from tests.predict.made_up_runs import Call, write_bundle, write_images

SLOW = 0.03  # seconds
Seconds = list[float]  # one: what a clock shows


def rate(network: float, suffix: str = ".png", workers: int = 16, on_gpu: bool = True, **seconds: float) -> Rate:
    """Made-up figures of 10 s in which 35,090 masks are made: seconds of the network and of parts."""
    made = Rate()
    made.began, made.first, made.last = 1.0, (1.0, 0), (11.0, 35_090)
    made.network, made.workers, made.on_gpu = network, workers, on_gpu
    made.kinds = Counter({suffix: 3, ".bmp": 1})
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
        (rate(3, encode=100, decode=55), "encode", "encoding masks, which takes 10.0 of 16 workers",
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
    assert figures.advice().split(": ")[1].endswith(cure)
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
