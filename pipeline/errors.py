"""Errors whose text is one line for the user, and the wording that such lines share."""

import re


class InputError(Exception):
    """An input of the user that can't be used; the text is one line that names it."""


class ImageError(InputError):
    """A file or folder of images that can't be used."""


class TensorError(InputError):
    """A file of tensors that can't be used."""


class CheckpointError(InputError):
    """A weights file that can't be used."""


class ModelError(InputError):
    """A network's class or its arguments that can't be used."""


class OneLineError(Exception):
    """An error whose text is one line for the user; a notebook shows this line alone."""

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows."""
        return [f"{type(self).__name__}: {self}"]


def plural(number: int, noun: str) -> str:
    """Return a count with its noun, such as 1 block, 2 blocks, 5,000 images."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def per_cent(share: float, digits: int = 0) -> str:
    """Return a share as text, such as 7 %, with `digits` after the point."""
    return f"{100 * share:.{digits}f} %"


COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # terminal codes in torch.onnx's errors (torch 2.12)
EXPLAINED = "Explanation:"  # of torch.compile: what tells its errors apart (torch 2.12)
INTERPRETED = "The following operation failed in the TorchScript interpreter."  # the error comes last (torch 2.12)
RAISED = re.compile(r"\w*(Error|Exception): ")
MOST_CHARACTERS = 300  # of the line


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, shortened; without a text, its type.

    A line that only introduces others is replaced by the error's cause or its last line, or continued by its
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
    return [line.strip() for line in text_of(error).splitlines() if line.strip()] or [type_of(error)]


def typed_line(error: BaseException) -> str:
    """Return an error's type and the first line of its text; the type once."""
    kind, line = type_of(error), first_line(error)
    return line if line == kind or line.startswith(f"{kind}: ") else shortened(f"{kind}: {line}")


def text_of(error: BaseException) -> str:
    """Return an error's text; empty if `__str__` fails."""
    try:
        return COLOUR.sub("", str(error))
    except BaseException:  # noqa: BLE001 - whatever it raises, what was lost isn't the error
        return ""


def type_of(error: BaseException) -> str:
    """Return the name of an error's type, in one line."""
    return shortened(" ".join(type(error).__name__.split()))


def shortened(line: str, most: int = MOST_CHARACTERS) -> str:
    """Return the line, cut to `most` characters."""
    return line if len(line) <= most else f"{line[: most - 1]}…"
