"""What every stage has in common: a module with `build(workload, *, options) -> Runner`.

Whatever is copied, cast, exported, compiled or tuned is so before `build` returns. The workload's model is never
changed: a stage that needs another works on a deep copy.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn


class Skip(Exception):  # noqa: N818 - it is no error: it says that a stage has no form on this machine
    """Raised by `build` when the stage can't run on this machine; its text is the one-line reason."""


class StageError(Exception):
    """Raised by `build` when what was asked for isn't what would run; its text is the one-line reason."""


def never_compiles() -> int:
    """The count of compilations of a stage that has no compiler."""
    return 0


def unseen(_: Any) -> tuple[int, str]:
    """The `traffic` of a runtime whose work torch's dispatcher doesn't see: nobody knows."""
    return 0, ""


@dataclass(frozen=True)
class Runner:
    """A stage, built and ready.

    Attributes:
        run: takes a batch [batch, channels, height, width], fp32, contiguous, on the workload's device, and returns
            the logits [batch, classes, height, width] in any floating dtype on the same device. The returned tensor
            may be overwritten by the next call. Work is queued on the current stream.
        description: what really runs, in a line: precision, layout, execution provider.
        details: what the record should keep besides (graph breaks, providers of the nodes): JSON values only.
        compilations: how often something was compiled so far; a sample in which it grows is measured again.
        save: writes the artefacts into the folder and returns their paths; None where there is nothing to keep.
        module: the net whose submodules run one by one within `run`, or within `uncaptured`; None where nobody knows
            them.
        uncaptured: launches singly the kernels that `run` replays all at once; None where `run` itself launches them.
        traffic: bytes that a call moves through device memory, and how they were counted; None leaves the counting to
            torch's dispatcher, which sees the operators of `uncaptured`, or of `run`.
    """

    run: Callable[[Tensor], Tensor]
    description: str
    details: dict[str, Any] = field(default_factory=dict)
    compilations: Callable[[], int] = never_compiles
    save: Callable[[Path], list[Path]] | None = None
    module: nn.Module | None = None
    uncaptured: Callable[[Tensor], Tensor] | None = None
    traffic: Callable[[Tensor], tuple[int, str]] | None = None
