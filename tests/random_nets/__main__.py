"""Tries random nets, one for each seed: `python -m tests.random_nets FIRST LAST [--plainest | --on-gpu]`.

Each is exported, rewritten and lowered in fp16 and in fp8, and run by the kernels' references on a CPU; every fourth
also in fp32 with every other layer by the library, and every fourth is saved and loaded. A line for each net: its
layers by own kernels and how far it is from itself (relative L2). With `--plainest` the choices of a net that fails are
made plain one by one as long as it does, and those that are left are printed. With `--on-gpu` layers run by kernels,
in fp16 and with all in fp8 that may be, with `--tiles` of each one's candidates, each `--runs` times. Exit code 1 where
one failed.
"""

import argparse
import sys
import time

import torch

from tests.random_nets.on_gpu import tried_on_gpu
from tests.random_nets.trial import Trial, tried


def plainest(failed: Trial) -> Trial:
    """The same seed with as many plain choices as leave its first failure what it is."""
    kind = failed.failures[0].split(":")[0]
    plain: frozenset[str] = frozenset()
    tries = True
    while tries:
        tries = False
        for path in list(failed.draw.chosen):
            trial = tried(failed.draw.seed, plain | {path}, whole=True)
            if any(failure.startswith(kind) for failure in trial.failures):
                failed, plain, tries = trial, plain | {path}, True
    return failed


def tried_here(seed: int, whittles: bool) -> tuple[str, list[str]]:
    """A line for a net by the references, and what went wrong."""
    trial = tried(seed)
    if trial.failures and whittles:
        trial = plainest(trial)
    figures = "  ".join(f"{name} {amount:.1e}" for name, amount in trial.figures.items())
    told = [str(trial.draw.chosen), trial.raised] if trial.failures else []
    return f"{trial.layers} layers  {figures}", [*trial.failures, *told]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--plainest", action="store_true")
    parser.add_argument("--on-gpu", action="store_true")
    parser.add_argument("--tiles", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    failed = 0
    for seed in range(asked.first, asked.last + 1):
        began = time.monotonic()
        by_kernels = (seed, asked.tiles, asked.runs)
        said, failures = tried_on_gpu(*by_kernels) if asked.on_gpu else tried_here(seed, asked.plainest)
        failed += bool(failures)
        sys.stdout.write("\n    ".join([f"{seed}: {said}  {time.monotonic() - began:.0f} s", *failures]) + "\n")
        sys.stdout.flush()
    sys.stdout.write(f"{asked.last + 1 - asked.first} nets, {failed} failed\n")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
