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
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.command_line import Parser, guarded, importing, path_of, seed_of, show
from pipeline.errors import TensorError, first_line, nearest

with importing():
    import numpy as np

if TYPE_CHECKING:
    from torch import Generator, Tensor

FARTHEST = 2**53  # largest distance from 0 at which a double holds every whole number
FLOATING = ("float64", "float32", "float16", "bfloat16")
WHOLE = ("int64", "int32", "int16", "int8", "uint8")
BOOL = "bool"
TYPES = (*FLOATING, *WHOLE, BOOL)
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?"
PARTS = re.compile(
    rf"(:(?P<shape>\d+(x\d+)*))?(:(?P<type>[a-z]\w*))?(:(?P<low>{NUMBER})\.\.(?P<high>{NUMBER}))?", re.IGNORECASE
)
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
    parts = PARTS.fullmatch(f":{text}" if text else "")
    if not equals or not name.isidentifier() or parts is None:
        raise TensorError(f"{word}: no input; write {FORM}")
    dtype = parts["type"] or "float32"
    if dtype not in TYPES:
        raise TensorError(f"{word}: {dtype} is no type; {nearest(dtype, TYPES)}")
    shape = tuple(map(int, parts["shape"].split("x"))) if parts["shape"] else ()
    if len(shape) > MOST_AXES or 0 in shape:
        raise TensorError(f"{word}: a sample has at most {MOST_AXES} axes, each of at least 1")
    if parts["low"] is None:
        if dtype in WHOLE:
            raise TensorError(f"{word}: whole numbers need a range, such as {word}:0..999")
        return MadeInput(name, shape, dtype)
    check_range(float(parts["low"]), float(parts["high"]), dtype, word)
    return MadeInput(name, shape, dtype, float(parts["low"]), float(parts["high"]))


def check_range(low: float, high: float, dtype: str, word: str) -> None:
    """Raise TensorError if a type doesn't hold the numbers from low to high."""
    if dtype == BOOL:
        raise TensorError(f"{word}: bool has no range; leave it out")
    ends = np.iinfo(dtype) if dtype in WHOLE else np.finfo("float16" if dtype == "float16" else "float64")
    if not max(float(ends.min), -FARTHEST) <= low <= high <= min(float(ends.max), FARTHEST):
        raise TensorError(f"{word}: no range from low to high of {dtype}")
    if dtype in WHOLE and not (low.is_integer() and high.is_integer()):
        raise TensorError(f"{word}: its range has ends that are no whole numbers")


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


def main() -> int:
    """Write the file; return 2 after one line if the request is wrong."""
    return guarded(answered)


def answered() -> int:
    """Return the exit code of `main`."""
    parser = Parser(prog="python -m models.made_inputs", description=__doc__)
    parser.add_argument("inputs", nargs="+", help=FORM)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--seed", type=seed_of, default=0)
    parser.add_argument("--out", type=path_of, required=True, help="the .safetensors file to write")
    asked = parser.parse_intermixed_args()
    inputs = [*map(input_of, asked.inputs)]
    check(inputs, asked.samples, asked.out)
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(made(inputs, asked.samples, asked.seed), asked.out)
    except (SafetensorError, OSError) as error:
        raise TensorError(f"--out={asked.out}: can't be written ({first_line(error)})") from None
    show(f"{asked.out}: {asked.samples} samples; data=tensors data.path={asked.out}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
