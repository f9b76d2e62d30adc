"""What the scripts that time a kernel's tiles have in common: a line for each case, and all of it as JSON."""

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import torch

from pipeline.records.atomic_json import write_json

Case = TypeVar("Case")
Timed = TypeVar("Timed", bound=dict[str, Any])


def write_cases(
    description: str, cases: Iterable[Case], times_of: Callable[[Case], Timed], told: Callable[[Timed], str]
) -> None:
    """Time each case, as `--out` of the command line says where to.

    Args:
        description: of the script.
        cases: each with a name as its text.
        times_of: what is kept of a case.
        told: of that, what its line says.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    found: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    for case in cases:
        found[str(case)] = timed = times_of(case)
        write_json(found, asked.out)
        sys.stdout.write(f"{case}: {told(timed)}\n")
