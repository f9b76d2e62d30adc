"""The stages: each module's `build(workload, *, options)` gives a `Runner`; `pipeline.stages.api` holds the contract."""

from pipeline.stages.api import Runner, Skip, StageError, Workload

__all__ = ["Runner", "Skip", "StageError", "Workload"]
