"""The process under ncu, `python -m pipeline.worker.ncu_call JOB.json`: one stage, of which one call counts."""

import json
import sys
from pathlib import Path

import torch

from pipeline.records.codec import from_json
from pipeline.records.request import Job
from pipeline.stages.api import silent
from pipeline.worker.layout_retry import built
from pipeline.worker.run_stage import prepare

WARM_UP = 3  # calls before the one that counts


def main() -> None:
    """Build the stage, from the caches that its first process left, and make the call."""
    bench = prepare(from_json(Job, json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
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
    main()
