"""A stage's contract: a Runner, plain tensors of logits, and network, inputs and process left unchanged."""

import inspect
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor

from pipeline.errors import first_line, shortened
from pipeline.measure.rotation import Rotation, fingerprint, held_by, is_same
from pipeline.records.diagnostics import SearchAsked, SearchCount
from pipeline.records.run_record import Execution, FailureKind
from pipeline.records.samples import Calibration
from pipeline.stages.api import Runner, StageError, Workload

GRADIENTS = "a tensor that requires gradients, where none are asked for; end its forward in .detach()"
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


def change_since(before: dict[str, object]) -> str:
    """Return the first setting that isn't as in an earlier `process_state`, with both values; empty without one."""
    now = process_state()
    return next((f"{name} was {was}, is {now[name]}" for name, was in before.items() if was != now[name]), "")


class Guard:
    """Checksums of what one stage was given, and the state of its process, from before it was built."""

    def __init__(self, work: Workload, rotation: Rotation) -> None:
        self.rotation, self._model = rotation, work.model
        self._weights = {name: fingerprint(part) for name, part in held_by(work.model).items()}
        self._state = process_state()

    def changes(self) -> Finding:
        """Return the first change of inputs, weights or process since the start; RIGHT where there is none."""
        if changed := self.rotation.changed():
            return Finding("broken contract", f"changed its input: batch {changed[0]} holds other values than before")
        for name, part in held_by(self._model).items():
            if name not in self._weights or not is_same(self._weights[name], part):
                return Finding("broken contract", f"changed the network that it was given: {name} has changed")
        if change := change_since(self._state):
            return Finding("broken contract", f"changed the process for all that follows: {change}")
        return RIGHT


def broken(reason: str) -> StageError:
    """Return the error for a stage that breaks its contract."""
    return StageError(reason, "broken contract")


def checked_runner(built: object, target: str) -> tuple[Runner, list[str]]:
    """Return the Runner with details that a record can hold, and the paths of NaN and infinities in them."""
    if not isinstance(built, Runner):
        raise broken(f"build of {target} returned {named(built)}; a pipeline.stages.api.Runner is wanted")
    if not callable(built.run):
        raise broken(f"Runner.run is {named(built.run)}; a function of a batch is wanted")
    kept: dict[str, tuple[Any, object]] = {
        "execution": (Execution | None, built.execution),
        "calibration": (Calibration | None, built.calibration),
        "searches_asked": (tuple[SearchAsked, ...], built.searches_asked),
        "searched": (tuple[SearchCount, ...], built.searched),
    }
    for name, (kind, value) in kept.items():
        try:
            msgspec.convert(msgspec.to_builtins(value), kind)
        except (TypeError, ValueError) as error:
            raise broken(f"Runner.{name}: {first_line(error)}") from error
    lost: list[str] = []
    details = _json_value(built.details, "details", lost)
    return replace(built, details=details, description=shortened(built.description)), lost


def check_left_out(runner: Runner, work: Workload) -> None:
    """Raise if a stage leaves out batches that it wasn't given to calibrate on."""
    calibrates = range(work.verified, math.ceil(work.judged / work.shape[0]))
    if wrong := [number for number in runner.left_out if number not in calibrates or runner.calibration is None]:
        raise broken(f"Runner.left_out names batch {wrong[0]}, which it was not given to calibrate on")


def check_inputs(runner: Runner, names: Sequence[str]) -> None:
    """Raise if a stage can't be called with the network's number of inputs."""
    try:
        signature = inspect.signature(runner.run)
    except (TypeError, ValueError):  # of a function that isn't Python's
        return
    try:
        signature.bind(*names)
    except TypeError:
        raise StageError(
            f"the network takes {len(names)} inputs ({', '.join(names)}), and the stage's run{signature} doesn't",
            "unsupported",
        ) from None


def _json_value(value: object, path: str, lost: list[str]) -> Any:
    """Return plain JSON values; NaN and infinities become None, and their paths go into `lost`."""
    if isinstance(value, dict):
        return {str(key): _json_value(part, f"{path}/{key}", lost) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(part, f"{path}/{index}", lost) for index, part in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        lost.append(path)
        return None
    if value is None or isinstance(value, str | int | float):
        return value
    raise broken(f"Runner.{path} is {named(value)}; JSON values are wanted")


def answer_fault(answer: object, batch: Iterable[Tensor], of_classes: bool = False) -> str:
    """Return why an answer isn't a plain tensor of logits, or of classes; empty where it is."""
    # A view of one buffer that every call writes over is allowed, as CUDA graphs give.
    inputs = [*batch]
    if fault := unlike_a_tensor(answer, inputs[0].device, of_classes):
        return f"it answers {fault}"
    if isinstance(answer, Tensor) and share_memory(answer, inputs):
        return "its logits lie in the memory of its input"
    return ""


def unlike_a_tensor(answer: object, device: torch.device, of_classes: bool = False) -> str:
    """Return how an answer differs from a plain tensor on this device, in a clause; empty where it doesn't."""
    if type(answer) is not Tensor:
        return f"with {named(answer)}; it must give a plain torch.Tensor"
    floats = answer.dtype.is_floating_point
    faults = {
        f"in the layout {answer.layout}; it must give torch.strided (.to_dense())": answer.layout is not torch.strided,
        "with a nested tensor; it must give a plain one (.to_padded_tensor())": answer.is_nested,
        f"on {answer.device}, and its input is on {device}": answer.device != device,
        f"in {answer.dtype}; it must give {'classes' if of_classes else 'floating numbers'}": floats == of_classes,
        f"in {answer.dtype}; it must give 16 bits or more, to be compared": floats and answer.element_size() == 1,
        f"with {GRADIENTS}": answer.requires_grad,
    }
    return next((fault for fault, holds in faults.items() if holds), "")


def share_memory(answer: Tensor, others: Iterable[Tensor]) -> bool:
    """Return whether a tensor of any shape shares memory with one of the others."""
    if answer.layout is not torch.strided or answer.is_nested or not answer.numel():
        return False
    return answer.untyped_storage().data_ptr() in {part.untyped_storage().data_ptr() for part in others}


def named(value: object) -> str:
    """Return a value's type with its article; a class by its own name."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__qualname__}"
    kind = type(value)
    builtin = kind.__module__ in ("builtins", "__main__")
    name = kind.__qualname__ if builtin else f"{kind.__module__}.{kind.__qualname__}"
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
