"""Where in the code of a net an error arose: torch's own line is the same for all nets, and names no layer."""

import re
import sysconfig
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import nn

OTHERS_CODE = (  # which nobody's net is in
    str(Path(torch.__file__).parent),
    str(Path(__file__).parents[1]),
    sysconfig.get_path("stdlib"),
    "code/__torch__/",  # as TorchScript calls the code that it writes
)
# How torch.compile and torch.export quote in an error's text the lines of a net that they trace (torch 2.12).
QUOTED = re.compile(r'^\s*File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<function>[\w<>]+)$', re.MULTILINE)


def place_of(errors: Iterable[BaseException], texts: Iterable[str]) -> str:
    """Such as " (in Block.forward, nets.py:83)": the last line of a net's code that the errors passed.

    Args:
        errors: an error and its causes, in that order; the last of them that tells, counts.
        texts: what they say.

    Returns:
        It is empty where no error passed a net that isn't torch's own.
    """
    found = ""
    for error, text in zip(errors, texts, strict=True):
        found = _quoted(text) or _passed(error) or found
    return found


def _passed(error: BaseException) -> str:
    """By the error's traceback: the innermost call of a module's method whose class isn't torch's."""
    found, step = "", error.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        owner = step.tb_frame.f_locals.get("".join(code.co_varnames[:1]))  # self, whatever it is called
        if isinstance(owner, nn.Module) and _is_a_nets(code.co_filename):
            found = _said(f"{type(owner).__name__}.{code.co_name}", code.co_filename, step.tb_lineno)
        step = step.tb_next
    return found


def _quoted(text: str) -> str:
    """By the lines that torch quotes in the error's text."""
    lines = [part for part in QUOTED.finditer(text) if _is_a_nets(part["file"])]
    return _said(lines[-1]["function"], lines[-1]["file"], int(lines[-1]["line"])) if lines else ""


def _is_a_nets(file: str) -> bool:
    """Whether a file of Python's holds code of a net: it is neither torch's, nor Python's, nor of this program's rooms.

    Packages lie below Python's own library, too.
    """
    if "site-packages" in file:
        return not file.startswith(OTHERS_CODE[0])
    return file.endswith(".py") and not file.startswith(OTHERS_CODE)


def _said(function: str, file: str, line: int) -> str:
    return f" (in {function}, {Path(file).name}:{line})"
