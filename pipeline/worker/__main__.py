"""The child process, `python -m pipeline.worker FD`: the parent gives the job on stdin and reads records from FD."""

import sys
import traceback

from models.errors import InputError
from pipeline.config.schema import Job
from pipeline.protocol import PipeReporter
from pipeline.records.codec import from_json
from pipeline.stages.api import Skip
from pipeline.worker.run_stage import run_stage, why


def main() -> None:
    """One job, then leave; a failure is reported as a record, and its traceback goes to the log."""
    line = PipeReporter(int(sys.argv[1]))
    job = from_json(Job, line.job())
    try:
        run_stage(job, line)
    except InputError as error:
        line.refuse(str(error))
    except Skip as skip:
        line.report(status="skipped", reason=str(skip))
    except Exception as error:  # noqa: BLE001 - whatever a stage does ends as a record
        traceback.print_exc()
        line.report(status="failed", reason=why(error))
    line.done()


if __name__ == "__main__":
    main()
