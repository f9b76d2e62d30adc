"""Really makes the faults of docs/faults.md that a GPU alone has, and looks at what the program makes of them.

    python -m tests.benchmarks.gpu_faults --out faults.json [--device cpu]

Prints a table of fault, expected and came out; WRONG stands where they differ, and the exit code is then 1. On a CPU
those faults are made that exist there. A fault that isn't reached within `--seconds` counts as wrong.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch

from pipeline.devices.accelerators import cuda_gpus
from pipeline.orchestrate import processes
from pipeline.orchestrate.run import run_ladder
from pipeline.orchestrate.worker_process import WorkerGone, WorkerProcess
from pipeline.protocol import Done, ReadyToSample
from pipeline.records import codec
from pipeline.records.disk import write_json
from pipeline.records.goals import Tolerance
from pipeline.records.plan import Phase, Plan
from pipeline.records.request import DataSpec, ModelSpec, RunConfig, StageSpec
from pipeline.records.run_record import RunRecord
from tests.made_up_request import asked

ROOT = Path(__file__).resolve().parents[2]
SETTLED_BYTES, SETTLED_SECONDS = 512 * 2**20, 10.0  # a GPU's used memory after a process's end against before it
HANG_LIMIT = 12.0
NEIGHBOUR, STAGE = 0.80, 0.35  # shares of the GPU's memory that don't fit together
PLAN = Plan(
    gpu_sample_seconds=0.02, gpu_run_in_seconds=0.0, gpu_rested_run_in_seconds=0.0,
    cpu_sample_seconds=0.01, min_calls=1, sample_warmup_calls=0,
    warmup_min_calls=3, warmup_min_seconds=0.0, warmup_window_seconds=0.0, warmup_tolerance=10.0,
    warmup_limit_seconds=1.0, interim_analyses=(6,), sampling_seconds=5.0, aa_pairs=0, head_to_head=0, latency_calls=3,
    latency_seconds=0.5, gpu_latency_run_in_seconds=0.0, energy_seconds=0.0, profile_calls=0, counters=False,
    measured_peaks=False,
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One fault."""

    fault: str
    expected: str
    came: str
    right: bool
    seconds: float


@dataclass(frozen=True)
class Bench:
    """Where the faults are made."""

    device: str
    folder: Path
    deadline: float

    def spec(self, name: str, **options: object) -> StageSpec:
        tolerance = Tolerance(1e-3, 1e-3, "a fault's own")
        target = "tests.benchmarks.gpu_fault_stages" if options else "pipeline.stages.eager"
        return StageSpec(name, target, "", "", ["cuda", "cpu"], "", False, tolerance, options)

    def config(self, *stages: StageSpec, plan: Plan = PLAN) -> RunConfig:
        eager = self.spec("eager")
        return asked(
            stages=list(stages),
            model=ModelSpec("small", "models.unet.UNet", {"base": 16}, "models/weights/unet_small.safetensors"),
            data=DataSpec("samples", size=64, batch_size=2),
            plan=plan, device=self.device, threads=None, baseline=eager, eager=eager, gpu_busy="share",
        )  # fmt: skip

    def used_bytes(self) -> int:
        """Of the GPU, by all processes; 0 on a CPU."""
        gpu = next(iter(cuda_gpus()), None) if self.device == "cuda" else None
        return (gpu.telemetry.used_bytes() or 0) if gpu and gpu.telemetry else 0


def ended(bench: Bench, spec: StageSpec, plan: Plan = PLAN) -> str:
    """Kind and reason of a stage in a real worker, which is sampled until it ends."""
    job = bench.config(plan=plan).job(spec, "stage", bench.folder)
    worker = WorkerProcess(job, Path(job.folder) / "log.txt", plan.phase_limits)
    try:
        for message in worker.messages():
            if isinstance(message, ReadyToSample):
                for _ in range(4):
                    worker.sample()
                worker.end_sampling()
            if isinstance(message, Done):
                break
    except WorkerGone as gone:
        return f"{gone.kind}: {gone.reason}"
    finally:
        worker.stop()
    return f"{worker.fields.get('failure') or worker.fields.get('status')}: {worker.fields.get('reason', '')}"


def made(bench: Bench, fault: str, expected: tuple[str, ...], make: Callable[[], str]) -> Row:
    """Make a fault; it is right where its outcome holds every word that is expected, and the GPU's memory is back."""
    began, words = time.monotonic(), ", ".join(expected)
    if began > bench.deadline:
        return Row(fault, words, "not reached", right=False, seconds=0.0)
    try:
        came = make()
    except Exception as error:  # noqa: BLE001 - the other faults are made all the same
        came = f"the script failed: {type(error).__name__}: {error}"
    return Row(fault, words, came, all(word in came for word in expected), time.monotonic() - began)


def freed(bench: Bench, before: int) -> str:
    """Whether the GPU's memory is back, waited for."""
    until = time.monotonic() + SETTLED_SECONDS
    while (more := bench.used_bytes() - before) > SETTLED_BYTES and time.monotonic() < until:
        time.sleep(0.2)
    return "memory back" if more <= SETTLED_BYTES else f"{more / 2**20:.0f} MiB still held"


def shortages(bench: Bench) -> list[Row]:
    """Out of memory in the build, the verification and the sampling, each with its figures."""
    phases = {"build": -1, "first call": 0, "verification": 2}
    expected = ("out of memory: ", "its peak was ", "memory back")
    return [
        made(bench, f"out of memory in the {name}", expected, partial(shortage, bench, calls))
        for name, calls in phases.items()
    ]


def shortage(bench: Bench, calls: int) -> str:
    """What comes of a stage that fills the memory after so many calls, and of the memory."""
    before = bench.used_bytes()
    came = ended(bench, bench.spec(f"memory_{calls + 1}", deed="memory", after_calls=calls))
    return f"{came}; {freed(bench, before)}"


def neighbour(bench: Bench) -> Row:
    """Another process, here this one, that holds most of the GPU's memory; a stage that fits when it is gone."""

    def make() -> str:
        total = torch.cuda.get_device_properties(0).total_memory
        taken = torch.empty(int(NEIGHBOUR * total), dtype=torch.uint8, device="cuda")
        crowded = ended(bench, bench.spec("crowded", deed="none", share=STAGE))
        del taken
        torch.cuda.empty_cache()
        return f"{crowded}; afterwards {ended(bench, bench.spec('alone', deed='none', share=STAGE))}"

    return made(bench, "a neighbour holds most of the GPU's memory", ("out of memory: ", "afterwards ok"), make)


def side_by_side(bench: Bench) -> list[Row]:
    """A hang, a poisoned context, a KILL and a TERM, at one time, to save some; the others must not notice."""
    before, limited = bench.used_bytes(), replace(PLAN, limits={**PLAN.limits, Phase.BUILD: HANG_LIMIT})
    later = {"after_calls": 12}
    faults: list[tuple[str, tuple[str, ...], Callable[[], str]]] = [
        ("a hang in a kernel", ("timeout: build took",), lambda: ended(bench, bench.spec("h", deed="hang"), limited)),
        ("KILL of a worker", ("killed: ", "SIGKILL"), lambda: ended(bench, bench.spec("k", deed="kill", **later))),
        ("TERM in the middle", ("exit code 130", "no process left", "a record"), lambda: terminated(bench)),
    ]
    if bench.device == "cuda":
        poisoned = bench.spec("p", deed="poison", **later)
        faults.append(("a poisoned context", ("error: ", "CUDA error"), lambda: ended(bench, poisoned)))
    with ThreadPoolExecutor(len(faults)) as pool:
        rows = list(pool.map(lambda fault: made(bench, *fault), faults))
    return [*rows, made(bench, "the GPU after those", ("memory back",), lambda: freed(bench, before))]


def terminated(bench: Bench) -> str:
    """TERM to the whole program once its first stage is built."""
    folder = bench.folder / "terminated"
    words = ["preset=smoke", "stage=eager", f"device={bench.device}", "gpu_busy=share", f"hydra.run.dir={folder}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline", *words], cwd=ROOT, text=True, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    its_own: set[int] = set()
    for line in process.stderr:
        if line.endswith("eager: verify\n"):
            its_own = processes.descendants([process.pid], processes.parents())
            process.send_signal(signal.SIGTERM)
            break
    process.stderr.read()
    code = process.wait(timeout=60)
    left = its_own & processes.parents().keys()
    kinds = [stage.failure for stage in codec.load(folder).stages]
    record = "a record" if kinds == ["interrupted"] and (folder / "report.html").exists() else "no record"
    return f"exit code {code}, {f'{len(left)} left' if left else 'no process left'}, {record}"


def whole_run(bench: Bench) -> Row:
    """A run whose first stage runs out of memory while it is sampled: it is tried alone, and the next is measured."""

    def make() -> str:
        stages = (bench.spec("memory", deed="memory", after_calls=14), bench.spec("eager"))
        config = bench.config(*stages)
        blank = RunRecord("2026-01-01T00:00:00+00:00", "a benchmark of faults", config)
        record = run_ladder(config, bench.folder / "run", blank, Silence())
        said = [f"{stage.name} {stage.failure or stage.status}" for stage in record.stages]
        estimate = record.stages[0].memory_shortage
        batch = f"largest batch {estimate.largest_batch}" if estimate else "no figures"
        return f"{', '.join(said)}; {batch}; finished {record.finished}"

    expected = ("memory out of memory, eager ok", "largest batch ", "finished True")
    return made(bench, "out of memory in the sampling, in a whole run", expected, make)


class Silence:
    """An observer that says nothing."""

    def say(self, text: str) -> None:
        pass

    def stage_started(self, name: str, adds: str) -> None:
        pass

    def phase_entered(self, title: str, phase: str, detail: str = "") -> None:
        pass

    def stage_finished(self, run: object, stage: object) -> None:
        pass


def main() -> int:
    """Make the faults; 1 where one came out wrong."""
    parser = argparse.ArgumentParser(description="Really makes faults, and looks at what the program makes of them.")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--seconds", type=float, default=170.0, help="after which no further fault is begun")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    os.chdir(ROOT)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        bench = Bench(asked.device, Path(place), began + asked.seconds)
        rows = [reference(bench), *shortages(bench), *([neighbour(bench)] if bench.device == "cuda" else [])]
        rows += [*side_by_side(bench), whole_run(bench)]
    machine = torch.cuda.get_device_name() if asked.device == "cuda" else "CPU"
    found = {"device": machine, "torch": torch.__version__, "seconds": time.monotonic() - began}
    with suppress(OSError):
        write_json(found | {"faults": [asdict(row) for row in rows]}, asked.out)
    for row in rows:
        sys.stdout.write(f"{'right' if row.right else 'WRONG'}  {row.seconds:5.1f} s  {row.fault}: {row.came}\n")
        if not row.right:
            sys.stdout.write(f"       expected: {row.expected}\n")
    sys.stdout.write(f"{json.dumps(found)}\n")
    return 0 if all(row.right for row in rows) else 1


def reference(bench: Bench) -> Row:
    """The reference that every stage is checked against: no fault."""
    job = bench.config().job(bench.spec("eager"), "reference", bench.folder, "reference")

    def make() -> str:
        worker = WorkerProcess(job, Path(job.folder) / "log.txt", PLAN.phase_limits)
        try:
            list(worker.messages())
        finally:
            worker.stop()
        return "reference" if "reference" in worker.run_fields else "none"

    return made(bench, "none: the reference", ("reference",), make)


if __name__ == "__main__":
    sys.exit(main())
