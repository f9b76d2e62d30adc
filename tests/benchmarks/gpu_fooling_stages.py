"""Takes every stage that would fool the instrument through the worker on this device, and some through a whole run.

    python -m tests.benchmarks.gpu_fooling_stages --out fooling_stages.json

Each line: the outcome, the fault, and what came of it. A fault that could be ranked is WON, and the exit status 1; so
it is where an honest stage is refused (ACCUSED). One process plays the worker of all faults; `--run` names those that
go through a whole run.
"""

import argparse
import platform
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pipeline.config.plan import Plan
from pipeline.config.schema import DataSpec, Job, ModelSpec, RunConfig, StageSpec
from pipeline.orchestrate.run import run_ladder
from pipeline.records.atomic_json import write_json
from pipeline.records.run_record import RunRecord, StageRecord, Tolerance
from pipeline.records.run_settings import DataSettings, RunSettings
from pipeline.records.samples import Block, Pair, Sample
from pipeline.stats.plausibility import within_physics
from pipeline.stats.ranking import rankable, ranking
from pipeline.worker.failures import failure_of
from pipeline.worker.run_stage import run_stage
from tests.fooling_stages import FAULTS
from tests.process_state import own_switches
from tests.worker.jobs import EAGER, Recorder, job

SAMPLES = 8
THREADS = 4  # of torch: with one for each of 64 processors a fault that computes on the CPU took four minutes
BATCH = 2
DATA = DataSpec("samples", None, None, size=32, batch_size=BATCH, batches=3)
MODEL = ModelSpec("small", "models.unet.UNet", {"base": 16}, "models/weights/unet_small.safetensors")
LOOSE = Tolerance(0.03, 1.0, "wide enough for bf16, and too narrow for another picture's answer")
PROFILED = ("honest", *(name for name, fault in FAULTS.items() if fault.gpu_only))
IN_A_RUN = ("zeros_when_timed", "remembers_by_contents", "computes_on_the_cpu")


def quick(plan: Plan) -> Plan:
    """The plan with the least that a GPU needs, and with measured peaks."""
    short = {
        "gpu_sample_seconds": 0.01,
        "gpu_run_in_seconds": 0.0,
        "gpu_rested_run_in_seconds": 0.0,
        "gpu_latency_run_in_seconds": 0.0,
    }
    return replace(plan, cpu_sample_seconds=0.01, measured_peaks=True, warmup_limit_seconds=0.3, **short)  # type: ignore[arg-type]


def asked(stage: StageSpec, folder: Path, device: str, role: str = "stage") -> Job:
    """The worker's job on this device."""
    made = job(stage, folder, role)
    plan = replace(quick(made.plan), profile_calls=int(stage.name in PROFILED))
    return replace(made, device=device, data=DATA, model=MODEL, plan=plan)


def spec(fault: str) -> StageSpec:
    """The stage that misbehaves so."""
    devices = ["cpu", "cuda"]
    options: dict[str, object] = {"fault": fault}
    return replace(EAGER, name=fault, target="tests.fooling_stages", devices=devices, options=options, tolerance=LOOSE)


def pair_of(baseline: list[Sample], stage: list[Sample], name: str) -> Pair:
    """The samples of two stages as blocks."""
    ends = range(0, min(len(baseline), len(stage)) - 1, 2)
    blocks = [Block("ABBA", (baseline[at], baseline[at + 1]), (stage[at], stage[at + 1])) for at in ends]
    return Pair("eager", name, blocks)


def record_of(stage: StageSpec, folder: Path, device: str, baseline: list[Sample]) -> tuple[StageRecord, list[Sample]]:
    """The record that a worker's reports and samples come to."""
    line, threads = Recorder(SAMPLES), torch.get_num_threads()
    try:
        with own_switches():
            run_stage(asked(stage, folder, device), line)
    except Exception as error:  # noqa: BLE001 - as a worker does
        failure, reason = failure_of(error)
        line.fields |= {"status": "failed", "failure": failure, "reason": reason}
    finally:
        torch.set_num_threads(threads)
    blank = StageRecord(stage.name, "", "", stage.tolerance, stage.options)
    known = replace(blank, **line.fields)
    return replace(known, pairs=[pair_of(baseline or line.samples, line.samples, stage.name)]), line.samples


def described(folder: Path, device: str) -> RunRecord:
    """What the run itself knows: peaks, reference, environment."""
    line = Recorder(0)
    with own_switches():
        run_stage(asked(EAGER, folder, device, role="reference"), line)
    settings = RunSettings(data=DataSettings(batch_size=BATCH))
    return replace(RunRecord("", "", "smoke", {}, settings), **line.run_fields)


def outcome(fault: str, record: StageRecord) -> str:
    """The outcome: what came of it, beside what was expected."""
    wanted = FAULTS[fault]
    if wanted.failure is None and not wanted.disagrees:
        return "as expected" if rankable(record) else "ACCUSED"
    if rankable(record):
        return "WON"
    is_expected = (record.status, record.failure) == (wanted.status, wanted.failure) and wanted.said in record.reason
    return "as expected" if is_expected else "refused otherwise"


def row_of(fault: str, record: StageRecord, seconds: float) -> dict[str, Any]:
    """A line of the table."""
    wanted = FAULTS[fault]
    return {
        "fault": fault,
        "expected": [wanted.status, wanted.failure, wanted.said],
        "status": record.status,
        "failure": record.failure,
        "reason": record.reason,
        "warnings": [f"{part.code}: {part.text}" for part in record.warnings],
        "rankable": rankable(record),
        "outcome": outcome(fault, record),
        "seconds": round(seconds, 2),
    }


def show(row: dict[str, Any]) -> None:
    """Print a line of the table."""
    came = f"{row['status']}, {row['failure']}: {row['reason'][:110]}"
    sys.stdout.write(f"{row['outcome']:17} {row['fault']:27} {row['seconds']:6.2f} s  {came}\n")
    sys.stdout.flush()


def in_one_worker(device: str, names: list[str]) -> list[dict[str, Any]]:
    """Every fault through the worker's phases, in this process."""
    folder = Path(tempfile.mkdtemp())
    run = described(folder, device)
    _, baseline = record_of(replace(EAGER, devices=["cpu", "cuda"]), folder, device, [])
    rows = []
    for name in names:
        began = time.monotonic()
        record, _ = record_of(spec(name), folder, device, baseline)
        rows.append(row_of(name, within_physics(run, record), time.monotonic() - began))
        show(rows[-1])
    return rows


class Silent:
    """An observer that tells nobody."""

    def say(self, text: str) -> None:
        """A line of news."""

    def stage_started(self, name: str, adds: str) -> None:
        """A stage begins."""

    def phase_entered(self, title: str, phase: str, detail: str = "") -> None:
        """A phase begins."""

    def stage_finished(self, run: RunRecord, stage: StageRecord) -> None:
        """A stage has come to its end."""


def in_a_run(device: str, names: list[str]) -> dict[str, Any]:
    """Some faults beside eager through the whole program, each in a worker of its own."""
    plan = replace(
        quick(job(EAGER, Path()).plan), interim_analyses=(2,), sampling_seconds=2.0, aa_pairs=0, head_to_head=0
    )
    eager = replace(EAGER, devices=["cpu", "cuda"])
    config = RunConfig(
        stages=[eager, *(spec(name) for name in names)], model=MODEL, data=DATA, plan=replace(plan, counters=False),
        device=device, threads=None, seed=0, time_inaccurate=False, strict=True, preset="smoke", launcher="basic",
        baseline=eager, eager=eager,
    )  # fmt: skip
    blank = RunRecord("", "faults", "smoke", {}, RunSettings(data=DataSettings(batch_size=BATCH)))
    began = time.monotonic()
    run = run_ladder(config, Path(tempfile.mkdtemp()), blank, Silent())
    rows = [row_of(stage.name, stage, 0.0) for stage in run.stages if stage.name in FAULTS]
    for row in rows:
        show(row)
    found = ranking(run)
    return {"seconds": time.monotonic() - began, "winner": found.winner, "order": found.order, "faults": rows}


def main() -> None:
    """The table, and all of it as JSON."""
    parser = argparse.ArgumentParser(description="Takes stages that would fool the instrument through it.")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--faults", nargs="+", default=list(FAULTS), choices=list(FAULTS), metavar="FAULT")
    parser.add_argument("--run", nargs="*", default=list(IN_A_RUN), choices=list(FAULTS), metavar="FAULT")
    parser.add_argument("--out", type=Path, required=True)
    asked_for = parser.parse_args()
    torch.set_num_threads(THREADS)
    on_gpu = asked_for.device == "cuda"
    has_form = [name for name in asked_for.faults if on_gpu or not FAULTS[name].gpu_only]
    name = torch.cuda.get_device_name() if on_gpu else platform.processor()
    found: dict[str, Any] = {"device": name, "torch": torch.__version__}
    found["worker"] = rows = in_one_worker(asked_for.device, has_form)
    write_json(found, asked_for.out)
    beside = [fault for fault in asked_for.run if on_gpu or not FAULTS[fault].gpu_only]
    if beside:
        found["run"] = in_a_run(asked_for.device, beside)
        write_json(found, asked_for.out)
        rows = [*rows, *found["run"]["faults"]]
        sys.stdout.write(f"the run's winner: {found['run']['winner']} of {found['run']['order']}\n")
    counts = {
        outcome: sum(row["outcome"] == outcome for row in rows)
        for outcome in dict.fromkeys(row["outcome"] for row in rows)
    }
    sys.stdout.write(f"{counts}\n")
    sys.exit(1 if counts.keys() & {"WON", "ACCUSED"} else 0)


if __name__ == "__main__":
    main()
