"""What a stage owes: a Runner as declared, plain tensors of logits, and network, inputs and process left unchanged."""

import inspect
import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pipeline.errors import first_line, shortened
from pipeline.measure.rotation import Rotation, fingerprint, held_by, is_same
from pipeline.records.codec import from_json, to_json
from pipeline.records.diagnostics import SearchAsked, SearchCount
from pipeline.records.run_record import CompileFacts, Execution, FailureKind
from pipeline.records.samples import Calibration
from pipeline.stages.api import Runner, StageError, Workload

ANSWER_MOVED = 1e-2  # relative L2 between two answers to one picture; a deterministic stage gives 0
DEEPEST = 20  # levels of `details`, beyond which nobody reads them
LARGEST = 1_000_000  # characters of `details` as JSON
INTEGERS = 2**63  # from here on JSON readers lose digits
Check = tuple[Callable[[object], bool], str]


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
            return Finding("broken contract", f"changed its input: batch {changed[0]} holds other values than before")
        for name, part in held_by(self._model).items():
            if name not in self._weights or not is_same(self._weights[name], part):
                return Finding("broken contract", f"changed the network that it was given: {name} has changed")
        for name, (before, after) in changes(self._state, process_state()).items():
            return Finding(
                "broken contract", f"changed the process for all that follows: {name} was {before}, is {after}"
            )
        return RIGHT


def exact(answer: Tensor) -> Tensor:
    """Return a copy of logits of any shape, on the CPU, in fp32 so that fp16 sums don't overflow."""
    return torch.Tensor.float(answer).cpu().clone()


def _or_none(kind: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or kind(value)


def _batches(value: object) -> bool:
    return isinstance(value, tuple) and all(type(part) is int for part in value)


def _tuple_of(kind: type) -> Callable[[object], bool]:
    return lambda value: isinstance(value, tuple) and all(isinstance(part, kind) for part in value)


FIELDS: dict[str, Check] = {
    "run": (callable, "a function of a batch"),
    "description": (lambda value: isinstance(value, str), "text"),
    "execution": (_or_none(lambda value: isinstance(value, Execution)), "an Execution or None"),
    "details": (lambda value: isinstance(value, dict), "a dict"),
    "calibration": (_or_none(lambda value: isinstance(value, Calibration)), "a Calibration or None"),
    "left_out": (_batches, "a tuple of whole numbers"),
    "compile_facts": (_or_none(callable), "a function or None"),
    "searches_asked": (_tuple_of(SearchAsked), "a tuple of SearchAsked"),
    "searched": (_tuple_of(SearchCount), "a tuple of SearchCount"),
    "compilations": (callable, "a function"),
    "save": (_or_none(callable), "a function or None"),
    "module": (_or_none(lambda value: isinstance(value, nn.Module)), "an nn.Module or None"),
    "uncaptured": (_or_none(callable), "a function or None"),
    "traffic": (_or_none(callable), "a function or None"),
    "steps_aside": (lambda value: isinstance(value, bool), "True or False"),
    "onnx_model": (_or_none(lambda value: isinstance(value, Path)), "a Path or None"),
    "generated_code": (_or_none(lambda value: isinstance(value, Path)), "a Path or None"),
}


def broken(reason: str) -> StageError:
    """Return the error for a stage that breaks its contract."""
    return StageError(reason, "broken contract")


def checked_runner(built: object, target: str) -> tuple[Runner, list[str]]:
    """Return the checked Runner with details that a record can hold, and the paths of NaN and infinities in them.

    Raises:
        StageError: it is no Runner, or has a wrong field; the text names the field.
    """
    if not isinstance(built, Runner):
        raise broken(f"build of {target} returned {_named(built)}; a pipeline.stages.api.Runner is wanted")
    for name, (is_right, wanted) in FIELDS.items():
        value = getattr(built, name)
        if not is_right(value):
            raise broken(f"Runner.{name} is {_named(value)}; {wanted} is wanted")
    records: list[tuple[str, type, Sequence[object]]] = [
        ("execution", Execution, (built.execution,)),
        ("calibration", Calibration, (built.calibration,)),
        ("searches_asked", SearchAsked, built.searches_asked),
        ("searched", SearchCount, built.searched),
    ]
    for name, kind, value in [(name, kind, value) for name, kind, values in records for value in values]:
        try:
            if value is not None:
                from_json(kind, to_json(value))
        except (TypeError, ValueError) as error:
            raise broken(f"Runner.{name}: {first_line(error)}") from error
    if type(compiled := built.compilations()) is not int:
        raise broken(f"Runner.compilations gave {_named(compiled)}; a whole number is wanted")
    lost: list[str] = []
    details = _json_value(built.details, "details", lost)
    if (size := len(json.dumps(details))) > LARGEST:
        raise broken(f"Runner.details take {size:,} characters as JSON; {LARGEST:,} are kept")
    return replace(built, details=details, description=shortened(_encodable(built.description))), lost


def check_left_out(runner: Runner, work: Workload) -> None:
    """Raise if a stage leaves out batches that it wasn't given to calibrate on.

    Raises:
        StageError: it does; verified batches are never given to calibrate on.
    """
    given = range(work.verified, math.ceil(work.judged / work.shape[0]))
    if wrong := [number for number in runner.left_out if number not in given or runner.calibration is None]:
        raise broken(f"Runner.left_out names batch {wrong[0]}, which it was not given to calibrate on")


def check_inputs(runner: Runner, names: Sequence[str]) -> None:
    """Raise if a stage can't be called with the network's number of inputs.

    Raises:
        StageError: it takes fewer.
    """
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


def checked_compile_facts(facts: object) -> CompileFacts:
    """Return the checked result of `Runner.compile_facts`.

    Raises:
        StageError: it is of another type.
    """
    if not isinstance(facts, CompileFacts):
        raise broken(f"Runner.compile_facts gave {_named(facts)}; CompileFacts are wanted")
    return facts


def checked_paths(saved: object, run_folder: Path) -> list[Path]:
    """Return the checked result of `Runner.save`: regular files within the run's folder, links resolved.

    Raises:
        StageError: it is something else.
    """
    if not isinstance(saved, list | tuple) or not all(isinstance(path, Path) for path in saved):
        raise broken(f"Runner.save gave {_named(saved)}; a list of paths is wanted")
    inside = os.path.realpath(run_folder)
    for path in saved:
        if not path.is_relative_to(run_folder) or not Path(os.path.realpath(path)).is_relative_to(inside):
            raise broken(f"Runner.save gave {path}, which lies outside of the run's folder")
        if not os.path.isfile(path):  # noqa: PTH113 - pathlib's raises for a loop of links
            raise broken(f"Runner.save gave {path.relative_to(run_folder)}, which is no file")
    return [*saved]


def _encodable(text: str) -> str:
    """Return the text with what can't be encoded as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _json_value(value: object, path: str, lost: list[str]) -> Any:
    """Return plain JSON values; NaN and infinities become None, and their paths go into `lost`."""
    if path.count("/") > DEEPEST:
        raise broken(f"Runner.details are nested more than {DEEPEST} deep")
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise broken(f"Runner.{path} has the key {str(key)[:40]!r}, which is {_named(key)}; text is wanted")
        return {_encodable(key): _json_value(part, f"{path}/{key}", lost) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(part, f"{path}/{index}", lost) for index, part in enumerate(value)]
    if isinstance(value, str):
        return _encodable(value)
    return value if value is None or isinstance(value, bool) else _json_number(value, path, lost)


def _json_number(value: object, path: str, lost: list[str]) -> int | float | None:
    """Return a number as `_json_value` gives it."""
    if isinstance(value, int):
        if abs(value) >= INTEGERS:
            raise broken(f"Runner.{path} is an integer of {value.bit_length()} bits; a record holds 63")
        return int(value)
    if not isinstance(value, float):
        raise broken(f"Runner.{path} is {_named(value)}; JSON values are wanted")
    if not math.isfinite(value):
        lost.append(path)
        return None
    return float(value)


def answer_fault(answer: object, batch: Iterable[Tensor]) -> str:
    """Return why an answer isn't a plain tensor of logits; empty where it is.

    A view of one buffer that every call writes over is allowed, as CUDA graphs give: an answer need only last until the
    next call. An answer in its input's memory is not, nor a type that could compute later.

    Args:
        answer: what a call returned.
        batch: its inputs, each [batch, ...].
    """
    inputs = [*batch]
    if type(answer) is not Tensor:
        return f"a call returned {_named(answer)}; a torch.Tensor of logits is wanted"
    if answer.device != inputs[0].device:
        return f"its logits are on {answer.device}, its input was on {inputs[0].device}"
    if answer.layout is not torch.strided:
        return f"its logits are laid out as {answer.layout}; torch.strided is wanted"
    if not answer.dtype.is_floating_point:
        return f"its logits are {answer.dtype}; a floating type is wanted"
    if share_memory(answer, inputs):
        return "its logits lie in the memory of its input"
    return ""


def share_memory(answer: Tensor, others: Iterable[Tensor]) -> bool:
    """Return whether a tensor of any shape shares memory with one of the others."""
    if answer.layout is not torch.strided or answer.is_nested or not answer.numel():
        return False
    return answer.untyped_storage().data_ptr() in {part.untyped_storage().data_ptr() for part in others}


def _named(value: object) -> str:
    """Return a value's type with its article; a class by its own name."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__qualname__}"
    kind = type(value)
    name = (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
