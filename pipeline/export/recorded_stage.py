"""A stage of a finished run, made ready again from its record: the net with the weights that were measured, a batch."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from models.checkpoint import digest
from pipeline.compiler.batch import Batch
from pipeline.compiler.half import SHORT
from pipeline.errors import InputError
from pipeline.export.as_measured import check_net
from pipeline.export.export_request import Ends, ExportError
from pipeline.export.moved_ends import with_ends
from pipeline.records.bundle_kinds import ExportKind
from pipeline.records.content_digest import file_digest
from pipeline.records.run_record import Artefact, RunRecord, StageRecord
from pipeline.stages.api import Workload

if TYPE_CHECKING:
    from pipeline.worker.bench import Bench


@dataclass
class RecordedStage:
    """A stage, and what it ran on.

    Attributes:
        folder: the run's.
        run, stage: of the record.
        bench: the net and the images, as the run's worker had them.
        notes: what a reader of the bundle must know.
        ends: of the path to a mask, that are to lie in the artefact's graph.
    """

    folder: Path
    run: RunRecord
    stage: StageRecord
    bench: "Bench"
    notes: list[str] = field(default_factory=list)
    ends: Ends = field(default_factory=Ends)

    @property
    def workload(self) -> Workload:
        """The network and the images."""
        return self.bench.workload

    @property
    def given(self) -> list[Tensor]:
        """What the artefact takes: the batch, or its images [batch, height, width, channels]; then the others."""
        first, *others = self.inputs
        if self.ends.images_in and self.images is not None:
            first = torch.from_numpy(np.array(self.images)).to(self.workload.device)
        return [first, *others]

    def with_ends(self, net: nn.Module) -> nn.Module:
        """A net from the golden batch to logits, with the ends that are to lie in the graph."""
        return with_ends(net, self.workload.contract, self.ends, self.workload.device)

    @property
    def kind(self) -> ExportKind:
        """The form in which it leaves the project."""
        assert self.stage.spec.exports  # `export_request.chosen` refuses a stage without one
        return self.stage.spec.exports

    @property
    def batch(self) -> Tensor:
        """The golden batch [batch, channels, height, width], fp32, on the device."""
        return self.workload.batches[0]

    @property
    def inputs(self) -> Batch:
        """The golden batch with the net's further inputs."""
        return self.workload.inputs[0]

    @property
    def images(self) -> np.ndarray | None:
        """The same before normalisation, [batch, height, width, channels]; None of tensors, which are taken as is."""
        images = self.workload.images
        return None if images is None else images[: self.workload.shape[0]]

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights as the stage ran them; fp32 where the record doesn't say."""
        return next((dtype for dtype, name in SHORT.items() if name == self.stage.precision), torch.float32)

    def kept(self, name: str) -> Path | None:
        """A file that the run keeps of the stage, unchanged since; None where there is none.

        Raises:
            ExportError: it isn't the one that was recorded.
        """
        found = next((part for part in self.stage.artefacts if Path(part.path).name == name), None)
        return None if found is None else self._unchanged(found)

    def _unchanged(self, artefact: Artefact) -> Path | None:
        path = self.folder / artefact.path
        if not path.resolve().is_relative_to(self.folder.resolve()):
            raise ExportError(f"{artefact.path}: not within the run's folder")
        if not path.is_file():
            return None
        if file_digest(path) != artefact.sha256:
            raise ExportError(f"{path}: changed since the run recorded it; measure again: {self.run.command}")
        return path

    def built_again(self) -> list[Path]:
        """The stage's files, by building it as the run did.

        Raises:
            Skip, StageError: it can't be built here.
        """
        folder = self.workload.folder
        folder.mkdir(parents=True, exist_ok=True)
        self.bench.build()
        save = self.bench.runner.save
        return save(folder) if save else []


def check_weights(run: RunRecord) -> str | None:
    """Check that the checkpoint is the one that was measured; its digest, None with random weights.

    Raises:
        ExportError: it was changed since.
    """
    checkpoint, measured = run.config.model.weights, run.reference and run.reference.weights_sha256
    if not checkpoint:
        return None
    if (found := digest(checkpoint)) != measured:
        said = f"{found[:12]}… where the run measured {(measured or 'nobody knows which')[:12]}…"
        raise ExportError(f"model.checkpoint={checkpoint}: other weights than were measured ({said})")
    return measured


def opened(folder: Path, run: RunRecord, stage: StageRecord, scratch: Path) -> RecordedStage:
    """The stage with its net and its first batch, on the device of the run.

    Args:
        folder: the run's.
        run: its record.
        stage: one of it.
        scratch: a folder for what is built.

    Raises:
        ExportError: this machine has no such device, or the net or its images are not there any more.
    """
    kind = run.environment.device if run.environment else "cpu"
    if kind == "cuda" and not torch.cuda.is_available():
        raise ExportError("the run was measured on a CUDA GPU and torch sees none here; export where there is one")
    from pipeline.worker.run_stage import prepare  # and so compilers, which masks that are there need not wait for

    config = run.config
    try:
        job = config.job(stage.spec, "stage", scratch)
        threads = run.environment.cpu_threads if run.environment and kind != "cuda" else job.threads
        bench = prepare(replace(job, device=kind, threads=threads, reference=""), stage.net_layout)
        check_net(folder, run, bench.workload.model, bench.inputs[0])
    except InputError as error:
        raise ExportError(str(error)) from None
    mean = "masks mean" if config.task.has_masks else "answers mean"
    notes = [] if config.model.is_trained else [f"the net has random weights: its {mean} nothing"]
    return RecordedStage(folder, run, stage, bench, notes)
