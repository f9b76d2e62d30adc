"""Makes labelled volumes and trains a net for them, so that masks of volumes can be judged.

    python -m tests.benchmarks.labelled_volumes model=nnunet model.options.configuration=3d_fullres \
        model.options.input_channels=1 --minutes 0.5 --out volumes

A volume is noise and, where a smooth random field is high, something brighter: that is class 1. The folder then holds
scans/, masks/ and net.safetensors; the net was trained on further volumes, and has seen none of these.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from models import checkpoint
from models.train import typed_net
from models.training import fit, net_of
from pipeline.compiler.batch import laid_out

COUNT, FURTHER, SIDE, CROP = 12, 6, 128, 96
SMOOTH = 6.0  # voxels: the standard deviation of the Gaussian that the field is smoothed by
SHARE, BRIGHTER, NOISE = 0.15, 300.0, 200.0  # of the voxels in class 1; what they and the noise add to a value of 1000


def volume(number: int) -> tuple[Tensor, Tensor]:
    """A scan [128, 128, 128] of int16 and its mask of uint8, the same for each number."""
    generator = torch.Generator().manual_seed(number)
    frequency = [torch.fft.fftfreq(SIDE), torch.fft.fftfreq(SIDE), torch.fft.rfftfreq(SIDE)]
    squared = sum(part.square().reshape(-1, *[1] * (2 - axis)) for axis, part in enumerate(frequency))
    blurred = torch.exp(-2 * (torch.pi * SMOOTH) ** 2 * torch.as_tensor(squared))  # a Gaussian's own transform
    field = torch.fft.irfftn(torch.fft.rfftn(torch.randn(SIDE, SIDE, SIDE, generator=generator)) * blurred)
    mask = field > field.flatten().kthvalue(int((1 - SHARE) * field.numel())).values
    noise = NOISE * torch.randn(field.shape, generator=generator)
    return (1000 + BRIGHTER * mask + noise).round().to(torch.int16), mask.to(torch.uint8)


def store(volumes: list[tuple[Tensor, Tensor]], folder: Path) -> None:
    """Write volumes and their labels as folder/scans and folder/masks."""
    for part, place in (("scans", 0), ("masks", 1)):
        (folder / part).mkdir(parents=True, exist_ok=True)
        for number, pair in enumerate(volumes):
            np.save(folder / part / f"case{number:02}.npy", pair[place].numpy())


def standardised(values: Tensor, device: str) -> Tensor:
    """A window [depth, height, width] as an input [1, 1, depth, height, width] with its own mean and deviation."""
    return laid_out(((values - values.mean()) / values.std())[None, None].to(device))


def crop(volumes: list[tuple[Tensor, Tensor]], generator: torch.Generator, device: str) -> tuple[Tensor, Tensor]:
    """A window [1, 1, 96, 96, 96], in NDHWC, and its labels [1, 96, 96, 96]."""
    scan, mask = volumes[int(torch.randint(0, len(volumes), (1,), generator=generator))]
    starts = torch.randint(0, SIDE - CROP + 1, (3,), generator=generator).tolist()
    window = tuple(slice(start, start + CROP) for start in starts)
    return standardised(scan[window].float(), device), mask[window].long()[None].to(device)


@torch.inference_mode()
def dice(net: nn.Module, volumes: list[tuple[Tensor, Tensor]], device: str) -> list[float]:
    """Dice of class 1 over all volumes together."""
    both = sizes = 0
    for scan, mask in volumes:
        chosen = net(standardised(scan.float(), device)).argmax(1)[0].cpu()
        both, sizes = both + int((chosen * mask).sum()), sizes + int(chosen.sum()) + int(mask.sum())
    return [2 * both / sizes]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("overrides", nargs="*", help="the net as the program names it")
    parser.add_argument("--minutes", type=float, default=0.5)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_intermixed_args()
    volumes = [volume(number) for number in range(COUNT + FURTHER)]
    store(volumes[:COUNT], asked.out)
    net = net_of(typed_net(asked.overrides), 0).to(asked.device)
    generator, score = torch.Generator().manual_seed(0), partial(dice, net, volumes[: COUNT // 2], asked.device)
    trained, (found,) = fit(net, lambda: crop(volumes[COUNT:], generator, asked.device), asked.minutes, score)
    command = ["python -m tests.benchmarks.labelled_volumes", *asked.overrides, f"--minutes {asked.minutes:g}"]
    metadata = {"command": " ".join([*command, f"--device {asked.device}"]), **trained, "held_out_dice": f"{found:.5f}"}
    checkpoint.save(net, asked.out / "net.safetensors", metadata)
    sys.stdout.write(f"{asked.out}: {COUNT} volumes, {metadata}\n")


if __name__ == "__main__":
    main()
