"""The parent with real workers: whatever a stage does ends as a record, and the others go on."""

import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pipeline.cli.progress import Progress
from pipeline.config.request_error import RequestError
from pipeline.orchestrate import context
from pipeline.orchestrate.run import run_ladder
from pipeline.orchestrate.worker_process import WorkerProcess
from pipeline.records import codec
from pipeline.records.plan import Phase
from pipeline.records.request import REFERENCE_LOGITS, SCRATCH, Job, ModelSpec, StageSpec
from pipeline.records.run_record import RunRecord
from pipeline.stats.ranking import ranking
from tests.orchestrate.fake_worker import blank, config, stage
from tests.worker.jobs import EAGER, PLAN

pytestmark = pytest.mark.long

SMOKE = replace(PLAN, interim_analyses=(2,), sampling_seconds=2.0, aa_pairs=0, aa_blocks=2, head_to_head=0)


def ask(folder: Path, stages: list[StageSpec], **changes: Any) -> RunRecord:
    model = ModelSpec("small", "models.unet.UNet", {"base": 16}, "models/weights/unet_small.safetensors")
    asked = config(**{"stages": stages, "model": model, "plan": SMOKE} | changes)
    with Progress(len(stages), Console(file=io.StringIO())) as progress:
        return run_ladder(asked, folder, blank(config=asked), progress)


class Watched(WorkerProcess):
    """A worker of which a stage that hangs, and no other, has two seconds for its build."""

    def __init__(self, job: Job, log: Path, limits: Mapping[Phase, float], fork: bool = False) -> None:
        limits = {**limits, Phase.BUILD: 2.0} if job.stage.name == "hangs_in_build" else limits
        super().__init__(job, log, limits, fork)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunRecord, Path]:
    folder = tmp_path_factory.mktemp("mixed")
    (folder / "eager" / SCRATCH / "inductor").mkdir(parents=True)
    (folder / "mine" / SCRATCH).mkdir(parents=True)
    kinds = ["zeros", "dies_in_build", "dies_at_work", "hangs_in_build", "raises"]
    stages = [*(stage(one) for one in kinds), EAGER, replace(stage("gpu_only"), devices=["cuda"], unavailable="no GPU")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context, "WorkerProcess", Watched)
        return ask(folder, stages, plan=replace(SMOKE, aa_pairs=1)), folder


@pytest.mark.parametrize(
    ("name", "status", "failure", "said"),
    [
        ("zeros", "inaccurate", "wrong answer", "one class"),
        ("dies_in_build", "failed", "killed", "died in build: killed by SIGKILL"),
        ("dies_at_work", "failed", "killed", "killed by SIGKILL"),
        ("hangs_in_build", "timeout", "timeout", "build took longer than 2 s"),
        ("raises", "failed", "error", "RuntimeError: the compiler gave up"),
        ("gpu_only", "skipped", "unsupported", "no GPU"),
        ("eager", "ok", None, ""),
    ],
)
def test_whatever_a_stage_does_ends_as_a_record(
    mixed: tuple[RunRecord, Path], name: str, status: str, failure: str | None, said: str
) -> None:
    record = next(stage for stage in mixed[0].stages if stage.name == name)
    assert (record.status, record.failure) == (status, failure), record.reason
    assert said in record.reason
    assert "\n" not in record.reason


def test_the_record_is_on_disk_and_what_only_workers_need_is_gone(mixed: tuple[RunRecord, Path]) -> None:
    record, folder = mixed
    assert codec.load(folder) == record
    assert record.finished
    assert list(mixed[1].rglob(SCRATCH)) == [mixed[1] / "mine" / SCRATCH]
    assert not (mixed[1] / REFERENCE_LOGITS).exists()
    assert (mixed[1] / "eager" / "log.txt").exists()


def test_a_failed_stage_keeps_its_log(mixed: tuple[RunRecord, Path]) -> None:
    record = next(stage for stage in mixed[0].stages if stage.name == "raises")
    assert "the compiler gave up" in record.log_tail
    assert len(record.log_tail.splitlines()) <= 30
    assert record.log
    assert (mixed[1] / record.log).exists()


def test_a_wrong_answer_cannot_win_and_pairs_of_equal_stages_are_recorded(mixed: tuple[RunRecord, Path]) -> None:
    record = mixed[0]
    wrong = next(stage for stage in record.stages if stage.name == "zeros")
    assert not wrong.pairs
    assert ranking(record).winner == "eager"
    assert [len(pair.blocks) for pair in record.aa_pairs] == [SMOKE.aa_blocks]
    eager = next(stage for stage in record.stages if stage.name == "eager")
    assert eager.pairs[0].baseline == "eager"


@pytest.mark.fresh_process
def test_a_checkpoint_of_another_net_is_refused(tmp_path: Path) -> None:
    """One line that names the file, from a worker of its own interpreter; there is nothing to measure without the net.

    Further workers are forks of a server that has imported what a worker imports.
    """
    (tmp_path / "text.safetensors").write_text("no weights")
    model = ModelSpec("tiny", "models.unet.UNet", {"base": 4}, str(tmp_path / "text.safetensors"))
    with pytest.raises(RequestError, match=r"text\.safetensors"):
        ask(tmp_path / "run", [EAGER], model=model)
    assert not codec.load(tmp_path / "run").finished
