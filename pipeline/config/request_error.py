"""The error of a wrong request: one line, with the nearest valid choice."""

from collections.abc import Iterable
from difflib import get_close_matches

from pipeline.errors import OneLineError

LONGEST_SHOWN = 120  # characters of a value in a line


class RequestError(OneLineError):
    """A wrong request; the text is the one line that the user reads. Exit code 2."""


def nearest(word: str, choices: Iterable[str]) -> str:
    """Return a clause that names the choice most like `word`, or all choices if none is like it."""
    names = [str(choice) for choice in choices]
    close = get_close_matches(str(word), names, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"choose one of: {', '.join(names)}"


def shown(value: object) -> str:
    """Return a value as the user types it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = str(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}… ({len(text)} characters)"
