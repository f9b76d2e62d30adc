"""Make the slim network of a row of docs/slim.md: train its full network, then a student, and run both ladders.

    python -m tests.benchmarks.slim_rows --net classic --out slim/classic --minutes 9 [--alone] [--small]

The full network learns by labels alone, the student by it; both are judged on held-out images of 256×256 and timed at
batch 8 of 512×512, or of two volumes of 128³. `--alone` also trains the student without the full network. The same
command goes on where the last one ended; `--small` takes the same steps in minutes on a CPU. Exit code 1: something is
left.
"""

import argparse
import gc
import json
import pickle
import shlex
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from shutil import rmtree
from typing import Any, cast
from unittest.mock import patch

import torch

from pipeline.analysis.summary import retyped
from pipeline.inputs.datasets import Dataset
from pipeline.records.request import DataSpec
from pipeline.slim.command import main as slim
from pipeline.worker.workload import images_of
from tests.benchmarks.labelled_volumes import COUNT, FURTHER, store, volume

A_GATE = 75.0  # seconds on an H100, from the last step of a training to its card
A_LADDER = 120.0
FEW = 12
JUDGED = ("measure=smoke", "stage=half", "eager_beside=false", "measure.aa_pairs=0")
STAGES = "stage=[compile_graph,fused,fp8]"
VOLUMES = "model.options.configuration=3d_fullres model.options.input_channels=1 model.options.num_classes=2"


@dataclass(frozen=True)
class Row:
    model: str
    width: str  # of the student
    full_minutes: float = 4.0
    minutes: float = 9.9  # of the student's training
    volumes: bool = False


@dataclass(frozen=True)
class Size:
    drawn: int = 76_000
    held: int = 8_000  # to judge the student on
    side: int = 256
    judged: tuple[str, ...] = ("data.batch_size=8", *JUDGED)
    timed: tuple[str, ...] = ("data.size=512", "data.images=200", "measure=quick", STAGES)
    model: tuple[str, ...] = ()
    batches: tuple[int, int] = (16, 32)  # of the full network's training, and of the student's
    training: tuple[str, ...] = ()


ROWS = {
    "classic": Row("model=unet", "2x2,1,1,1,1/2,1/4"),
    "smp": Row("model=smp", "2x2,1,1,1,1/2,1/4"),
    "nnunet": Row("model=nnunet", "2x2,1,1,1/2,1/2,1/4"),
    "nnunet_3d": Row(f"model=nnunet {VOLUMES}", "2x2,1", volumes=True),
}
SMALL = Size(
    64, 16, 64, ("data.batch_size=2", *JUDGED),
    ("data.size=64", f"data.images={FEW}", "measure=smoke", "stage=torchscript"), ("model.options.base=8",), (4, 4),
    ("--steps", "4"),
)  # fmt: skip
OF_VOLUMES = Size(  # of 128³, two a call
    200, 0, 128, ("data.batch_size=2", *JUDGED), ("measure=quick", STAGES), batches=(2, 4)
)
SMALL_VOLUMES = replace(
    OF_VOLUMES, drawn=2, judged=("data.batch_size=1", *SMALL.timed[2:]), timed=SMALL.timed[2:], batches=(1, 1),
    model=("+model.options.features_per_stage=[8,8,8,8,8,8]",), training=("--steps", "2"),
)  # fmt: skip


def draw(folder: Path, data: DataSpec, *others: Any) -> Path:
    """Return a file of images, which all calls of a folder share: many take minutes to draw."""
    file = folder / f"{data.name}-{data.images}.pickle"
    if not file.exists():
        unfinished = file.with_suffix(".partial")
        with unfinished.open("wb") as to:
            pickle.dump(images_of(data, *others), to, protocol=5)
        unfinished.replace(file)
    return file


def drawn_once(folder: Path, data: DataSpec, *others: Any) -> Dataset:
    """Return the images of the file of `draw`."""
    with draw(folder, data, *others).open("rb") as source:
        return cast("Dataset", pickle.load(source))


def draw_volumes(folder: Path, count: int) -> None:
    """Write further labelled volumes, unless a folder has them all."""
    if len([*folder.glob("masks/*.npy")]) < count:
        with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
            store([*pool.map(volume, range(COUNT + FURTHER, COUNT + FURTHER + count))], folder)


def is_recorded(folder: Path) -> bool:
    """Return whether a folder holds a finished run."""
    record = folder / "results.json"
    return record.exists() and json.loads(record.read_text())["finished"] is True


class Work:
    """The steps of a row, each of which returns whether it is done."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.row, self.out = ROWS[asked.net], asked.out
        sizes = (SMALL_VOLUMES, OF_VOLUMES) if self.row.volumes else (SMALL, Size())
        self.size = sizes[not asked.small]
        self.ends = time.monotonic() + 60 * asked.minutes
        count, side, out = self.size.drawn, self.size.side, self.out
        self.held: tuple[str, ...] = ()
        draws: tuple[Any, ...]
        if self.row.volumes:
            draws = draw_volumes, (out / "more", count)
            self.learnt: tuple[str, ...] = (f"--images={out}/more/scans", f"--labels={out}/more/masks")
            self.data: tuple[str, ...] = ("data=volume", f"data.path={out}/scans", f"data.labels={out}/masks")
        else:
            draws = draw, (out, DataSpec("generated_training", size=side, images=count), None)
            self.learnt, self.held = (f"--drawn={count}",), (f"--held-out={self.size.held}",)
            self.data = "data=generated", f"data.images={FEW}"
        self.data = (*self.data, f"data.size={side}")
        self.drawing = get_context("spawn").Process(target=draws[0], args=draws[1])
        self.drawing.start()  # beside the first run

    def left(self) -> float:
        return self.ends - time.monotonic()

    def run(self, name: str, command: str, seconds: float = 0.0) -> bool:
        """Run a command's ladder into a folder, where it isn't there and such time is left."""
        folder = self.out / name
        if is_recorded(folder):
            return True
        if self.left() < seconds:
            return False
        rmtree(folder, ignore_errors=True)  # of a run that was cut off
        words = [sys.executable, *shlex.split(command)[1:], f"hydra.run.dir={folder}"]
        subprocess.run(words, check=False)
        return is_recorded(folder)

    def train(self, name: str, run: str, width: str, minutes: float, batch: int, *words: str) -> bool:
        """Train a network of a run's into a folder, until its card is there or the time is up."""
        self.drawing.join()
        card, seconds = self.out / name / "card.json", self.left() - A_GATE
        if not card.exists() and seconds > 0:
            figures = {"width": width, "batch": batch, "minutes": minutes, "seconds": seconds}
            asked = [*(f"--{name}={figure}" for name, figure in figures.items()), *self.learnt]
            read = images_of if self.row.volumes else partial(drawn_once, self.out)
            with patch("pipeline.slim.pictures.images_of", read):
                slim(["train", str(self.out / run), "--out", str(card.parent), *asked, *words, *self.size.training])
            torch._dynamo.reset()
            gc.collect()  # of this training's graphs
            torch.cuda.empty_cache()
        return card.exists()

    def again(self, card: str, *overrides: str) -> str:
        """Return the command of a trained network's ladder with other words."""
        return retyped(json.loads((self.out / card / "card.json").read_text())["command"], *overrides)

    def done(self, *, alone: bool) -> bool:
        """Take the steps one after another, and return whether all are done."""
        row, size, (first_batch, batch), held = self.row, self.size, self.size.batches, self.held
        model = (*row.model.split(), *size.model)
        first = self.out / ("net.safetensors" if row.volumes else "first.safetensors")
        if not first.exists():  # any weights: the full network begins anew
            trains, to = ("tests.benchmarks.labelled_volumes", self.out) if row.volumes else ("models.train", first)
            words = ["-m", trains, *model, "--minutes", "0.01", "--out", str(to)]
            subprocess.run([sys.executable, *words], check=True)
        words = ["python", "-m", "pipeline", *model, f"model.checkpoint={first}", *self.data, *size.judged]
        return (
            self.run("first", shlex.join(words))
            and self.train("full", "first", "1", row.full_minutes, first_batch, "--by-labels-alone")
            and self.run("judged", self.again("full"))
            and self.train("student", "judged", row.width, row.minutes, batch, *held)
            and self.run("full-ladder", self.again("full", *size.timed), A_LADDER)
            and self.run("student-ladder", self.again("student", *size.timed), A_LADDER)
            and slim(["pareto", *(str(self.out / name) for name in ("full-ladder", "student-ladder"))]) == 0
            and (not alone or self.train("alone", "judged", row.width, row.minutes, batch, "--by-labels-alone", *held))
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--net", choices=ROWS, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=9.0, help="of this call; 9")
    parser.add_argument("--alone", action="store_true", help="also train the student without the full network")
    parser.add_argument("--small", action="store_true", help="the same steps in minutes on a CPU")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    done = Work(asked).done(alone=asked.alone)
    for card in sorted(asked.out.glob("*/card.json")):
        sys.stdout.write(f"{card.parent.name}: {json.loads(card.read_text())['told']}\n")
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main())
