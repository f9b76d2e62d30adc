"""A stage that fails, of a net that doesn't take channels_last: another attempt with all as its weights and images lie.

Stages lay a net out with its channels side by side. Any net takes that but one whose own code takes a view
(`Tensor.view`) of a weight or a map which that layout doesn't allow. Whether it is so is asked where a stage fails.
"""

import traceback
from dataclasses import replace
from typing import Protocol

from pipeline.measure.memory_formats import refused_by
from pipeline.stages.api import Skip
from pipeline.worker.bench import Bench
from pipeline.worker.where_raised import place_of


class Reporter(Protocol):
    """What of `run_stage.Reporter` is needed here."""

    def progress(self, text: str) -> None:
        """How far the phase is."""


def built(bench: Bench, reporter: Reporter) -> dict[str, object]:
    """What `bench.build` reports, of a second build in NCHW where the net needs it.

    Raises:
        Skip, StageError, Exception: as the stage's build or first call raised it.
    """
    try:
        return bench.build()
    except Skip:
        raise
    except Exception:
        work = bench.workload
        refused = None if work.layout == "NCHW" else refused_by(work.model, work.inputs[0])
        if refused is None:
            raise
        traceback.print_exc()
    reporter.progress("again in NCHW, as the net doesn't take channels_last")
    place = place_of([refused], [str(refused)])
    bench.workload = replace(work, layout="NCHW", refused_at=place)
    found = bench.build()
    bench.runner.details["layout"] = "NCHW"
    said = f"{bench.job.stage.name} ran in NCHW, as the net's own code{place} doesn't take channels_last"
    bench.warn("something else ran", said, "write reshape for the view (Tensor.view) there, and measure again")
    return found
