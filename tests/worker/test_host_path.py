"""The path around a net, and stages with its ends in their graph: each layout's classes are those of the logits."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from models.image_batches import table_of, to_batch
from pipeline.compiler import driver
from pipeline.compiler.agreement import classes
from pipeline.compiler.batch import Batch, batched
from pipeline.compiler.ends import ByTable, Classes
from pipeline.inputs.input_contract import NAMED, InputContract
from pipeline.measure.accuracy import as_logits
from pipeline.measure.clock import Clock
from pipeline.records.goals import Tolerance
from pipeline.records.request import Job, ModelSpec, StageSpec
from pipeline.stages.api import Runner, StageError, Workload
from pipeline.stages.common.compiled import request_of, runner_of
from pipeline.stages.common.ends import ends_of, stage_ends
from pipeline.worker import run_stage as whole_stage
from pipeline.worker import workload
from pipeline.worker.host_path import SAMPLES, SLOTS, Lane, Lanes, layouts, measure
from pipeline.worker.host_path import Path as Loop
from tests.compiler.made_up_gpu import no_gpu, times
from tests.input_nets import SEVERAL
from tests.worker.jobs import EAGER, PLAN, Recorder, job, ran

CPU = torch.device("cpu")
IMAGES = np.random.default_rng(0).integers(0, 256, (8, 4, 6, 3), np.uint8)
IMAGES.flags.writeable = False  # as those are that a file is mapped for
CONTRACT = InputContract(3, "imagenet", *NAMED["imagenet"])


class Mark:
    def __init__(self, lane: Lane, work: Callable[[], object], after: Sequence["Mark"]) -> None:
        self.lane, self.work, self.after, self.done = lane, work, after, False


class LateLanes(Lanes):
    """Queues that do nothing before somebody waits, and then in any order that lanes and marks leave open."""

    def __init__(self, seed: int) -> None:
        self.draw, self.queues = random.Random(seed), {"up": [], "net": [], "down": []}  # type: ignore[var-annotated]

    def put(self, lane: Lane, work: Callable[[], object], after: Sequence[Any]) -> Any:
        mark = Mark(lane, work, after)
        self.queues[lane].append(mark)
        return mark

    def finish(self, mark: Any) -> None:
        while not mark.done:
            ready = [queue for queue in self.queues.values() if queue and all(each.done for each in queue[0].after)]
            first = self.draw.choice(ready).pop(0)
            first.work()
            first.done = True


class FakeClock(Clock):
    def __init__(self) -> None:
        super().__init__(CPU)
        self.seconds = 0.0

    def now(self) -> float:
        self.seconds += 1e-3
        return self.seconds


def work_of(images: np.ndarray = IMAGES) -> Workload:
    batches = list(to_batch(images, CONTRACT).split(2))
    return Workload(nn.Identity(), batches, CPU, Path(), images=images, contract=CONTRACT)


def one_buffer() -> Callable[[Batch], Tensor]:
    """A stage that writes every answer into the same memory, as a replayed graph does."""
    kept = torch.empty(2, 3, 4, 6)

    def run(batch: Batch) -> Tensor:
        assert not batch.first.is_inference(), "or Dynamo would compile again"
        return kept.copy_(2 * batch.first)

    return run


@pytest.mark.parametrize("seed", range(5))
def test_every_layout_answers_as_the_net_does(seed: int) -> None:
    work = work_of()
    found = layouts(work, one_buffer(), has_masks=True, pinned=False)
    assert [layout.move for layout in found] == ["as it is", "uint8 in", "classes out", "ring"]
    assert [layout.ring for layout in found] == [False, False, False, True]
    for layout in found:
        path, answers = Loop(layout, LateLanes(seed), CPU, pinned=False), []
        with torch.inference_mode():
            slots = [path.send() for _ in range(len(path.slots))]
            path.drain()
            answers = [slot.down.clone() for slot in slots]
        for answer, batch in zip(answers, work.batches, strict=False):
            logits = 2 * batch
            right = classes(logits) if layout.move in ("classes out", "ring") else logits
            torch.testing.assert_close(answer, right, rtol=1e-4, atol=1e-5)


def test_a_stage_with_ends_has_the_path_of_its_own_call() -> None:
    work = work_of().called_with(ends_of(CONTRACT, True, True, 4, CPU))
    found = layouts(work, lambda batch: work.model(batch.first), has_masks=False, pinned=False)
    assert [(it.move, it.inputs[0].first.dtype) for it in found] == [("as it is", torch.uint8), ("ring", torch.uint8)]


def test_what_a_ring_holds_at_once() -> None:
    lanes, ring = LateLanes(0), layouts(work_of(), one_buffer(), False, False)[-1]
    path = Loop(ring, lanes, CPU, pinned=False)
    with torch.inference_mode():
        for _ in range(SLOTS):
            path.send()
        assert [len(queue) for queue in lanes.queues.values()] == [SLOTS] * 3, "nothing was waited for"
        path.send()
        assert len(lanes.queues["down"]) == SLOTS
        path.drain()
    assert not any(lanes.queues.values())


def test_a_path_is_measured_move_by_move() -> None:
    found = measure(work_of(), one_buffer(), True, FakeClock(), replace(PLAN, latency_seconds=1e6), LateLanes(1))
    brief = measure(work_of(), one_buffer(), True, FakeClock(), replace(PLAN, latency_seconds=0.001), LateLanes(1))
    assert {len(part.seconds_per_call) for part in brief} == {1}
    values = 2 * 3 * 4 * 6
    assert [(part.move, part.bytes_in, part.bytes_out) for part in found] == [
        ("as it is", 4 * values, 4 * values),
        ("uint8 in", values, 4 * values),
        ("classes out", values, values // 3),
        ("ring", values, values // 3),
    ]
    assert {len(part.seconds_per_call) for part in found} == {SAMPLES}
    assert all(each > 0 for part in found for each in part.seconds_per_call)


def test_what_has_neither_bytes_nor_classes_has_a_ring_alone() -> None:
    floats = work_of(IMAGES.astype(np.float32) / 255)
    several = replace(work_of(), others={"timestep": [torch.zeros(2)] * 4})
    for work in (floats, several):
        found = layouts(work, lambda batch: batch.first, has_masks=False, pinned=False)
        assert [layout.move for layout in found] == ["as it is", "ring"]
    assert [part.shape for part in found[0].inputs[0]] == [(2, 3, 4, 6), (2,)]
    assert batched(floats.batches[0]).shape == (2, 3, 4, 6)


def test_on_a_cpu_there_is_nothing_to_move() -> None:
    on_a_cpu: Any = SimpleNamespace(job=SimpleNamespace(device="cpu"))
    assert whole_stage.host_path_of(on_a_cpu) == {
        "host_path_left_out": "on a CPU nothing is copied to a device, so no copy can overlap"
    }


__all__ = ["no_gpu"]  # a fixture
BOTH = {"uint8_in": True, "classes_out": True}


def build(workload: Workload, *, uint8_in: bool = False, classes_out: bool = False, spoilt: float = 0.0) -> Runner:
    """Build `fused` without a GPU; `spoilt` is added to the largest channel of each pixel of its logits."""
    ends = stage_ends(workload, uint8_in, classes_out)
    built = driver.build(request_of(workload, str(workload.folder), "never", []))
    assert built.call is not None
    network = built.call

    def spoils(*inputs: Tensor) -> Tensor:
        answer = network(*inputs)
        return answer.scatter_add(1, answer.argmax(1, keepdim=True), torch.full_like(answer[:, :1], spoilt))

    return runner_of(replace(built, run=spoils, call=spoils) if spoilt else built, workload, ends)


def tiny(asked: Job) -> Job:
    net = ModelSpec("unet", "models.unet.UNet", {"in_channels": 3, "classes": 2, "base": 8, "depth": 1})
    return replace(asked, data=replace(asked.data, size=16), model=net)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("run")
    ran(tiny(job(EAGER, root, "reference")), 0)
    return root


@pytest.fixture(autouse=True)
def candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "barred_on", lambda *_: None)
    times(monkeypatch, 3.0, 2.0)


def run_with(folder: Path, **options: Any) -> Recorder:
    tolerance = Tolerance(1e-2, 1e-3, "fp16")
    spec = StageSpec("fused", __name__, "fp16", "", ["cpu"], "", False, tolerance, options)
    return ran(tiny(job(spec, folder)), 1)


def test_a_run_with_ends_is_judged_as_one_without(folder: Path) -> None:
    plain, mask = run_with(folder), folder / "fused" / "mask_0.png"
    wanted, plain_mask = plain.fields["accuracy"], mask.read_bytes()
    for options in (BOTH, {"classes_out": True}):
        line = run_with(folder, **options)
        assert (line.fields["status"], line.fields["reason"]) == ("ok", "")
        found = line.fields["accuracy"]
        assert (found.flipped_share, found.dice, found.images) == (wanted.flipped_share, wanted.dice, wanted.images)
        assert found.relative_l2 <= 2 * wanted.relative_l2
        assert not line.fields.get("warnings")
        assert line.fields["memory"] is not None
        assert line.fields["diagnostics"] is not None
        assert [name.replace("_", " ") for name in options] == line.fields["description"].split(", ")[-len(options) :]
        assert mask.read_bytes() == plain_mask


@pytest.mark.parametrize(("spoilt", "said"), [(-100.0, "logits differ"), (float("nan"), "NaN")])
def test_wrong_classes_and_logits_that_are_no_numbers_are_refused(spoilt: float, said: str, folder: Path) -> None:
    line = run_with(folder, **BOTH, spoilt=spoilt)
    assert line.fields["status"] == "inaccurate"
    assert said in line.fields["reason"]


@pytest.mark.parametrize("channels", [1, 2, 5])
def test_classes_become_the_reference_s_logits_with_these_classes(channels: int) -> None:
    logits, others = torch.randn(2, 2, channels, 4, 4).round(decimals=1)
    assert torch.equal(as_logits(Classes()(logits).float(), logits), logits)
    changed = as_logits(Classes()(others), logits)
    assert torch.equal(classes(changed), classes(others))
    assert float((changed - logits).norm()) <= 2 * float((others - logits).norm())
    nothing = torch.full((2, 4, 4), 255, dtype=torch.uint8)
    assert as_logits(nothing, logits).isnan().all()


def test_what_has_no_such_ends_is_refused_by_the_option_s_name(tmp_path: Path) -> None:
    work = workload.load(job(EAGER, tmp_path), None)
    assert stage_ends(work, True, True).in_words == ", uint8 in, classes out"
    _, drawn = next(iter(SEVERAL.items()))[1]
    several = {f"{number}": [part] for number, part in enumerate(drawn().tensors[1:])}
    for changed, ends, said in (
        ({"images": None}, (True, False), "stage.uint8_in=true: the run's inputs are tensors; leave it out"),
        ({"images": work.images.astype("uint16")}, (True, True), "stage.uint8_in=true: the run's inputs are uint16"),
        ({"has_masks": False}, (True, True), "stage.classes_out=true: the network answers with no classes"),
        ({"others": several}, (False, True), "stage.classes_out=true: only for networks of images"),
    ):
        with pytest.raises(StageError, match=said):
            stage_ends(replace(work, **changed), *ends)


@pytest.mark.parametrize("order", ["rgb", "bgr"])
def test_a_table_gives_what_the_rule_gives(order: Any, tmp_path: Path) -> None:
    work = workload.load(job(EAGER, tmp_path), None)
    contract = replace(work.contract, channel_order=order)
    images = torch.from_numpy(work.images[:2].copy())
    by_rule = ends_of(contract, True, False, 4, CPU).whole(nn.Identity())
    assert torch.equal(ByTable(table_of(contract, CPU), reverses=order == "bgr")(images), by_rule(images))
