"""Takes every stage of `tests.cheating_stages` through a run with real workers on a CPU, and compares what came out.

    python -m tests.benchmarks.cheats [--out cheats.json] [NAME …]

One run of all, as a user's ladder is: what one stage does is not to cost another. Exit code 1 where one came out wrong.
"""

import argparse
import logging
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.config.schema import DataSpec, ModelSpec, RunConfig
from pipeline.orchestrate.run import run_ladder
from pipeline.records.atomic_json import write_json
from pipeline.records.run_record import RunRecord, StageRecord
from tests.cheating_stages import AT_WORK, DEEDS
from tests.worker.jobs import EAGER, PLAN

QUICK = replace(
    PLAN, cpu_sample_seconds=0.15, interim_analyses=(6,), sampling_seconds=8.0, aa_pairs=0, head_to_head=0,
    fork_workers=True, profile_calls=0, build_limit_seconds=20.0, sample_limit_seconds=20.0, warmup_min_calls=5,
    warmup_min_seconds=0.2, warmup_window_seconds=0.1, warmup_limit_seconds=2.0,
)  # fmt: skip
OTHERS = ("computes_what_is_looked_at", "halves_by_threads")
FAILED = {  # a kind of failure for each; every other stage is right in the end, and its deed came to nothing
    "says_that_it_is_done": "protocol",
    "says_a_sample": "protocol",
    "says_it_is_another": "protocol",
    "says_the_run_is_on_a_gpu": "protocol",
    "closes_every_descriptor": "died",
    "closes_stdin": "timeout",
    "takes_every_descriptor": "error",
    "reads_the_commands": "timeout",
    "stops_the_baseline": "timeout",
    "computes_what_is_looked_at": "wrong answer",
    "draws_no_chance": "wrong answer",
    "mixes_no_pictures": "wrong answer",
    "is_lenient_with_itself": "wrong answer",
    "limits_the_baseline": "broken contract",
    "traces_the_baseline": "timeout",
    "sends_the_baseline_to_the_back": "broken contract",
    "offers_the_baseline_to_the_killer": "broken contract",
    "schedules_the_baseline_as_idle": "broken contract",
}


class Teller:
    """An observer that says a line for each stage."""

    def say(self, text: str) -> None:
        sys.stdout.write(f"  ({text})\n")

    def stage_started(self, name: str, adds: str) -> None:
        pass

    def phase_entered(self, title: str, phase: str, detail: str = "") -> None:
        pass

    def stage_finished(self, run: RunRecord, stage: StageRecord) -> None:
        right = stage.failure == FAILED.get(stage.name)
        sys.stdout.write(f"{'' if right else 'WRONG '}{stage.name}: {stage.status}, {stage.failure}: {stage.reason}\n")
        sys.stdout.flush()


def asked(names: list[str]) -> RunConfig:
    """The run of these faults."""
    loose = replace(EAGER.tolerance, relative_l2=1e-3)
    stages = [
        replace(EAGER, name=name, target="tests.cheating_stages", options={"fault": name}, tolerance=loose)
        for name in names
    ]
    return RunConfig(
        stages=stages,
        model=ModelSpec("small", "models.unet.UNet", {"base": 16}, "models/weights/unet_small.safetensors"),
        data=DataSpec("samples", None, None, size=64, batch_size=2, batches=3),
        plan=QUICK, device="cpu", threads=1, seed=0, time_inaccurate=False, strict=True, preset="smoke",
        launcher="basic", baseline=EAGER, eager=EAGER,
    )  # fmt: skip


def outcome(stage: StageRecord) -> dict[str, Any]:
    """Of a stage, for the table."""
    return {"status": stage.status, "failure": stage.failure, "reason": stage.reason}


def main() -> int:
    """The run, and its table; 1 where a fault came out otherwise than it should."""
    parser = argparse.ArgumentParser(description="Takes stages that cheat through a run, and compares what came out.")
    parser.add_argument("names", nargs="*", default=[])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    logging.disable()
    names = given.names or [*DEEDS, *AT_WORK, *OTHERS]
    blank = RunRecord("2026-01-01T00:00:00+00:00", "faults", "smoke", {"data": {"batch_size": 2}})
    with tempfile.TemporaryDirectory() as folder:
        record = run_ladder(asked(names), Path(folder), blank, Teller())
    wrong = [stage.name for stage in record.stages if stage.failure != FAILED.get(stage.name)]
    for warning in record.warnings:
        sys.stdout.write(f"warning: {warning.code}: {warning.text}\n")
    sys.stdout.write(f"{len(record.stages) - len(wrong)} of {len(names)} as they should\n")
    if given.out:
        write_json({stage.name: outcome(stage) for stage in record.stages}, given.out)
    return 1 if wrong or len(record.stages) < len(names) else 0


if __name__ == "__main__":
    sys.exit(main())
