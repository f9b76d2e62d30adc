"""A folder whose masks are all there, made of the same by the same: the command says so, and builds no net."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.predict import run_source, sources
from pipeline.predict.report import Outcome, Progress
from pipeline.records import codec
from tests.export.recorded import rewritten
from tests.predict.made_up_runs import SIZE, Call, write_bundle, write_image, write_run, write_volumes_run

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
