"""When Inductor is also to time its own choices (max-autotune), and for how long.

It is where the project's kernels don't clearly beat its defaults.
"""

from collections.abc import Mapping
from typing import Literal

from pipeline.stages.common.inductor import Mode

Search = Literal["auto", "always", "never"]
INDUCTOR, SEARCHED = "Inductor", "Inductor that times its choices"
MODES: dict[str, Mode] = {INDUCTOR: "default", SEARCHED: "max-autotune-no-cudagraphs"}
# The search takes minutes and gains at most a tenth: compile_max takes 0.89 to 1.2 of the milliseconds that a captured
# graph takes by the defaults, on nine nets of docs/h200/nets.md (of different runs).
CLEARLY = 0.9
# Of a search that nobody asked for. On an H200 it took 84 to 167 s for most nets of docs/h200/nets.md, seven minutes
# for EfficientNet, more than four for diffusers' UNet2DConditionModel; a build may take ten with measure=quick.
MOST_SECONDS = 360.0


def worth_it(asked: Search, milliseconds: Mapping[str, float]) -> bool:
    """Whether to search, after the candidates were timed.

    Args:
        asked: "auto" searches where nothing takes less than 0.9 of what Inductor's default takes.
        milliseconds: of each candidate, by its name.
    """
    default = milliseconds.get(INDUCTOR)
    if default is None or asked != "auto":
        return asked == "always"
    return min(milliseconds.values()) >= CLEARLY * default


def most_seconds(name: str, asked: Search) -> float | None:
    """How long Inductor may compile the net as a candidate of this name; None is no limit."""
    return MOST_SECONDS if name == SEARCHED and asked == "auto" else None
