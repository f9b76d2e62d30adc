"""Times `fused` and `fp8` on nets of other houses, beside the same net by Inductor, at full load on this GPU.

    python -m tests.benchmarks.net_times --nets "smp Unet, ResNet-34" classic --out nets.json

Batch norms get real statistics, weights are random; fp8 keeps in fp16 what `--keep` names, since random weights say
nothing of masks. Each line: the candidates' milliseconds, replayed interleaved in one process, how far the fastest is
from fp32, and for every candidate whether it answered the same twice, bit for bit.
"""

import argparse
import json
import sys
import tempfile
import time
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

from pipeline.records.atomic_json import write_json
from pipeline.stages.api import Workload
from pipeline.stages.common.inductor_search import Search
from tests.benchmarks.build_times import Stopwatch, watched
from tests.benchmarks.nets import NETS, NetCase

OPTIONS: dict[str, dict[str, object]] = {"fused": {}, "fp8": {"keep_fp16": "none", "calibration_images": 8}}


def with_real_statistics(net: nn.Module, *inputs: Tensor) -> None:
    """Give batch norms the statistics of a batch [batch, channels, height, width] or of volumes, as training would.

    A net of several inputs is given all.
    """
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d | nn.BatchNorm3d):
            layer.momentum = None
            layer.reset_running_stats()
            layer.train()
    with torch.no_grad():
        net(*inputs)
    net.eval()


def measured(case: NetCase, stage: str, asked: argparse.Namespace) -> dict[str, Any]:
    """What one stage comes to on one net, with the options that were asked for."""
    torch.manual_seed(0)
    device = torch.device("cuda")
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    net = case.make().to(device).eval()
    batches = [torch.rand(case.shape, device=device) for _ in range(2)]
    with_real_statistics(net, batches[0])
    with torch.no_grad():
        exact = net(batches[1])
    work = Workload(net, batches[:1], device, Path(tempfile.mkdtemp()))
    torch._dynamo.reset()
    began = time.monotonic()
    kept = {"keep_fp16": asked.keep} if asked.keep and "keep_fp16" in OPTIONS[stage] else {}
    options = OPTIONS[stage] | kept | {"inductor_search": asked.search, "tuning_folder": asked.tuning}
    with watched(Stopwatch()) as made:
        runner = import_module(f"pipeline.stages.{stage}").build(work, **options)
    built = time.monotonic() - began
    with torch.inference_mode():
        first, again = (runner.run(batches[1]).float().clone() for _ in range(2))
        ways = {one.name: [one.captured(batches[1]).float().clone() for _ in range(2)] for one in made if one}
    return {
        "milliseconds": runner.details.get("candidates_ms", {}),
        "refused": runner.details.get("refused", {}),
        "ran": runner.description,
        "relative_l2": float((first - exact).norm() / exact.norm()),
        "same_twice": torch.equal(first, again),
        "candidates": {
            name: {"same_twice": torch.equal(*both), "relative_l2": float((both[0] - exact).norm() / exact.norm())}
            for name, both in ways.items()
        },
        "norms": runner.details.get("norms", {}),
        "build_seconds": built,
        "choices": runner.details.get("choices", {}),
        "passes": runner.details.get("passes", {}),
    }


def main() -> None:
    """A line for each net and stage, and all of it as JSON."""
    parser = argparse.ArgumentParser(description="Times the project's stages on nets of other houses.")
    parser.add_argument("--nets", nargs="+", default=list(NETS), choices=list(NETS), metavar="NET")
    parser.add_argument("--stages", nargs="+", default=["fused"], choices=list(OPTIONS))
    parser.add_argument("--keep", nargs="*", default=[], metavar="LAYER", help="layers that fp8 keeps in fp16")
    parser.add_argument("--search", default="auto", choices=get_args(Search), help="the stages' inductor_search")
    parser.add_argument("--tuning", default=tempfile.mkdtemp(), help="folder that keeps the choices of tiles")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    found: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    for name in asked.nets:
        for stage in asked.stages:
            try:
                row = measured(NETS[name], stage, asked)
            except Exception as error:  # noqa: BLE001 - the other nets are still worth their figures
                traceback.print_exc()
                row = {"failed": f"{type(error).__name__}: {error}"}
            found[f"{name}: {stage}"] = row
            write_json(found, asked.out)
            shown = {key: value for key, value in row.items() if key not in ("choices", "passes")}
            sys.stdout.write(f"{name}: {stage}: {json.dumps(shown)}\n")


if __name__ == "__main__":
    main()
