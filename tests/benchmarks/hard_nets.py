"""Time networks on which the kernels win little, beside torch.compile, with goals, build seconds and kernels by kind.

    python -m tests.benchmarks.hard_nets --out hard.json [--nets SDXL DPT classic] [--searched CycleGAN]

Each network is built in a process with empty caches, then in one that finds them. Weights are random, so fp8's error is
recorded and not refused. The forms take turns at steady state. The same command goes on with what is not recorded.
`--nets` takes all of `NETS`. The exit code is that of a process that failed.
"""

import argparse
import copy
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.library_nets import monai_net, smp_net
from models.nnunet_nets import nnunet_net
from models.unet import UNet
from pipeline.compiler import agreement
from pipeline.compiler import compile as compile_network
from pipeline.compiler.agreement import distance
from pipeline.compiler.batch import CHANNELS_LAST
from pipeline.compiler.cuda_graphs import full_load_ms
from pipeline.measure.environment import git_state
from pipeline.records.disk import code_digest, write_json
from tests.benchmarks.research_nets import NAFNet

BEGAN = time.monotonic()
SECONDS, ROUNDS = 0.25, 8  # of calls of each form
Form = Callable[[], Tensor]


@dataclass(frozen=True)
class HardNet:
    make: Callable[[], nn.Module]
    inputs: Callable[[], list[Tensor]]
    goals: tuple[float | None, float | None] = (None, None)  # of fp16 and fp8: shares of torch.compile's best time
    seconds: float = 110.0  # on an H200, of both builds and all forms but max-autotune
    searched: bool = True  # by max-autotune, where there is time for it in nine minutes
    in_fp8: bool = True  # as well, where there is time for it


class Residual(nn.Module):
    """Two 3×3 windows on reflected maps, with instance norms, and a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        parts = [[nn.ReflectionPad2d(1), nn.Conv2d(width, width, 3), nn.InstanceNorm2d(width)] for _ in range(2)]
        self.body = nn.Sequential(*parts[0], nn.ReLU(), *parts[1])

    def forward(self, image: Tensor) -> Tensor:
        changed: Tensor = image + self.body(image)
        return changed


def cyclegan(width: int = 64, blocks: int = 9) -> nn.Module:
    """The generator of CycleGAN of nine blocks. Zhu et al. (2017), appendix 7.2; Johnson et al. (2016)."""
    parts: list[nn.Module] = [nn.ReflectionPad2d(3), nn.Conv2d(3, width, 7), nn.InstanceNorm2d(width), nn.ReLU()]
    for wide in (width, 2 * width):
        parts += [nn.Conv2d(wide, 2 * wide, 3, 2, 1), nn.InstanceNorm2d(2 * wide), nn.ReLU()]
    parts += [Residual(4 * width) for _ in range(blocks)]
    for wide in (4 * width, 2 * width):
        parts += [nn.ConvTranspose2d(wide, wide // 2, 3, 2, 1, 1), nn.InstanceNorm2d(wide // 2), nn.ReLU()]
    return nn.Sequential(*parts, nn.ReflectionPad2d(3), nn.Conv2d(width, 3, 7), nn.Tanh())


def twice(inner: int, outer: int) -> nn.Sequential:
    widths = ((inner, outer), (outer, outer))
    parts = [[nn.Conv1d(*pair, 3, padding=1, bias=False), nn.BatchNorm1d(outer), nn.ReLU()] for pair in widths]
    return nn.Sequential(*parts[0], *parts[1])


class Sound(nn.Module):
    """A classic U-Net of one axis."""

    def __init__(self, base: int = 32, depth: int = 4) -> None:
        super().__init__()
        widths = [base << level for level in range(depth + 1)]
        self.down = nn.ModuleList(twice(a, b) for a, b in zip([1, *widths[:-1]], widths, strict=True))
        self.raised = nn.ModuleList(nn.ConvTranspose1d(2 * width, width, 2, 2) for width in widths[:-1])
        self.up = nn.ModuleList(twice(2 * width, width) for width in widths[:-1])
        self.head = nn.Conv1d(base, 1, 1)

    def forward(self, sound: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for level in self.down:
            sound = level(functional.max_pool1d(sound, 2) if skips else sound)
            skips.append(sound)
        skips.pop()
        for raised, level in reversed([*zip(self.raised, self.up, strict=True)]):
            sound = level(torch.cat((skips.pop(), raised(sound)), dim=1))
        answer: Tensor = self.head(sound)
        return answer


class Conditioned(nn.Module):
    """A diffusers network of tensors alone: latents, step, words, and SDXL's further inputs."""

    def __init__(self, **options: object) -> None:
        super().__init__()
        self.unet = import_module("diffusers").UNet2DConditionModel(**options)

    def forward(self, latents: Tensor, step: Tensor, words: Tensor, *added: Tensor) -> Tensor:
        named = {"added_cond_kwargs": dict(zip(("text_embeds", "time_ids"), added, strict=True))} if added else {}
        noise: Tensor = self.unet(latents, step, words, return_dict=False, **named)[0]
        return noise


class Decoder(nn.Module):
    """SDXL's VAE decoder: latents [batch, 4, height, width] to images of 8 times the size."""

    def __init__(self, widths: tuple[int, ...] = (128, 256, 512, 512)) -> None:
        super().__init__()
        blocks = {f"{way}_block_types": (f"{kind}Block2D",) * len(widths)
                  for way, kind in (("down", "DownEncoder"), ("up", "UpDecoder"))}  # fmt: skip
        kept = {"block_out_channels": widths, "layers_per_block": 2, "latent_channels": 4}
        vae = import_module("diffusers").AutoencoderKL(**blocks, **kept)
        self.post, self.decoder = vae.post_quant_conv, vae.decoder

    def forward(self, latents: Tensor) -> Tensor:
        image: Tensor = self.decoder(self.post(latents))
        return image


def latents(side: int, words: int, *added: int) -> list[Tensor]:
    return [torch.randn(2, 4, side, side), torch.full((2,), 500.0), torch.randn(2, 77, words),
            *(torch.randn(2, count) for count in added)]  # fmt: skip


def drawn(*shape: int) -> Callable[[], list[Tensor]]:
    return lambda: [torch.rand(shape)]


# The options of stable-diffusion-xl-base-1.0's unet/config.json that differ from diffusers' own.
SDXL = {
    "sample_size": 128, "block_out_channels": (320, 640, 1280), "cross_attention_dim": 2048,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "transformer_layers_per_block": [1, 2, 10], "attention_head_dim": [5, 10, 20], "use_linear_projection": True,
    "addition_embed_type": "text_time", "addition_time_embed_dim": 256, "projection_class_embeddings_input_dim": 2816,
}  # fmt: skip
SD = partial(Conditioned, sample_size=64, cross_attention_dim=768)
HARD = {
    "Stable Diffusion 1.5": HardNet(SD, partial(latents, 64, 768), (0.75, 0.55), seconds=380, searched=False),
    "DDPM": HardNet(lambda: import_module("denoising_diffusion_pytorch").Unet(64, dim_mults=(1, 2, 4, 8)),
                    lambda: [torch.rand(8, 3, 128, 128), torch.randint(0, 1000, (8,))], (0.8, 0.7), 200, False),
    "CycleGAN": HardNet(cyclegan, drawn(8, 3, 256, 256), (0.6, 0.4)),
    "VNet": HardNet(partial(monai_net, "VNet", spatial_dims=3, in_channels=1), drawn(1, 1, 96, 96, 96), (0.7, None)),
    "DPT": HardNet(partial(smp_net, "DPT", "tu-vit_base_patch16_384"), drawn(4, 3, 384, 384), (0.75, 0.6)),
    "NAFNet": HardNet(NAFNet, drawn(8, 3, 256, 256), (0.6, None)),
    "sound": HardNet(Sound, drawn(8, 1, 65536), (0.7, None)),
    "SDXL": HardNet(partial(Conditioned, **SDXL), partial(latents, 128, 2048, 1280, 6), seconds=480, searched=False,
                    in_fp8=False),
    "SDXL's VAE": HardNet(Decoder, lambda: [torch.randn(1, 4, 128, 128)], seconds=235, searched=False),
}  # fmt: skip
LARGE, CUBES = drawn(8, 3, 512, 512), drawn(2, 1, 128, 128, 128)
WHOLE = partial(nnunet_net, configuration="3d_fullres", input_channels=1)
NETS = {
    **HARD,
    **{f"classic, base {base}": HardNet(partial(UNet, base=base), LARGE) for base in (8, 16, 24, 32)},
    "classic": HardNet(UNet, LARGE),
    "smp Unet, ResNet-34": HardNet(smp_net, LARGE),
    "nnU-Net plain, volumes, width 16": HardNet(partial(WHOLE, features_per_stage=[16, 32, 64, 128, 160, 160]), CUBES),
}  # fmt: skip


def with_real_statistics(net: nn.Module, *inputs: Tensor) -> None:
    """Give batch norms the statistics of a batch, as training would, and set the network to evaluation, in place."""
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
            layer.momentum = None
            layer.reset_running_stats()
            layer.train()
    with torch.no_grad():
        net(*inputs)
    net.eval()


def called(net: nn.Module, inputs: list[Tensor], mode: str) -> Form:
    """Return a call of what a user gives torch.compile in a mode: network and inputs in fp16 and channels_last."""
    half, first = copy.deepcopy(net).half(), inputs[0].half()
    if layout := CHANNELS_LAST.get(first.ndim):
        half.to(memory_format=layout)  # type: ignore[call-overload]
        first = first.contiguous(memory_format=layout)
    others = (part.half() if part.is_floating_point() and part.ndim > 1 else part for part in inputs[1:])
    run: Form = partial(torch.compile(half, mode=mode), first, *others)
    for _ in range(4):
        run()
    return run


def tell(text: str) -> None:
    """Tell what is done, with the time since this process began."""
    sys.stderr.write(f"{time.monotonic() - BEGAN:6.1f} s  {text}\n")


def own(net: nn.Module, inputs: list[Tensor], precision: Any, cache: Path) -> tuple[Form, dict[str, Any]]:
    """Return a call by this project's kernels, what it runs, and milliseconds of what it chose from."""
    eight: dict[str, Any] = {"calibration": [inputs], "budget": None, "error_budget": 1e9, "keep_fp16": "none"}
    options: dict[str, Any] = {"search": "never", "reuse_output": True, "cache": cache, "progress": tell}
    options |= eight if precision == "fp8" else {}
    fast = compile_network(net, *inputs, precision=precision, **options)
    built = next(iter(fast._entries.values())).built
    return partial(fast, *inputs), {"ran": built.description, "candidates_ms": built.details.get("candidates_ms", {})}


def kinds(run: Form, inputs: list[Tensor]) -> dict[str, float]:
    """Return microseconds of a call's kernels by kind."""
    from pipeline.profiling.profiler import profile_of, record

    def outside(_: Tensor) -> None:  # inference mode would compile again
        with torch.inference_mode(False), torch.no_grad():
            run()

    with tempfile.TemporaryDirectory() as folder:
        events, _ = record(outside, [inputs[0]], 3, Path(folder))
    found: dict[str, float] = defaultdict(float)
    for row in profile_of(events, 3, True, "").kernels:
        found[str(row.kind)] += 1e6 * row.seconds_per_call
    return dict(found)


def measure(name: str, out: Path, searched: bool, cache: Path) -> None:
    """Build and time one network; where its caches are filled, build alone."""
    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    agreement.AGREES["fp8"] = math.inf
    warm, case = cache.exists(), NETS[name]
    with torch.device("cuda"):
        net, inputs = case.make().eval().requires_grad_(False).cuda(), case.inputs()
    with_real_statistics(net, *inputs)
    exact = net(*inputs)
    row: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "failed": {}}
    row |= {"commit": git_state(Path(__file__).parent)[0], "code_sha256": code_digest()}
    seconds, ran, errors = (row.setdefault(key, {}) for key in ("build_seconds", "ran", "relative_l2"))
    forms: dict[str, Form] = {}
    modes = [] if warm else ["reduce-overhead", *["max-autotune"] * searched]
    for form in ("fused", *modes, *["fp8"] * case.in_fp8):
        began = time.monotonic()
        try:
            if form in ("fused", "fp8"):
                run, ran[form] = own(net, inputs, "fp16" if form == "fused" else form, cache)
            else:
                run = called(net, inputs, form)
            errors[form] = distance(run().float(), exact)
            forms[form] = run
        except Exception as error:  # noqa: BLE001 - the other forms are still worth their figures
            row["failed"][form] = f"{type(error).__name__}: {error}"[:300]
        seconds[form] = time.monotonic() - began
        tell(f"{name}: {form} took {seconds[form]:.0f} s {row['failed'].get(form, '')}")
    if not warm:
        replayed: list[Any] = [SimpleNamespace(replay=run) for run in forms.values()]
        row["rounds_ms"] = dict(zip(forms, full_load_ms(replayed, SECONDS, ROUNDS), strict=True))
        tell(f"{name}: {json.dumps(row['rounds_ms'])}")
        row["goals"] = dict(zip(("fused", "fp8"), case.goals, strict=True))
        row["kinds_us"] = {form: kinds(run, inputs) for form, run in forms.items()}
        tuned = [entry for file in cache.glob("*.json") for entry in json.loads(file.read_text()).items()]
        row["layers_ms"] = {layer: [found["choice"], found["ms"]] for layer, found in tuned if "ms" in found}
    rows = json.loads(out.read_text()) if out.exists() else {}
    write_json({**rows, f"{name}, {'warm' if warm else 'cold'}": row}, out)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nets", nargs="+", default=list(HARD), choices=NETS, metavar="NET")
    parser.add_argument("--searched", nargs="*", default=[], choices=NETS, metavar="NET", help="by max-autotune")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        measure(asked.nets[0], asked.out, bool(asked.searched), Path(asked.one))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("the time is up"))  # and subprocess.run ends the build
    failed, kinds_of_build = 0, ("cold", "warm")  # the second needs the caches of the first
    for name in asked.nets:
        recorded = json.loads(asked.out.read_text()) if asked.out.exists() else {}
        if all(f"{name}, {kind}" in recorded for kind in kinds_of_build):
            continue
        with tempfile.TemporaryDirectory() as caches:
            own_caches = {f"{key}_CACHE_DIR": f"{caches}/{key}" for key in ("TRITON", "TORCHINDUCTOR")}
            words = ["--nets", name, *["--searched", name] * (name in asked.searched), "--out", str(asked.out)]
            program = [sys.executable, "-m", "tests.benchmarks.hard_nets", *words, "--one", f"{caches}/tiles"]
            for _ in kinds_of_build:
                if code := subprocess.run(program, env={**os.environ, **own_caches}, check=False).returncode:
                    sys.stderr.write(f"{name} ended with {code}\n")
                    failed = code
                    break
    return failed


if __name__ == "__main__":
    sys.exit(main())
