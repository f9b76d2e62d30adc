"""The child process, `python -m pipeline.worker FD`: the parent gives the job on stdin and reads records from FD."""

import sys
import traceback
from importlib import import_module

from pipeline.errors import InputError
from pipeline.protocol import PipeReporter, die_with_the_parent
from pipeline.records.codec import from_json
from pipeline.records.plan import Phase
from pipeline.records.request import Job
from pipeline.stages.api import Skip
from pipeline.worker import shortage
from pipeline.worker.failures import ENDINGS
from pipeline.worker.run_stage import run_stage

# What compiles imports seconds' worth of torch: no part of a build, and the same in every process that is sampled.
COMPILERS, SAMPLED = "pipeline.worker.net_file", ("stage", "companion")
BUILT = (Phase.START, Phase.BUILD)  # the phases in which a stage may say that it has no form on this machine


def main(descriptor: int) -> None:
    """Do one job; report a failure as a record, and leave its traceback in the log.

    Args:
        descriptor: takes the messages.
    """
    die_with_the_parent()
    reporter = PipeReporter(descriptor)
    job = from_json(Job, reporter.job())
    shortage.note_start()
    try:
        if job.role in SAMPLED:
            import_module(COMPILERS)
        run_stage(job, reporter)
    except InputError as error:
        reporter.refuse(str(error))
    except ENDINGS:  # by its type: what an error says of its class may be a lie
        raise
    except BaseException as error:  # noqa: BLE001 - whatever a stage does ends as a record
        skipped = isinstance(error, Skip) and reporter.phase in BUILT  # who has run has a form here, and failed
        if not skipped:
            traceback.print_exc()
        kind, reason, memory = shortage.told(error, job)
        reporter.report(status="skipped" if skipped else "failed", failure=kind, reason=reason, memory_shortage=memory)
    reporter.done()


if __name__ == "__main__":
    main(int(sys.argv[1]))
