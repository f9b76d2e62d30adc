"""What is wrong is called wrong: injected answers against a reference."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pipeline.compiler.agreement import classes, distance
from pipeline.compiler.batch import Batch, batched
from pipeline.config.goal_request import read_accuracy
from pipeline.config.request_error import RequestError
from pipeline.measure.accuracy import check, compare, denoised, kept_signal
from pipeline.records.data_words import VOLUMES
from pipeline.records.goals import AccuracyLimits, Schedule, Task, TaskName, Tolerance, judge
from pipeline.records.samples import Accuracy
from tests.fake_machine import ACCURACY, TOLERANCE

GENERATOR = torch.Generator().manual_seed(0)
BATCHES = [torch.randn(2, 3, 8, 8, generator=GENERATOR) for _ in range(3)]
NET = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(4, 2, 1)).eval()
with torch.no_grad():
    for part in NET.parameters():
        part.copy_(torch.randn(part.shape, generator=GENERATOR))
    REFERENCES = [NET(batch) for batch in BATCHES]


def poisoned(batch: Tensor) -> Tensor:
    logits: Tensor = NET(batch).clone()
    logits[0, 0, 0, 0] = float("inf")
    return logits


FAULTS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "ignores new input": (lambda _: NET(BATCHES[0]), "logits differ"),
    "returns half of the batch": (lambda batch: NET(batch[:1]), "shape [1, 2, 8, 8], the reference's"),
    "returns half of the image": (lambda batch: NET(batch)[..., ::2], "shape [2, 2, 8, 4]"),
    "is all NaN": (lambda batch: NET(batch) * float("nan"), "all logits are NaN"),
    "has one infinity": (poisoned, "of the logits are NaN or infinite"),
    "is black": (lambda batch: torch.stack([torch.ones(2, 8, 8), torch.zeros(2, 8, 8)], 1), "one class"),
}


@pytest.mark.parametrize(("run", "reason"), FAULTS.values(), ids=FAULTS)
@torch.no_grad()
def test_a_wrong_answer_is_inaccurate_and_named(run: Callable[[Tensor], Tensor], reason: str) -> None:
    _, status, said = check((run(batch) for batch in BATCHES), REFERENCES, None, TOLERANCE)
    assert status == "inaccurate"
    assert reason in said


@torch.no_grad()
def test_an_honest_answer_is_ok_in_any_float_type() -> None:
    loose = replace(TOLERANCE, relative_l2=0.01, flipped_share=0.02)
    found, status, reason = check((NET(batch).bfloat16() for batch in BATCHES), REFERENCES, None, loose)
    assert (status, reason) == ("ok", "")
    assert 0 < found.relative_l2 < 0.01
    assert (found.images, found.nan_share, found.one_class, found.dice) == (6, 0.0, False, None)
    assert found.reference_spread == pytest.approx(float(torch.cat(REFERENCES).std(correction=0)), rel=1e-4)


def test_an_output_that_is_written_over_is_compared_before_the_next_call() -> None:
    buffer = torch.empty_like(REFERENCES[0])

    def outputs() -> Iterator[Tensor]:
        for reference in REFERENCES:
            yield buffer.copy_(reference)

    assert compare(outputs(), REFERENCES, None).relative_l2 == 0


def test_distances_by_hand() -> None:
    reference = torch.tensor([6.0, 8.0]).reshape(1, 2, 1, 1)
    found = compare([torch.tensor([9.0, 4.0]).reshape(1, 2, 1, 1)], [reference], None)
    assert (found.relative_l2, found.largest_error) == (pytest.approx(0.5), 4.0)
    assert (found.flipped_share, found.flipped_margin) == (1.0, 2.0)


def test_one_channel_is_cut_at_zero() -> None:
    reference = torch.tensor([[-2.0, 0.5], [1.0, -0.25]]).reshape(1, 1, 2, 2)
    output = torch.tensor([[-2.0, -0.5], [1.0, 0.25]]).reshape(1, 1, 2, 2)
    labels = torch.tensor([[[0, 0], [1, 255]]], dtype=torch.uint8)
    found = compare([output], [reference], labels)
    assert (found.flipped_share, found.flipped_margin) == (0.5, 0.5)
    assert found.dice == [1.0, 1.0]
    assert found.reference_dice == [pytest.approx(2 / 3), pytest.approx(2 / 3)]
    assert found.reference_iou == [pytest.approx(0.5), pytest.approx(0.5)]


def test_more_classes_and_pixels_without_label() -> None:
    chosen = torch.tensor([[[0, 1], [1, 0]]])
    logits = torch.nn.functional.one_hot(chosen, 3).permute(0, 3, 1, 2).float()
    labels = torch.tensor([[[0, 1], [0, 255]]], dtype=torch.uint8)
    found = compare([logits], [logits], labels)
    assert found.dice == [pytest.approx(2 / 3), pytest.approx(2 / 3), 1.0]
    assert torch.equal(classes(logits), chosen.byte())


def test_labels_follow_their_images_and_one_class_asks_for_no_second() -> None:
    labels = torch.cat([classes(reference) for reference in REFERENCES])
    assert compare(REFERENCES, REFERENCES, labels).dice == [1.0, 1.0]
    assert compare(REFERENCES, REFERENCES, labels.flip(0)).dice != [1.0, 1.0]
    black = torch.stack([torch.ones(1, 2, 2), torch.zeros(1, 2, 2)], 1)
    assert check([black], [black], None, TOLERANCE)[1] == "ok"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"relative_l2": 2e-3}, "logits differ by 0.002 (relative L2), 0.001 allowed"),
        ({"relative_l2": 1.0004e-3}, "logits differ by 0.0010004 (relative L2), 0.001 allowed"),
        ({"flipped_share": 1.0004e-3}, "0.10004 % of the pixels change their class, 0.1 % allowed"),
        ({"flipped_share": 2e-3}, "0.2 % of the pixels change their class, 0.1 % allowed"),
        ({"relative_l2": float("nan")}, "logits differ by nan"),
        ({"nan_share": 0.25, "relative_l2": 9.0}, "25 % of the logits are NaN or infinite"),
        ({"one_class": True, "flipped_share": 0.5}, "every pixel is of one class"),
    ],
)
def test_the_worst_cause_is_named_first(changed: dict[str, float], reason: str) -> None:
    status, said = judge(replace(ACCURACY, **changed), TOLERANCE)  # type: ignore[arg-type]
    assert (status, said.startswith(reason)) == ("inaccurate", True)


def test_an_accuracy_check_of_volumes_speaks_of_voxels() -> None:
    exact, black = torch.zeros(1, 2, 2, 2, 2), torch.zeros(1, 2, 2, 2, 2)
    exact[:, 1], exact[:, 0, 0] = 1.0, 2.0
    black[:, 0] = 3.0
    assert check([black], [exact], None, TOLERANCE)[2].startswith("every voxel is of one class")
    said = judge(replace(ACCURACY, flipped_share=2e-3), TOLERANCE, words=VOLUMES)[1]
    assert said.startswith("0.2 % of the voxels change")
    assert check([], [exact], None, TOLERANCE) == (None, "inaccurate", "logits of 0 volumes came for 1 volume")


def test_at_its_limit_an_answer_is_ok_and_misplaced_infinities_are_infinitely_far() -> None:
    assert judge(replace(ACCURACY, relative_l2=1e-3, flipped_share=1e-3), TOLERANCE) == ("ok", "")
    finite, infinite = torch.ones(4), torch.tensor([1.0, torch.inf, 1.0, 1.0])
    assert distance(infinite, infinite) == 0
    assert distance(finite, infinite) == math.inf
    assert distance(torch.full((4,), torch.nan), finite) == math.inf
    assert distance(finite * 1.5, finite) == 0.5
    assert distance(torch.zeros(4), torch.zeros(4)) == 0
    assert distance(finite, torch.zeros(4)) == math.inf


def test_masks_of_random_weights_are_not_judged_and_their_logits_are() -> None:
    """Flipped pixels and black masks say nothing of a net that was never trained; an error of the logits does."""
    flipped = replace(ACCURACY, flipped_share=0.5, one_class=True)
    assert judge(flipped, TOLERANCE)[0] == "inaccurate"
    assert judge(flipped, TOLERANCE, trained=False) == ("ok", "")
    assert judge(replace(flipped, relative_l2=1.0), TOLERANCE, trained=False)[0] == "inaccurate"
    assert judge(replace(flipped, nan_share=0.1), TOLERANCE, trained=False)[0] == "inaccurate"


LOOSE = Tolerance(0.5, 0.0, "")
REGRESSION = Task("regression")


def judged(outputs: Tensor, references: Tensor, truth: Tensor | None = None, task: Task = REGRESSION) -> Accuracy:
    found, status, reason = check([outputs], [references], truth, LOOSE, task=task)
    assert found is not None
    assert (status, reason) == ("ok", "")
    return found


def test_psnr_is_of_the_range_of_what_is_right_where_there_is_a_truth() -> None:
    right = torch.tensor([[0.0, 1.0, 2.0, 1.0]])
    exact, off = right + 0.05, right + 0.15
    found = judged(off, exact, right)
    assert found.psnr == pytest.approx(10 * math.log10(4 / 0.01), abs=1e-3)
    assert found.reference_truth_psnr == pytest.approx(10 * math.log10(4 / 0.0025), abs=1e-3)
    assert found.truth_psnr == pytest.approx(10 * math.log10(4 / 0.0225), abs=1e-3)
    fixed = judged(off, exact, right, Task("regression", data_range=1.0))
    assert fixed.psnr == pytest.approx(20, abs=1e-3)
    assert judged(exact, exact).psnr is None
    right = torch.tensor([[0.0, 2.0], [math.nan, math.nan]])
    found = judged(torch.tensor([[0.1, 2.1], [9.0, 9.0]]), torch.tensor([[0.0, 2.0], [9.0, 9.0]]), right)
    assert found.truth_psnr == pytest.approx(10 * math.log10(4 / 0.01), abs=1e-3)
    assert found.reference_truth_psnr is None


@pytest.mark.parametrize("name", ["regression", "diffusion"])
def test_nothing_is_said_of_masks(name: TaskName) -> None:
    found = judged(torch.full((2, 3, 4), 1.1), torch.ones(2, 3, 4), task=Task(name))
    assert (found.flipped_share, found.flipped_margin, found.one_class, found.dice) == (None, None, None, None)
    ones, zeros = torch.ones(2, 3), torch.zeros(2, 3)
    _, status, reason = check([zeros], [ones], None, LOOSE, task=Task(name))
    assert (status, reason) == ("inaccurate", "values differ by 1 (relative L2), 0.5 allowed")
    _, _, reason = check([ones / 0], [ones], None, LOOSE, task=Task(name))
    assert reason == "all values are NaN or infinite"


@pytest.mark.parametrize("schedule", ["linear", "scaled_linear", "cosine"])
def test_a_schedule_ends_in_noise(schedule: Schedule) -> None:
    kept = kept_signal(schedule)
    assert len(kept) == 1000
    assert kept[0] > 0.99
    assert kept[-1] < 5e-3
    assert bool((kept.diff() < 0).all())


def noisy(task: Task) -> tuple[Batch, Tensor]:
    """Latents of a clean image at the loop's first step, with the time step in another input; and the image."""
    torch.manual_seed(0)
    clean, noise = torch.randn(1, 2, 4, 4), torch.randn(1, 2, 4, 4)
    kept = float(kept_signal(task.schedule)[-1])
    latents = math.sqrt(kept) * clean + math.sqrt(1 - kept) * noise
    return Batch((latents, torch.zeros(1, dtype=torch.int64)), ("sample", "timestep")), clean


@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v_prediction"])
def test_a_net_that_knows_the_image_finds_it(prediction: str) -> None:
    task = Task("diffusion", steps=5, prediction=prediction)  # type: ignore[arg-type]
    start, clean = noisy(task)
    before, times = start.clone(), list[int]()

    def oracle(batch: Batch) -> Tensor:
        latents, time = batch
        times.append(int(time))
        kept = float(kept_signal(task.schedule)[int(time)])
        signal, spread = math.sqrt(kept), math.sqrt(1 - kept)
        noise = (latents - signal * clean) / spread
        return {"epsilon": noise, "sample": clean, "v_prediction": signal * noise - spread * clean}[prediction]

    steps = list(denoised(oracle, start, task))
    assert len(steps) == 5
    assert times == [999, 749, 500, 250, 0]
    torch.testing.assert_close(steps[-1], clean, rtol=1e-3, atol=1e-3)
    assert all(torch.equal(one, other) for one, other in zip(start, before, strict=True))


def test_limits_are_those_of_the_task() -> None:
    base = replace(ACCURACY, relative_l2=0.1, flipped_share=None, flipped_margin=None, one_class=None)
    poor = replace(base, psnr=30.0, truth_psnr=28.0, reference_truth_psnr=29.5)
    assert AccuracyLimits(min_psnr=40.0).missed(poor) == "its PSNR is 30 dB, 40 asked for (accuracy.min_psnr)"
    assert AccuracyLimits(max_psnr_drop=1.0).missed(poor).startswith("it loses 1.5 dB of PSNR, 1 allowed")
    close = replace(poor, truth_psnr=28.2958)
    assert AccuracyLimits(max_psnr_drop=1.204).missed(close).startswith("it loses 1.2042 dB of PSNR, 1.204 allowed")
    assert AccuracyLimits(min_psnr=40.0).missed(replace(base, relative_l2=0.0)) == ""
    late = replace(base, step_errors=[0.1, 0.3])
    assert AccuracyLimits(max_final_error=0.2).missed(late).startswith("its final latents are 0.3 off")
    assert AccuracyLimits(min_agreement=0.9).missed(poor).endswith("is not defined: the answers are not classes")


@pytest.mark.parametrize(
    ("limit", "task", "said"),
    [
        ("min_dice", "regression", "accuracy.min_dice: task=regression is not judged by it; it takes min_psnr"),
        ("min_psnr", "segmentation", "accuracy.min_psnr: task=segmentation is not judged by it; it takes max_dice"),
        ("max_psnr_drop", "regression", "accuracy.max_psnr_drop: there are no labels; name them (data=tensors data."),
    ],
)
def test_a_limit_of_another_task_is_refused(limit: str, task: TaskName, said: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_accuracy({limit: 0.5}, labelled=False, trained=True, task=task)
    assert said in str(caught.value)


def test_a_batch_is_of_one_number_of_samples() -> None:
    with pytest.raises(ValueError, match="different numbers of samples: image 2, time 3"):
        Batch((torch.ones(2, 3), torch.ones(3)), ("image", "time"))
    with pytest.raises(ValueError, match="2 inputs and 1 names: image"):
        Batch((torch.ones(2), torch.ones(2)))
    assert batched(torch.ones(2, 3)).samples(0, 1).shape == (1, 3)
