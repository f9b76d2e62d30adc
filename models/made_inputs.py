"""Write a file of random inputs by their names, shapes, types and ranges, for a network without inputs at hand.

    python -m models.made_inputs sample=4x64x64 timestep=int64:0..999 mask=1x64x64:bool --out inputs.safetensors

The file is for `data=tensors` (docs/inputs.md). A word is NAME=SHAPE:TYPE:RANGE, and each part may be left out.
Defaults: a sample is one number, its type is float32, and floats are normal with mean 0 and deviation 1. With a
range, values are uniform; whole numbers need one, and both ends are included.
"""

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipeline.command_line import Parser, guarded, seed_of, show
from pipeline.errors import TensorError

if TYPE_CHECKING:
    from torch import Generator, Tensor

FARTHEST = 2**53  # largest distance from 0 at which a double holds every whole number
FLOATING = ("float64", "float32", "float16", "bfloat16")
WHOLE = ("int64", "int32", "int16", "int8", "uint8")
BOOL = "bool"
TYPES = (*FLOATING, *WHOLE, BOOL)
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?"
SHAPE, RANGE = re.compile(r"\d+(?:x\d+)*"), re.compile(rf"({NUMBER})\.\.({NUMBER})", re.IGNORECASE)
MOST_AXES = 4  # of a sample: channels, depth, height, width
MOST_BYTES = 2**32  # of all: a few samples are enough, as a run repeats them
FORM = "NAME=SHAPE:TYPE:RANGE, such as sample=4x64x64, timestep=int64:0..999 or mask=1x64x64:bool"


@dataclass(frozen=True)
class MadeInput:
    """The description of one input."""

    name: str  # of the forward's argument
    shape: tuple[int, ...] = ()  # of a sample; () is one number
    dtype: str = "float32"  # in the file, by torch's name
    low: float | None = None  # the range; None for normal values and for bool
    high: float | None = None


def input_of(word: str) -> MadeInput:
    """Parse a word of the command line; raise TensorError if it has another form."""
    name, equals, text = word.partition("=")
    if not equals or not name.isidentifier():
        raise TensorError(f"{word}: no input; write {FORM}")
    by_kind: dict[str, str] = {}
    for piece in filter(None, text.split(":")):
        kind = _kind(piece, word)
        if kind in by_kind:
            raise TensorError(f"{word}: {by_kind[kind]} and {piece} are both its {kind}; leave one out")
        by_kind[kind] = piece
    dtype = by_kind.get("type", "float32")
    shape = tuple(map(int, by_kind["shape"].split("x"))) if "shape" in by_kind else ()
    if len(shape) > MOST_AXES or 0 in shape:
        raise TensorError(f"{word}: a sample has at most {MOST_AXES} axes, each of at least 1")
    low, high = _ends(by_kind.get("range"), dtype, word)
    return MadeInput(name, shape, dtype, low, high)


def _kind(part: str, word: str) -> str:
    """Return which part of an input's description a text is: "shape", "range" or "type"."""
    if SHAPE.fullmatch(part):
        return "shape"
    if RANGE.fullmatch(part):
        return "range"
    if part in TYPES:
        return "type"
    near = get_close_matches(part, TYPES, n=1)
    raise TensorError(
        f"{word}: {part!r} is no shape, type or range" + (f"; did you mean {near[0]}?" if near else f"; write {FORM}")
    )


def _ends(text: str | None, dtype: str, word: str) -> tuple[float | None, float | None]:
    """Return both ends of a range, None without one; raise TensorError if the type doesn't hold them."""
    whole = dtype in WHOLE
    if text is None:
        if whole:
            raise TensorError(f"{word}: whole numbers need a range, such as {word}:0..999")
        return None, None
    if dtype == BOOL:
        raise TensorError(f"{word}: bool has no range; leave {text} out")
    match = RANGE.fullmatch(text)
    low, high = (float(end) for end in match.groups()) if match else (math.nan, math.nan)
    ends = np.iinfo(dtype) if whole else np.finfo("float16" if dtype == "float16" else "float64")
    if not max(float(ends.min), -FARTHEST) <= low <= high <= min(float(ends.max), FARTHEST):
        raise TensorError(f"{word}: {text} is no range from low to high of {dtype}")
    if whole and not (low.is_integer() and high.is_integer()):
        raise TensorError(f"{word}: {text} has ends that are no whole numbers")
    return low, high


def check(inputs: Sequence[MadeInput], count: int, out: Path) -> None:
    """Raise TensorError if `count` samples of each input can't be made, or be written into a file of that name."""
    if count < 1:
        raise TensorError(f"--samples={count}: at least 1")
    names = [each.name for each in inputs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise TensorError(f"{twice}: given twice; leave one out")
    size = count * sum(math.prod(each.shape) * (8 if each.dtype.endswith("64") else 4) for each in inputs)
    if size > MOST_BYTES:
        raise TensorError(
            f"{count} samples would take {size / 2**30:.3g} GiB, and {MOST_BYTES // 2**30} are allowed; ask for fewer"
        )
    if out.suffix != ".safetensors":
        raise TensorError(f"--out={out}: name a .safetensors file")
    if not out.parent.is_dir():
        raise TensorError(f"--out={out}: can't be written (there is no folder {out.parent})")


def samples(of: MadeInput, count: int, generator: "Generator") -> "Tensor":
    """Draw samples of an input, [count, *shape]."""
    import torch  # imported late: a wrong word is refused before

    shape, dtype = (count, *of.shape), getattr(torch, of.dtype)
    if of.dtype == BOOL:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if of.low is None or of.high is None:
        return torch.randn(shape, generator=generator).to(dtype)
    if of.dtype in FLOATING:
        share = torch.rand(shape, generator=generator)
        return (of.low * (1 - share) + of.high * share).to(dtype)
    return torch.randint(int(of.low), int(of.high) + 1, shape, generator=generator).to(dtype)


def made(inputs: Sequence[MadeInput], count: int, seed: int) -> dict[str, "Tensor"]:
    """Draw samples of each input, [count, …], by name."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    return {each.name: samples(each, count, generator) for each in inputs}


def write(inputs: Sequence[MadeInput], count: int, seed: int, out: Path) -> None:
    """Write the file of samples; raise TensorError if it can't be written."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(made(inputs, count, seed), out)
    except (SafetensorError, OSError) as error:
        raise TensorError(f"--out={out}: can't be written ({str(error).splitlines()[0]})") from None


def main() -> int:
    """Write the file; return 2 after one line if the request is wrong."""
    return guarded(answered)


def answered() -> int:
    """Return the exit code of `main`."""
    text = "Writes random inputs of a network by their names."
    parser = Parser(prog="python -m models.made_inputs", description=text)
    parser.add_argument("inputs", nargs="+", help=FORM)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--seed", type=seed_of, default=0)
    parser.add_argument("--out", type=Path, required=True, help="the .safetensors file to write")
    asked = parser.parse_intermixed_args()
    inputs = [*map(input_of, asked.inputs)]
    check(inputs, asked.samples, asked.out)
    write(inputs, asked.samples, asked.seed, asked.out)
    show(f"{asked.out}: {asked.samples} samples; data=tensors data.path={asked.out}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
