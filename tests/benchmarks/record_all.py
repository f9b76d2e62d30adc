"""Record all that README and docs print, in calls of minutes: the same command goes on where the last one ended.

    python -m tests.benchmarks.record_all --out records --gpus 4 --minutes 9 [--only classic rungs] [--small]

A step trains a network, builds and times its compilers and kernels, times a few cheap runtimes, or runs another
benchmark. Each GPU has cores of its own and takes the first step that is ready and has time. The rows of the README are
built on several GPUs, each with empty caches. A finished record is KIND/NAME/BUILD/results.json.xz. What was cut off
goes on if its folder and its GPU are there, else it begins anew. Exit code 1: something is left.
"""

import argparse
import contextlib
import json
import lzma
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from itertools import takewhile
from pathlib import Path
from typing import Any

from PIL import Image

from pipeline.devices.nvml import all_gpus, visible_gpus
from pipeline.inputs.generated import generated
from pipeline.lessons.contents import CONTENTS
from tests.benchmarks import nets

OWN = ("compile_graph", "fused", "fp8")
SEARCHED = "compile_max"  # last in a run, as it searches for minutes
RUNGS = (("eager", "tf32"), ("channels_last", "half"), ("torchscript", "cuda_graph"), ("compile", "xla", "onnxruntime"))
# The rows of the README in the order of their importance, each build on another GPU
ROWS = (
    ("classic", 1), ("classic_batch1", 1), ("smp", 1), ("monai_unet", 1), ("nnunet_3d", 1),
    ("classic", 2), ("classic_batch1", 2), ("smp", 2), ("classic", 3), ("classic_batch1", 3), ("smp", 3),
    ("nnunet", 1), ("efficientnet", 1), ("monai_unet", 2), ("monai_unet", 3), ("segresnet", 1),
)  # fmt: skip
LADDERS = ("classic", "classic_batch1")  # whose other rungs are recorded, too, and whose own ones are in full
FULL = ("measure=quick", "measure.head_to_head=0", "eager_beside=false")
BRIEF = (*FULL, "measure.latency_calls=5", "measure.latency_seconds=0.1", "measure.gpu_latency_run_in_seconds=0",
         "measure.energy_seconds=0")  # fmt: skip
# Seconds on an H100: of a run without its stages, of a stage without its build, of each build, of training's ends
A_RUN, A_STAGE, IN_FULL, A_SEARCH, TRAINING_ENDS = 18.0, 22.0, 9.0, 136.0, 25.0
A_SCRIPT = {"beside": 150.0, "kernels": 360.0, "lesson": 240.0}
KEPT = ("report.md", "report.html", "results.csv", "check.py")
IMAGES, SIDE, CLASSES = 96, 512, 4  # fp8 is calibrated on 32 of them, and judged on the others
MONAI_BARE = tuple(f"model.options.{name}=null" for name in ("channels", "strides", "num_res_units"))


def drawn(batch: int, *words: str, size: int = SIDE) -> tuple[str, ...]:
    """Return the overrides of the labelled images that `draw_images` leaves; {out} is their folder."""
    folder = ("data=folder", "data.path={out}/drawn/images", "data.labels={out}/drawn/labels")
    return (*folder, f"data.size={size}", f"data.batch_size={batch}", *words)


@dataclass(frozen=True)
class RecordedNet:
    """A network, its images, and about how long its three builds in `OWN` take together."""

    net: tuple[str, ...]  # the overrides that name it
    data: tuple[str, ...] = drawn(8)
    seconds: float = 120.0
    weights: str | None = ""  # the network whose weights it takes: its own without a name; None: random ones
    classes: str = "classes"  # the option with their number
    # the module that trains it, and where it writes the weights in their folder
    trained_by: tuple[str, str] = ("models.train", "{name}.safetensors")


def volumes(seconds: float, *net: str) -> RecordedNet:
    """Return a network of volumes, with labelled ones of its own."""
    folder = "{out}/volumes_{name}"
    data = ("data=volume", f"data.path={folder}/scans", f"data.labels={folder}/masks", "data.size=128")
    trained_by = ("tests.benchmarks.labelled_volumes", "volumes_{name}/net.safetensors")
    return RecordedNet(net, (*data, "data.batch_size=2"), seconds, classes="", trained_by=trained_by)


def of_smp(seconds: float, *options: str, data: tuple[str, ...] = drawn(8)) -> RecordedNet:
    return RecordedNet(("model=smp", *(f"model.options.{option}" for option in options)), data, seconds)


def of_monai(seconds: float, *options: str) -> RecordedNet:
    return RecordedNet(("model=monai", *options), seconds=seconds, classes="out_channels")


NETS: dict[str, RecordedNet] = {
    "classic": RecordedNet(("model=unet",), seconds=74),
    "classic_batch1": RecordedNet(("model=unet",), drawn(1), 111, weights="classic"),
    "smp": of_smp(82),
    "monai_unet": of_monai(90),
    "nnunet": RecordedNet(("model=nnunet",), seconds=184, classes="num_classes"),
    "nnunet_3d": volumes(
        235, "model=nnunet", "model.options.configuration=3d_fullres", "model.options.input_channels=1",
        "model.options.num_classes=2",
    ),
    "efficientnet": of_smp(110, "encoder_name=efficientnet-b0"),
    "segresnet": of_monai(120, "model.options.net=SegResNet", *MONAI_BARE, "+model.options.init_filters=16"),
    "unetpp": of_smp(110, "architecture=UnetPlusPlus", "encoder_name=resnet18"),
    "resnet18": of_smp(97, "encoder_name=resnet18", data=drawn(1)),
    "bilinear": RecordedNet(("model=unet", "model.options.upsampling=bilinear"), seconds=80),
    "aligned": RecordedNet(("model=unet", "model.options.upsampling=aligned"), seconds=80),
    "base24": RecordedNet(("model=unet", "model.options.base=24"), seconds=100),
    "odd_size": RecordedNet(("model=unet",), drawn(4, size=375), 70, weights="classic"),
    "fpn": of_smp(80, "architecture=FPN", data=drawn(4, size=480)),
    "mit_b0": of_smp(120, "encoder_name=mit_b0"),
    "basic_unet": of_monai(90, "model.options.net=BasicUNet", *MONAI_BARE),
    "attention_unet": of_monai(110, "model.options.net=AttentionUnet", *MONAI_BARE),
    "resnet50": of_smp(110, "encoder_name=resnet50", data=drawn(1)),
    "pix2pix": RecordedNet(
        ("model=custom", "model.target=tests.benchmarks.nets.Pix2Pix"),
        ("data=generated", "data.size=256", "data.images=8", "task=regression"),
        60, weights=None, classes="",
    ),
    "monai_3d": volumes(
        200, "model=monai", "model.options.spatial_dims=3", "model.options.in_channels=1",
        "model.options.out_channels=2",
    ),
}  # fmt: skip
# `--small`: the same steps in seconds on a CPU
SMALL: dict[str, tuple[str, ...]] = {
    "model=unet": ("model.options.base=4", "model.options.depth=2"),
    "model=smp": ("model.options.encoder_name=resnet18",),
}
SMALL_RUN = {"measure": "smoke", "data.size": "64", "data.batch_size": "1", "stage": "[half,torchscript]"}


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)  # noqa: T201


@dataclass(frozen=True)
class Step:
    kind: str  # train, net, rungs or one of `A_SCRIPT`
    name: str
    build: int = 1

    def folder(self, out: Path) -> Path:
        return out / self.kind / self.name.replace(", ", "_").replace(" ", "_") / str(self.build)

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages of a run, the one that may be cut off last."""
        if self.kind == "rungs":
            return RUNGS[self.build - 1]
        return (*OWN, SEARCHED) if self.in_full else OWN

    @property
    def in_full(self) -> bool:
        """Whether latencies, the host path and energy are measured at length."""
        return self.kind == "net" and self.name in LADDERS and self.build == 1

    @property
    def source(self) -> str | None:
        """The network whose weights it needs."""
        if self.kind not in ("net", "rungs") or NETS[self.name].weights is None:
            return None
        return NETS[self.name].weights or self.name

    def seconds(self, training: float) -> float:
        """Return about how long it takes on an H100."""
        if self.kind == "train":
            return training + TRAINING_ENDS
        if self.kind in A_SCRIPT:
            return A_SCRIPT[self.kind]
        stages = A_RUN + len(self.stages) * (A_STAGE + IN_FULL * self.in_full)
        return stages + A_SEARCH * self.in_full + (NETS[self.name].seconds if self.kind == "net" else 15.0)


def plan() -> list[Step]:
    """Return all steps: the README's rows, the ladders' other rungs, further networks, and other benchmarks."""
    rows = [Step("net", *row) for row in ROWS]
    rungs = [Step("rungs", name, piece) for name in LADDERS for piece in range(1, len(RUNGS) + 1)]
    others = [Step("net", name) for name in NETS if (name, 1) not in ROWS]
    scripts = [Step("kernels", "classic"), *(Step("beside", name) for name in nets.NETS)]
    return [*rows, *rungs, *others, *scripts, *(Step("lesson", name) for name in CONTENTS)]


def with_training(steps: Sequence[Step], at_once: int, trained: set[str]) -> list[Step]:
    """Return the steps with what trains their networks: `at_once` of them at the beginning, the others in time."""
    first: list[Step] = []
    found: list[Step] = []
    for step in steps:
        training = Step("train", step.source or "")
        if step.source and step.source not in trained and training not in [*first, *found]:
            (first if len(first) < at_once else found).append(training)
        found.append(step)
    return [*first, *found]


def draw_images(folder: Path, side: int, count: int) -> None:
    """Draw labelled images that no training has seen, and leave them as PNG files."""
    if folder.exists():
        return
    for part in ("images", "labels"):
        (folder / part).mkdir(parents=True)
    with ProcessPoolExecutor() as pool:
        list(pool.map(partial(draw_image, folder, side), range(count)))


def draw_image(folder: Path, side: int, number: int) -> None:
    for part, pixels in zip(("images", "labels"), generated("held_out", number, (side, side)), strict=True):
        Image.fromarray(pixels).save(folder / part / f"{number:03}.png", compress_level=1)


@dataclass(frozen=True)
class Lane:
    """A GPU with cores of its own."""

    gpu: str  # its UUID; empty on a CPU
    digest: str  # of the UUID
    cores: str  # as taskset takes them


@dataclass
class Recorder:
    """The steps that are left, and the GPUs that take them."""

    out: Path
    left: list[Step]
    ends: float  # by time.monotonic
    asked: argparse.Namespace
    lock: threading.Lock = field(default_factory=threading.Lock)
    training: set[str] = field(default_factory=set)  # networks that are being trained
    opening: frozenset[str] = frozenset()  # networks that are trained before anything is measured

    def weights_of(self, source: str) -> Path:
        return self.out / "weights" / NETS[source].trained_by[1].format(name=source)

    def taken(self, lane: Lane) -> Step | None:
        """Return the next step that is ready, fits the time, and whose other builds ran elsewhere; None without one."""
        while True:
            with self.lock:
                waits = False
                for step in self.left:
                    seconds = self.seconds(step) * self.asked.pace
                    elsewhere = step.kind != "net" or lane.digest not in digests(step, self.out)
                    if not elsewhere or time.monotonic() + seconds > self.ends:
                        continue
                    lacks_weights = step.source is not None and not self.weights_of(step.source).exists()
                    if lacks_weights or (step.kind != "train" and self.opening & self.training):
                        waits |= bool(self.training)
                        continue
                    self.left.remove(step)
                    if step.kind == "train":
                        self.training.add(step.name)
                    prepare(step.folder(self.out), lane.digest)
                    return step
            if not waits:
                return None
            time.sleep(0.5)

    def seconds(self, step: Step) -> float:
        """Return about how long a step takes; of training with the shortest step that waits for it."""
        after = [each.seconds(0) for each in self.left if each.source == step.name] if step.kind == "train" else []
        return step.seconds(60 * self.asked.train) + min(after, default=0.0)

    def called(self, folder: Path, log: str, words: Sequence[str], lane: Lane) -> int:
        """Run Python on one lane until the time is over, with caches of its own; return the exit code."""
        home = folder / "home"
        caches = {"TRITON_CACHE_DIR": str(home / "triton"), "TORCHINDUCTOR_CACHE_DIR": str(home / "inductor")}
        environment = os.environ | caches | {"HOME": str(home), "CUDA_VISIBLE_DEVICES": lane.gpu}
        home.mkdir(exist_ok=True)
        command = ["taskset", "-c", lane.cores, sys.executable, *words]
        with (folder / f"{log}.txt").open("w") as file:
            process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment)
            try:
                return process.wait(max(self.ends - time.monotonic(), 1))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGTERM)  # the ladder draws what there is
                return process.wait()
            finally:
                shutil.rmtree(home, ignore_errors=True)

    def net_words(self, name: str) -> list[str]:
        words = NETS[name].net
        return [*words, *(SMALL.get(words[0], ()) if self.asked.small else ())]

    def train(self, step: Step, lane: Lane) -> None:
        """Train a network; what is written appears under its name when it is whole."""
        module, _ = NETS[step.name].trained_by
        weights, folder = self.weights_of(step.name), step.folder(self.out)
        partly = self.out / "training" / weights.relative_to(self.out / "weights")
        partly.parent.mkdir(parents=True, exist_ok=True)
        into = partly if module == "models.train" else partly.parent
        how = ["--minutes", str(self.asked.train), "--device", self.asked.device, "--out", str(into)]
        code = self.called(folder, "train", ["-m", module, *self.net_words(step.name), *how], lane)
        say(f"train {step.name}: exit code {code}\n{last_lines(folder / 'train.txt', 1)}")
        if code == 0:
            whole = (weights.parent, partly.parent) if into == partly.parent else (weights, partly)
            whole[0].parent.mkdir(parents=True, exist_ok=True)
            whole[1].rename(whole[0])
        with self.lock:
            self.training.discard(step.name)

    def words(self, step: Step) -> list[str]:
        """Return the overrides of a run."""
        case = NETS[step.name]
        words = [
            *self.net_words(step.name),
            *(word.format(out=self.out / "weights", name=step.name) for word in case.data),
        ]
        words += [f"model.options.{case.classes}={CLASSES}"] if case.classes else []
        words += [f"model.checkpoint={self.weights_of(step.source)}"] if step.source else []
        words += [*(FULL if step.in_full else BRIEF), f"stage=[{','.join(step.stages)}]"]
        keys = dict(word.split("=", 1) for word in words) | (SMALL_RUN if self.asked.small else {})
        return [f"{key}={value}" for key, value in keys.items()]

    def ladder(self, step: Step, lane: Lane) -> None:
        """Measure a network's stages, and keep the record once it is finished, or lacks the search alone."""
        folder, began = step.folder(self.out), time.monotonic()
        run = folder / "run"
        words = self.words(step)
        if (run / "results.json").exists():
            words = [f"resume={put_aside(run)}"]
        shutil.rmtree(run, ignore_errors=True)  # without a record; a run would take another name beside it
        code = self.called(folder, "ladder", ["-m", "pipeline", *words, f"hydra.run.dir={run}"], lane)
        record = json.loads((run / "results.json").read_text()) if (run / "results.json").exists() else {}
        say(f"{step.kind} {step.name} {step.build}: exit code {code}, {time.monotonic() - began:.0f} s; {told(record)}")
        measured = {stage["spec"]["name"] for stage in record.get("stages", []) if stage["status"] == "ok"}
        if not record.get("finished") and not measured >= {*OWN}:
            say(last_lines(folder / "ladder.txt", 3))
            return
        for part in KEPT:
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(run / part, folder / part)
        write_packed(folder, (run / "results.json").read_bytes())
        for done in folder.glob("run*"):
            shutil.rmtree(done)

    def script(self, step: Step, lane: Lane) -> None:
        """Run another benchmark, whose figures are its own file."""
        folder = step.folder(self.out)
        figures = folder / ("lessons.json" if step.kind == "lesson" else "figures.json")
        lesson = ["--only", step.name, "--device", self.asked.device, "--out", str(folder)]
        words = {
            "beside": ["tests.benchmarks.net_times", "--nets", step.name, "--out", str(figures)],
            "kernels": ["tests.benchmarks.kernel_times", "--batch", "8", "1", "--out", str(figures)],
            "lesson": ["pipeline.lessons", *lesson],
        }[step.kind]
        code = self.called(folder, step.kind, ["-m", *words], lane)
        say(f"{step.kind} {step.name}: exit code {code}\n{last_lines(folder / f'{step.kind}.txt', 2)}")
        if code == 0 and figures.exists():
            write_packed(folder, figures.read_bytes())

    def work(self, lane: Lane) -> None:
        """Take steps on one GPU for as long as there are any, and time for them."""
        done = {"train": self.train, "net": self.ladder, "rungs": self.ladder}
        while step := self.taken(lane):
            say(f"{step.kind} {step.name} {step.build} begins on {lane.digest}, cores {lane.cores}")
            done.get(step.kind, self.script)(step, lane)


def prepare(folder: Path, digest: str) -> None:
    """Note the GPU of a step; a run that another GPU began is dropped, as a row is of one GPU."""
    note = folder / "gpu.txt"
    if note.exists() and note.read_text() != digest:
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    note.write_text(digest)


def write_packed(folder: Path, record: bytes) -> None:
    """Write the record at once, as its file says that the step is done."""
    partly = folder / "results.part"
    partly.write_bytes(lzma.compress(record))
    partly.rename(folder / "results.json.xz")


def digests(step: Step, out: Path) -> set[str]:
    """Return the GPUs that build, or have built, the step's network; its own cut-off build is left out."""
    folder = step.folder(out)
    return {note.read_text() for note in folder.parent.glob("*/gpu.txt") if note.parent != folder} - {""}


def put_aside(run: Path) -> Path:
    """Move a run that was cut off, as what goes on with it takes its name; return its new place."""
    aside = run.with_name(f"{run.name}-cut-off")
    shutil.rmtree(aside, ignore_errors=True)
    return run.rename(aside)


def last_lines(path: Path, count: int) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-count:])


def left_of(steps: list[Step], out: Path) -> list[Step]:
    return [step for step in steps if not (step.folder(out) / "results.json.xz").exists()]


def told(record: dict[str, Any]) -> str:
    """Return the milliseconds of a run's stages in a line."""
    found = []
    for stage in record.get("stages", []):
        blocks = [block for pair in stage["pairs"] for block in pair["blocks"]]
        times = [taken["seconds"] / taken["calls"] for block in blocks for taken in block["stage"]]
        found.append(
            f"{stage['spec']['name']} {1e3 * statistics.median(times):.4g}" if times else stage["spec"]["name"]
        )
        found[-1] += "" if stage["status"] == "ok" else f" ({stage['status']})"
    return ", ".join(found)


def table(out: Path) -> str:
    """Return a line for each finished run: its milliseconds a call and its GPU."""
    lines = []
    for path in sorted(out.glob("*/*/*/results.json.xz")):
        kind, name, build, _ = path.relative_to(out).parts
        shown = told(json.loads(lzma.decompress(path.read_bytes()))) if kind in ("net", "rungs") else "done"
        lines.append(f"{kind} {name} {build}: {shown} [{(path.parent / 'gpu.txt').read_text()[:4]}]")
    return "\n".join(lines)


def by_physical_core(core: int) -> tuple[int, int]:
    """Return a key that keeps the threads of a physical core together."""
    siblings = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
    with contextlib.suppress(OSError, ValueError):
        return int(re.split("[-,]", siblings.read_text())[0]), core
    return core, core


def lanes(asked: argparse.Namespace) -> list[Lane]:
    """Return the GPUs, or as many parts of the CPU, each with an equal share of the cores."""
    cores = sorted(os.sched_getaffinity(0), key=by_physical_core)
    share = max(len(cores) // asked.gpus, 1)
    uuids = [""] * asked.gpus
    if asked.device == "cuda":
        uuids = [gpu.uuid() for gpu in visible_gpus(all_gpus())[: asked.gpus]]
    found = []
    for number, uuid in enumerate(uuids):
        own = cores[share * number % len(cores) :][:share]
        digest = sha256((uuid or f"cpu {number}").encode()).hexdigest()[:16]
        found.append(Lane(uuid, digest, ",".join(map(str, own))))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="steps of these names or kinds, and their training")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--minutes", type=float, default=9.0, help="of this call")
    parser.add_argument("--pace", type=float, default=1.0, help="times the seconds that a step should need")
    parser.add_argument("--train", type=float, default=0.6, help="minutes")
    parser.add_argument("--small", action="store_true", help="small networks and images: the same steps on a CPU")
    asked = parser.parse_args()
    began, out = time.monotonic(), asked.out.resolve()
    steps = [step for step in plan() if not asked.only or {step.name, step.kind} & set(asked.only)]
    draw_images(out / "weights" / "drawn", *((64, 8) if asked.small else (SIDE, IMAGES)))
    recorder = Recorder(out, left_of(steps, out), began + 60 * asked.minutes - 15, asked)
    say(f"{len(recorder.left)} of {len(steps)} steps are left")
    trained = {name for name in NETS if recorder.weights_of(name).exists()}
    recorder.left = with_training(recorder.left, asked.gpus, trained)
    opening = takewhile(lambda step: step.kind == "train", recorder.left)
    recorder.opening = frozenset(step.name for step in opening)
    threads = [threading.Thread(target=recorder.work, args=(lane,)) for lane in lanes(asked)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lacking = left_of(steps, out)
    say(f"recorded:\n{table(out)}")
    say(
        f"left: {len(lacking)} steps, {', '.join(f'{step.name} {step.build}' for step in lacking[:8])}"
        if lacking
        else "all recorded"
    )
    return 1 if lacking else 0


if __name__ == "__main__":
    sys.exit(main())
