"""Estimate what a slimmer form of a run's network would gain, or train one whose loss of Dice is limited.

    python -m pipeline.slim what-if RUN                    the speed of narrower and shallower forms, untrained
    python -m pipeline.slim train RUN --target 4x          train a student: 4 times as fast, or 2ms, or 500MB
    python -m pipeline.slim train RUN --width 1/2          train a student with half the channels
    python -m pipeline.slim pareto RUN RUN                 Dice against milliseconds in the runs of both networks
    python -m pipeline.slim steps RUN                      denoising loops: fewer steps, cached deep features, both

Exit codes: 0 done, or time is up and the same command goes on; 1 the student, or each shorter loop, loses too much;
2 a wrong request.
"""

import argparse
import math
import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from socket import socket
from subprocess import Popen

from pipeline.command_line import FILES_TOO, Parser, check_writable, guarded, path_of, seed_of, show, value_parser
from pipeline.config.data_request import TENSORS
from pipeline.config.goal_request import BYTES, SECONDS
from pipeline.config.request_error import RequestError
from pipeline.devices.accelerators import accelerators, choose_device
from pipeline.errors import nearest
from pipeline.export.request import loaded
from pipeline.records.run_record import RunRecord
from pipeline.report.formatting import clean

ACTIONS = ("what-if", "train", "pareto", "steps")


@dataclass(frozen=True)
class Target:
    """The figure that a student must reach."""

    text: str  # as typed
    value: float  # times as fast, seconds or bytes
    unit: str  # times, seconds or bytes


@dataclass(frozen=True)
class Width:
    """The widths of a student's levels, and the pixels that it begins with."""

    text: str  # as typed
    shares: tuple[Fraction, ...]  # of all, or of each resolution from the first one down; the last also of what follows
    block: int  # side of the blocks of pixels whose values are its first channels; 1 without blocks


def target_of(text: str) -> Target:
    """Parse 4x, 2ms or 500MB; raise ValueError if it is none of them."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(\D+)", text)
    for unit, sizes in (("times", {"x": 1.0}), ("seconds", SECONDS), ("bytes", BYTES)):
        if found and found[2] in sizes:
            return Target(text, float(found[1]) * sizes[found[2]], unit)
    raise ValueError


def width_of(text: str) -> Width:
    """Parse shares such as 1/2, 1/4,1/2 of each resolution, or 2x2,1/2 on blocks; raise ValueError if they are none."""
    first, *others = text.split(",")
    block = int(first[0]) if (on_blocks := first in ("2x2", "4x4")) else 1
    shares = tuple(map(Fraction, (others or ["1"]) if on_blocks else [first, *others]))
    if not all(0 < share <= 1 for share in shares):
        raise ValueError
    return Width(text, shares, block)


TARGET = value_parser(target_of, lambda target: target.value > 0, "expected such as 4x, 2ms or 500MB")
WIDTH = value_parser(width_of, bool, "expected a share of the channels, such as 1/2")
COUNT = value_parser(int, lambda count: count >= 1, "expected an integer ≥ 1")
STEPS = value_parser(int, lambda count: 1 <= count <= 1000, "expected an integer from 1 to 1000")  # of a schedule
AMOUNT = value_parser(float, lambda amount: 0 < amount < math.inf, "expected a number above 0")
FOLDER = value_parser(path_of, Path.is_dir, "no such folder")
COUNTS = value_parser(
    lambda text: [*map(int, text.split(","))], lambda counts: min(counts) > 1, "expected integers ≥ 2, such as 2,3,5"
)


def parser(action: str = "") -> Parser:
    """Return the parser of an action's words, or of the program's own."""
    asked = Parser(prog=f"python -m pipeline.slim {action}".rstrip(), description=__doc__)
    if not action:
        return asked
    add = asked.add_argument
    add("--out", type=path_of, help="folder for the results (default the first run's, for students one beside it)")
    if action == "pareto":
        add("runs", type=Path, nargs="+", metavar="RUN", help="the folders of runs on the same labelled images")
        return asked
    add("run", type=Path, metavar="RUN", help="the folder of a run, such as outputs/DATE/TIME")
    if action == "steps":
        add("--stage", help="a stage of the run; the winner unless given")
        add("--steps", type=STEPS, help="steps of the full loop, up to 1000; the run's task.steps unless given")
        add("--fewer", type=COUNTS, default=[2, 4], help="divide the steps by these (default 2,4)")
        add("--every", type=COUNTS, default=[2, 3, 5], help="steps between calls of the whole network (default 2,3,5)")
        add("--min-psnr", type=AMOUNT, default=30.0, help="least PSNR of the worst final image, in dB (default 30)")
        add("--min-ssim", type=AMOUNT, default=0.95, help="least SSIM of the worst final image (default 0.95)")
        add("--decoder", help="your function from final latents to images, such as my_code.decode")
        add("--perceptual", help="your function of images and right images that returns distances, such as LPIPS")
        add("--max-perceptual", type=AMOUNT, help="the largest distance that --perceptual may return")
        add("--rounds", type=COUNT, default=5, help="rounds of timed loops (default 5)")
        return asked
    add("--device", help="auto, cuda or cpu; the run's unless given")
    add("--seconds", type=AMOUNT, help="time limit of this call (default 300 for what-if, none for train)")
    if action == "what-if":
        return asked
    goal = asked.add_mutually_exclusive_group(required=True)
    goal.add_argument("--target", type=TARGET, help="4x as fast as the full network in the best stage; 2ms; 500MB")
    text = "share of the channels: 1/2; at full resolution and below: 1/4,1/2; on blocks of pixels: 2x2,1/2"
    goal.add_argument("--width", type=WIDTH, help=text)
    add("--images", type=FOLDER, help="a folder to train on; the run's images are then all held out")
    add("--labels", type=FOLDER, help="the labels of --images")
    add("--drawn", type=COUNT, help="number of images to draw and train on, for data=generated (default 8000)")
    add("--held-out", type=COUNT, help="number of images to draw and judge on, for data=generated (default the run's)")
    add("--max-dice-drop", type=AMOUNT, help="points of Dice that may be lost (default the run's limit, or 0.1)")
    add("--minutes", type=AMOUNT, default=10.0, help="length of the whole training, over all calls (default 10)")
    add("--steps", type=COUNT, default=0, help="steps of the training; as many as fit --minutes unless given")
    add("--batch", type=COUNT, default=16, help="images per step (default 16)")
    add("--seed", type=seed_of, default=0, help="seed of the batches and of the choice of held-out images (default 0)")
    add("--gpus", type=COUNT, default=1, help="number of GPUs to train on, by torchrun (default 1)")
    add("--by-labels-alone", action="store_true", help="train without the full network as teacher, to compare")
    return asked


def main(arguments: list[str] | None = None) -> int:
    """Answer the request; return the exit code."""
    return guarded(lambda: answered(sys.argv[1:] if arguments is None else arguments), refuses=FILES_TOO)


def answered(words: Sequence[str]) -> int:
    """Return the exit code of `main`; imports wait until wrong words are refused."""
    action, *others = words or ["--help"]
    if action in ("-h", "--help"):
        parser().parse_args([action])
    if action not in ACTIONS:
        parser().error(f"{clean(action)}: no such action; {nearest(action, ACTIONS)}")
    asked = parser(action).parse_args(others)
    if action == "pareto":
        from pipeline.report.slim_pages import points_of, write_pareto

        found = points_of([(folder.resolve().name, loaded(folder)) for folder in asked.runs])
        show(write_pareto(found, asked.out or asked.runs[0]))
        return 0
    if action == "train" and asked.labels and not asked.images:
        raise RequestError(f"--labels {asked.labels}: give their --images, too")
    run = loaded(asked.run)
    check(action, asked, run)
    if action != "train":  # a student has a folder of its own
        check_writable(asked.out or asked.run, f"--out {asked.out or asked.run}")
    if action == "steps":
        from pipeline.slim.steps import steps

        return steps(asked, run)
    device = choose_device(asked.device or run.config.device, accelerators(), "--device ")
    if action == "what-if":
        from pipeline.slim.what_if import what_if

        return what_if(asked, run, device)
    if asked.gpus > 1 and "RANK" not in os.environ:
        return on_several(asked.gpus, words)
    from pipeline.slim.student import train

    return train(asked, run, device)


def check(action: str, asked: argparse.Namespace, run: RunRecord) -> None:
    """Raise RequestError unless the run has what an action needs, and its flags fit."""
    config, task = run.config, run.config.task
    if action == "steps":
        if task.name != "diffusion":
            raise RequestError(f"steps are of a denoising loop, and the run has task={task.name}")
        if asked.max_perceptual is not None and asked.perceptual is None:
            raise RequestError("--max-perceptual: name the function that gives it: --perceptual my_code.lpips")
        return
    if not task.has_masks:
        raise RequestError(f"slim keeps Dice, and task={task.name} has no masks; choose a run of a segmentation")
    if config.data.name == TENSORS:
        raise RequestError(f"slim takes runs of images or volumes, not data={TENSORS}; measure with data=folder")
    if file := config.model.file:
        raise RequestError(f"model.file={file}: an exported graph has no class to make narrower; name its class")
    if action == "train" and not config.model.is_trained:
        raise RequestError("the run's network has random weights: there is nothing to distil; give model.checkpoint")
    for flag, count in (("--drawn", asked.drawn), ("--held-out", asked.held_out)) if action == "train" else ():
        if count and (config.data.name != "generated" or asked.images):
            raise RequestError(f"{flag} {count}: no images are drawn unless data=generated; leave it out")


def on_several(gpus: int, words: Sequence[str]) -> int:
    """Run the same request in a process for each GPU, and return the exit code; one that fails ends all."""
    with socket() as free:
        free.bind(("localhost", 0))
        known = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(gpus)}
    program = [sys.executable, "-m", __spec__.name.removesuffix(".command"), *words]
    ranks = [{**os.environ, **known, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(gpus)]
    processes = [Popen(program, env=rank) for rank in ranks]
    try:
        while None in (codes := [each.poll() for each in processes]) and not any(codes):
            time.sleep(0.2)
        return max(abs(code or 0) for code in codes)
    finally:
        for each in processes:
            each.terminate()
