"""Writes a file of inputs by their names, shapes, types and ranges, for a net whose own inputs aren't at hand.

    python -m models.made_inputs sample=4x64x64 timestep=int64:0..999 mask=1x64x64:bool --out inputs.safetensors

The file is what `data=tensors` takes (docs/inputs.md). A word is NAME=SHAPE:TYPE:RANGE, of which each part may be left
out: without a shape a sample is one number; the type is float32; floats without a range are normal, of mean 0 and
standard deviation 1, with one uniform; whole numbers are uniform, both ends included.
"""

import argparse
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from models.errors import InputError, TensorError
from models.one_line import Parser, guarded, seed_of, tell

REFUSED = 2
FLOATING = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
WHOLE = {"int64": torch.int64, "int32": torch.int32, "int16": torch.int16, "int8": torch.int8, "uint8": torch.uint8}
TYPES = {**FLOATING, **WHOLE, "bool": torch.bool}
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?"
SHAPE, RANGE = re.compile(r"\d+(?:x\d+)*"), re.compile(rf"({NUMBER})\.\.({NUMBER})", re.IGNORECASE)
MOST_AXES = 4  # of a sample: channels, depth, height, width
FARTHEST = (-(2**53), 2**53)  # ends that a double holds to the digit
MOST_BYTES = 2**32  # of all: a few samples are enough, as a run lets them come again
FORM = "NAME=SHAPE:TYPE:RANGE, such as sample=4x64x64, timestep=int64:0..999 or mask=1x64x64:bool"


@dataclass(frozen=True)
class MadeInput:
    """One input: what a sample is like.

    Attributes:
        name: of the forward's argument.
        shape: of a sample, without its axis; () is one number.
        dtype: as the file keeps it.
        low, high: the range; None for normal values, and of bool.
    """

    name: str
    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32
    low: float | None = None
    high: float | None = None

    def samples(self, count: int, generator: torch.Generator) -> Tensor:
        """So many samples, [count, *shape]."""
        shape = (count, *self.shape)
        if self.dtype is torch.bool:
            return torch.randint(0, 2, shape, generator=generator).bool()
        if self.low is None or self.high is None:
            return torch.randn(shape, generator=generator).to(self.dtype)
        if self.dtype.is_floating_point:
            part = torch.rand(shape, generator=generator)
            return (self.low * (1 - part) + self.high * part).to(self.dtype)
        return torch.randint(int(self.low), int(self.high) + 1, shape, generator=generator).to(self.dtype)


def input_of(word: str) -> MadeInput:
    """The input that a word of the command line describes.

    Raises:
        TensorError: it has another form; the line names the part and the nearest that there is.
    """
    name, equals, text = word.partition("=")
    if not equals or not name.isidentifier():
        raise TensorError(f"{word}: no input; write {FORM}")
    given: dict[str, str] = {}
    for part in filter(None, text.split(":")):
        kind = _kind(part, word)
        if kind in given:
            raise TensorError(f"{word}: {given[kind]} and {part} are both its {kind}; leave one out")
        given[kind] = part
    dtype = TYPES[given.get("type", "float32")]
    shape = tuple(map(int, given["shape"].split("x"))) if "shape" in given else ()
    if len(shape) > MOST_AXES or 0 in shape:
        raise TensorError(f"{word}: a sample has at most {MOST_AXES} axes, each of at least 1")
    low, high = _ends(given.get("range"), dtype, word)
    return MadeInput(name, shape, dtype, low, high)


def _kind(part: str, word: str) -> str:
    """What a part of a word tells."""
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


def _ends(text: str | None, dtype: torch.dtype, word: str) -> tuple[float | None, float | None]:
    """Both ends of a range, and that the type holds them."""
    whole = not dtype.is_floating_point and dtype is not torch.bool
    if text is None:
        if whole:
            raise TensorError(f"{word}: whole numbers need a range, such as {word}:0..999")
        return None, None
    if dtype is torch.bool:
        raise TensorError(f"{word}: bool has no range; leave {text} out")
    found = RANGE.fullmatch(text)
    low, high = (float(end) for end in found.groups()) if found else (math.nan, math.nan)
    limits = torch.iinfo(dtype) if whole else torch.finfo(dtype)
    least, most = max(limits.min, FARTHEST[0]), min(limits.max, FARTHEST[1])
    if not least <= low <= high <= most:
        raise TensorError(f"{word}: {text} is no range from low to high of {str(dtype).removeprefix('torch.')}")
    if whole and not (low.is_integer() and high.is_integer()):
        raise TensorError(f"{word}: {text} has ends that are no whole numbers")
    return low, high


def made(inputs: Sequence[MadeInput], count: int, seed: int) -> dict[str, Tensor]:
    """So many samples of each, [count, ...], by name.

    Raises:
        TensorError: a name comes twice, or all would take more than 4 GiB.
    """
    names = [each.name for each in inputs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise TensorError(f"{twice}: given twice; leave one out")
    size = count * sum(math.prod(each.shape) * max(each.dtype.itemsize, 4) for each in inputs)
    if size > MOST_BYTES:
        raise TensorError(
            f"{count} samples would take {size / 2**30:.3g} GiB, and {MOST_BYTES // 2**30} are allowed; ask for fewer"
        )
    generator = torch.Generator().manual_seed(seed)
    return {each.name: each.samples(count, generator) for each in inputs}


def main() -> int:
    """Write the file; 2 with one line where the request is wrong."""
    return guarded(answered)


def answered() -> int:
    """The exit code of `main`."""
    parser = Parser(prog="python -m models.made_inputs", description="Writes random inputs of a net by their names.")
    parser.add_argument("inputs", nargs="+", help=FORM)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--seed", type=seed_of, default=0)
    parser.add_argument("--out", type=Path, required=True, help="the .safetensors file to write")
    asked = parser.parse_intermixed_args()
    try:
        write(asked)
    except InputError as error:
        tell(f"error: {error}")
        return REFUSED
    return 0


def write(asked: argparse.Namespace) -> None:
    """Write the file that was asked for, and say how a run takes it.

    Raises:
        TensorError: the request is wrong.
    """
    if asked.samples < 1 or asked.out.suffix != ".safetensors":
        wrong = (
            f"--samples={asked.samples}: at least 1"
            if asked.samples < 1
            else f"--out={asked.out}: name a .safetensors file"
        )
        raise TensorError(wrong)
    tensors = made([input_of(word) for word in asked.inputs], asked.samples, asked.seed)
    try:
        save_file(tensors, asked.out)
    except (SafetensorError, OSError) as error:
        raise TensorError(f"--out={asked.out}: can't be written ({str(error).splitlines()[0]})") from None
    sys.stdout.write(f"{asked.out}: {asked.samples} samples; data=tensors data.path={asked.out}\n")


if __name__ == "__main__":
    sys.exit(main())
