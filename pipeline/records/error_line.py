"""An error as a record tells it: in one line."""

MOST_CHARACTERS = 300  # of the line


def first_line(error: BaseException) -> str:
    """The first line of an error's text that isn't empty, cut where it is long; of an error without a text its type."""
    lines = (line.strip() for line in text_of(error).splitlines())
    return shortened(next(filter(None, lines), type_of(error)))


def typed_line(error: BaseException) -> str:
    """An error's type and the first line of its text, where it has one."""
    kind, line = type_of(error), first_line(error)
    return kind if line == kind else shortened(f"{kind}: {line}")


def text_of(error: BaseException) -> str:
    """An error's text; empty where that itself fails."""
    try:
        return str(error)
    except BaseException:  # noqa: BLE001 - whatever it raises, what was lost isn't the error
        return ""


def type_of(error: BaseException) -> str:
    """The name of an error's type, in one line."""
    return shortened(" ".join(type(error).__name__.split()))


def shortened(line: str) -> str:
    """The line, cut to `MOST_CHARACTERS`."""
    return line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 1]}…"
