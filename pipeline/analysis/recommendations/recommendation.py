"""A recommendation: what to try, the figures that speak for it, and the command that tries it."""

from dataclasses import dataclass, field
from typing import Literal

from pipeline.records.diagnostics import LayerWork
from pipeline.stats.outcomes import Unresolved

Code = Literal[
    "measure longer",
    "quiet the machine",
    "take the quicker build",
    "capture a graph",
    "compile for all shapes",
    "mend graph breaks",
    "larger batch",
    "halve the bytes",
    "fuse",
    "fp8",
    "larger budget",
    "smaller budget",
    "keep one layout",
    "first layer",
    "tune longer",
    "shrink the copies",
    "shrink the answers",  # of volumes, whose values are seldom bytes
    "even channels",  # of some layers
    "even base",  # of a net whose layers' channels are not on record
]
Figure = float | str | list[str] | list[LayerWork] | Unresolved | None


@dataclass(frozen=True)
class Recommendation:
    """One thing to try.

    Attributes:
        code: what.
        figures: that speak for it, by name; None for one that isn't known.
        command: to type, or a line of code; empty where the net itself must change.
    """

    code: Code
    figures: dict[str, Figure] = field(default_factory=dict)
    command: str = ""
