"""What is wrong with a net, its weights or its images: one line each."""


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
