"""Watches one stage for ways of fooling: what it changes, and what it answers while it is timed."""

import random
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pipeline.compiler.agreement import distance
from pipeline.compiler.batch import Batch
from pipeline.measure.fingerprint import fingerprint, held_by, is_same
from pipeline.measure.lasting_state import changes, lasting_state
from pipeline.measure.own_functions import own_functions, replaced
from pipeline.measure.rotation import Rotation
from pipeline.records.file_mark import mark_of
from pipeline.records.run_record import FailureKind
from pipeline.stages.api import Workload
from pipeline.worker.contract import answer_fault

ANSWER_MOVED = 1e-2  # relative L2 between two answers to one picture; a deterministic stage gives 0
# A sample of several calls has up to an eighth more than are wanted, or up to one: which is the last, and so looked at,
# isn't known, and is neither always an even one nor always an odd one.
MORE_CALLS_SHARE = 8


class Finding(NamedTuple):
    """What is wrong with a stage, for its record; neither where nothing is."""

    failure: FailureKind | None = None
    reason: str = ""

    @property
    def fields(self) -> dict[str, str | None]:
        """Of the StageRecord."""
        return {"status": "inaccurate" if self.failure else "ok", "failure": self.failure, "reason": self.reason}


RIGHT = Finding()


class Guard:
    """What one stage was given, as it was before, and whether it has kept to it.

    Attributes:
        rotation: the inputs.
        found: what a timed sample has shown; nothing yet where it is RIGHT.
        looked_at: how many answers of timed calls were compared.
    """

    def __init__(self, work: Workload, rotation: Rotation, seed: int, reference: Path) -> None:
        self.rotation = rotation
        self.found = RIGHT
        self.looked_at = 0
        self._rotations = [work.batches, *work.others.values()]
        self._buffers = [list(held) for held in self._rotations]
        self._reference, self._reference_mark = reference, mark_of(reference)
        self._model, self._layers = work.model, layers(work.model)
        self._weights = {name: fingerprint(part) for name, part in held_by(work.model).items()}
        self._state, self._functions = lasting_state(), own_functions()
        self._draw = random.Random(seed)  # noqa: S311 - which answer is looked at is no secret
        self._verified: list[Tensor] = []

    def verified(self, answers: list[Tensor]) -> None:
        """Take the answers [batch, classes, height, width] to the first batches that were verified, on the CPU."""
        self._verified = answers

    def begin_sample(self, untimed: int, calls: int) -> int:
        """How many calls a sample is to time, whose last is on a picture that was verified: both drawn."""
        calls += self._draw.randint(0, max(1, calls // MORE_CALLS_SHARE)) if calls > 1 else 0
        self.rotation.end_on(self._draw.randrange(len(self._verified)), untimed + calls)
        return calls

    def look_at(self, batch: Batch, answer: object) -> None:
        """Compare one image, drawn, of the answer to a sample's last call with what was verified.

        Args:
            batch: the call's inputs.
            answer: what the call returned; its clock has stopped.
        """
        picture = self.rotation.picture_in(batch)
        if self.found is not RIGHT or picture >= len(self._verified):
            return
        self.looked_at += 1
        if fault := answer_fault(answer, batch):
            self.found = Finding("broken contract", f"in a timed sample: {fault}")
            return
        assert isinstance(answer, Tensor)
        expected = self._verified[picture]
        if answer.shape != expected.shape:
            reason = (
                f"in a timed sample the logits had shape {list(answer.shape)}, verified were {list(expected.shape)}"
            )
            self.found = Finding("wrong answer", reason)
            return
        image = self._draw.randrange(len(expected))
        if (off := distance(answer[image].cpu(), expected[image])) > ANSWER_MOVED:
            reason = f"in a timed sample the answer to batch {picture} was {off:.2g} (relative L2) off the verified one"
            self.found = Finding("wrong answer", reason)

    def changes(self) -> Finding:
        """Whether the inputs, the net's weights and the state of the process are as they were."""
        if [[*map(id, held)] for held in self._rotations] != [[*map(id, held)] for held in self._buffers]:
            return Finding("broken contract", "changed its input: the list of batches holds other ones than at first")
        if changed := self.rotation.changed():
            return Finding("broken contract", f"changed its input: batch {changed[0]} holds other values than at first")
        for name, part in held_by(self._model).items():
            if name not in self._weights or not is_same(self._weights[name], part):
                return Finding("broken contract", f"changed the net that it was given: {name} holds other values")
        for name, (before, after) in changes(self._state, lasting_state()).items():
            return Finding(
                "broken contract", f"changed the process for all that follows: {name} was {before}, is {after}"
            )
        return self._changes_of_the_judge()

    def _changes_of_the_judge(self) -> Finding:
        """Whether what it is judged by is as it was: the layers of the net, this program, the reference's answers."""
        now = layers(self._model)
        for name, before in self._layers.items():
            if now.get(name) != before:
                layer = name or "the net itself"
                return Finding("broken contract", f"changed the net that it was given: {layer} is not what it was")
        if name := replaced(self._functions):
            return Finding("broken contract", f"replaced a part of what measures and checks it: {name}")
        if (mark := mark_of(self._reference)) is not None and mark != self._reference_mark:
            return Finding("broken contract", f"wrote into the reference's answers: {self._reference.name}")
        return RIGHT


def layers(model: nn.Module) -> dict[str, tuple[object, ...]]:
    """What each layer of a net is, by its name: its type, its mode, its hooks, and whether its call is its class's."""
    return {
        name: (
            type(part),
            part.training,
            "forward" in vars(part),
            *map(len, (part._forward_hooks, part._forward_pre_hooks)),
        )
        for name, part in model.named_modules()
    }


def exact(answer: Tensor) -> Tensor:
    """A copy of logits of any shape, on the CPU, in fp32 so that fp16 sums don't overflow."""
    return torch.Tensor.float(answer).cpu().clone()
