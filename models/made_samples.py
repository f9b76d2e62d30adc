"""Random samples of inputs that `models.made_inputs` describes, and their file."""

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from models.made_inputs import BOOL, FLOATING, MadeInput
from pipeline.errors import TensorError


def samples(of: MadeInput, count: int, generator: torch.Generator) -> Tensor:
    """So many samples of an input, [count, *shape]."""
    shape, dtype = (count, *of.shape), getattr(torch, of.dtype)
    if of.dtype == BOOL:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if of.low is None or of.high is None:
        return torch.randn(shape, generator=generator).to(dtype)
    if of.dtype in FLOATING:
        part = torch.rand(shape, generator=generator)
        return (of.low * (1 - part) + of.high * part).to(dtype)
    return torch.randint(int(of.low), int(of.high) + 1, shape, generator=generator).to(dtype)


def made(inputs: Sequence[MadeInput], count: int, seed: int) -> dict[str, Tensor]:
    """So many samples of each, [count, ...], by name."""
    generator = torch.Generator().manual_seed(seed)
    return {each.name: samples(each, count, generator) for each in inputs}


def write(inputs: Sequence[MadeInput], count: int, seed: int, out: Path) -> None:
    """Write the file of what is `made`.

    Raises:
        TensorError: it can't be written.
    """
    try:
        save_file(made(inputs, count, seed), out)
    except (SafetensorError, OSError) as error:
        raise TensorError(f"--out={out}: can't be written ({str(error).splitlines()[0]})") from None
