"""Fewer steps of a denoising loop, and steps on cached deep features: their time, and their cost in the final images.

Each way runs in the same stage of a run, from the same noise, by DDIM without noise. It is judged by its final images
against the fp32 network's full loop. The whole network gives its deep features in each way, which costs a copy.
"""

import argparse
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.cli.progress import Progress
from pipeline.command_line import FAILED, show
from pipeline.compiler.batch import Batch, of_batches
from pipeline.compiler.network_calls import without_tf32
from pipeline.errors import InputError, plural
from pipeline.export.recorded_stage import check_weights, opened
from pipeline.export.request import usable
from pipeline.inputs.targets import import_target
from pipeline.measure.accuracy import steps_of
from pipeline.measure.clock import Clock
from pipeline.measure.torch_device import keep_to_quota
from pipeline.records.disk import json_text, write_text
from pipeline.records.goals import Task
from pipeline.records.run_record import RunRecord
from pipeline.report import markdown
from pipeline.report.charts import ACCENT, PLAIN
from pipeline.report.charts.bars import Bar, Part, rows
from pipeline.report.formatting import milliseconds, significant
from pipeline.report.html import environment
from pipeline.report.tables import Figure, Table, names, number, table_of
from pipeline.slim.shallow import parts_of
from pipeline.stages.api import Workload
from pipeline.worker.bench import Bench

DEEP = "deep_features"  # the name of the outermost level's last input
WINDOW = 7  # pixels of SSIM's window (Wang et al. 2004, uniform), at most
Run = Callable[[Batch], Tensor]


@dataclass(frozen=True)
class Way:
    """A loop: its steps, and of how many one calls the whole network; the others call the outermost level."""

    name: str
    steps: int
    every: int


@dataclass(frozen=True)
class Row(Way):
    """A way as measured.

    Attributes:
        seconds: of a loop over one batch, the median.
        faster: than the full loop in the same stage, the median over rounds; `least` and `most` of all rounds.
        psnr, ssim: of the worst final image against the fp32 network's full loop.
        perceptual: the largest distance by the user's function, such as LPIPS; None without one.
        problem: the limits that it misses; empty if it passes.
    """

    seconds: float
    faster: float
    least: float
    most: float
    psnr: float
    ssim: float
    perceptual: float | None
    problem: str


def ways(steps: int, fewer: list[int], every: list[int]) -> list[Way]:
    """Return the full loop, loops with fewer steps, with cached features, and with both."""
    cut = list(dict.fromkeys(steps // by for by in fewer if steps // by))
    found = [Way("full loop", steps, 1), *(Way(plural(count, "step"), count, 1) for count in cut)]
    found += [Way(f"whole network at every {nth(by)} step", steps, by) for by in every if by < steps]
    both = [(count, by) for count in cut[:1] for by in every if by < count]
    return found + [Way(f"{plural(count, 'step')}, whole network at every {nth(by)}", count, by) for count, by in both]


def nth(number: int) -> str:
    """Return "2nd", "3rd" or such as "5th"."""
    return f"{number}{ {2: 'nd', 3: 'rd'}.get(number, 'th') }"


class Loop:
    """The sampler's loop over two built parts of a network."""

    def __init__(self, whole: Run, shallow: Run, task: Task) -> None:
        self.whole, self.shallow, self.task = whole, shallow, task

    def final(self, start: Batch, way: Way) -> Tensor:
        """Return the final latents [batch, channels, height, width] of a way, fp32."""
        channels, step, deep = start.first.shape[1], 0, start.first

        def answer(batch: Batch) -> Tensor:
            nonlocal step, deep
            step += 1
            if (step - 1) % way.every:
                return self.shallow(Batch((*batch.tensors, deep), (*batch.names, DEEP)))
            both = self.whole(batch)
            if way.every > 1:  # kept from a CUDA graph's next replay
                deep = both[:, channels:].to(torch.float32, memory_format=torch.contiguous_format, copy=True)
            return both[:, :channels]

        return last(steps_of(answer, start, replace(self.task, steps=way.steps)))


def last(latents: Iterator[Tensor]) -> Tensor:
    """Return the last of the latents that a loop yields."""
    return deque(latents, maxlen=1)[0].clone()


def built(bench: Bench, model: nn.Module, work: Workload) -> Run:
    """Return a part of the network, built by the bench's stage, as a function of a batch."""
    folder = work.folder / type(model).__name__.lower()
    folder.mkdir(parents=True, exist_ok=True)
    part = Bench(bench.job, replace(work, model=model.eval(), folder=folder), bench.context_bytes)
    part.build()
    return part.run


def loop_of(bench: Bench, say: Callable[[str], None]) -> Loop:
    """Build both parts of the bench's network by its stage.

    Raises:
        InputError: the network can't be split.
    """
    work, task = bench.workload, bench.job.task
    names, several = (work.name, *work.others), slice(work.verified)
    whole, shallow = parts_of(work.model, names)
    work = replace(
        work, batches=work.batches[several], others={name: part[several] for name, part in work.others.items()}
    )
    channels = work.shape[1]
    with torch.inference_mode(), without_tf32():
        deep = [whole(*batch)[:, channels:].contiguous() for batch in work.inputs]
    say("building the whole network")
    run = built(bench, whole, work)
    say("building its outermost level")
    return Loop(run, built(bench, shallow, replace(work, others={**work.others, DEEP: deep}, spare=None)), task)


def timed(loop: Loop, start: Batch, way: Way, clock: Clock) -> float:
    """Return the seconds of a loop over one batch."""
    clock.synchronize()
    began = clock.now()
    loop.final(start, way)
    clock.synchronize()
    return clock.now() - began


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


def missed(psnr: float, ssim: float, perceptual: float | None, limits: argparse.Namespace) -> str:
    """Return the limits that figures miss; empty if they keep all."""
    known = {
        f"PSNR below {limits.min_psnr:g} dB": psnr < limits.min_psnr,
        f"SSIM below {limits.min_ssim:g}": ssim < limits.min_ssim,
    }
    if limits.max_perceptual is not None and perceptual is not None:
        known[f"perceptual distance above {limits.max_perceptual:g}"] = not perceptual <= limits.max_perceptual
    return ", ".join(text for text, misses in known.items() if misses)


def user_function(name: str | None) -> Callable[..., Tensor] | None:
    """Import a function of the user's by its dotted name; None without one."""
    if name is None:
        return None
    module, _, attribute = name.rpartition(".")
    try:
        function: Callable[..., Tensor] = getattr(import_target(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"{name}: no function that can be imported ({error})") from None
    return function


class Judge:
    """The final images of the fp32 network's full loop, and what they are compared by."""

    def __init__(self, bench: Bench, steps: int, asked: argparse.Namespace) -> None:
        self.starts = bench.workload.inputs[: bench.workload.verified]
        self.decode, self.perceptual = user_function(asked.decoder), user_function(asked.perceptual)
        self.limits, task = asked, replace(bench.job.task, steps=steps)
        with without_tf32():
            self.right = self.images(
                last(steps_of(of_batches(bench.workload.model), each, task)) for each in self.starts
            )

    def images(self, latents: Iterator[Tensor]) -> Tensor:
        """Return the images of all batches, [images, channels, height, width]; latents without a decoder."""
        with torch.inference_mode():
            return torch.cat([self.decode(part) if self.decode else part for part in latents]).float()

    def judged(self, loop: Loop, way: Way) -> dict[str, Any]:
        """Return the fields of a `Row` that a way's final images give."""
        images = self.images(loop.final(start, way) for start in self.starts)
        psnr, ssim = psnr_and_ssim(images, self.right)
        with torch.inference_mode():
            far = float(self.perceptual(images, self.right).max()) if self.perceptual else None
        problem = missed(psnr, ssim, far, self.limits)
        return {"psnr": psnr, "ssim": ssim, "perceptual": far, "problem": problem}


def steps(asked: argparse.Namespace, run: RunRecord) -> int:
    """Build, measure and judge all ways, print a table, write steps.json and steps.html; return the exit code."""
    keep_to_quota()
    check_weights(run)
    stage = usable(run, asked.stage, [part.name for part in run.stages if part.status == "ok"])
    count = asked.steps or run.config.task.steps
    with TemporaryDirectory(prefix="unet-ladder-") as scratch, Progress(0) as progress:
        bench = opened(asked.run, run, stage, Path(scratch)).bench
        progress.say(f"the fp32 network's full loop, {count} steps")
        judge = Judge(bench, count, asked)
        loop, found = loop_of(bench, progress.say), ways(count, asked.fewer, asked.every)
        judgements = []
        for way in found:  # which also warms up
            progress.say(way.name)
            judgements.append(judge.judged(loop, way))
        start, clock = judge.starts[0], bench.clock
        rounds = [[timed(loop, start, way, clock) for way in found] for _ in range(asked.rounds)]
    seconds = list(zip(*rounds, strict=True))
    told = [row_of(way, own, seconds[0], judged) for way, own, judged in zip(found, seconds, judgements, strict=True)]
    page = write(told, run, stage.name, asked)
    show("\n".join(markdown.table(shown(told))) + f"\n{page}\n")
    return 0 if any(not row.problem for row in told[1:]) else FAILED


def row_of(way: Way, own: tuple[float, ...], full: tuple[float, ...], judged: dict[str, Any]) -> Row:
    """Return the row of a way by its seconds and the full loop's, of each round, and what was judged."""
    faster = [whole / each for each, whole in zip(own, full, strict=True)]
    return Row(**asdict(way), seconds=median(own), faster=median(faster), least=min(faster), most=max(faster), **judged)


def shown(found: list[Row]) -> Table:
    """Return the rows as a table."""
    return table_of(
        [
            names("loop", lambda row: row.name),
            number("ms", lambda row: row.seconds, milliseconds),
            number("× full loop", lambda row: row.faster, significant),
            names("of all rounds", lambda row: f"{row.least:.3g} to {row.most:.3g}"),
            number("PSNR, dB", lambda row: row.psnr, lambda value: f"{value:.1f}"),
            number("SSIM", lambda row: row.ssim, lambda value: f"{value:.4f}"),
            number("perceptual", lambda row: row.perceptual, significant),
            names("within the limits", lambda row: row.problem or "yes"),
        ],
        found,
    ).without_empty_columns


def write(found: list[Row], run: RunRecord, stage: str, asked: argparse.Namespace) -> Path:
    """Write steps.json and steps.html, and return the page's path."""
    folder = asked.out or asked.run
    folder.mkdir(parents=True, exist_ok=True)
    machine = run.environment
    document = {
        "network": run.config.model.name, "stage": stage, "device": machine and machine.device_name,
        "batch": run.config.data.batch_size, "trained": run.config.model.is_trained, "command": run.command,
        "limits": {key: getattr(asked, key) for key in ("min_psnr", "min_ssim", "max_perceptual")},
        "decoder": asked.decoder, "perceptual": asked.perceptual, "loops": [*map(asdict, found)],
    }  # fmt: skip
    write_text(json_text(document), folder / "steps.json")
    bars = [
        Bar(row.name, [Part(0.0, 1e3 * row.seconds, PLAIN if row.problem else ACCENT)],
            f"{milliseconds(row.seconds)}, {significant(row.faster)} ×, {row.psnr:.1f} dB", strong=not row.problem)
        for row in found
    ]  # fmt: skip
    figure = Figure("Loops", partial(rows, bars, "milliseconds per loop", unit="milliseconds per loop"))
    template = environment().get_template("steps.html.j2")
    path: Path = folder / "steps.html"
    path.write_text(template.render(document=document, figure=figure, table=shown(found)), encoding="utf-8")
    return path
