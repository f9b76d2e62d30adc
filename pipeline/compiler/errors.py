"""Errors of the library, and any error as one line."""

import re

MOST_CHARACTERS = 300  # of the line
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
EXPLAINED = "Explanation:"  # with which torch.compile begins what tells one error from another (torch 2.12)


class CompileError(RuntimeError):
    """A network that can't be compiled or called as asked; the text is one line."""


class UnsupportedError(CompileError):
    """A network that torch can't export, or that can't be rewritten; the text is one line."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, with what it only introduces; without a text its type."""
    first, *others = _lines(error)
    cause = error.__cause__
    if first.endswith(":") and cause is not None:
        return shortened(f"{type(cause).__name__}: {_lines(cause)[0]}")
    why = next((line.removeprefix(EXPLAINED) for line in others if line.startswith(EXPLAINED)), "")
    return shortened(f"{first}:{why}") if why else shortened(first)


def typed_line(error: BaseException) -> str:
    """Return an error's type and the first line of its text, in at most `MOST_CHARACTERS`."""
    kind, line = type(error).__name__, first_line(error)
    return line if line == kind or line.startswith(f"{kind}: ") else shortened(f"{kind}: {line}")


def shortened(line: str, most: int = MOST_CHARACTERS) -> str:
    """Return the line, cut to `most` characters."""
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _lines(error: BaseException) -> list[str]:
    lines = [line.strip() for line in COLOUR.sub("", str(error)).splitlines()]
    return [line for line in lines if line] or [type(error).__name__]
