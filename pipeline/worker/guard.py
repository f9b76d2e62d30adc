"""Find out whether a stage changed its network, its inputs or the process, and how a worker reports a wrong stage."""

from typing import NamedTuple

import torch
from torch import Tensor

from pipeline.measure.fingerprint import fingerprint, held_by, is_same
from pipeline.measure.rotation import Rotation
from pipeline.records.run_record import FailureKind
from pipeline.stages.api import Workload

ANSWER_MOVED = 1e-2  # relative L2 between two answers to one picture; a deterministic stage gives 0


class Finding(NamedTuple):
    """The failure of a stage and its reason, for the stage's record; neither is set where nothing is wrong."""

    failure: FailureKind | None = None
    reason: str = ""

    @property
    def fields(self) -> dict[str, str | None]:
        """Fields of the StageRecord."""
        return {"status": "inaccurate" if self.failure else "ok", "failure": self.failure, "reason": self.reason}


RIGHT = Finding()


def process_state() -> dict[str, object]:
    """Return torch's process-wide settings that stages share, by name; TF32 and cuDNN's search are a stage's own."""
    return {
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "gradients": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "threads": torch.get_num_threads(),
        "autocast on the CPU": torch.is_autocast_enabled("cpu"),
        "autocast on the GPU": torch.is_autocast_enabled("cuda"),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
    }


def changes(before: dict[str, object], after: dict[str, object]) -> dict[str, tuple[object, object]]:
    """Return the settings that differ, each before and after."""
    return {name: (value, after[name]) for name, value in before.items() if value != after[name]}


class Guard:
    """Checksums of what one stage was given, and the state of its process, from before it was built."""

    def __init__(self, work: Workload, rotation: Rotation) -> None:
        self._rotation, self._model = rotation, work.model
        self._weights = {name: fingerprint(part) for name, part in held_by(work.model).items()}
        self._state = process_state()

    def changes(self) -> Finding:
        """Return the first change of inputs, weights or process since the start; RIGHT where there is none."""
        if changed := self._rotation.changed():
            return Finding("broken contract", f"changed its input: batch {changed[0]} holds other values than at first")
        for name, part in held_by(self._model).items():
            if name not in self._weights or not is_same(self._weights[name], part):
                return Finding("broken contract", f"changed the net that it was given: {name} holds other values")
        for name, (before, after) in changes(self._state, process_state()).items():
            return Finding(
                "broken contract", f"changed the process for all that follows: {name} was {before}, is {after}"
            )
        return RIGHT


def exact(answer: Tensor) -> Tensor:
    """Return a copy of logits of any shape, on the CPU, in fp32 so that fp16 sums don't overflow."""
    return torch.Tensor.float(answer).cpu().clone()
