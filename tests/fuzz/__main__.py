"""`python -m tests.fuzz --minutes 10`: spoilt input for everything that parses; only one-line errors may come of it."""

import argparse
import random
import sys
import tempfile
import time
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fuzz.targets import TARGETS, Target

MOST_SECONDS = 20.0  # of a processor, for one input
LONGEST_LINE = 1000  # letters of an error that a user reads


@dataclass(frozen=True)
class Finding:
    target: str
    number: int
    said: str


def tried(name: str, target: Target, number: int, seed: int, folder: Path) -> Finding | None:
    """What is wrong with what comes of one spoilt input; None where nothing is."""
    given = target.spoil(random.Random(f"{seed} {name} {number}"))
    began = time.process_time()  # a busy machine is no fault of the target's
    try:
        target.read(given, folder)
    except target.allowed as error:
        if "\n" in str(error).strip() or not 0 < len(str(error)) < LONGEST_LINE:
            return Finding(name, number, f"no line that a user can read: {str(error)[:200]!r}")
    except Exception as error:  # noqa: BLE001 - whatever comes up is what is sought
        where = traceback.extract_tb(error.__traceback__)[-1]
        return Finding(name, number, f"{type(error).__name__}: {str(error)[:200]!r} in {where.filename}:{where.lineno}")
    took = time.process_time() - began
    return Finding(name, number, f"took {took:.0f} s") if took > MOST_SECONDS else None


def fuzz(names: list[str], seconds: float, seed: int, least: int) -> tuple[int, list[Finding]]:
    """So many seconds of spoilt inputs, each target in turn and at least `least` times: how many, and what they did."""
    findings: list[Finding] = []
    number, ends = 0, time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while number < least or time.monotonic() < ends:
            for name in names:
                found = tried(name, TARGETS[name], number, seed, Path(folder))
                findings += [found] if found else []
            number += 1
    return number * len(names), findings


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", choices=[*TARGETS, []], help="all, if none is named")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    asked: Any = parser.parse_args(arguments)
    count, findings = fuzz(asked.targets or list(TARGETS), 60 * asked.minutes, asked.seed, 1)
    for found in findings:
        sys.stdout.write(f"{found.target} {found.number}: {found.said}\n")
    sys.stdout.write(f"{count} inputs of seed {asked.seed}, {len(findings)} did harm\n")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
