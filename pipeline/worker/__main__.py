"""The child process: `python -m pipeline.worker FD` gets its job on stdin; under ncu it gets a file of a job."""

import json
import sys
import traceback
from importlib import import_module
from pathlib import Path

import torch

from pipeline.devices.host import host_peak_bytes
from pipeline.errors import InputError
from pipeline.protocol import PipeReporter, die_with_the_parent
from pipeline.records.codec import from_json
from pipeline.records.plan import Phase
from pipeline.records.request import Job
from pipeline.stages.api import Skip, silent
from pipeline.worker import failures
from pipeline.worker.retries import built
from pipeline.worker.run_stage import prepare, run_stage

# Compilers import torch modules for seconds: that is no part of a build, and all sampled processes have them.
COMPILERS, SAMPLED = "pipeline.worker.net_file", ("stage", "companion")
WARM_UP = 3  # calls before the one that ncu counts
BUILT = (Phase.START, Phase.BUILD)  # the phases in which a stage may have no form for a network or a machine


def main(descriptor: int) -> None:
    """Do one job; report a failure as a record, and leave its traceback in the log."""
    die_with_the_parent()
    reporter = PipeReporter(descriptor)
    job = from_json(Job, reporter.job())
    failures.STARTED["host_bytes"] = host_peak_bytes()
    try:
        if job.role in SAMPLED:
            import_module(COMPILERS)
        run_stage(job, reporter)
    except InputError as error:
        reporter.refuse(str(error))
    except SystemExit:  # exit codes are for the parent
        raise
    except BaseException as error:  # noqa: BLE001 - any failure ends as a record; no key interrupts a worker
        kind, reason, memory = failures.told(error, job)
        no_form = kind == "unsupported" and not reason.startswith("stage.")  # which is an option that the user chose
        skipped = reporter.phase in BUILT and (isinstance(error, Skip) or no_form)  # after these phases it has failed
        if not isinstance(error, Skip):
            traceback.print_exc()
        reporter.report(status="skipped" if skipped else "failed", failure=kind, reason=reason, memory_shortage=memory)
    reporter.done()


def count_one_call(path: Path) -> None:
    """Build the stage of the job in a file, from the caches that its first process left, and make one counted call."""
    bench = prepare(from_json(Job, json.loads(path.read_text(encoding="utf-8"))))
    built(bench, silent)
    run, batch = bench.run, bench.inputs[0]
    with torch.inference_mode():
        for _ in range(WARM_UP):
            run(batch)
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        run(batch)
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


if __name__ == "__main__":
    if sys.argv[1].isdecimal():
        main(int(sys.argv[1]))
    else:
        count_one_call(Path(sys.argv[1]))
