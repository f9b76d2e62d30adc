"""Which variable of the environment an error is about: libraries tell of its value and not of its name."""

import os
import re
from collections.abc import Mapping

from pipeline.devices.variables import READ

LEAST_LETTERS = 2  # of a value: a 0 or 1 stands in many an error


def named_variables(said: str, environment: Mapping[str, str] = os.environ) -> str:
    """A clause with the variables whose values an error quotes, such as "; TORCH_LOGS=junk is set"; empty without any.

    Args:
        said: the error, in a line.
        environment: variables and their values.
    """
    found = [
        f"{name}={value}"
        for name, value in sorted(environment.items())
        if READ.match(name) and len(value) >= LEAST_LETTERS and name not in said and quotes(said, value)
    ]
    return f"; {', '.join(found)} {'is' if len(found) == 1 else 'are'} set" if found else ""


def quotes(said: str, value: str) -> bool:
    """Whether a value stands in a text as it is, and not as a part of another word or path."""
    return re.search(rf"(?<![\w/.-]){re.escape(value)}(?![\w/-])", said) is not None
