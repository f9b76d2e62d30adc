"""Prints the README's table of networks, from the raw samples of docs/h200/runs.json alone.

python -m tests.house.network_table
"""

import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RUNS = Path(__file__).parents[2] / "docs" / "h200" / "runs.json"
HEAD = (
    "| network | best torch.compile, ms | own fp16, ms | own fp8, ms | ratio to the best compiler | pixels changed |",
    "| --- | --- | --- | --- | --- | --- |",
)
# A network's runs, the one that own kernels are read from first; the best compiler is that of all of them.
ROWS = {
    "U-Net, 64 to 1024 channels": ("run_in_batch8/compiled", "nets/classic"),
    "the same, batch 1 ᵇ": ("nets/classic_batch1", "batch1"),
    "the same, bilinear, align_corners=True": ("nets/aligned",),
    "the same, bilinear, and 1×1 convolutions": ("nets/bilinear",),
    "the same, batch 4, 375×375": ("nets/odd_size",),
    "the same, 24 to 384 channels": ("nets/base24",),
    "smp.Unet, ResNet-34": ("nets/smp",),
    "smp.Unet, ResNet-18, batch 1": ("nets/resnet18_batch1",),
    "smp.Unet, EfficientNet-b0": ("nets/efficientnet_fp8", "nets/efficientnet"),
    "smp.Unet, MiT-b0": ("nets/mit_b0",),
    "smp.UnetPlusPlus, ResNet-18": ("nets/unetpp",),
    "smp.FPN, ResNet-34, batch 4, 480×480": ("nets/fpn",),
    "MONAI UNet, two residual units": ("nets/monai_unet",),
    "MONAI BasicUNet": ("nets/basic_unet",),
    "MONAI AttentionUnet": ("nets/attention_unet",),
    "MONAI SegResNet": ("nets/segresnet_kernels", "nets/segresnet"),
    "nnU-Net, 7 stages ᵇ": ("nets/nnunet_budget", "nets/nnunet"),
    "nnU-Net 3d_fullres, two volumes of 128³": ("nets/nnunet_3d",),
    "diffusers UNet2DModel, 64×64 latents": ("nets/diffusers",),
}


def milliseconds(stage: dict[str, Any]) -> float:
    """Return the median time of a call over all samples of a stage."""
    return 1e3 * float(
        statistics.median(seconds / calls for block in stage["blocks"] for calls, seconds in block["stage"])
    )


def compiled(run: dict[str, Any]) -> Iterator[float]:
    """Yield the times of torch.compile, with and without max-autotune, and of Inductor in one CUDA graph."""
    for name in ("compile", "compile_max"):
        if run["stages"].get(name, {}).get("status") == "ok":
            yield milliseconds(run["stages"][name])
    for name in ("fused", "fp8"):
        yield from (
            time for key, time in run["stages"].get(name, {}).get("candidates_ms", {}).items() if key == "Inductor"
        )


def shown(value: float) -> str:
    """Return a figure in three digits."""
    return f"{value:#.3g}"


def row(name: str, runs: list[dict[str, Any]]) -> str:
    """Return one line of the table."""
    best = min(time for run in runs for time in compiled(run))
    own = [milliseconds(stages[key]) for stages in [runs[0]["stages"]] for key in ("fused", "fp8") if key in stages]
    ratios = " / ".join(f"{best / time:.1f} ×" for time in own)
    times = [*map(shown, own), "–"][:2]
    changed = runs[0]["stages"].get("fp8", {}).get("flipped_share")
    share = "–" if changed is None else f"{100 * changed:.3f} %"
    return f"| {name} | {shown(best)} | {times[0]} | {times[1]} | {ratios} | {share} |"


def table() -> str:
    """Return the table's text."""
    recorded = {run["run"]: run for run in json.loads(RUNS.read_text(encoding="utf-8"))}
    return "\n".join([*HEAD, *(row(name, [recorded[run] for run in runs]) for name, runs in ROWS.items())])


if __name__ == "__main__":
    sys.stdout.write(f"{table()}\n")
