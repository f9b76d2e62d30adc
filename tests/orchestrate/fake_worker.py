"""Workers that answer at once, in the test's own process: a whole run in milliseconds."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from pipeline.orchestrate.worker_process import WorkerGone
from pipeline.protocol import Done, Entered, Message, ReadyToSample
from pipeline.records.plan import Phase
from pipeline.records.request import DataSpec, Job, ModelSpec, RunConfig, StageSpec
from pipeline.records.run_record import Environment, Reference, RunRecord, StageRecord
from pipeline.records.samples import Sample
from tests.fake_machine import ACCURACY
from tests.made_up_request import asked
from tests.worker.jobs import EAGER, PLAN

ENVIRONMENT = Environment(
    "cpu", "a processor", None, None, None, None, None, None, None, "a processor", 1, "3.11", "Linux",
    {"torch": "2.11"}, "abc", False, "basic", [], {},
)  # fmt: skip
REFERENCE = Reference(1000, 10, 40, "weights", 0.0, 0.0, None, 100, [], None)
QUICK = replace(PLAN, interim_analyses=(6,), sampling_seconds=5.0, aa_pairs=2, aa_blocks=6, head_to_head=0)


class FakeWorker:
    started: ClassVar[list[tuple[str, str]]] = []  # role and name of every worker so far, in order
    environment: ClassVar[Environment] = ENVIRONMENT  # what the reference's worker finds
    reference: ClassVar[Reference] = REFERENCE
    deeds: ClassVar[dict[str, Any]] = {}  # what a stage or a baseline does when it is built, by its name

    def __init__(self, job: Job, log: Path, limits: Mapping[Phase, float], fork: bool = False) -> None:
        self.started.append((job.role, job.stage.name))
        self.name, self.job, self.log = job.stage.name, job, log
        self.fields: dict[str, Any] = {}
        self.run_fields: dict[str, Any] = {}
        self.phase, self.refused, self.alive = Phase.START, None, True
        self._rest = self._messages()

    def messages(self) -> Iterator[Message]:
        return self._rest

    def _messages(self) -> Iterator[Message]:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.write_text("a log\n")
        if self.job.role == "reference":
            Path(self.job.reference).write_text("logits")
            self.run_fields = {"environment": self.environment, "reference": self.reference}
            yield Done()
            return
        if self.job.role == "peaks":
            self.run_fields = {"measured_peaks": self.deeds["peaks"]}
            yield Done()
            return
        self.phase = Phase.BUILD
        yield Entered(Phase.BUILD)
        if self.name in self.deeds:
            self.deeds[self.name](self.job)
        self.fields |= {"status": "ok", "accuracy": ACCURACY}
        if self.job.role == "hosted":
            self.deeds.get("hosted", lambda _: None)(self.job)
            self.fields |= {"host_latencies": [0.03, 0.01, 0.02]}
            yield Done()
            return
        yield ReadyToSample()
        self.phase = Phase.PROFILE
        yield Done()

    def sample(self, brief: bool = False) -> Sample:
        return Sample(1 if brief else 10, 0.02, None)

    def end_sampling(self) -> None:
        self.phase = Phase.CHECK

    process_id = 0  # of no process

    def suspend(self) -> None:
        pass

    def resume(self) -> None:
        pass

    def stop(self) -> None:
        self.alive = False


def die(_: Job) -> None:
    raise WorkerGone("died", "died in build: exit code 3")


def interrupt(_: Job) -> None:
    raise KeyboardInterrupt


def stage(name: str) -> StageSpec:
    return replace(EAGER, name=name, target="tests.fault_stages", options={"fault": name})


def config(*names: str, **changes: Any) -> RunConfig:
    own: dict[str, Any] = {
        "stages": [stage(name) for name in names], "model": ModelSpec("small", "models.unet.UNet"),
        "data": DataSpec("samples", size=32), "plan": QUICK, "baseline": EAGER, "eager": EAGER,
    }  # fmt: skip
    return asked(**own | changes)


def blank(**changes: Any) -> RunRecord:
    record = RunRecord("2026-01-01T00:00:00+00:00", "a test", config(), code_sha256="code")
    return replace(record, **changes)


class Watcher:
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def stage_started(self, name: str, adds: str) -> None:
        pass

    def phase_entered(self, title: str, phase: str, detail: str = "") -> None:
        pass

    def stage_finished(self, run: RunRecord, stage: StageRecord) -> None:
        pass
