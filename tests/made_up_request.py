"""Requests and stages for tests, with minimal defaults."""

from dataclasses import fields, replace
from typing import Any

from pipeline.records.goals import Tolerance
from pipeline.records.plan import Plan
from pipeline.records.request import DataSpec, ModelSpec, RunConfig, StageSpec
from pipeline.records.run_record import StageRecord

OF_A_SPEC = {part.name for part in fields(StageSpec)}
TOLERANCE = Tolerance(1.0, 1.0, "a test's")
EAGER = StageSpec("eager", "pipeline.stages.eager", "", "", ["cuda", "cpu"], "", False, TOLERANCE, {})
ASKED = RunConfig(
    stages=[EAGER], model=ModelSpec("", "", {}, None), data=DataSpec("", None, None, None, batch_size=2, batches=3),
    plan=Plan(), device="cpu", threads=1, seed=0, time_inaccurate=False, strict=True, preset="smoke", launcher="basic",
    baseline=EAGER, eager=EAGER,
)  # fmt: skip


def asked(**fields: Any) -> RunConfig:
    return replace(ASKED, **fields)


def spec(name: str, target: str = "", **fields: Any) -> StageSpec:
    return replace(EAGER, name=name, target=target, **fields)


def changed(stage: StageRecord, **fields: Any) -> StageRecord:
    """Return the stage with other fields, of its spec or of its record."""
    of_spec = {name: value for name, value in fields.items() if name in OF_A_SPEC}
    others = {name: value for name, value in fields.items() if name not in OF_A_SPEC}
    return replace(stage, spec=replace(stage.spec, **of_spec), **others)
