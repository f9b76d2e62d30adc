"""Make a slimmer network of a run's: what it would gain, and its training under a gate on Dice.

    python -m pipeline.slim what-if RUN                    what narrower and shallower forms would gain, untrained
    python -m pipeline.slim train RUN --target 4x          a student that is 4 times as fast, or 2ms, or 500MB
    python -m pipeline.slim train RUN --width 1/2          a student with half the channels
    python -m pipeline.slim pareto RUN RUN                 Dice against milliseconds of the full and the slim one's runs
    python -m pipeline.slim steps RUN                      of a denoising loop: fewer steps, cached deep features, both

Exit codes: 0 done, or time is up and the same command goes on; 1 the student, or each shorter loop, doesn't pass the
gate; 2 a wrong request.
"""

import argparse
import math
import os
import re
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from socket import socket
from subprocess import Popen

from pipeline.command_line import REFUSED, Parser, guarded, seed_of, show, tell
from pipeline.config.data_request import TENSORS
from pipeline.config.goal_request import BYTES, SECONDS
from pipeline.config.request_error import RequestError
from pipeline.devices.accelerators import accelerators, choose_device
from pipeline.errors import InputError, nearest
from pipeline.export.request import ExportError, loaded
from pipeline.inputs.targets import refusal
from pipeline.records.codec import RecordError
from pipeline.records.run_record import RunRecord
from pipeline.report.formatting import clean

REFUSALS = (RequestError, InputError, ExportError, RecordError, OSError)
TARGET = re.compile(rf"(\d+(?:\.\d+)?)(x|{'|'.join((*SECONDS, *BYTES))})")
MOST_STEPS = 1000  # of a schedule
ACTIONS = ("what-if", "train", "pareto", "steps")


@dataclass(frozen=True)
class Target:
    """The figure that a student must reach: one of the three."""

    text: str  # as typed
    least_ratio: float = 0.0
    most_seconds: float = math.inf
    most_bytes: float = math.inf


def target_of(text: str) -> Target:
    """Parse 4x, 2ms or 500MB."""
    match = TARGET.fullmatch(text)
    if not match or float(match[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text}: expected such as 4x, 2ms or 500MB")
    value, unit = float(match[1]), match[2]
    if unit == "x":
        return Target(text, least_ratio=value)
    if unit in SECONDS:
        return Target(text, most_seconds=value * SECONDS[unit])
    return Target(text, most_bytes=value * BYTES[unit])


def width_of(text: str) -> Fraction:
    """Parse a share such as 1/2."""
    with suppress(ValueError, ZeroDivisionError):
        if 0 < (share := Fraction(text)) <= 1:
            return share
    raise argparse.ArgumentTypeError(f"{text}: expected a share of the channels, such as 1/2")


def count_of(text: str) -> int:
    """Parse a whole number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected an integer ≥ 1")
    return int(text)


def amount_of(text: str) -> float:
    """Parse a number above 0."""
    with suppress(ValueError):
        if (value := float(text)) > 0:
            return value
    raise argparse.ArgumentTypeError(f"{text}: expected a number above 0")


def folder_of(text: str) -> Path:
    """Parse the name of a folder that is there."""
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text}: no such folder")
    return Path(text)


def counts_of(text: str) -> list[int]:
    """Parse numbers such as 2,3,5, each at least 2."""
    parts = text.split(",")
    if all(part.isdecimal() and int(part) > 1 for part in parts):
        return [*map(int, parts)]
    raise argparse.ArgumentTypeError(f"{text}: expected whole numbers from 2 on, such as 2,3,5")


def function_of(text: str) -> str:
    """Parse the dotted name of a function."""
    if "." not in text or refusal(text):
        raise argparse.ArgumentTypeError(f"{text}: expected a function with its module, such as my_code.decode")
    return text


def parser(action: str = "") -> Parser:
    """Return the parser of an action's words, or of the program's own."""
    program, form = f"python -m pipeline.slim {action}".rstrip(), argparse.RawDescriptionHelpFormatter
    asked = Parser(prog=program, description=__doc__, formatter_class=form)
    if not action:
        return asked
    add = asked.add_argument
    if action == "pareto":
        add("runs", type=Path, nargs="+", metavar="RUN", help="the folders of runs on the same labelled images")
        add("--out", type=Path, help="the folder of pareto.html; the first run's unless given")
        return asked
    add("run", type=Path, metavar="RUN", help="the folder of a run, such as outputs/DATE/TIME")
    add("--out", type=Path, help="the folder of what is written; the run's, of a student one beside it")
    if action == "steps":
        return with_steps(asked)
    add("--device", help="auto, cuda or cpu; the run's unless given")
    add("--seconds", type=amount_of, help="at most for this call: 300 for what-if, no limit for train")
    if action == "what-if":
        return asked
    goal = asked.add_mutually_exclusive_group(required=True)
    goal.add_argument("--target", type=target_of, help="4x as fast as the full network in the best stage; 2ms; 500MB")
    goal.add_argument("--width", type=width_of, help="a share of the channels, such as 1/2")
    add("--images", type=folder_of, help="a folder to train on; the run's images are then all held out")
    add("--labels", type=folder_of, help="the labels of --images")
    add("--max-dice-drop", type=amount_of, help="points of Dice that may be lost; the run's limit, or 0.1")
    add("--steps", type=count_of, default=4000, help="of the training")
    add("--batch", type=count_of, default=8, help="images a step")
    add("--seed", type=seed_of, default=0, help="of batches and of the held-out choice")
    add("--gpus", type=count_of, default=1, help="train on several, by torchrun")
    add("--by-labels-alone", action="store_true", help="train without the full network, to compare")
    return asked


def with_steps(asked: Parser) -> Parser:
    """Add the words of `steps` to a parser, and return it."""
    add = asked.add_argument
    add("--stage", help="a stage of the run; the winner unless given")
    add("--steps", type=count_of, help="of the full loop, up to 1000; the run's task.steps unless given")
    add("--fewer", type=counts_of, default=[2, 4], help="divide the steps by these; 2,4")
    add("--every", type=counts_of, default=[2, 3, 5], help="call the whole network at every such step; 2,3,5")
    add("--min-psnr", type=amount_of, default=30.0, help="dB, of the worst final image; 30")
    add("--min-ssim", type=amount_of, default=0.95, help="of the worst final image; 0.95")
    add(
        "--decoder",
        type=function_of,
        help="your function from final latents to images, such as my_code.decode; it runs",
    )
    text = "your function of images and right images that gives a distance for each, such as LPIPS; it runs"
    add("--perceptual", type=function_of, help=text)
    add("--max-perceptual", type=amount_of, help="the largest such distance")
    add("--rounds", type=count_of, default=5, help="of timed loops; 5")
    return asked


def main(arguments: list[str] | None = None) -> int:
    """Answer the request; return the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    return guarded(lambda: answered(words))


def answered(words: Sequence[str]) -> int:
    """Return the exit code of `main`."""
    action, *others = words or ["--help"]
    if action not in ACTIONS:
        if action not in ("-h", "--help"):
            parser().error(f"{clean(action)}: no such action; {nearest(action, ACTIONS)}")
        parser().parse_args([action])
    asked = parser(action).parse_args(others)
    try:
        return pareto(asked) if action == "pareto" else done(action, asked, words)
    except BrokenPipeError:
        raise
    except REFUSALS as error:
        if os.environ.get("RANK", "0") == "0":
            tell(f"error: {clean(error)}")
        return REFUSED


def pareto(asked: argparse.Namespace) -> int:
    """Draw runs, and return the exit code."""
    from pipeline.slim.pareto import points_of, write_pareto  # and so charts, for which no wrong word waits

    found = points_of([(folder.resolve().name, loaded(folder)) for folder in asked.runs])
    show(f"{write_pareto(found, asked.out or asked.runs[0])}\n")
    return 0


def done(action: str, asked: argparse.Namespace, words: Sequence[str]) -> int:
    """Do what is asked with one run, and return the exit code.

    Raises:
        REFUSALS: the request is wrong; one line.
    """
    if action == "train" and asked.labels is not None and asked.images is None:
        raise RequestError(f"--labels {asked.labels}: give their --images, too")
    run = loaded(asked.run)
    if action == "steps":
        check_loop(asked, run)
        from pipeline.slim.steps import steps  # imports torch: a wrong request is refused before

        return steps(asked, run)
    check_run(run, of_training=action == "train")
    device = choose_device(asked.device or run.config.device, accelerators(), "--device ")
    if action == "train" and asked.gpus > 1 and "RANK" not in os.environ:
        return on_several(asked.gpus, words)
    from pipeline.slim import student  # imports torch: a wrong request is refused before

    return student.what_if(asked, run, device) if action == "what-if" else student.train(asked, run, device)


def check_loop(asked: argparse.Namespace, run: RunRecord) -> None:
    """Raise RequestError unless the run has a denoising loop that can be shortened as asked."""
    if run.config.task.name != "diffusion":
        raise RequestError(f"steps are of a denoising loop, and the run has task={run.config.task.name}")
    if asked.steps is not None and asked.steps > MOST_STEPS:
        raise RequestError(f"--steps {asked.steps}: expected at most {MOST_STEPS}")
    if asked.max_perceptual is not None and asked.perceptual is None:
        raise RequestError("--max-perceptual: name the function that gives the distance: --perceptual my_code.lpips")


def check_run(run: RunRecord, *, of_training: bool) -> None:
    """Raise RequestError unless the run's network can be made again, and makes masks of images."""
    config = run.config
    if not config.task.has_masks:
        raise RequestError(f"slim keeps Dice, and task={config.task.name} has no masks; choose a run of a segmentation")
    if config.data.name == TENSORS:
        raise RequestError(f"slim takes runs of images or volumes, not data={TENSORS}; measure with data=folder")
    if config.model.file:
        raise RequestError(
            f"model.file={config.model.file}: an exported graph has no class to make narrower; name its class"
        )
    if of_training and not config.model.is_trained:
        raise RequestError("the run's network has random weights: there is nothing to distil; give model.checkpoint")


def on_several(gpus: int, words: Sequence[str]) -> int:
    """Run the same request in a process for each GPU, as torchrun does, and return the exit code."""
    with socket() as free:
        free.bind(("localhost", 0))
        known = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(gpus)}
    program = [sys.executable, "-m", __spec__.name.replace(".command", ""), *words]
    ranks = [{**os.environ, **known, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(gpus)]
    processes = [Popen(program, env=rank) for rank in ranks]
    try:
        while None in (codes := [each.poll() for each in processes]) and not any(codes):
            time.sleep(0.2)
        return max(abs(code or 0) for code in codes)
    finally:
        for each in processes:
            each.terminate()
