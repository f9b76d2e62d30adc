"""What is said to a user whose request can't be carried out: one line, with the nearest valid choice."""

from collections.abc import Iterable
from difflib import get_close_matches

from pipeline.errors import OneLineError


class RequestError(OneLineError):
    """The request was wrong; the text is the one line that the user reads. Exit code 2."""


def nearest(word: str, choices: Iterable[str]) -> str:
    """A clause that names the choice most like `word`, or all of them where none is like it."""
    names = [str(choice) for choice in choices]
    close = get_close_matches(str(word), names, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"choose one of: {', '.join(names)}"
