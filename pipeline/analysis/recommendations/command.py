"""A piece of advice, and the command that tries it."""

import shlex
from dataclasses import dataclass

from pipeline.report import formatting as words

OWN_FOLDERS = ("hydra.run.dir", "hydra.sweep.dir")


@dataclass(frozen=True)
class Advice:
    """One thing to try: what, the figures that speak for it, and the command or the line of code."""

    text: str
    evidence: str
    attempt: str


def retyped(command: str, *overrides: str) -> str:
    """The user's command with these overrides in place of those of the same key.

    That run's folder is left out: it is taken. A new stage takes the old stage's knobs with it; a sweep's other lists
    stay lists.
    """
    try:
        typed = shlex.split(command)
    except ValueError:
        typed = []
    keys = [override.split("=", 1)[0] for override in overrides]
    kept = [word for word in typed[3:] if "=" in word and not _replaced(word.split("=", 1)[0], keys)]
    sweep = ["-m"] if any("," in word for word in kept) and {"-m", "--multirun"} & set(typed) else []
    return words.clean(shlex.join(["python", "-m", "pipeline", *sweep, *kept, *overrides]))


def _replaced(key: str, keys: list[str]) -> bool:
    return key in keys or key in OWN_FOLDERS or ("stage" in keys and key.startswith("stage."))
