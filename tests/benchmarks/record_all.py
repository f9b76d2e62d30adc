"""Record all that README and docs print, in calls of minutes: the same command goes on where the last one ended.

    python -m tests.benchmarks.record_all --out records [--gpus 2] [--minutes 8] [--only classic kernels] [--check 3]

A step is one build of a network's ladder, one network beside Inductor, the kernels alone, or one lesson. Each GPU takes
the next step that is left; the rows of the README are built on several GPUs, so a GPU that made one of them leaves the
others to another. Nothing begins that the minutes have no room for, and a ladder at work ends with what it has: the
next call, on the same machine, measures the stages that it lacks. A finished record is NAME/BUILD/results.json.xz, so
that the folder is small enough to be carried to the next machine. Exit code 1: something is left.
"""

import argparse
import contextlib
import json
import lzma
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from pipeline.devices.nvml import all_gpus, visible_gpus
from pipeline.lessons.contents import CONTENTS
from tests.benchmarks import nets

COMPILERS = ("measure=quick", "stage=compilers", "eager_beside=false")
EVERY_RUNG = (
    "measure=quick",
    "stage=ladder",
    "+stage@stage.rungs.xla=xla",
    "+stage@stage.rungs.aot_inductor=aot_inductor",
)
KEPT = ("report.md", "check.py")
README = ("classic", "classic_batch1", "smp", "monai_unet", "nnunet", "nnunet_3d", "efficientnet", "segresnet")
BUILDS = 3  # of each of these
ROOM = {"net": 4.0, "beside": 3.0, "kernels": 6.0, "lesson": 4.0}  # minutes that a step of a kind needs, about
MONAI_BARE = tuple(f"model.options.{name}=null" for name in ("channels", "strides", "num_res_units"))


@dataclass(frozen=True)
class RecordedNet:
    net: tuple[str, ...]  # the overrides that name it
    # the overrides of its images; {out} is the folder of all records
    data: tuple[str, ...] = ("data=generated", "data.batch_size=8")
    ladder: tuple[str, ...] = COMPILERS  # the overrides of what is measured
    # the module that trains it, and where it writes the weights in that folder
    trained_by: tuple[str, str] = ("models.train", "{name}.safetensors")


def drawn(batch: int, *words: str) -> tuple[str, ...]:
    return ("data=generated", f"data.batch_size={batch}", *words)


def volumes(*net: str) -> RecordedNet:
    """A net for volumes, with labelled ones of its own."""
    folder = "{out}/volumes_{name}"
    data = ("data=volume", f"data.path={folder}/scans", f"data.labels={folder}/masks", "data.size=128")
    trained_by = ("tests.benchmarks.labelled_volumes", "volumes_{name}/net.safetensors")
    return RecordedNet(net, (*data, "data.batch_size=2"), trained_by=trained_by)


NETS: dict[str, RecordedNet] = {
    "batch8": RecordedNet(("model=unet",), ladder=EVERY_RUNG),
    "batch1": RecordedNet(("model=unet",), drawn(1), EVERY_RUNG),
    "classic": RecordedNet(("model=unet",)),
    "classic_batch1": RecordedNet(("model=unet",), drawn(1)),
    "bilinear": RecordedNet(("model=unet", "model.options.upsampling=bilinear")),
    "aligned": RecordedNet(("model=unet", "model.options.upsampling=aligned")),
    "smp": RecordedNet(("model=smp",)),
    "monai_unet": RecordedNet(("model=monai",)),
    "basic_unet": RecordedNet(("model=monai", "model.options.net=BasicUNet", *MONAI_BARE)),
    "nnunet": RecordedNet(("model=nnunet",)),
    "efficientnet": RecordedNet(("model=smp", "model.options.encoder_name=efficientnet-b0")),
    "resnet50": RecordedNet(("model=smp", "model.options.encoder_name=resnet50"), drawn(1)),
    "resnet18": RecordedNet(("model=smp", "model.options.encoder_name=resnet18"), drawn(1)),
    "unetpp": RecordedNet(
        ("model=smp", "model.options.architecture=UnetPlusPlus", "model.options.encoder_name=resnet18")
    ),
    "fpn": RecordedNet(("model=smp", "model.options.architecture=FPN"), drawn(4, "data.size=480")),
    "mit_b0": RecordedNet(("model=smp", "model.options.encoder_name=mit_b0")),
    "attention_unet": RecordedNet(("model=monai", "model.options.net=AttentionUnet", *MONAI_BARE)),
    "segresnet": RecordedNet(
        ("model=monai", "model.options.net=SegResNet", *MONAI_BARE, "+model.options.init_filters=16")
    ),
    "pix2pix": RecordedNet(
        ("model=custom", "model.target=tests.benchmarks.nets.Pix2Pix"), drawn(8, "data.size=256", "task=regression")
    ),
    "odd_size": RecordedNet(("model=unet",), drawn(4, "data.size=375")),
    "base24": RecordedNet(("model=unet", "model.options.base=24")),
    "nnunet_3d": volumes("model=nnunet", "model.options.configuration=3d_fullres", "model.options.input_channels=1"),
    "small": RecordedNet(  # of seconds on a CPU, to try this script
        ("model=unet", "model.options.base=4", "model.options.depth=2"),
        drawn(1, "data.size=32"),
        ("preset=smoke", "stage=[eager,half,torchscript]"),
    ),
    "monai_3d": volumes("model=monai", "model.options.spatial_dims=3", "model.options.in_channels=1"),
}


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)  # noqa: T201


@dataclass(frozen=True)
class Step:
    kind: str  # of `ROOM`
    name: str
    build: int = 1

    def folder(self, out: Path) -> Path:
        return out / self.kind / self.name.replace(", ", "_").replace(" ", "_") / str(self.build)


def plan(builds: int) -> list[Step]:
    """All steps, the first build of everything before the second of anything."""
    found = [
        Step("net", name, build) for build in range(1, builds + 1) for name in NETS if build == 1 or name in README
    ]
    found += [Step("beside", name) for name in nets.NETS]
    return [*found, Step("kernels", "classic"), *(Step("lesson", name) for name in CONTENTS)]


@dataclass
class Recorder:
    """The steps that are left, and the GPUs that take them."""

    out: Path
    left: list[Step]
    ends: float  # by time.monotonic
    asked: argparse.Namespace
    lock: threading.Lock = field(default_factory=threading.Lock)

    def taken(self, gpu: str, digest: str) -> Step | None:
        """The next step that fits the time, and whose other builds ran elsewhere; None where there is none."""
        with self.lock:
            for step in self.left:
                elsewhere = digest not in digests(step.folder(self.out).parent)
                if elsewhere and time.monotonic() + 60 * ROOM[step.kind] * self.asked.pace <= self.ends:
                    self.left.remove(step)
                    note = step.folder(self.out)
                    note.mkdir(parents=True, exist_ok=True)
                    (note / "gpu.txt").write_text(digest)
                    return step
        return None

    def called(self, folder: Path, step: str, words: Sequence[str], gpu: str) -> int:
        """Run Python on one GPU until the time is over, its output kept in the folder; the exit code."""
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": gpu}
        with (folder / f"{step}.txt").open("w") as log:
            process = subprocess.Popen([sys.executable, *words], stdout=log, stderr=subprocess.STDOUT, env=environment)
            try:
                return process.wait(max(self.ends - time.monotonic(), 1))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGTERM)  # the ladder draws what there is
                return process.wait()

    def ladder(self, step: Step, gpu: str) -> None:
        """Train a network, measure its ladder, keep its record, and run check.py for every stage."""
        case, folder = NETS[step.name], step.folder(self.out)
        weights = self.out / "weights" / case.trained_by[1].format(name=step.name)
        if not weights.exists():
            weights.parent.mkdir(parents=True, exist_ok=True)
            into = weights if weights.parent == self.out / "weights" else weights.parent
            how = ["--minutes", str(self.asked.train), "--device", self.asked.device, "--out", str(into)]
            if code := self.called(folder, "train", ["-m", case.trained_by[0], *case.net, *how], gpu):
                say(f"{step.name}: not trained, exit code {code}: {folder}/train.txt")
                return
            shutil.rmtree(folder / "run", ignore_errors=True)  # of other weights
        data = [word.format(out=self.out / "weights", name=step.name) for word in case.data]
        run = folder / "run"
        words = [*case.net, *data, *case.ladder, *self.asked.further, f"model.checkpoint={weights}"]
        if (run / "results.json").exists():
            words = [f"resume={put_aside(run)}"]
        shutil.rmtree(run, ignore_errors=True)  # without a record; a run would take another name beside it
        code = self.called(folder, "ladder", ["-m", "pipeline", *words, f"hydra.run.dir={run}"], gpu)
        say(f"{step.name}: exit code {code}\n{last_lines(folder / 'ladder.txt')}")
        record = json.loads((run / "results.json").read_text()) if (run / "results.json").exists() else {}
        if not record.get("finished"):
            return
        for part in KEPT:
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(run / part, folder / part)
        measured = [stage["name"] for stage in record["stages"] if stage["status"] == "ok"]
        for stage in measured if self.asked.check else ():
            if time.monotonic() < self.ends:
                self.called(folder, f"check-{stage}", [str(run / "check.py"), stage, str(self.asked.check)], gpu)
        (folder / "results.json.xz").write_bytes(lzma.compress((run / "results.json").read_bytes()))
        for done in folder.glob("run*"):
            shutil.rmtree(done)

    def script(self, step: Step, gpu: str) -> None:
        """Run another benchmark, whose figures are its own file."""
        folder = step.folder(self.out)
        figures = folder / "figures.json"
        words = {
            "beside": ["-m", "tests.benchmarks.net_times", "--nets", step.name, "--out", str(figures)],
            "kernels": ["-m", "tests.benchmarks.kernel_times", "--batch", "8", "1", "--out", str(figures)],
            "lesson": [
                "-m",
                "pipeline.lessons",
                "--only",
                step.name,
                "--device",
                self.asked.device,
                "--out",
                str(folder),
            ],
        }[step.kind]
        code = self.called(folder, step.kind, words, gpu)
        say(f"{step.kind} {step.name}: exit code {code}\n{last_lines(folder / f'{step.kind}.txt', 2)}")
        written = folder / "lessons.json" if step.kind == "lesson" else figures
        if code == 0 and written.exists():
            (folder / "results.json.xz").write_bytes(lzma.compress(written.read_bytes()))

    def work(self, gpu: str, digest: str) -> None:
        """Take steps on one GPU for as long as there are any, and time for them."""
        while step := self.taken(gpu, digest):
            (self.ladder if step.kind == "net" else self.script)(step, gpu)


def digests(folder: Path) -> set[str]:
    """The GPUs that a step's builds ran on; the one of an unfinished build, which goes on there, is left out."""
    return {note.read_text() for note in folder.glob("*/gpu.txt") if (note.parent / "results.json.xz").exists()} - {""}


def put_aside(run: Path) -> Path:
    """Where a run that was cut off lies from now on; what goes on with it takes its name."""
    aside = run.with_name(f"{run.name}-cut-off")
    shutil.rmtree(aside, ignore_errors=True)
    return run.rename(aside)


def last_lines(path: Path, count: int = 8) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-count:])


def left_of(steps: list[Step], out: Path) -> list[Step]:
    return [step for step in steps if not (step.folder(out) / "results.json.xz").exists()]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="steps of these names or kinds; small is one on a CPU"
    )
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--builds", type=int, default=BUILDS, help="of the README's rows, each on another GPU")
    parser.add_argument("--minutes", type=float, default=8.0, help="of this call; a ladder takes up to one more to end")
    parser.add_argument("--pace", type=float, default=1.0, help="times the room that a step needs")
    parser.add_argument("--train", type=float, default=0.3, help="minutes")
    parser.add_argument("--further", nargs="*", default=[], metavar="KEY=VALUE", help="overrides of every ladder")
    parser.add_argument("--check", type=float, default=0, help="seconds a loop of check.py; 0 leaves it out")
    given = parser.parse_args()
    out, every = given.out.resolve(), plan(given.builds)
    steps = [step for step in every if step.name != "small" and not given.only]
    steps += [step for step in every if given.only and {step.name, step.kind} & set(given.only)]
    recorder = Recorder(out, left_of(steps, out), time.monotonic() + 60 * given.minutes, given)
    say(f"{len(recorder.left)} of {len(steps)} steps are left")
    found = visible_gpus(all_gpus())[: given.gpus] if given.device == "cuda" else []
    cards = [(gpu.uuid(), sha256(gpu.uuid().encode()).hexdigest()[:16]) for gpu in found] or [("", "")]
    lanes = [threading.Thread(target=recorder.work, args=card) for card in cards]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    lacking = left_of(steps, out)
    say(f"left: {', '.join(f'{step.name} {step.build}' for step in lacking)}" if lacking else "all recorded")
    return 1 if lacking else 0


if __name__ == "__main__":
    sys.exit(main())
