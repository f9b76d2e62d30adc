"""An error as a record tells it: in one line."""

import re

COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # of a terminal, which torch.onnx puts into its errors (torch 2.12)
EXPLAINED = "Explanation:"  # with which torch.compile begins what tells one error from another (torch 2.12)
INTERPRETED = "The following operation failed in the TorchScript interpreter."  # whose error comes last (torch 2.12)
RAISED = re.compile(r"\w*(Error|Exception): ")
MOST_CHARACTERS = 300  # of the line


def first_line(error: BaseException) -> str:
    """The first line of an error's text that isn't empty, cut where it is long; of an error without a text its type.

    A line that only introduces others gives way to the error's cause or to what comes of them, or is continued by its
    explanation.
    """
    first, *others = _lines(error)
    if first == INTERPRETED and others:
        return shortened(next((line for line in reversed(others) if RAISED.match(line)), others[-1]))
    cause = error.__cause__
    if first.endswith(":") and cause is not None:
        return shortened(f"{type_of(cause)}: {_lines(cause)[0]}")
    why = next((line.removeprefix(EXPLAINED) for line in others if line.startswith(EXPLAINED)), "")
    return shortened(f"{first}:{why}") if why else shortened(first)


def _lines(error: BaseException) -> list[str]:
    """The lines of an error's text that aren't empty; of an error without a text its type."""
    return [line.strip() for line in text_of(error).splitlines() if line.strip()] or [type_of(error)]


def typed_line(error: BaseException) -> str:
    """An error's type and the first line of its text, where it has one that doesn't begin with the type itself."""
    kind, line = type_of(error), first_line(error)
    return line if line == kind or line.startswith(f"{kind}: ") else shortened(f"{kind}: {line}")


def text_of(error: BaseException) -> str:
    """An error's text; empty where that itself fails."""
    try:
        return COLOUR.sub("", str(error))
    except BaseException:  # noqa: BLE001 - whatever it raises, what was lost isn't the error
        return ""


def type_of(error: BaseException) -> str:
    """The name of an error's type, in one line."""
    return shortened(" ".join(type(error).__name__.split()))


def shortened(line: str, most: int = MOST_CHARACTERS) -> str:
    """The line, cut to so many characters."""
    return line if len(line) <= most else f"{line[: most - 1]}…"
