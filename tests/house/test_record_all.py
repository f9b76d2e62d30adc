"""The script that records everything: what it does next, on which GPU, and that it goes on after it was killed."""

import argparse
import math
import time
from collections import Counter
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from conf import FOLDER
from models.train import typed_net
from tests.benchmarks import record_all
from tests.benchmarks.record_all import FIRST, NETS, RUNS, Lane, Recorder, Step, left_of, moved, plan, prepare

ROW = "classic_batch1"


def test_every_row_of_the_readme_is_planned_once_for_each_build() -> None:
    steps = plan()
    assert len(set(steps)) == len(steps)
    builds = Counter(step.name for step in steps if step.kind == "net")
    assert builds == {name: case.builds for name, case in NETS.items()}
    assert FIRST in {step.name for step in steps[:5]} == {name for name in builds if builds[name] == 3}


def test_the_plan_is_for_calls_of_nine_minutes() -> None:
    """A search may be cut off if the network has to be trained first; all take at most 10,100 seconds."""
    training = 60 * 0.6 + record_all.TRAINING_ENDS
    for step in plan():
        search = record_all.A_SEARCH if step.kind in RUNS and record_all.SEARCHED in step.stages else 0.0
        assert max(step.seconds(), step.seconds() + training * bool(step.source) - search) <= 9 * 60 - 15
    *steps, whole = record_all.planned(plan(), training).splitlines()
    assert len(steps) == len(plan())
    assert float(whole.split()[0].replace(",", "")) <= 10_100


@pytest.mark.parametrize("name", [name for name, case in NETS.items() if case.weights != "random"])
def test_a_network_is_measured_as_it_was_trained(name: str, tmp_path: Path) -> None:
    asked = argparse.Namespace(small=False, scratch=tmp_path)
    step = Step("net", name)
    words = Recorder(tmp_path, [], 0.0, asked).words(step)
    with initialize_config_dir(str(FOLDER), version_base=None):
        measured = compose("config", [word for word in words if not word.startswith("stage=")]).model
    trained = typed_net([*NETS[step.source or ""].net])
    assert (measured.target, {**measured.options}) == (trained.target, {**trained.options})


def lane(gpu: str, card: str = "H100") -> Lane:
    return Lane(gpu, f"{gpu} {card}", "0")


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    """Build 1 of classic_batch1 is finished, on GPU a, an H100, and its weights are there; those of smp are not."""
    steps = [Step("net", name, build) for name, build in ((ROW, 1), ("smp", 2), (ROW, 2), (ROW, 3))]
    prepare(steps[0].folder(tmp_path), lane("a"))
    (steps[0].folder(tmp_path) / "results.json.xz").write_bytes(b"")
    (tmp_path / "scratch" / "weights" / "classic").mkdir(parents=True)
    (tmp_path / "scratch" / "weights" / "classic" / "net.safetensors").write_bytes(b"")
    asked = argparse.Namespace(train=0.5, scratch=tmp_path / "scratch")
    return Recorder(tmp_path, left_of(steps, tmp_path), time.monotonic() + 540, asked)


@pytest.mark.parametrize(
    ("gpu", "seconds", "in_training", "taken"),
    [
        ("a H100", 540, "", ["smp 2", None]),  # the GPU has its build of the row
        ("b H100", 540, "", ["smp 2", f"{ROW} 2"]),
        ("b H200", 540, "", ["smp 2", None]),  # the row is recorded on an H100
        ("b H100", 540, "smp", [f"{ROW} 2"]),  # another GPU trains smp
        ("b H100", 240, "", [f"{ROW} 2"]),  # there is no time for training
        ("b H100", 60, "", [None]),
    ],
)
def test_a_gpu_takes_the_first_step_that_is_ready_and_fits(
    gpu: str, seconds: float, in_training: str, taken: list[str | None], recorder: Recorder
) -> None:
    recorder.ends, recorder.training = time.monotonic() + seconds, {in_training}
    for expected in taken:
        found = recorder.taken(lane(*gpu.split()))
        assert (f"{found.name} {found.build}" if found else None) == expected


@pytest.mark.parametrize(("call", "left", "taken"), [(500, 470, 1), (430, 430, 1), (430, 400, 0), (270, 270, 0)])
def test_a_search_is_cut_off_where_no_call_has_time(call: float, left: float, taken: bool, recorder: Recorder) -> None:
    recorder.left, recorder.ends = [Step("net", "smp", 1)], time.monotonic() + left  # 416 s with its training
    recorder.began = recorder.ends - call
    assert bool(recorder.taken(lane("a"))) == taken


def test_what_another_gpu_began_begins_anew(recorder: Recorder) -> None:
    run = Step("net", ROW, 2).folder(recorder.asked.scratch) / "run"
    for gpu, there in (("b", True), ("b", True), ("c", False)):
        prepare(run.parent, lane(gpu))
        run.mkdir(exist_ok=there) if gpu == "b" else None
        assert run.exists() == there


def test_a_training_that_tells_nothing_is_not_stable(tmp_path: Path) -> None:
    training = tmp_path / "training.json"
    for notes, by in ((None, math.inf), ("{}", math.inf), ('{"dice_moved": "-0.02000"}', 0.02)):
        assert notes is None or training.write_text(notes)
        assert moved(training) == by
