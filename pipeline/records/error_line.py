"""An error as a record tells it: in one line."""


def first_line(error: BaseException) -> str:
    """The first line of an error's text that isn't empty; of an error without a text its type."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def typed_line(error: BaseException) -> str:
    """An error's type and the first line of its text, where it has one."""
    kind, line = type(error).__name__, first_line(error)
    return kind if line == kind else f"{kind}: {line}"
