"""The stages: each module has a `build(workload, *, options) -> Runner`; `api` holds the contract.

`build` and what it calls raise Skip where a stage can't run on this machine, and StageError where something else would
run than was asked for, a runtime can't take the network, or the answer is wrong. The text of both is one line.
"""

from pipeline.stages.api import Runner, Skip, StageError, Workload

__all__ = ["Runner", "Skip", "StageError", "Workload"]
