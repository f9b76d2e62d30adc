"""Trains a net for the demo's labels: `python -m models.train model=unet --minutes 2 --out weights.safetensors`.

The net is any of images in 3 channels, or in 1 of grey, that the program's configuration can name:
`model=custom model.target=my_package.MyNet model.output=0` and so on.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from pipeline.command_line import FAILED, REFUSED, Parser, guarded, seed_of, tell
from pipeline.errors import InputError, UnsavedError

MOST_MINUTES = 7 * 24 * 60


def main() -> int:
    """Train, score on the held-out quarter as stored, save; 2 with one line where the request is wrong."""
    return guarded(answered)


def answered() -> int:
    """The exit code of `main`."""
    parser = Parser(prog="python -m models.train", description="Trains a net on the demo's stain mask.")
    parser.add_argument(
        "overrides", nargs="*", help="the net as the program names it: model=unet model.options.base=16"
    )
    parser.add_argument("--minutes", type=float, default=3.0, help="how long to train")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--seed", type=seed_of, default=0)
    parser.add_argument("--out", type=Path, required=True, help="the .safetensors file to write")
    asked = parser.parse_intermixed_args()
    try:
        check_request(asked)
        from models.typed_net import typed_net  # and so Hydra, for which no wrong flag waits

        typed = typed_net(asked.overrides)
        from models.training import net_of, train_and_save  # and so torch, for which no wrong word waits

        train_and_save(net_of(typed, asked.seed), asked)
    except InputError as error:
        tell(f"error: {error}")
        return REFUSED
    except UnsavedError as error:
        tell(f"error: {error}")
        return FAILED
    return 0


def check_request(asked: argparse.Namespace) -> None:
    """That what was asked can be done, before minutes are spent on it.

    Raises:
        InputError: it can't; the line names the flag.
    """
    out: Path = asked.out
    if not 0 < asked.minutes <= MOST_MINUTES:  # nor is NaN
        raise InputError(f"--minutes {asked.minutes:g}: expected a number above 0, at most {MOST_MINUTES:,} (a week)")
    check_device(asked.device)
    if out.suffix != ".safetensors" or out.is_dir():
        raise InputError(f"--out {out}: name a .safetensors file")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out.parent):
            pass
    except OSError as error:
        raise InputError(f"--out {out}: can't be written ({error.strerror})") from None


def check_device(name: str) -> None:
    """That torch has a device of that name; every torch has "cpu".

    Raises:
        InputError: it hasn't.
    """
    if name == "cpu":
        return
    import torch

    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts it
        raise InputError(f"--device {name}: {str(error).partition('. ')[0]}") from None


if __name__ == "__main__":
    sys.exit(main())
