"""The images after which a stage has paid for its set-up, and the best stage by number of images."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Doubt = Literal[
    "not resolved",  # the ratio: whether it is faster at all isn't known
    "baseline drifted",  # by so much that times taken at different moments mislead
]
ChangeOver = tuple[str, float]  # a stage, and from how many images on it is the best


@dataclass(frozen=True)
class Line:
    """The time of a stage for n images: set-up + n × seconds per image."""

    name: str
    setup_seconds: float
    image_seconds: float


def break_even(stage: Line, baseline: Line, alike: bool) -> float | None:
    """Return the images until the stage's set-up has paid for itself against the baseline's; 0 at once, None never.

    Source: the two lines meet there. A stage that is alike saves nothing.
    """
    extra = stage.setup_seconds - baseline.setup_seconds
    saved = 0.0 if alike else baseline.image_seconds - stage.image_seconds
    if saved <= 0:
        return None if extra > 0 or saved < 0 else 0.0
    return max(0.0, extra / saved)


def change_overs(lines: Sequence[Line], ties: frozenset[str], effect: float) -> list[ChangeOver]:
    """Return the stage that finishes first, set-up included, by number of images; the first entry starts at one image.

    There is no change-over among `ties`; for any other a stage must be faster by the share `effect`.
    """
    if not lines:
        return []
    now, at = min(lines, key=lambda line: line.setup_seconds + line.image_seconds), 1.0
    found = [(now.name, at)]
    while True:
        met: list[tuple[float, float, Line]] = []
        for line in lines:  # that are lower in the long run, by enough to tell
            if not {line.name, now.name} <= ties and line.image_seconds * (1 + effect) <= now.image_seconds:
                images = (line.setup_seconds - now.setup_seconds) / (now.image_seconds - line.image_seconds)
                met.append((max(at, images), line.image_seconds, line))
        if not met:
            return found
        at, _, now = min(met, key=lambda each: each[:2])
        found = [*(found if found[-1][1] < at else found[:-1]), (now.name, at)]
