"""The kernels' library beside torch alone; `tests.wheels.installed` runs this file with the wheel's names."""

import sys
from importlib.util import find_spec

import torch
from torch import nn

import pipeline.compiler as library
from pipeline.compiler.ahead import build_for, rewrite_network


def network() -> nn.Module:
    """Return a network that has layers for several kernels."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(),
        nn.ConvTranspose2d(64, 64, 2, 2), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 2, 1),
    ).eval()  # fmt: skip


def main() -> None:
    """Import, export, rewrite, build for sm_90, put kernels into torch.compile; refuse to compile without a GPU."""
    names = {"unet_ladder", "models", "pipeline"} - {library.__name__.partition(".")[0]}
    assert not any(map(find_spec, names)), "something else of the project can be imported"
    image = torch.randn(1, 3, 64, 64)
    matched = rewrite_network(network(), image).matched
    assert matched, "no pass changed the network"
    kernels = sorted(set(build_for("sm_90", network(), image)))
    assert len(kernels) >= 3, kernels
    library.kernels_in_torch_compile()
    try:
        library.compile(network(), image)
    except library.CompileError as error:
        refused = str(error)
    assert "\n" not in refused, refused
    sys.stdout.write(f"passes: {', '.join(matched)}\nbuilt for sm_90: {', '.join(kernels)}\nrefused: {refused}\n")


if __name__ == "__main__":
    main()
