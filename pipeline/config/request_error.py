"""The error of a wrong request: one line, with the nearest valid choice."""

from pipeline.errors import OneLineError

LONGEST_SHOWN = 120  # characters of a value in a line


class RequestError(OneLineError):
    """A wrong request; the text is the one line that the user reads. Exit code 2."""


def shown(value: object) -> str:
    """Return a value as the user types it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = str(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}… ({len(text)} characters)"
