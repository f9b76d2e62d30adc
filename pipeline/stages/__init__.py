"""The stages: each module has a `build(workload, *, options) -> Runner`; `api` has the contract, Skip, StageError."""

from pipeline.stages.api import Runner, Skip, StageError, Workload

__all__ = ["Runner", "Skip", "StageError", "Workload"]
