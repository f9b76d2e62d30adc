"""Measure shorter denoising loops of a diffusion network: a row of docs/slim.md, by the program's own commands.

    python -m tests.benchmarks.denoising_rows --net trained --out denoising [--minutes 3] [--small]

`trained` learns the noise of drawn images of 64×64; `stable` has Stable Diffusion 1.5's shape, batch 2 and random
weights, so its loops are timed alone. What OUT already holds is not made again. `--small` takes seconds on a CPU.
"""

import argparse
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor, nn

from models import checkpoint
from pipeline.inputs.generated import several
from pipeline.measure.accuracy import TRAINED_STEPS, kept_signal

SIDE = 64
BATCH, RATE = 128, 3e-4  # of the training


@dataclass(frozen=True)
class Row:
    model: str
    inputs: str  # as models.made_inputs takes them
    samples: int
    batch: int
    steps: int
    stages: tuple[str, ...] = ("compile_graph", "fused", "fp8")
    images: int = 0  # that it learns from


ROWS = {
    "trained": Row(
        "model.target=tests.benchmarks.denoising_rows.denoiser", f"sample=3x{SIDE}x{SIDE}", 64, 16, 50, images=20_000
    ),
    "stable": Row(
        "model.target=diffusers.UNet2DConditionModel model.options.cross_attention_dim=768",
        "sample=4x64x64 encoder_hidden_states=77x768", 4, 2, 20,
    ),
}  # fmt: skip


def denoiser(width: int = 64) -> nn.Module:
    """Return diffusers' network of pixels, untrained, with attention in the lower two of four levels."""
    blocks = {f"{way}_block_types": tuple(f"{kind}{way.title()}Block2D" for kind in kinds)
              for way, kinds in (("down", ("", "", "Attn", "Attn")), ("up", ("Attn", "Attn", "", "")))}  # fmt: skip
    net: nn.Module = import_module("diffusers").UNet2DModel(
        sample_size=SIDE, block_out_channels=(width, 2 * width, 4 * width, 4 * width), norm_num_groups=8, **blocks
    )
    return net


def learn(net: nn.Module, images: Tensor, batch: int, rate: float, *, steps: int = 0, minutes: float = 0.0) -> int:
    """Teach a network the noise of images [count, channels, side, side] of deviation about 1; return its steps."""
    kept, optimizer = kept_signal("scaled_linear").to(images), torch.optim.Adam(net.train().parameters(), rate)
    draw, on, ends = torch.Generator().manual_seed(0), images.device.type, time.monotonic() + 60 * minutes
    done = 0
    while done < steps or time.monotonic() < ends:
        chosen = images[torch.randint(len(images), (batch,), generator=draw).to(images.device)]
        noise = torch.randn(chosen.shape, generator=draw).to(images.device)
        moment = torch.randint(TRAINED_STEPS, (batch,), generator=draw).to(images.device)
        share = kept[moment][:, None, None, None]
        with torch.autocast(on, torch.bfloat16, enabled=on == "cuda"):
            predicted = net(share.sqrt() * chosen + (1 - share).sqrt() * noise, moment).sample
        optimizer.zero_grad()
        nn.functional.mse_loss(predicted.float(), noise).backward()
        optimizer.step()
        done += 1
    net.eval()
    return done


def train(row: Row, minutes: float, to: Path) -> None:
    """Write the weights of a network that has learnt for so many minutes, or for two steps."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    pictures = torch.stack([torch.from_numpy(image) for image, _ in several("train", row.images, (SIDE, SIDE))])
    images = pictures.to(device).movedim(3, 1).float() / 127.5 - 1
    net = denoiser(8 if row.images < BATCH else 64).to(device)
    done = learn(net, images, min(BATCH, len(images)), RATE, steps=2, minutes=minutes)
    checkpoint.save(net, to, {"steps": str(done), "minutes": f"{minutes:g}"})


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--net", choices=ROWS, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=3.0, help="of training")
    parser.add_argument("--small", action="store_true", help="the same steps in seconds on a CPU")
    asked, failed = parser.parse_args(), 0
    if asked.small and asked.net != "trained":
        parser.error(f"--small --net {asked.net}: its shape is as large on a CPU; take --net trained")
    row, minutes, model, measure = ROWS[asked.net], asked.minutes, ROWS[asked.net].model, "quick"
    if asked.small:
        row, minutes = replace(row, samples=4, batch=2, steps=4, stages=("torchscript",), images=4), 0.0
        model, measure = f"{model} model.options.width=8", "smoke"
    weights, inputs, ladder = (asked.out / name for name in ("net.safetensors", "inputs.safetensors", "ladder"))
    asked.out.mkdir(parents=True, exist_ok=True)
    if row.images and not weights.exists():
        train(row, minutes, weights)
    words = [f"models.made_inputs {row.inputs} timestep=int64:0..999 --samples {row.samples} --out {inputs}"]
    if not (ladder / "results.json").exists():
        run = f"pipeline model=custom {model} model.output=sample data=tensors data.path={inputs} task=diffusion"
        run += f" data.batch_size={row.batch} task.steps={row.steps} stage=[{','.join(row.stages)}]"
        run += f" measure={measure} hydra.run.dir={ladder}"
        words.append(run + f" model.checkpoint={weights}" * weights.exists())
    words += [f"pipeline.slim steps {ladder} --stage {stage} --steps {row.steps} --out {asked.out}/{stage}"
              for stage in row.stages[-2:]]  # fmt: skip
    for command in words:
        failed |= subprocess.run([sys.executable, "-m", *shlex.split(command)], check=False).returncode
    return failed


if __name__ == "__main__":
    sys.exit(main())
