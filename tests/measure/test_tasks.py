"""What answers without masks are judged by: PSNR, and a denoising loop; and that nothing of them is said of masks."""

import math

import pytest
import torch
from torch import Tensor

from pipeline.compiler.batch import Batch, batched
from pipeline.config.goal_request import read_accuracy
from pipeline.config.request_error import RequestError
from pipeline.measure.accuracy import check, denoised, kept_signal
from pipeline.records.goals import AccuracyLimits, Schedule, Task, TaskName, Tolerance
from pipeline.records.samples import Accuracy

LOOSE = Tolerance(0.5, 0.0, "")
REGRESSION = Task("regression")


def judged(outputs: Tensor, references: Tensor, truth: Tensor | None = None, task: Task = REGRESSION) -> Accuracy:
    found, status, reason = check([outputs], [references], truth, LOOSE, task=task)
    assert found is not None
    assert (status, reason) == ("ok", "")
    return found


def test_psnr_is_of_the_range_of_what_is_right() -> None:
    """10 log10(range² / mean squared error): off by 0.1 in a range of 2 is 26.02 dB; by its own rule 20."""
    right = torch.tensor([[0.0, 1.0, 2.0, 1.0]])
    exact, off = right + 0.05, right + 0.15
    found = judged(off, exact, right)
    assert found.psnr == pytest.approx(10 * math.log10(4 / 0.01), abs=1e-3)
    assert found.reference_truth_psnr == pytest.approx(10 * math.log10(4 / 0.0025), abs=1e-3)
    assert found.truth_psnr == pytest.approx(10 * math.log10(4 / 0.0225), abs=1e-3)
    fixed = judged(off, exact, right, Task("regression", data_range=1.0))
    assert fixed.psnr == pytest.approx(20, abs=1e-3)
    assert judged(exact, exact).psnr is None


def test_samples_without_a_truth_do_not_count() -> None:
    right = torch.tensor([[0.0, 2.0], [math.nan, math.nan]])
    found = judged(torch.tensor([[0.1, 2.1], [9.0, 9.0]]), torch.tensor([[0.0, 2.0], [9.0, 9.0]]), right)
    assert found.truth_psnr == pytest.approx(10 * math.log10(4 / 0.01), abs=1e-3)
    assert found.reference_truth_psnr is None


@pytest.mark.parametrize("name", ["regression", "diffusion"])
def test_nothing_is_said_of_masks(name: TaskName) -> None:
    """Neither in the figures, nor where the answer is wrong; answers may have any shape."""
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
    """The loop counts from 999 to 0, changes nothing of what it was given, and ends with the image itself."""
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


def found_of(**figures: object) -> Accuracy:
    base = dict.fromkeys(("flipped_share", "flipped_margin", "one_class", "dice", "iou", "reference_dice"))
    values = {**base, "relative_l2": 0.1, "largest_error": 0.1, "reference_spread": 1.0, "nan_share": 0.0}
    return Accuracy(**{**values, "reference_iou": None, "images": 2, **figures})  # type: ignore[arg-type]


def test_limits_are_those_of_the_task() -> None:
    poor = found_of(psnr=30.0, truth_psnr=28.0, reference_truth_psnr=29.5)
    assert AccuracyLimits(min_psnr=40.0).missed(poor) == "its PSNR is 30 dB, 40 asked for (accuracy.min_psnr)"
    assert AccuracyLimits(max_psnr_drop=1.0).missed(poor).startswith("it loses 1.5 dB of PSNR, 1 allowed")
    assert AccuracyLimits(min_psnr=40.0).missed(found_of(relative_l2=0.0)) == ""
    late = found_of(step_errors=[0.1, 0.3])
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
