"""Turn any error into a kind of failure and one line, with the place in the network's code and the memory."""

import errno
import os
import re
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import get_args

import torch
import yaml
from torch import nn

from pipeline.devices.host import host_peak_bytes, memory_bytes
from pipeline.errors import MOST_CHARACTERS, first_line, plain_meaning, shortened, text_of, type_of, typed_line
from pipeline.records.request import Job
from pipeline.records.run_record import FailureKind
from pipeline.records.samples import MemoryShortage
from pipeline.stages.api import Skip, StageError

ALLOCATION_FAILED: list[str] = yaml.safe_load(Path(__file__).with_name("allocation_failures.yaml").read_text("utf-8"))
WARNINGS = "PYTHONWARNINGS"  # which makes errors of warnings
KINDS = get_args(FailureKind)
UNKNOWN: FailureKind = "error"
TELLING: tuple[FailureKind, ...] = ("out of memory", "missing library")  # causes that count
OTHERS_CODE = (  # folders without a user's network
    str(Path(torch.__file__).parent),
    str(Path(__file__).parents[1]),
    sysconfig.get_path("stdlib"),
    "code/__torch__/",  # as TorchScript calls the code that it writes
)
# The form in which torch.compile and torch.export quote lines of a traced network in an error (torch 2.12).
QUOTED = re.compile(r'^\s*File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<function>[\w<>]+)$', re.MULTILINE)
UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
ASKED_FOR = re.compile(r"(?:tried|unable) to allocate (\d+(?:\.\d+)?) (bytes|KiB|MiB|GiB|TiB)", re.IGNORECASE)


def failure_of(error: BaseException) -> tuple[FailureKind, str]:
    """Return the kind of failure, and its reason in one line with the place in the network's code."""
    if isinstance(error, StageError | Skip):
        own = error.kind if error.kind in KINDS else UNKNOWN
        telling = TELLING if own == UNKNOWN else TELLING[:1]
        kind = next((its_kind for part in _causes(error) if (its_kind := _kind(part)) in telling), own)
        return kind, _placed(f"{_made_an_error(error)}{first_line(error)}", error)
    kind = next((its_kind for part in _causes(error) if (its_kind := _kind(part))), "error")
    if kind == "out of memory":
        return kind, f"out of memory: {first_line(error)}"
    return kind, _placed(f"{_made_an_error(error)}{typed_line(error)}", error)


def _made_an_error(error: BaseException) -> str:
    """Return a prefix that names PYTHONWARNINGS if the error came from a warning; else empty."""
    asked, warned = os.environ.get(WARNINGS), any(isinstance(part, Warning) for part in _causes(error))
    return f"{WARNINGS}={asked} makes errors of warnings: " if asked and warned else ""


def _placed(reason: str, error: BaseException) -> str:
    """Return the reason with the place in the network's code, in one line."""
    place = place_of(_causes(error))
    return f"{shortened(reason, MOST_CHARACTERS - len(place))}{place}"


def _kind(error: BaseException) -> FailureKind | None:
    """Return the kind of one error, without its causes; None for no special kind."""
    if isinstance(error, StageError | Skip):
        return error.kind if error.kind in KINDS else UNKNOWN
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return "out of memory"
    if isinstance(error, ImportError):
        return "missing library"
    if isinstance(error, NotImplementedError) or plain_meaning(error):
        return "unsupported"
    if isinstance(error, OSError):
        return "out of memory" if error.errno == errno.ENOMEM else None
    return (
        "out of memory"
        if isinstance(error, RuntimeError) and any(part in text_of(error) for part in ALLOCATION_FAILED)
        else None
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes; Inductor keeps the cause of a failed compilation as `inner_exception`."""
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        inner = vars(following).get("inner_exception")
        following = inner if isinstance(inner, BaseException) else following.__cause__


def place_of(errors: Iterable[BaseException]) -> str:
    """Return a place such as " (in Block.forward, nets.py:83)": the last line of the network's code in the errors."""
    place = ""
    for error in errors:
        lines = [part for part in QUOTED.finditer(text_of(error)) if _is_a_nets(part["file"])]  # that torch quotes
        if lines:
            place = " (in {}, {}:{})".format(lines[-1]["function"], Path(lines[-1]["file"]).name, lines[-1]["line"])
        else:
            place = _passed(error) or place
    return place


def _passed(error: BaseException) -> str:
    """Return the place of the innermost method call, in the traceback, of a module that isn't torch's."""
    place, step = "", error.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        owner = step.tb_frame.f_locals.get("".join(code.co_varnames[:1]))  # self, whatever it is called
        if isinstance(owner, nn.Module) and _is_a_nets(code.co_filename):
            name = f"{type(owner).__name__}.{code.co_name}"
            place = f" (in {name}, {Path(code.co_filename).name}:{step.tb_lineno})"
        step = step.tb_next
    return place


def _is_a_nets(file: str) -> bool:
    """Return whether a file holds a network's code: not torch's, Python's or this program's."""
    if "site-packages" in file:
        return not file.startswith(OTHERS_CODE[0])
    return file.endswith(".py") and not file.startswith(OTHERS_CODE)


STARTED = {"host_bytes": 0}  # resident before the network and its images


def told(error: BaseException, job: Job) -> tuple[FailureKind, str, MemoryShortage | None]:
    """Return kind and one-line reason of a failure, and the memory figures where it ran out."""
    try:
        kind, reason = failure_of(error)
    except BaseException:  # noqa: BLE001 - a stage's own error may raise when it is read
        return "error", type_of(error), None
    if kind != "out of memory":
        return kind, reason, None
    asked = ASKED_FOR.search(text_of(error))
    requested = int(float(asked[1]) * UNITS[asked[2]]) if asked and asked[2] in UNITS else None
    batch, fixed, available = job.data.batch_size, 0, None
    if job.device == "cuda":
        peak = torch.cuda.max_memory_allocated()
        with suppress(RuntimeError):  # the device no longer answers
            available = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()
    else:
        peak, available, fixed = host_peak_bytes(), memory_bytes(), STARTED["host_bytes"]
    largest = largest_batch(batch, fixed, peak + (requested or 0), available)
    memory = MemoryShortage(peak, requested, available, batch, largest)
    return kind, f"{reason}; {sentence(memory)}", memory


def largest_batch(batch: int, fixed: int, needed: int, available: int | None) -> int | None:
    """Return the largest batch, below the one that did not fit, for which fixed + each · images ≤ available bytes."""
    if available is None or needed <= fixed:
        return None
    return max(0, min(batch - 1, int((available - fixed) * batch / (needed - fixed))))


def sentence(found: MemoryShortage) -> str:
    """Return the figures in a clause."""
    of = f" of {_size(found.available_bytes)} that it could have" if found.available_bytes is not None else ""
    said = f"its peak was {_size(found.peak_bytes)}{of} at batch {found.batch_size}"
    if found.largest_batch is None:
        return said
    if found.largest_batch == 0:
        return f"{said}; by that estimate not even a batch of 1 fits"
    return f"{said}; at most batch {found.largest_batch} would fit, estimated from the peak"


def _size(count: int) -> str:
    return f"{count / 2**30:.3g} GiB"
