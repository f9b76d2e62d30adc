"""Which variable of the environment an error is about: libraries tell of its value and not of its name."""

import os
import re
from collections.abc import Mapping

from pipeline.devices.host import READ

TELLING = re.compile(r"(?=.*[^\d.]).{2,}", re.DOTALL)  # a value that doesn't stand in many an error, as a number does


def named_variables(said: str, environment: Mapping[str, str] = os.environ) -> str:
    """A clause with the variables whose values an error quotes, such as "; TORCH_LOGS=junk is set"; empty without any.

    Args:
        said: the error, in a line.
        environment: variables and their values.
    """
    found = [
        f"{name}={value}"
        for name, value in sorted(environment.items())
        if READ.match(name) and TELLING.fullmatch(value) and name not in said and quotes(said, value)
    ]
    return f"; {', '.join(found)} {'is' if len(found) == 1 else 'are'} set" if found else ""


def quotes(said: str, value: str) -> bool:
    """Whether a value stands in a text as it is, and not as a part of another word or path."""
    return re.search(rf"(?<![\w/.-]){re.escape(value)}(?![\w/-])", said) is not None
