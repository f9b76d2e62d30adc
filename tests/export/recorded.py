"""The folder of a run of a tiny net, as the pipeline leaves it, without a run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from models.build import build_model
from models.checkpoint import digest
from models.checkpoint import save as save_weights
from pipeline.records import codec
from pipeline.records.disk import file_digest
from pipeline.records.goals import Tolerance
from pipeline.records.request import DataSpec, ModelSpec
from pipeline.records.run_record import Artefact, Environment, Execution, Reference, RunRecord, StageRecord
from tests.made_up_request import asked, changed, spec
from tests.report.made_up_run import pair
from tests.stage_files import declared

NET, OPTIONS = "models.unet.UNet", {"base": 2, "depth": 1}
SIDE = 8
MACHINE = Environment(
    "cpu", "a processor", None, None, None, None, None, None, None, "a processor", 1, "3.12.3", "Linux",
    {"torch": "2.11.0", "onnxruntime": "1.31.1"}, None, None, "basic", [],
)  # fmt: skip


def stage(name: str, target: str = "", **fields: Any) -> StageRecord:
    """A stage that was right and took 2 ms a call."""
    tolerance, known = Tolerance(1e-3, 1e-2, "rounding"), declared((target or name).rpartition(".")[2])
    good = StageRecord(
        spec(name, target or f"pipeline.stages.{name}", summary=name, tolerance=tolerance, **known), status="ok",
        execution=Execution("fp32"),
        pairs=[pair("eager", name, (0.004, 0.002), "cpu", blocks=2)],
    )  # fmt: skip
    return changed(good, **fields)


def run_folder(folder: Path, stages: list[StageRecord], trained: bool = True) -> Path:
    """Results.json, and the checkpoint that it names, in a new folder; its path."""
    folder.mkdir()
    weights = folder / "weights.safetensors"
    save_weights(build_model(NET, OPTIONS, None, 1), weights, {})
    reference = Reference(1, 1, 1, digest(str(weights)) if trained else None, 0.0, 0.0, None, 1, [], None)
    config = asked(
        model=ModelSpec("tiny", NET, OPTIONS, str(weights) if trained else None),
        data=DataSpec("stain", None, None, SIDE, batch_size=2, batches=3),
        seed=1,
    )
    command = "python -m pipeline model=tiny"
    record = RunRecord("2026-01-01T00:00:00+00:00", command, config, MACHINE, reference=reference)
    codec.save(replace(record, stages=stages, finished=True), folder)
    return folder


def rewritten(folder: Path, **settings: Any) -> RunRecord:
    """The record with other settings, as it is on disk then."""
    run = codec.load(folder)
    found = replace(run, config=replace(run.config, **settings))
    codec.save(found, folder)
    return found


def artefact(folder: Path, path: str, content: bytes = b"a file") -> Artefact:
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return Artefact(path, "a kind", len(content), file_digest(file))


def write_zeros(folder: str, shape: list[int]) -> None:
    for path in Path(folder).glob("*.safetensors"):
        path.with_suffix(".bin").write_bytes(np.zeros(shape).tobytes())
