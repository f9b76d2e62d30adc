"""Has each stage's bytes counted by the GPU itself: one call, in a process of its own under ncu."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from conf import child
from pipeline.orchestrate import ncu_log
from pipeline.orchestrate.context import RunContext
from pipeline.orchestrate.interruption import waiting
from pipeline.orchestrate.ncu_log import CountersError
from pipeline.records.diagnostics import CountedBytes, Note
from pipeline.records.request import SCRATCH, StageSpec, job_document
from pipeline.records.run_record import StageRecord

PHASE = "counters"
KEPT = "counters.csv"
PERMISSION = "ERR_NVGPUCTRPERM"
USUAL_PLACES = ("/usr/local/cuda/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu")
# The clocks are left alone, the caches as the call before left them; what runs before the one call isn't looked at.
OPTIONS = (
    "--clock-control", "none", "--cache-control", "none", "--profile-from-start", "off", "--target-processes",
    "application-only", "--csv", "--print-units", "base", "--metrics", ",".join(ncu_log.METRICS),
)  # fmt: skip


def with_counted_bytes(context: RunContext, spec: StageSpec, record: StageRecord) -> StageRecord:
    """The record with what the counters say of one call, or with a note of why they don't."""
    wanted = context.config.plan.counters and context.config.device == "cuda"
    diagnostics = record.diagnostics
    if not wanted or record.status != "ok" or record.profile is None or diagnostics is None:
        return record
    try:
        if context.no_counters:
            raise CountersError(context.no_counters)
        context.observer.phase_entered(spec.name, PHASE)
        return replace(record, diagnostics=replace(diagnostics, counted=count(context, spec, record)))
    except (CountersError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        note = Note("hardware counters", "not read", str(reason))
        return replace(record, diagnostics=replace(diagnostics, notes=[*diagnostics.notes, note]))


def count(context: RunContext, spec: StageSpec, record: StageRecord) -> CountedBytes:
    """What the counters say of one call of the stage.

    Raises:
        CountersError: why they say nothing; where no other stage would fare better, the context knows it from then on.
    """
    tool = find_ncu(os.environ)
    if tool is None:
        context.no_counters = "ncu, of NVIDIA Nsight Compute, isn't installed"
        raise CountersError(context.no_counters)
    folder = context.folder / spec.name
    scratch = folder / SCRATCH / PHASE
    scratch.mkdir(parents=True, exist_ok=True)
    job = replace(context.config.job(spec, "counted", context.folder), folder=str(scratch))
    (scratch / "job.json").write_text(json.dumps(job_document(replace(job, earlier=str(folder / SCRATCH)))))
    log = run(tool, scratch, context.config.plan.counters_limit_seconds)
    if PERMISSION in log:
        context.no_counters = f"the driver lets administrators alone read them ({PERMISSION})"
        raise CountersError(context.no_counters)
    found = ncu_log.launches(log)
    (folder / KEPT).write_text(ncu_log.table(found), encoding="utf-8")
    assert record.profile is not None
    profiled = ncu_log.profiled_call(folder / "trace.json.gz", record.profile.calls)
    said = subprocess.run([tool, "--version"], capture_output=True, text=True, check=False).stdout
    return ncu_log.totals(found, profiled, ncu_log.version(said))


def find_ncu(environment: Mapping[str, str]) -> str | None:
    """Ncu on the path, with the toolkit that the environment names, or where NVIDIA's installers put it."""
    homes = [environment[key] for key in ("CUDA_HOME", "CUDA_PATH") if environment.get(key)]
    toolkit = [str(place) for home in homes if os.access(place := Path(home, "bin", "ncu"), os.X_OK)]
    usual = [str(place) for pattern in USUAL_PLACES for place in sorted(Path("/").glob(pattern[1:]), reverse=True)]
    return next(iter([*filter(None, [shutil.which("ncu", path=environment.get("PATH"))]), *toolkit, *usual]), None)


def run(tool: str, scratch: Path, limit: float) -> str:
    """Ncu's log of the process that makes the call; `scratch` holds the job.

    Raises:
        CountersError: it took longer than `limit` seconds, or it failed.
    """
    log = scratch / "ncu.csv"
    called = child("pipeline.worker.ncu_call", str(scratch / "job.json"))
    with (scratch / "log.txt").open("wb") as output:
        process = subprocess.Popen(
            [tool, *OPTIONS, "--log-file", str(log), *called["args"]],
            env=called["env"],
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            with waiting():
                process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            raise CountersError(f"counting took longer than {limit:g} s and was ended") from None
        finally:
            with suppress(ProcessLookupError):  # nobody is left of its group
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    said = (scratch / "log.txt").read_text(encoding="utf-8", errors="replace")
    if PERMISSION in said:
        return said
    if process.returncode and PERMISSION not in text:
        last = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "no word")
        raise CountersError(f"ncu ended with exit code {process.returncode}: {last}")
    return text
