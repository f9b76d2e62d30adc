"""Compare a stage's answers with the reference's, on real inputs, by the figures of its task.

A diffusion network is also judged by a denoising loop: by its error after each step on its own last answer.
The sampler is DDIM without noise: Song, Meng and Ermon, "Denoising Diffusion Implicit Models", 2020, eq. 12.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from pipeline.compiler.agreement import classes
from pipeline.compiler.batch import Batch
from pipeline.records.data_words import words_for
from pipeline.records.goals import SEGMENTATION, Schedule, Task, Tolerance, judge
from pipeline.records.samples import Accuracy, MaskCounts
from pipeline.stats.dice import LEAST_IMAGES, Overlap, joined, losses, numbered, overlap

TRAINED_STEPS = 1000  # of the schedule
FIRST, LAST = {"linear": 1e-4, "scaled_linear": 8.5e-4}, {"linear": 2e-2, "scaled_linear": 1.2e-2}  # of its variances
MOST_VARIANCE = 0.999  # of a step, by the cosine schedule's authors
OFFSET = 0.008  # of the cosine schedule
WINDOW = 7  # pixels of SSIM's window (Wang et al. 2004, uniform), at most
MOST_IMAGES, MOST_SIZES = 2_000, 40_000  # images, and images times classes, of which counts are kept
# Fields of Accuracy that other tasks lack.
OF_MASKS = ("flipped_share", "flipped_margin", "one_class", "dice", "iou", "reference_dice", "reference_iou")


def kept_signal(schedule: Schedule) -> Tensor:
    """Return the share of the signal's variance after each of the 1000 steps, fp64: the running product of 1 − β."""
    # "linear" is Ho, Jain and Abbeel's (2020), "scaled_linear" that of latent diffusion (Rombach et al., 2022),
    # "cosine" Nichol and Dhariwal's (2021).
    if schedule == "cosine":
        at = (torch.arange(TRAINED_STEPS + 1, dtype=torch.float64) / TRAINED_STEPS + OFFSET) / (1 + OFFSET)
        left = torch.cos(at * math.pi / 2).square()
        variances = (1 - left[1:] / left[:-1]).clamp(max=MOST_VARIANCE)
    else:
        power = 2 if schedule == "scaled_linear" else 1
        ends = (FIRST[schedule] ** (1 / power), LAST[schedule] ** (1 / power))
        variances = torch.linspace(*ends, TRAINED_STEPS, dtype=torch.float64) ** power
    return (1 - variances).cumprod(0)


def denoised(run: Callable[[Batch], Tensor], start: Batch, task: Task) -> Iterator[Tensor]:
    """Yield the latents after each step, fp32, on the CPU; the first input is the noise that the loop starts with."""
    for latents in steps_of(run, start, task):
        yield latents.cpu().clone()


def steps_of(run: Callable[[Batch], Tensor], start: Batch, task: Task) -> Iterator[Tensor]:
    """Yield the latents after each step as `denoised`, in one tensor on the device, which the next step overwrites."""
    batch, kept = start.clone(), kept_signal(task.schedule)
    counter = batch.tensors[batch.names.index(task.timestep)]
    times = torch.linspace(TRAINED_STEPS - 1, 0, task.steps, dtype=torch.float64).round().long().tolist()
    for number, time in enumerate(times):
        counter.fill_(time)
        with torch.inference_mode():
            answer = run(batch).float()
        now = float(kept[time])
        following = float(kept[times[number + 1]]) if number + 1 < len(times) else 1.0
        clean, noise = parts(batch.first, answer, now, task)
        batch.first.copy_(math.sqrt(following) * clean + math.sqrt(1 - following) * noise)
        yield batch.first


def parts(latents: Tensor, answer: Tensor, kept: float, task: Task) -> tuple[Tensor, Tensor]:
    """Return the clean latents and the noise that a network's answer stands for; all have the same shape."""
    signal, spread = math.sqrt(kept), math.sqrt(1 - kept)
    if task.prediction == "epsilon":
        return (latents - spread * answer) / signal, answer
    if task.prediction == "sample":
        return answer, (latents - signal * answer) / spread
    return signal * latents - spread * answer, signal * answer + spread * latents


class WrongShape(Exception):  # noqa: N818 - named for what was found
    """The logits are of another shape or number than the reference's; the text is the one-line reason."""


def check(
    outputs: Iterable[Tensor], references: list[Tensor], labels: Tensor | None, tolerance: Tolerance,
    trained: bool = True, task: Task = SEGMENTATION, *, pictures: Sequence[str] = (),
) -> tuple[Accuracy | None, Literal["ok", "inaccurate"], str]:  # fmt: skip
    """Compare and judge: return the figures, None for other shapes, the status, and the reason if it isn't ok."""
    # Outputs are drawn one at a time, so a stage may write over them. Labels are uint8, 255 where unlabelled; targets
    # fp32.
    try:
        accuracy = compare(outputs, references, labels, task, pictures)
    except WrongShape as wrong:
        return None, "inaccurate", str(wrong)
    return accuracy, *judge(accuracy, tolerance, trained, words_for(references[0].dim() - 2))


def compare(
    outputs: Iterable[Tensor], references: list[Tensor], labels: Tensor | None, task: Task = SEGMENTATION,
    pictures: Sequence[str] = (),
) -> Accuracy:  # fmt: skip
    """Return the figures over all batches of answers, such as logits [batch, classes, height, width].

    A logit that is NaN or infinite counts as 0 in the distances, so that these stay numbers; `nan_share` names it.
    The interval of the Dice lost is over `pictures`, the name of each image's; empty if unknown.
    """
    distances, masks, values = Distances(), Masks(references[0]), Values(task.data_range)
    what = "logits" if task.has_masks else "values"
    for output, reference in zip(outputs, references, strict=False):
        if output.shape != reference.shape:
            raise WrongShape(f"{what} have shape {list(output.shape)}, the reference's have {list(reference.shape)}")
        known = None if labels is None else labels[distances.images : distances.images + len(reference)]
        pair = distances.add(output, reference)
        if task.has_masks:
            masks.add(*pair, known)
        elif task.name == "regression":
            values.add(*pair, known)
    if distances.images != (expected := sum(len(reference) for reference in references)):
        words = words_for(references[0].dim() - 2)
        raise WrongShape(f"{what} of {words.counted(distances.images)} came for {words.counted(expected)}")
    figures = {**dict.fromkeys(OF_MASKS), **distances.figures()}
    if task.has_masks:
        figures |= masks.figures(pictures)
    elif task.name == "regression":
        figures |= values.figures(distances)
    return Accuracy(**figures)


def as_logits(answer: Tensor, reference: Tensor) -> Tensor:
    """Return classes [batch, height, width] as the reference's logits, changed no further than these need."""
    # Where they are another class's, it and the largest logit change places. A class that the reference doesn't have is
    # NaN. Where the reference has infinite values or NaN, it stays. Other answers are returned as they are.
    if answer.shape != (*reference.shape[:1], *reference.shape[2:]):
        return answer
    reference = reference.to(answer.device, torch.float32)
    chosen, count = answer.long()[:, None], reference.shape[1]
    unknown = (chosen < 0) | (chosen >= max(count, 2))
    if count == 1:
        size = reference.abs()
        changed = torch.where(chosen == 1, size.clamp_min(torch.finfo(torch.float32).tiny), -size)
    else:
        chosen = chosen.masked_fill(unknown, 0)
        largest, right = reference.max(1, keepdim=True)
        above = torch.where(chosen == right, largest, largest.nextafter(torch.full_like(largest, math.inf)))
        changed = reference.scatter(1, right, reference.gather(1, chosen)).scatter(1, chosen, above)
    sound = reference.isfinite().all(1, keepdim=True)
    return changed.masked_fill(unknown, math.nan).where(sound, reference)


class Distances:
    """Sums of all answers' distances over the batches."""

    def __init__(self) -> None:
        self.images = self.values = self.broken = 0
        self.squared_error = self.squared = self.total = self.largest_error = 0.0

    def add(self, output: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
        """Add one batch of any shape; return both in fp32 on one device, 0 where the output is no number."""
        reference, output = reference.to(output.device, torch.float32), output.float()
        finite = output.isfinite()
        output = torch.where(finite, output, torch.zeros_like(output))
        error, exact = (output - reference).double(), reference.double()
        self.broken += int((~finite).sum())
        self.squared_error += float(error.square().sum())
        self.squared += float(exact.square().sum())
        self.total += float(exact.sum())
        self.largest_error = max(self.largest_error, float(error.abs().max()))
        self.values += exact.numel()
        self.images += len(output)
        return output, reference

    @property
    def relative_l2(self) -> float:
        """||output − reference|| / ||reference||; 1 where the reference alone is 0."""
        return math.sqrt(self.squared_error / self.squared) if self.squared else float(self.squared_error > 0)

    def figures(self) -> dict[str, Any]:
        """Return fields of Accuracy."""
        mean = self.total / self.values
        return {
            "relative_l2": self.relative_l2,
            "largest_error": self.largest_error,
            "reference_spread": math.sqrt(max(self.squared / self.values - mean**2, 0.0)),
            "nan_share": self.broken / self.values,
            "images": self.images,
        }


class Masks:
    """Sums over the classes of logits like `reference` [batch, channels, height, width]."""

    def __init__(self, reference: Tensor) -> None:
        self.classes = max(2, reference.shape[1]) if reference.dim() > 1 else 2
        self.pixels, self.flipped = math.prod(reference.shape[2:]), list[int]()  # of an image; of each, those that flip
        self.margin: float | None = None
        self.found: set[int] = set()
        self.expected: set[int] = set()
        self.overlaps: tuple[list[Overlap], list[Overlap]] = ([], [])  # of output and reference with the labels

    def add(self, output: Tensor, reference: Tensor, labels: Tensor | None) -> None:
        """Add the classes of both [batch, channels, height, width], and labels [batch, height, width]."""
        chosen, right = classes(output), classes(reference)
        flips = chosen != right
        self.flipped += flips.flatten(1).sum(1).tolist()
        if flips.any():
            best = reference.topk(2, dim=1).values if reference.shape[1] > 1 else reference
            margins = best[:, 0] - best[:, 1] if reference.shape[1] > 1 else best[:, 0].abs()
            self.margin = max(self.margin or 0.0, float(margins[flips].max()))
        for values, mask in ((self.found, chosen), (self.expected, right)):
            values |= set(torch.bincount(mask.flatten().long()).nonzero().flatten().tolist())
        if labels is not None:
            for known, mask in zip(self.overlaps, (chosen, right), strict=True):
                known.append(overlap(mask.cpu().numpy(), labels.numpy(), self.classes))

    def figures(self, pictures: Sequence[str]) -> dict[str, Any]:
        """Return fields of Accuracy; `pictures` as in `compare`."""
        shares = [count / self.pixels for count in self.flipped]
        fields: dict[str, Any] = {"flipped_share": sum(self.flipped) / (self.pixels * len(shares))}
        fields |= {"worst_flipped_share": max(shares), "flipped_margin": self.margin}
        fields["one_class"] = len(self.found) == 1 and len(self.expected) > 1
        groups, counted = numbered(pictures), list[list[list[int]]]()
        if self.overlaps[0]:
            own, exact = map(joined, self.overlaps)
            counted = [each.tolist() for each in (own.hits, own.sizes, exact.hits, exact.sizes)]
            for name, known in (("", own), ("reference_", exact)):
                dice = known.dice().tolist()
                # IoU |A∩B|/|A∪B| follows from Dice.
                fields |= {f"{name}dice": dice, f"{name}iou": [part / (2 - part) for part in dice]}
            labelled = {name for name, sizes in zip(pictures, exact.sizes, strict=False) if sizes.any()}
            if len(labelled) >= LEAST_IMAGES:  # of fewer, or without names, there is no interval
                found = losses(exact.pooled(groups), own.pooled(groups), seed=0)
                by_class = [found.of(number) if number in found.labelled else None for number in range(self.classes)]
                fields |= {"dice_lost": found.mean, "class_lost": by_class}
        if len(shares) <= MOST_IMAGES and len(shares) * self.classes <= MOST_SIZES:
            fields["counts"] = MaskCounts(self.pixels, self.flipped, groups.tolist(), *counted)
        return fields


class Values:
    """Sums over a regression network's values against what is right; NaN where that is unknown."""

    def __init__(self, data_range: float | None) -> None:
        self.data_range = data_range
        self.known = 0
        self.off = [0.0, 0.0]  # summed squares of output and reference against what is right
        self.least, self.most = math.inf, -math.inf  # of the reference, or of what is right

    def add(self, output: Tensor, reference: Tensor, targets: Tensor | None) -> None:
        """Add one batch of both, and the targets, all of one shape."""
        right = reference if targets is None else targets.to(reference.device, torch.float32)
        known = right.isfinite()
        if known.any():
            self.least = min(self.least, float(right[known].min()))
            self.most = max(self.most, float(right[known].max()))
        if targets is not None:
            self.known += int(known.sum())
            for row, answer in enumerate((output, reference)):
                self.off[row] += float((answer - right)[known].double().square().sum())

    def figures(self, distances: Distances) -> dict[str, Any]:
        """Return fields of Accuracy."""
        fields = {"psnr": self.psnr(distances.squared_error, distances.values)}
        for name, off in zip(("truth_psnr", "reference_truth_psnr"), self.off, strict=True):
            fields[name] = self.psnr(off, self.known)
        return fields

    def psnr(self, squared_error: float, count: int) -> float | None:
        """Return 10 log10(range² / mean squared error), in dB; None without an error or without values."""
        span = self.data_range or self.most - self.least
        if not count or not squared_error or not 0 < span < math.inf:
            return None
        return float(10 * math.log10(span**2 * count / squared_error))


def psnr_and_ssim(images: Tensor, right: Tensor) -> tuple[float, float]:
    """Return PSNR in dB and SSIM of the worst of images [batch, channels, height, width] against the right ones."""
    from skimage.metrics import peak_signal_noise_ratio, structural_similarity

    window = min(WINDOW, (min(images.shape[2:]) - 1) | 1)
    psnr, ssim = [], []
    for image, wanted in zip(images.double().cpu().numpy(), right.double().cpu().numpy(), strict=True):
        if not np.isfinite(image).all():
            return -float("inf"), -1.0
        span = float(wanted.max() - wanted.min()) or 1.0
        with np.errstate(divide="ignore"):
            psnr.append(float(peak_signal_noise_ratio(wanted, image, data_range=span)))
        ssim.append(float(structural_similarity(wanted, image, win_size=window, data_range=span, channel_axis=0)))
    return min(psnr), min(ssim)
