"""Errors whose text is one line for the user, and the wording that such lines share."""


class InputError(Exception):
    """Something of the user's isn't what it should be; the text is one line that names it."""


class ImageError(InputError):
    """A file or folder of images."""


class TensorError(InputError):
    """A file of tensors, or of volumes."""


class CheckpointError(InputError):
    """A file of weights."""


class UnsavedError(Exception):
    """What was made is not where it was to be; one line."""


class ModelError(InputError):
    """The class of a net, or its arguments."""


class OneLineError(Exception):
    """An error of a user's, whose text is the one line to be read; a notebook shows that line alone, too."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows of it."""
        return [f"{type(self).__name__}: {self}"]


def plural(number: int, noun: str) -> str:
    """Such as 1 block, 2 blocks, 5,000 images."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def per_cent(share: float, digits: int = 0) -> str:
    """A share with so many digits after the point, such as 7 %."""
    return f"{100 * share:.{digits}f} %"
