"""Record all that README and docs print, in calls of minutes: the same command goes on where the last one ended.

    python -m tests.benchmarks.record_all --out records --gpus 4 --minutes 9 [--only classic rungs] [--small] [--plan]

A step builds and times a network's compilers and kernels, times a few cheap runtimes, or runs another benchmark; it
trains its network first if no other step has. Each GPU has cores of its own and takes the first step that is ready and
has time. The rows of the README are built on three GPUs of one card, each with empty caches. A finished record is
KIND/NAME/BUILD/results.json.xz, beside its GPU and the training of its network. Weights and unfinished runs lie in
`--scratch` and need not travel to another machine: there a network is trained again, and what was cut off begins anew.
`--plan` prints what is left, with seconds, and runs nothing. Exit code 1: something is left.
"""

import argparse
import json
import lzma
import math
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
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from PIL import Image

from models import checkpoint
from pipeline.devices.nvml import all_gpus, visible_gpus
from pipeline.inputs.generated import generated
from tests.benchmarks.hard_nets import HARD

OWN = ("compile_graph", "fused", "fp8")
SEARCHED = "compile_max"  # last in a run, as it searches for minutes
RUNGS = (("eager", "tf32", "channels_last", "half", "torchscript", "cuda_graph"), ("compile", "xla", "onnxruntime"))
FIRST = "classic"  # the network of all rungs, whose first build is in full
QUICK = ("measure=quick", "measure.head_to_head=0", "eager_beside=false")
FULL = ("measure.brief_beside=false",)  # also the host path of the baseline
BRIEF = ("measure.latency_calls=5", "measure.latency_seconds=0.1", "measure.gpu_latency_run_in_seconds=0",
         "measure.energy_seconds=0")  # fmt: skip
EXPORTED = ("fused", "fp8")  # in full
# Seconds on an H200: of a run without its stages, of a stage without its build, what the rest in full adds to it, of
# the baseline's host path; of a bundle after its stage, a search, XLA's start, training's ends
A_RUN, A_STAGE, IN_FULL, HOST_PATH = 26.0, 28.0, 9.0, 12.0
AN_EXPORT, A_SEARCH, XLA_STARTS, TRAINING_ENDS = 40.0, 136.0, 16.0, 30.0
MOST_MOVED = 0.01  # mean Dice that the last quarter of a training may add or lose; what moves more is not measured
# Other benchmarks: their modules with arguments, in which {name}, {device} and {out} are filled in
SCRIPTS = {
    "hard": ("tests.benchmarks.hard_nets", "--nets", "{name}", "--out", "{out}/figures.json"),
    "kernels": ("tests.benchmarks.kernel_times", "--batch", "8", "1", "--out", "{out}/figures.json"),
    "lessons": ("pipeline.lessons", "--device", "{device}", "--out", "{out}"),
}
SECONDS = {"kernels": 360.0, "lessons": 150.0}  # those of hard networks are beside them
OF_GPUS, RUNS = ("kernels", "hard"), ("net", "rungs")
TRAINING = "training.json"  # beside a record: the notes of the weights that it measured
KEPT = ("report.md", "report.html", "results.csv", "check.py")  # of a brief run the first alone
IMAGES, SIDE, CLASSES = 96, 512, 4  # at batch 8 fp8 takes its scales from 16, its layers by 16; 64 judge it
DATA = {
    "DRAWN": ("data=folder", "data.path={out}/drawn/images", "data.labels={out}/drawn/labels", f"data.size={SIDE}",
              "data.batch_size=8"),
    "VOLUMES": ("data=volume", "data.path={out}/weights/{name}/scans", "data.labels={out}/weights/{name}/masks",
                "data.size=128", "data.batch_size=2"),
}  # fmt: skip
# `--small`: the same steps in seconds on a CPU
SMALL = {"model=unet": ["model.options.base=4", "model.options.depth=2"]}
SMALL_STAGES = ("half", "torchscript")
SMALL_RUN = {"measure": "smoke", "data.size": "64", "data.batch_size": "1", "stage": f"[{','.join(SMALL_STAGES)}]"}


class RecordedNet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A network of recorded_nets.yaml, which describes the fields."""

    title: str
    seconds: float
    net: tuple[str, ...]
    builds: int = 1
    more: dict[int, tuple[str, ...]] = {}
    classes: str | None = "classes"
    data: tuple[str, ...] = ("DRAWN",)
    weights: str | None = None


NETS = msgspec.yaml.decode(Path(__file__).with_name("recorded_nets.yaml").read_bytes(), type=dict[str, RecordedNet])


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)  # noqa: T201


@dataclass(frozen=True)
class Step:
    kind: str  # net, rungs or one of `SCRIPTS`
    name: str
    build: int = 1

    def folder(self, out: Path) -> Path:
        return out / self.kind / self.name.replace(", ", "_").replace(" ", "_") / str(self.build)

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages of a run, the one that may be cut off last."""
        if self.kind == "rungs":
            return RUNGS[self.build - 1]
        return (*OWN, *NETS[self.name].more.get(self.build, ()))

    @property
    def in_full(self) -> bool:
        """Whether latencies, the host path, energy and the memory of a service are measured, too."""
        return self.kind == "net" and self.name == FIRST and self.build == 1

    @property
    def measure(self) -> tuple[str, ...]:
        """How it measures; the samples of all steps are equally long."""
        return (*QUICK, *(FULL if self.in_full else BRIEF))

    @property
    def source(self) -> str | None:
        """The network whose weights it needs."""
        if self.kind in SCRIPTS or NETS[self.name].weights == "random":
            return None
        return NETS[self.name].weights or self.name

    def seconds(self) -> float:
        """Return about how long it takes on an H100 or H200, with trained weights."""
        if self.kind == "hard":
            return HARD[self.name].seconds + A_SEARCH * HARD[self.name].searched
        if self.kind in SECONDS:
            return SECONDS[self.kind]
        stages = len(self.stages) * (A_STAGE + IN_FULL * self.in_full)
        builds = A_SEARCH * (SEARCHED in self.stages) + XLA_STARTS * ("xla" in self.stages)
        builds += NETS[self.name].seconds if self.kind == "net" else 15.0
        return A_RUN + stages + builds + HOST_PATH * self.in_full


def plan() -> list[Step]:
    """Return all steps: builds of the README's rows, the other rungs, further networks, other benchmarks."""
    rows = [name for name in NETS if NETS[name].builds > 1]
    first, later = [Step("net", name) for name in rows], [Step("net", name, build) for name in rows for build in (2, 3)]
    rungs = [Step("rungs", FIRST, build) for build in range(1, len(RUNGS) + 1)]
    others = [Step("net", name) for name in NETS if NETS[name].builds == 1]
    scripts = [*(Step("hard", name) for name in HARD), Step("kernels", "classic"), Step("lessons", "all")]
    return [*first, *rungs, *later, *others, *scripts]


def planned(steps: list[Step], training: float) -> str:
    """Return a line for each step with its seconds, and their sums by kind, with a training of each network."""
    stages = {step: f": {', '.join(step.stages)}" for step in steps if step.kind in RUNS}
    lines = [f"{step.seconds():4.0f} s {step.kind} {step.name} {step.build}{stages.get(step, '')}" for step in steps]
    sums = {kind: sum(step.seconds() for step in steps if step.kind == kind) for kind in (*RUNS, *SCRIPTS)}
    sums["training"] = training * len({step.source for step in steps} - {None})
    told = ", ".join(f"{kind} {seconds:,.0f}" for kind, seconds in sums.items())
    return "\n".join([*lines, f"{sum(sums.values()):,.0f} s on one GPU: {told}\n"])


def draw_image(folder: Path, side: int, number: int) -> None:
    """Draw a labelled image that no training has seen, and leave it as PNG files."""
    for part, pixels in zip(("images", "labels"), generated("held_out", number, (side, side)), strict=True):
        (folder / part).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / part / f"{number:03}.png", compress_level=1)


@dataclass(frozen=True)
class Lane:
    """A GPU with cores of its own."""

    gpu: str  # its UUID; empty on a CPU
    note: str  # for gpu.txt: the digest of the UUID, and the card's name
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
    began: float = field(default_factory=time.monotonic)

    @property
    def device(self) -> str:
        return "cpu" if self.asked.small else "cuda"

    def weights_of(self, source: str) -> Path:
        return Path(self.asked.scratch, "weights", source, "net.safetensors")

    def untrained(self, step: Step) -> str | None:
        """Return the network that a step has to train first."""
        return step.source if step.source and not self.weights_of(step.source).exists() else None

    def taken(self, lane: Lane) -> Step | None:
        """Return the next step that fits the time, and whose other builds ran elsewhere; None without one."""
        while True:
            with self.lock:
                fitting = [step for step in self.left if self.fits(step, lane)]
                ready = [step for step in fitting if step.source not in self.training]
                if ready:
                    self.left.remove(ready[0])
                    if untrained := self.untrained(ready[0]):
                        self.training.add(untrained)
                    prepare(ready[0].folder(self.asked.scratch), lane)
                    return ready[0]
            if not fitting:
                return None
            time.sleep(0.5)

    def fits(self, step: Step, lane: Lane) -> bool:
        """Return whether there is time, and records of its network are of this card, other builds of other GPUs.

        What is too long for any call, with its training, is taken at a call's beginning, and its search is cut off.
        """
        seconds = step.seconds() + (60 * self.asked.train + TRAINING_ENDS if self.untrained(step) else 0.0)
        if step.kind in RUNS and SEARCHED in step.stages:
            seconds = min(seconds, max(seconds - A_SEARCH, 0.95 * (self.ends - self.began)))
        folders = {kind: Step(kind, step.name).folder(self.out).parent for kind in RUNS}
        notes = [(kind, *note.read_text().split(" ", 1)) for kind in RUNS for note in folders[kind].glob("*/gpu.txt")]
        gpu, card = lane.note.split(" ", 1)
        one_card = step.kind not in RUNS or all(other == card for _, _, other in notes)
        elsewhere = step.kind != "net" or ("net", gpu, card) not in notes
        return one_card and elsewhere and time.monotonic() + seconds <= self.ends

    def called(self, folder: Path, log: str, words: Sequence[str], lane: Lane, home: str = "") -> int:
        """Run a module on one lane until time is over, with caches of its own or in `home`; return the exit code."""
        began, command = time.monotonic(), ["taskset", "-c", lane.cores, sys.executable, "-m", *words]
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(ignore_cleanup_errors=True) as own, (folder / f"{log}.txt").open("w") as file:
            home = home or own
            caches = {"TRITON_CACHE_DIR": f"{home}/triton", "TORCHINDUCTOR_CACHE_DIR": f"{home}/inductor"}
            environment = os.environ | caches | {"HOME": home, "CUDA_VISIBLE_DEVICES": lane.gpu}
            process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment)
            try:
                code = process.wait(max(self.ends - time.monotonic(), 1))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGTERM)  # the ladder draws what there is
                code = process.wait()
        last = (folder / f"{log}.txt").read_text(errors="replace").splitlines()[-2:]
        say("\n".join([f"{log} of {folder}: exit code {code}, {time.monotonic() - began:.0f} s", *last]))
        return code

    def net_words(self, name: str) -> list[str]:
        words = NETS[name].net
        return [*words, *(SMALL.get(words[0], []) if self.asked.small else [])]

    def train(self, name: str, step: Step, lane: Lane) -> None:
        """Train a network; its folder, with the volumes that it is judged on, appears when it is whole."""
        whole, partly = self.weights_of(name).parent, step.folder(self.asked.scratch) / "weights"
        partly.mkdir(exist_ok=True)
        module, into = "models.train", partly / "net.safetensors"
        if "VOLUMES" in NETS[name].data:
            module, into = "tests.benchmarks.labelled_volumes", partly
        how = ["--minutes", str(self.asked.train), "--device", self.device, "--out", str(into)]
        if self.called(step.folder(self.out), "train", [module, *self.net_words(name), *how], lane) != 0:
            return
        (partly / TRAINING).write_text(json.dumps(checkpoint.notes(partly / "net.safetensors")))
        if (dice := moved(partly / TRAINING)) > MOST_MOVED and not self.asked.small:
            say(f"{name} is not measured: its Dice moved by {dice:.4f} in the last quarter; a longer --train helps")
        else:
            whole.parent.mkdir(exist_ok=True)
            partly.rename(whole)

    def words(self, step: Step) -> list[str]:
        """Return the overrides of a run."""
        case = NETS[step.name]
        data = [word for part in case.data for word in DATA.get(part, (part,))]
        words = [*self.net_words(step.name), *data]
        words += [f"model.options.{case.classes}={CLASSES}"] if case.classes else []
        words += [f"model.checkpoint={self.weights_of(step.source)}"] if step.source else []
        words += [*step.measure, f"stage=[{','.join(step.stages)}]"]
        keys = dict(word.split("=", 1) for word in words) | (SMALL_RUN if self.asked.small else {})
        return [f"{key}={value}".format(out=self.asked.scratch, name=step.name) for key, value in keys.items()]

    def ladder(self, step: Step, folder: Path, lane: Lane) -> None:
        """Measure a network's stages, and keep the record once it is finished, or lacks the search alone."""
        run, words = step.folder(self.asked.scratch) / "run", self.words(step)
        if (run / "results.json").exists():
            aside = run.with_name("run-cut-off")  # what goes on with a run takes its name
            shutil.rmtree(aside, ignore_errors=True)
            words = [f"resume={run.rename(aside)}"]
        shutil.rmtree(run, ignore_errors=True)  # without a record; a run would take another name beside it
        with TemporaryDirectory(ignore_cleanup_errors=True) as home:
            self.called(folder, "ladder", ["pipeline", *words, f"hydra.run.dir={run}"], lane, home)
            record = json.loads((run / "results.json").read_text()) if (run / "results.json").exists() else {}
            measured = {stage["spec"]["name"] for stage in record.get("stages", []) if stage["status"] == "ok"}
            if record.get("finished") and step.in_full:
                self.export(run, measured, folder, lane, home)
        if record.get("finished") or measured >= {*step.stages} - {SEARCHED}:
            for part in filter(Path.exists, (run / name for name in (KEPT if step.in_full else KEPT[:1]))):
                shutil.copy(part, folder)
            for mask in run.glob("*/*.png") if step.in_full else ():
                (folder / mask.parent.name).mkdir(exist_ok=True)
                shutil.copy(mask, folder / mask.parent.name)
            if step.source:
                shutil.copy(self.weights_of(step.source).with_name(TRAINING), folder)
            write_packed(folder, run / "results.json", lane)
            shutil.rmtree(run.parent)

    def export(self, run: Path, measured: set[str], folder: Path, lane: Lane, home: str) -> None:
        """Export while there is time, so that the record has a service's memory and start, and draw the page again."""
        for stage in SMALL_STAGES if self.asked.small else EXPORTED:
            if stage in measured and time.monotonic() + AN_EXPORT <= self.ends:
                shutil.rmtree(bundle := run.with_name(f"bundle-{stage}"), ignore_errors=True)  # of one that was cut off
                words = ["pipeline.export", str(run), "--stage", stage, "--to", str(bundle)]
                self.called(folder, f"export-{stage}", words, lane, home)
                self.called(folder, "report", ["pipeline.report", str(run)], lane)

    def script(self, step: Step, folder: Path, lane: Lane) -> None:
        """Run another benchmark, whose figures are its own file."""
        filled = [word.format(name=step.name, device=self.device, out=folder) for word in SCRIPTS[step.kind]]
        filled += ["--searched", step.name] if step.kind == "hard" and HARD[step.name].searched else []
        figures = folder / ("lessons.json" if step.kind == "lessons" else "figures.json")
        if self.called(folder, step.kind, filled, lane) == 0 and figures.exists():
            write_packed(folder, figures, lane)

    def work(self, lane: Lane) -> None:
        """Take steps on one GPU for as long as there is time for any."""
        while step := self.taken(lane):
            folder, untrained = step.folder(self.out), self.untrained(step)
            say(f"{step.kind} {step.name} {step.build} begins on {lane.note}, cores {lane.cores}")
            if untrained:
                self.train(untrained, step, lane)
                with self.lock:
                    self.training.discard(untrained)
                    if self.untrained(step):
                        self.left = [other for other in self.left if other.source != untrained]
            if not self.untrained(step):
                (self.script if step.kind in SCRIPTS else self.ladder)(step, folder, lane)


def prepare(folder: Path, lane: Lane) -> None:
    """Note the GPU of a step; a run that another GPU began is dropped, as a row is of one GPU."""
    note = folder / "gpu.txt"
    if note.exists() and note.read_text() != lane.note:
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    note.write_text(lane.note)


def write_packed(folder: Path, record: Path, lane: Lane) -> None:
    """Write the GPU, then the record at once, as its file says that the step is done."""
    (folder / "gpu.txt").write_text(lane.note)
    (folder / "results.part").write_bytes(lzma.compress(record.read_bytes()))
    (folder / "results.part").rename(folder / "results.json.xz")


def moved(training: Path) -> float:
    """Return by how much Dice moved in the last quarter of a training; infinity if its notes don't tell."""
    notes = json.loads(training.read_text()) if training.exists() else {}
    return abs(float(notes.get("dice_moved", "unknown").replace("unknown", "inf")))


def left_of(steps: list[Step], out: Path) -> list[Step]:
    return [step for step in steps if not (step.folder(out) / "results.json.xz").exists()]


def milliseconds(stage: dict[str, Any], side: str = "stage") -> float:
    """Return the median time of a call over all samples of a recorded stage, or of the baseline beside it."""
    blocks = [block for pair in stage["pairs"] for block in pair["blocks"]]
    times = [taken["seconds"] / taken["calls"] for block in blocks for taken in block[side]]
    return 1e3 * statistics.median(times) if times else math.nan


def by_physical_core(core: int) -> tuple[int, int]:
    """Return a key that keeps the threads of a physical core together."""
    siblings = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
    first = siblings.read_text() if siblings.exists() else str(core)
    return int(re.split("[-,]", first)[0]), core


def lanes(asked: argparse.Namespace) -> list[Lane]:
    """Return the GPUs, or as many parts of the CPU, each with an equal share of the cores."""
    cores = sorted(os.sched_getaffinity(0), key=by_physical_core)
    share = max(len(cores) // asked.gpus, 1)
    uuids, cards = [""] * asked.gpus, ["CPU"] * asked.gpus
    if not asked.small:
        gpus = visible_gpus(all_gpus())[: asked.gpus]
        uuids, cards = [gpu.uuid() for gpu in gpus], [gpu.name() for gpu in gpus]
    digests = [sha256((uuid or f"cpu {number}").encode()).hexdigest()[:16] for number, uuid in enumerate(uuids)]
    notes = map("{} {}".format, digests, cards)
    own = [",".join(map(str, cores[share * number % len(cores) :][:share])) for number in range(len(uuids))]
    return [*map(Lane, uuids, notes, own)]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scratch", type=Path, help="of weights and unfinished runs; OUT/scratch without one")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="steps of these names or kinds, and their training")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=9.0, help="of this call")
    parser.add_argument("--train", type=float, default=0.6, help="minutes")
    parser.add_argument("--plan", action="store_true", help="print what is left, with its seconds, and run nothing")
    parser.add_argument("--small", action="store_true", help="small networks and images: the same steps on a CPU")
    asked = parser.parse_args()
    began, out = time.monotonic(), asked.out
    asked.scratch = asked.scratch or out / "scratch"
    steps = [step for step in plan() if not asked.only or {step.name, step.kind} & set(asked.only)]
    steps = [step for step in steps if not (asked.small and step.kind in OF_GPUS)]
    if asked.plan:
        sys.stdout.write(planned(left_of(steps, out), 60 * asked.train + TRAINING_ENDS))
        return 0
    own = lanes(asked)
    if len(own) < asked.gpus:
        parser.error(f"--gpus {asked.gpus}: {len(own)} found; --small needs none")
    side, count = (64, 8) if asked.small else (SIDE, IMAGES)
    recorder = Recorder(out, left_of(steps, out), began + 60 * asked.minutes - 15, asked)
    drawn, drawing = (asked.scratch / name for name in ("drawn", "drawing"))
    if not drawn.exists():
        with ProcessPoolExecutor() as pool:
            list(pool.map(partial(draw_image, drawing, side), range(count)))
        drawing.rename(drawn)
    say(f"{len(recorder.left)} of {len(steps)} steps are left")
    with ThreadPoolExecutor(asked.gpus) as pool:
        list(pool.map(recorder.work, own))
    lacking = left_of(steps, out)
    said = ", ".join(f"{step.name} {step.build}" for step in lacking[:8])
    say(f"left: {len(lacking)} steps, {said}")
    return 1 if lacking else 0


if __name__ == "__main__":
    sys.exit(main())
