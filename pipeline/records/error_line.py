"""An error as a record tells it: in one line."""

MOST_CHARACTERS = 300  # of the line


def first_line(error: BaseException) -> str:
    """The first line of an error's text that isn't empty, cut where it is long; of an error without a text its type."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - an error's own text may fail, and what was lost then isn't the error
        text = ""
    return shortened(next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__))


def typed_line(error: BaseException) -> str:
    """An error's type and the first line of its text, where it has one."""
    kind, line = type(error).__name__, first_line(error)
    return kind if line == kind else f"{kind}: {line}"


def shortened(line: str) -> str:
    """The line, cut to `MOST_CHARACTERS`."""
    return line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 1]}…"
