"""How a stage's pace settles after the GPU rested, and after autocast ran: how long a run-in has to be.

    python -m models.train model=unet --minutes 0.15 --device cuda --out classic.safetensors
    python -m tests.benchmarks.pace_times --checkpoint classic.safetensors --stage fused --batch 8 --out pace.json

Prints, for samples and run-ins of several lengths, by how much a sample after a run-in is faster than the last fifth of
a loop without a pause. The file has every window of the loop, with the GPU's clock and power.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from itertools import cycle
from pathlib import Path

import torch

from pipeline.devices.nvml import Gpu
from pipeline.measure.torch_device import gpu_behind
from pipeline.records.atomic_json import write_json
from pipeline.worker.workload import load
from tests.benchmarks.build_times import classic

WINDOW = 0.1  # seconds
SAMPLES = (0.5, 1.0)  # seconds; a run's samples last a second, and half of one earlier
RUN_INS = (0.0, 0.3, 1.0, 2.0, 3.0, 6.0, 10.0)  # seconds
BEFORE = 10.0  # seconds of rest, or of autocast, before the loop


@dataclass(frozen=True)
class Window:
    """Some calls of a loop.

    Attributes:
        began: seconds since the loop did.
        ms: of a call.
        clock_mhz: of the multiprocessors, at the end.
        watts: of the device, averaged by it over up to a second.
    """

    began: float
    ms: float
    clock_mhz: int | None
    watts: float | None


def main() -> None:
    """Build the stage and autocast, and time the loop after each of the two."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", help="of the classic net; random weights without")
    parser.add_argument("--stage", default="fused", help="any of pipeline/stages")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=25.0, help="of each loop")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    calls = {name: call_of(name, asked) for name in ("amp", asked.stage)}
    gpu = gpu_behind(torch.device("cuda"))
    found: dict[str, object] = {"gpu": torch.cuda.get_device_name(), "stage": asked.stage, "batch": asked.batch}
    for before in ("rest", "amp"):
        if before == "rest":
            time.sleep(BEFORE)
        else:
            list(loop(calls["amp"], BEFORE, gpu))
        windows = list(loop(calls[asked.stage], asked.seconds, gpu))
        shares = {sample: {run_in: faster_after(windows, run_in, sample) for run_in in RUN_INS} for sample in SAMPLES}
        found[f"after {before}"] = {"faster": shares, "windows": [asdict(window) for window in windows]}
        for sample, by_run_in in shares.items():
            texts = (f"{run_in:g} s: {share:.2%}" for run_in, share in by_run_in.items())
            told = f"{asked.stage} after {before}, samples of {sample:g} s faster than in the end"
            sys.stdout.write(f"{told}: {', '.join(texts)}\n")
        write_json(found, asked.out)


def call_of(stage: str, asked: argparse.Namespace) -> Callable[[], object]:
    """A call of a stage on real images, of two batches in turn."""
    with tempfile.TemporaryDirectory() as folder:
        work = load(classic(asked, Path(folder)), None)
    runner = import_module(f"pipeline.stages.{stage}").build(work)
    batches = cycle(work.inputs)

    def call() -> object:
        with torch.inference_mode():
            return runner.run(*next(batches))

    return call


def loop(
    call: Callable[[], object],
    seconds: float,
    gpu: Gpu | None,
    wait: Callable[[], None] = torch.cuda.synchronize,
    now: Callable[[], float] = time.perf_counter,
) -> Iterator[Window]:
    """Calls without a pause but the end of each window, where the clock is read."""
    began = at = now()
    call()
    wait()
    count = max(1, round(WINDOW / max(now() - at, 1e-6)))
    while (at := now()) - began < seconds:
        for _ in range(count):
            call()
        wait()
        took = now() - at
        state = gpu.state() if gpu else None
        yield Window(at - began, took / count * 1e3, state.clock_mhz if state else None, gpu.watts() if gpu else None)


def faster_after(windows: Sequence[Window], run_in: float, sample: float) -> float:
    """By what share a sample of so many seconds, after so long a run-in, is faster than the loop's last fifth."""
    end = windows[-1].began
    last = [window.ms for window in windows if window.began >= 0.8 * end]
    within = [window.ms for window in windows if run_in <= window.began < run_in + sample]
    return 1 - (sum(within) / len(within)) / (sum(last) / len(last)) if within else float("nan")


if __name__ == "__main__":
    main()
