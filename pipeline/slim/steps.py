"""Fewer steps of a denoising loop, and steps on cached deep features: their time, and their cost in the final images.

Each way runs in the same stage of a run, from the same noise. Steps between two calls of the whole network call its
outermost level alone, on the deep features that the last whole call gave: DeepCache (Ma, Fang and Wang, CVPR 2024).
The parts share the network's weights. The whole network gives its deep features in each way, which costs a copy.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
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
from pipeline.compiler.network_calls import trial_copy, without_tf32
from pipeline.errors import InputError, plural, typed_line
from pipeline.export.recorded_stage import check_weights, opened
from pipeline.export.request import usable
from pipeline.measure.accuracy import psnr_and_ssim, steps_of
from pipeline.measure.clock import time_calls
from pipeline.records.goals import Task
from pipeline.records.run_record import RunRecord
from pipeline.report.slim_pages import Loop, LoopRow, write_steps
from pipeline.targets import import_target
from pipeline.worker.bench import Bench

DEEP = "deep_features"  # the name of the outermost level's last input
Run = Callable[[Batch], Tensor]
NETWORKS = ("UNet2DModel", "UNet2DConditionModel")  # of diffusers
RESIDUALS = "block_additional_residual"  # part of the names of inputs from another network, such as a ControlNet


class Kept(nn.Module):
    """The deep features, on their way between a network's blocks and its caller; stands for all deep blocks at once."""

    features: Tensor | None = None

    def forward(self, *_: object, **__: object) -> Tensor:
        """Return the features [batch, channels, height, width] once, so that none outlive the call."""
        features, self.features = self.features, None
        assert features is not None
        return features


class Whole(nn.Module):
    """The network, whose answer [batch, channels, height, width] is followed by the deep features as more channels."""

    def __init__(self, net: nn.Module, path: str) -> None:
        super().__init__()
        self.kept = Kept()
        self.net, _ = trial_copy(net)
        last: Any = self.net.get_submodule(path).up_blocks[-1]  # type: ignore[index,union-attr,unused-ignore]
        cls = type(last)

        def forward(block: Any, hidden_states: Tensor, *others: object, **named: object) -> object:
            block.kept.features = hidden_states
            return cls.forward(block, hidden_states, *others, **named)

        last.__class__ = type(cls.__name__, (cls,), {"forward": forward, "__module__": cls.__module__})
        last.kept = self.kept

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the answer and the features."""
        answer = self.net(*inputs)
        return torch.cat([answer, self.kept()], 1)


class Shallow(nn.Module):
    """The outermost level of the network, which takes the deep features as its last input."""

    def __init__(self, net: nn.Module, path: str) -> None:
        super().__init__()
        self.kept = Kept()
        self.net, _ = trial_copy(net)
        inner: Any = self.net.get_submodule(path)
        inner.down_blocks, inner.mid_block, inner.up_blocks = inner.down_blocks[:1], self.kept, inner.up_blocks[-1:]
        inner.down_blocks[0].downsamplers = None

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the answer [batch, channels, height, width]."""
        *own, self.kept.features = inputs
        answer: Tensor = self.net(*own)
        return answer


def parts_of(net: nn.Module, inputs: Sequence[str]) -> tuple[Whole, Shallow]:
    """Return a network of `inputs` that also gives its deep features, and its outermost level, or raise InputError."""
    path, inner = next(((path, part) for path, part in net.named_modules() if is_known(part)), ("", None))
    if inner is None:
        raise InputError(f"{type(net).__name__}: cached steps are for diffusers' {' and '.join(NETWORKS)}")
    downs, ups, name = inner.down_blocks, inner.up_blocks, type(inner).__name__
    first, last = downs[0], ups[-1]
    if len(downs) < 2 or hasattr(first, "skip_conv") or len(last.resnets) != len(first.resnets) + 1:
        blocks = f"{plural(len(downs), 'level')}, {type(first).__name__} and {type(last).__name__} outermost"
        raise InputError(f"{name} ({blocks}): its outermost level doesn't run alone; it takes two levels or more")
    if strange := next((each for each in inputs if RESIDUALS in each), None):
        raise InputError(f"{name}: {strange} goes into the deep blocks at every step; measure without it")
    return Whole(net, path), Shallow(net, path)


def is_known(module: Any) -> bool:
    """Return whether a module is one of diffusers' networks, or of a class derived from one."""
    return any(cls.__name__ in NETWORKS and cls.__module__.startswith("diffusers.") for cls in type(module).__mro__)


def ways(steps: int, fewer: list[int], every: list[int]) -> list[Loop]:
    """Return the full loop, loops with fewer steps, with cached features, and with both."""
    cut = list(dict.fromkeys(steps // by for by in fewer if steps // by))
    found = [Loop("full loop", steps, 1), *(Loop(plural(count, "step"), count, 1) for count in cut)]
    for count in (steps, *cut[:1]):
        before = "" if count == steps else f"{plural(count, 'step')}, "
        found += [Loop(f"{before}whole network every {by} steps", count, by) for by in every if by < count]
    return found


def final(whole: Run, shallow: Run, task: Task, start: Batch, way: Loop) -> Tensor:
    """Return the final latents [batch, channels, height, width] of a way over two built parts of a network, fp32."""
    channels, step, deep = start.first.shape[1], 0, start.first

    def answer(batch: Batch) -> Tensor:
        nonlocal step, deep
        step += 1
        if (step - 1) % way.every:
            return shallow(Batch((*batch.tensors, deep), (*batch.names, DEEP)))
        both = whole(batch)
        if way.every > 1:  # kept from a CUDA graph's next replay
            deep = both[:, channels:].to(torch.float32, memory_format=torch.contiguous_format, copy=True)
        return both[:, :channels]

    *_, latents = steps_of(answer, start, replace(task, steps=way.steps))
    return latents.clone()


def built_parts(bench: Bench, say: Callable[[str], None]) -> tuple[Run, Run]:
    """Build the bench's whole network and its outermost level by its stage; raise InputError if it can't be split."""
    work = bench.workload
    parts = parts_of(work.model, (work.name, *work.others))
    others = {name: part[: work.verified] for name, part in work.others.items()}
    work, channels, runs = replace(work, batches=work.batches[: work.verified], others=others), work.shape[1], []
    with torch.inference_mode(), without_tf32():
        deep = [parts[0](*batch)[:, channels:].contiguous() for batch in work.inputs]
    with_deep = replace(work, others={**work.others, DEEP: deep}, spare=None)
    for part, own, name in zip(parts, (work, with_deep), ("whole network", "outermost level"), strict=True):
        say(f"building the {name}")
        folder = work.folder / name.replace(" ", "-")
        model: nn.Module = part.eval()
        made = Bench(bench.job, replace(own, model=model, folder=folder), bench.context_bytes)
        made.build()
        runs.append(made.run)
    return runs[0], runs[1]


def user_function(flag: str, name: str | None) -> Callable[..., Tensor] | None:
    """Import a function of the user's by its dotted name; None without one. What it raises becomes one line."""
    if name is None:
        return None
    module, _, attribute = name.rpartition(".")
    try:
        function = getattr(import_target(module), attribute)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's module may raise any type
        said = f"{flag} {name}: expected a function with its module, such as my_code.decode ({typed_line(error)})"
        raise InputError(said) from None

    def called(*given: Tensor) -> Tensor:
        try:
            answer = function(*given)
            if not isinstance(answer, Tensor):
                raise TypeError(f"it returned {type(answer).__name__}, not a tensor")
        except (Exception, SystemExit) as error:  # noqa: BLE001 - as above
            raise InputError(f"{flag} {name}: {typed_line(error)}") from None
        return answer

    return called


def steps(asked: argparse.Namespace, run: RunRecord) -> int:
    """Build, measure and judge all ways, print a table, write steps.json and steps.html; return the exit code."""
    check_weights(run)
    config, stage = run.config, usable(run, asked.stage, [part.name for part in run.stages if part.status == "ok"])
    with TemporaryDirectory(prefix="unet-ladder-") as scratch, Progress(0) as progress:
        found = measured(opened(asked.run, run, stage, Path(scratch)).bench, asked, progress.say)
    told = {
        "network": config.model.name, "stage": stage.name,
        "device": run.environment and run.environment.device_name,
        "batch": config.data.batch_size, "trained": config.model.is_trained,
        "command": run.command, "decoder": asked.decoder, "perceptual": asked.perceptual,
        "limits": {key: getattr(asked, key) for key in ("min_psnr", "min_ssim", "max_perceptual")},
    }  # fmt: skip
    show(write_steps(found, told, asked.out or asked.run))
    return 0 if any(not row.problem for row in found[1:]) else FAILED


def measured(bench: Bench, asked: argparse.Namespace, say: Callable[[str], None]) -> list[LoopRow]:
    """Return all ways, judged by their final images, or latents without a decoder, and timed in turns."""
    starts, clock = bench.workload.inputs[: bench.workload.verified], bench.clock
    decode, perceptual = (user_function(f"--{each}", getattr(asked, each)) for each in ("decoder", "perceptual"))

    def images(latents: Iterator[Tensor]) -> Tensor:
        with torch.inference_mode():
            return torch.cat([decode(part) if decode else part for part in latents]).float()

    exact, task = of_batches(bench.workload.model), bench.job.task
    found = ways(asked.steps or task.steps, asked.fewer, asked.every)
    say(f"the fp32 network's full loop, {found[0].steps} steps")
    with without_tf32():
        right = images(final(exact, exact, task, start, found[0]) for start in starts)
    loop, judged = partial(final, *built_parts(bench, say), task), []
    for way in found:  # which also warms up
        say(way.name)
        given = images(loop(start, way) for start in starts)
        with torch.inference_mode():
            far = float(perceptual(given, right).max()) if perceptual else None
        judged.append((*psnr_and_ssim(given, right), far))
    timed = partial(loop, starts[0])
    clock.synchronize()
    rounds = np.array([[time_calls(timed, [way], clock)[0] for way in found] for _ in range(asked.rounds)])
    told = []
    for way, own, (psnr, ssim, far) in zip(found, rounds.T, judged, strict=True):
        faster = (rounds[:, 0] / own).tolist()
        times = (float(median(own)), median(faster), min(faster), max(faster))
        missed = [f"PSNR below {asked.min_psnr:g} dB"] * (psnr < asked.min_psnr)
        missed += [f"SSIM below {asked.min_ssim:g}"] * (ssim < asked.min_ssim)
        if far is not None and asked.max_perceptual is not None and not far <= asked.max_perceptual:
            missed.append(f"perceptual distance above {asked.max_perceptual:g}")
        told.append(LoopRow(way.name, way.steps, way.every, *times, psnr, ssim, far, ", ".join(missed)))
    return told
