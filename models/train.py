"""Train a network on drawn images: `python -m models.train model=unet --minutes 2 --out weights.safetensors`.

Any network of images with 3 channels, or 1 of grey, that a configuration can name:
`model=custom model.target=my_package.MyNet model.output=0` and so on.
"""

import argparse
import sys
from pathlib import Path

from pipeline.command_line import FAILED, Parser, check_writable, guarded, importing, opened, path_of, seed_of, tell

with importing():
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import DictConfig
    from omegaconf.errors import OmegaConfBaseException

    from conf import FOLDER
    from pipeline.cli.messages import one_line
    from pipeline.errors import InputError, ModelError

MOST_MINUTES = 7 * 24 * 60


def main() -> int:
    """Train, score on held-out images and save; return 2 after one line if the request is wrong."""
    return guarded(answered)


def answered() -> int:
    """Return the exit code of `main`."""
    parser = Parser(prog="python -m models.train", description=__doc__)
    add = parser.add_argument
    add("overrides", nargs="*", help="the network as the program names it: model=unet model.options.base=16")
    add("--minutes", type=float, default=3.0, help="how long to train")
    add("--device", default="cpu", choices=["cpu", "cuda"])
    add("--seed", type=seed_of, default=0)
    add("--out", type=path_of, required=True, help="the .safetensors file to write")
    asked = parser.parse_intermixed_args()
    try:
        check_request(asked)
        typed = typed_net(asked.overrides)
        from models.training import net_of, train_and_save  # imports torch: a wrong word is refused before

        train_and_save(net_of(typed, asked.seed), asked)
    except BrokenPipeError:
        raise
    except OSError as error:
        tell(f"error: --out {asked.out}: can't be written ({error.strerror or error})")
        return FAILED
    return 0


def typed_net(overrides: list[str]) -> DictConfig:
    """Return the target and the options of a network by overrides such as ["model=unet", "model.options.base=16"]."""
    try:
        with initialize_config_dir(str(FOLDER), version_base=None):
            network: DictConfig = compose("config", ["data=generated", *opened(overrides)]).model
    except (HydraException, OmegaConfBaseException) as error:
        raise ModelError(one_line(error)) from None
    if not network.target:
        raise ModelError("model.target names no class; give one, such as my_package.MyNet")
    return network


def check_request(asked: argparse.Namespace) -> None:
    """Raise InputError if the request can't be carried out, before minutes are spent on it."""
    out: Path = asked.out
    if not 0 < asked.minutes <= MOST_MINUTES:  # refuses NaN, too
        raise InputError(f"--minutes {asked.minutes:g}: expected a number above 0, at most {MOST_MINUTES:,} (a week)")
    if asked.device != "cpu":
        import torch

        try:
            torch.zeros(1, device=asked.device)
        except (RuntimeError, AssertionError) as error:  # torch without CUDA raises an AssertionError
            raise InputError(f"--device {asked.device}: {str(error).partition('. ')[0]}") from None
    if out.suffix != ".safetensors" or out.is_dir():
        raise InputError(f"--out {out}: name a .safetensors file")
    check_writable(out.parent, f"--out {out}")


if __name__ == "__main__":
    sys.exit(main())
