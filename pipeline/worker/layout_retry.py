"""A stage that fails, of a net that doesn't take channels_last: another attempt with all as its weights and images lie.

Stages lay a net out with its channels side by side. Any net takes that but one whose own code takes a view
(`Tensor.view`) of a weight or a map which that layout doesn't allow. Whether it is so is asked where a stage fails.
"""

import traceback
from dataclasses import replace
from typing import Protocol

from pipeline.measure.memory_formats import takes_channels_last
from pipeline.stages.api import Skip
from pipeline.worker.bench import Bench


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
        if work.layout == "NCHW" or takes_channels_last(work.model, work.inputs[0]):
            raise
        traceback.print_exc()
    reporter.progress("again in NCHW, as the net doesn't take channels_last")
    bench.workload = replace(bench.workload, layout="NCHW")
    found = bench.build()
    bench.runner.details["layout"] = "NCHW"
    return found
