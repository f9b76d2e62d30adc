"""Errors whose text is one line for the user, and the wording that such lines share."""


class InputError(Exception):
    """An input of the user that can't be used; the text is one line that names it."""


class ImageError(InputError):
    """A file or folder of images that can't be used."""


class TensorError(InputError):
    """A file of tensors that can't be used."""


class CheckpointError(InputError):
    """A weights file that can't be used."""


class UnsavedError(Exception):
    """A result that couldn't be saved where the user wanted it; one line."""


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
