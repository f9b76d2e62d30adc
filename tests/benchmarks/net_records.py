"""Records nets as docs/h200 has them: each trained for seconds, its ladder measured, and check.py beside it.

    python -m tests.benchmarks.net_records --out records [--nets resnet50 fpn] [--gpus 4] [--minutes 25] [--check 3]

Each GPU takes the next net that is left. A net whose record is finished in the folder is left out, and a ladder that
was cut off goes on with the stages that it lacks, so that the same command goes on where it ended; after the minutes no
net begins, and ladders at work end with what they have. The exit code is 1 where a net that was asked for has no
finished record.
"""

import argparse
import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMPILERS = ("measure=quick", "stage=compilers", "eager_beside=false")
EVERY_RUNG = (
    "measure=quick",
    "stage=ladder",
    "+stage@stage.rungs.xla=xla",
    "+stage@stage.rungs.aot_inductor=aot_inductor",
)
KEPT = ("results.json", "report.md", "results.csv", "check.py")
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
    "monai_3d": volumes("model=monai", "model.options.spatial_dims=3", "model.options.in_channels=1"),
}


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)  # noqa: T201


class GpuQueue:
    def __init__(self, names: list[str], out: Path, ends: float, further: Sequence[str] = ()) -> None:
        self.left: queue.SimpleQueue[str] = queue.SimpleQueue()
        for name in names:
            self.left.put(name)
        self.out, self.ends, self.further = out, ends, further

    def called(self, name: str, step: str, words: list[str], gpu: str) -> int:
        """Run Python on one GPU until the time is over, its output kept in the net's folder; the exit code."""
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": gpu}
        with (self.out / name / f"{step}.txt").open("w") as log:
            process = subprocess.Popen([sys.executable, *words], stdout=log, stderr=subprocess.STDOUT, env=environment)
            try:
                return process.wait(max(self.ends - time.monotonic(), 1))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGTERM)  # the ladder draws what there is
                return process.wait()

    def trained(self, name: str, gpu: str, weights: Path, minutes: float) -> int:
        case = NETS[name]
        out = weights if weights.parent == self.out else weights.parent
        words = ["-m", case.trained_by[0], *case.net, "--minutes", str(minutes), "--device", "cuda", "--out", str(out)]
        return self.called(name, "train", words, gpu)

    def record(self, name: str, gpu: str, train_minutes: float, check_seconds: float) -> None:
        """Train a net, measure its ladder, keep its record, and run check.py for every stage."""
        case, folder = NETS[name], self.out / name
        weights = self.out / case.trained_by[1].format(name=name)
        folder.mkdir(parents=True, exist_ok=True)
        if not weights.exists() and (code := self.trained(name, gpu, weights, train_minutes)):
            say(f"{name}: not trained, exit code {code}: {folder}/train.txt")
            return
        data = [word.format(out=self.out, name=name) for word in case.data]
        run = self.out / "runs" / name
        words = [*case.net, *data, *case.ladder, *self.further, f"model.checkpoint={weights}"]
        if recorded(run):
            words = [f"resume={put_aside(run)}"]
        shutil.rmtree(run, ignore_errors=True)  # without a record; a run would take another name beside it
        code = self.called(name, "ladder", ["-m", "pipeline", *words, f"hydra.run.dir={run}"], gpu)
        for part in KEPT:
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(run / part, folder / part)
        say(f"{name}: exit code {code}\n{last_lines(folder / 'ladder.txt')}")
        for stage in measured(folder) if check_seconds else ():
            if time.monotonic() >= self.ends:
                break
            code = self.called(name, f"check-{stage}", [str(run / "check.py"), stage, str(check_seconds)], gpu)
            found = last_lines(folder / f"check-{stage}.txt", 1)
            say(f"{name}: {found}" if code == 0 else f"{name}: check.py {stage} left with {code}")

    def work(self, gpu: str, train_minutes: float, check_seconds: float) -> None:
        """Take nets on one GPU for as long as there are any, and time for them."""
        with contextlib.suppress(queue.Empty):
            while time.monotonic() < self.ends:
                self.record(self.left.get_nowait(), gpu, train_minutes, check_seconds)


def put_aside(run: Path) -> Path:
    """Where a run that was cut off lies from now on; what goes on with it takes its name."""
    aside = run.with_name(f"{run.name}-cut-off")
    shutil.rmtree(aside, ignore_errors=True)
    return run.rename(aside)


def last_lines(path: Path, count: int = 8) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-count:])


def recorded(folder: Path) -> dict[str, Any]:
    path = folder / "results.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def finished(folder: Path) -> bool:
    return bool(recorded(folder).get("finished"))


def measured(folder: Path) -> list[str]:
    return [stage["name"] for stage in recorded(folder).get("stages", []) if stage["status"] == "ok"]


def gpus(count: int) -> list[str]:
    """The first GPUs of those that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return (given.split(",") if given else list(map(str, range(count))))[:count]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--nets", nargs="+", choices=NETS, default=[*NETS])
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=24 * 60)
    parser.add_argument("--train", type=float, default=0.3, help="minutes")
    parser.add_argument("--further", nargs="*", default=[], metavar="KEY=VALUE", help="overrides of every ladder")
    parser.add_argument("--check", type=float, default=0, help="seconds a loop of check.py; 0 leaves it out")
    given = parser.parse_args()
    out = given.out.resolve()
    left = [name for name in given.nets if not finished(out / name)]
    work = GpuQueue(left, out, time.monotonic() + 60 * given.minutes, given.further)
    say(f"{len(left)} nets on {given.gpus} GPUs: {', '.join(left)}")
    lanes = [threading.Thread(target=work.work, args=(gpu, given.train, given.check)) for gpu in gpus(given.gpus)]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    lacking = [name for name in given.nets if not finished(out / name)]
    say(f"without a finished record: {', '.join(lacking)}" if lacking else "all recorded")
    return 1 if lacking else 0


if __name__ == "__main__":
    sys.exit(main())
