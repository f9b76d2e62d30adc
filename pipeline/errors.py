"""Errors whose text is one line for the user, and the wording that such lines share."""

import os
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path


class OneLineError(Exception):
    """A fault of the user's request or files; its text is one line, and a program that meets it ends with 2."""

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows."""
        return [f"{type(self).__name__}: {self}"]


class InputError(OneLineError):
    """An input of the user that can't be used; the text is one line that names it."""


class ImageError(InputError):
    """A file or folder of images that can't be used."""


class TensorError(InputError):
    """A file of tensors that can't be used."""


class CheckpointError(InputError):
    """A weights file that can't be used."""


class ModelError(InputError):
    """A network's class or its arguments that can't be used."""


MOST_NAMED = 12  # names that a message offers


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a clause that offers the nearest name, or the first few."""
    names = list(known)
    small = {each.lower(): each for each in names}
    if close := get_close_matches(name.lower(), small, n=1, cutoff=0.55):
        return f"did you mean {small[close[0]]!r}?"
    return f"choose one of: {', '.join(names[:MOST_NAMED])}{', …' if len(names) > MOST_NAMED else ''}"


def few(names: Sequence[str], most: int) -> str:
    """Return the first names in a line, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


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
MOST_READ = 20_000  # characters of an error that are searched
# Errors of torch 2.12 that speak of its inside, and what they mean for a network; groups of the pattern fill the text.
INNER_WORDS = [
    (re.compile(pattern, re.DOTALL), meaning)
    for pattern, meaning in (
        (r"data-dependent expression|DataDependent|[Uu]nbacked ?[Ss]ym",
         "the network decides by values that it computes, as by an if or a size; a compiler can't follow it"),
        (r"Could not export Python function call '?(?P<what>\w+)|unordered_map::at",
         "TorchScript holds no Python function {what}, such as a torch.autograd.Function or torch.utils.checkpoint"),
        (r"Cannot insert a Tensor that requires grad as a constant", "the network calls weights that aren't its own"),
        (r'"(?P<what>\w+)" not implemented for \'(?P<type>\w+)\'',
         "torch has no kernel {what} for {type} on this device"),
        (r"\b(?P<what>\w+)\(\) input tensor must be either float or double", "torch has {what} in fp32 and fp64 alone"),
        (r"value cannot be converted to type (c10::)?(?P<type>\w+) without overflow",
         "a constant of the network is beyond the range of {type}"),
        (r"Error when translating node %?(?P<what>[\w.]+)|No ONNX function found for .*?(?P<op>aten[\w:.]+)",
         "ONNX has no form of {what}{op}"),
        (r"Detected that you are using FX to (?P<what>[\w.]+) a dynamo-optimized function",
         "a part of the network is compiled already"),
        (r"\.numpy\(\) is not supported for tensor subclasses",
         "the network computes with numpy; a compiler can't follow it"),
        (r"INTERNAL ASSERT FAILED", "torch fails by an assertion of its own, which is no fault of the network"),
    )
]  # fmt: skip


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, shortened; without a text, its type."""
    if meaning := plain_meaning(error):
        return meaning
    first, *others = _lines(error)
    if first == INTERPRETED and others:
        return shortened(next(filter(RAISED.match, reversed(others)), others[-1].removesuffix(":")))
    cause = error.__cause__
    if first.endswith(":") and cause is not None:
        return plain_meaning(cause) or shortened(f"{type_of(cause)}: {_lines(cause)[0]}")
    why = next((line.removeprefix(EXPLAINED) for line in others if line.startswith(EXPLAINED)), "")
    return shortened(f"{first}:{why}") if why else shortened(first)


def plain_meaning(error: BaseException) -> str:
    """Return what an error that speaks of torch's inside means for the network; empty for any other."""
    text = f"{type_of(error)}: {text_of(error)[:MOST_READ]}"
    for pattern, meaning in INNER_WORDS:
        if found := pattern.search(text):
            named = {"what": "", "type": "", "op": ""} | {name: part or "" for name, part in found.groupdict().items()}
            return " ".join(meaning.format(**named).split()).replace(" ,", ",")
    return ""


def _lines(error: BaseException) -> list[str]:
    return [line.strip() for line in text_of(error).splitlines() if line.strip()] or [type_of(error)]


def typed_line(error: BaseException) -> str:
    """Return an error's type and the first line of its text; the type once."""
    kind, line = type_of(error), first_line(error)
    if plain_meaning(error):
        return line
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


BEFORE_A_PATH = r"(?<![\w./-])"  # otherwise the path has begun before


def without_places(text: str, roots: Iterable[str] | None = None) -> str:
    """Return the text with the folders removed from its paths, such as `torch/jit/__init__.py`."""
    known = set[str]()
    for root in (*sys.path, "") if roots is None else roots:
        with suppress(OSError):  # a relative one, if the current folder was removed
            known.add(str(Path(root).absolute()))
    for root in sorted(known - {os.sep}, key=len, reverse=True):  # the deepest first, as they may be nested
        text = re.sub(f"{BEFORE_A_PATH}{re.escape(root + os.sep)}", "", text)
    return text
