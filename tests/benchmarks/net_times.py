"""Time the project's kernels beside Inductor on the networks of `nets.NETS`, interleaved at steady state on this GPU.

    python -m tests.benchmarks.net_times --nets "smp Unet, ResNet-34" classic --stages fused fp8 --out nets.json
    python -m tests.benchmarks.net_times --nets classic --stages torch.compile --out nets.json

`fused` and `fp8` build both candidates and time them as replayed CUDA graphs in one process. `torch.compile` compares
a plain `torch.compile` in fp16 with and without `kernels_in_torch_compile`. Batch norms get real statistics, weights
are random; `fp8` keeps in fp16 what `--keep` names, because random weights produce no meaningful masks.
"""

import argparse
import json
import sys
import tempfile
import time
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.compiler.agreement import distance
from pipeline.compiler.cuda_graphs import full_load_ms
from pipeline.compiler.folding import folded
from pipeline.compiler.post_grad_pass import kernels_in_torch_compile
from pipeline.records.disk import write_json
from pipeline.stages.api import Workload
from tests.benchmarks.nets import NETS, NetCase

OPTIONS: dict[str, dict[str, object]] = {"fused": {}, "fp8": {"keep_fp16": "none", "calibration_images": 8}}
PLAIN = "torch.compile"
KEPT_DETAILS = ("refused", "norms", "choices", "passes")
SECONDS, ROUNDS = 0.3, 12  # of replays of each graph


def with_real_statistics(net: nn.Module, *inputs: Tensor) -> None:
    """Give batch norms the statistics of a batch, as training would, and set the network to evaluation, in place."""
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d | nn.BatchNorm3d):
            layer.momentum = None
            layer.reset_running_stats()
            layer.train()
    with torch.no_grad():
        net(*inputs)
    net.eval()


def stage_times(net: nn.Module, batches: list[Tensor], exact: Tensor, stage: str, options: Any) -> dict[str, Any]:
    """Build a stage on the first batch and return its candidates' milliseconds and its error on the second."""
    began, said = time.monotonic(), list[tuple[float, str]]()

    def say(words: str) -> None:
        said.append((round(time.monotonic() - began, 2), words))

    work = Workload(net, batches[:1], batches[0].device, Path(tempfile.mkdtemp()), progress=say)
    runner = import_module(f"pipeline.stages.{stage}").build(work, **options)
    built = time.monotonic() - began
    with torch.inference_mode():
        first, again = (runner.run(batches[1]).float().clone() for _ in range(2))
    return {
        "milliseconds": runner.details.get("candidates_ms", {}),
        "ran": runner.description,
        "relative_l2": distance(first, exact),
        "same_twice": torch.equal(first, again),
        "build_seconds": built,
        "said": said,
        **{name: runner.details.get(name, {}) for name in KEPT_DETAILS},
    }


@torch.no_grad()
def plain_times(net: nn.Module, batches: list[Tensor], exact: Tensor) -> dict[str, Any]:
    """Compile a network in fp16 with and without the kernels and return the milliseconds and errors of both."""
    half: nn.Module = folded(net, batches[0])[0].half()
    half.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    batch = batches[1].half().to(memory_format=torch.channels_last)
    graphs, errors = {}, {}
    for name, kernels in (("plain", False), ("kernels", True)):
        torch._dynamo.reset()
        kernels_in_torch_compile(kernels)
        run = torch.compile(half)
        for _ in range(3):
            errors[name] = distance(run(batch).float(), exact)
        graphs[name] = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graphs[name]):
            run(batch)
    kernels_in_torch_compile(False)
    times = full_load_ms([*graphs.values()], SECONDS, ROUNDS)
    return {"milliseconds": dict(zip(graphs, times, strict=True)), "relative_l2": errors}


def measured(case: NetCase, stage: str, asked: argparse.Namespace) -> dict[str, Any]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    net = case.make().cuda().eval()
    batches = [torch.rand(case.shape, device="cuda") for _ in range(2)]
    with_real_statistics(net, batches[0])
    with torch.no_grad():
        exact = net(batches[1])
    if stage == PLAIN:
        return plain_times(net, batches, exact)
    options = OPTIONS[stage] | {"inductor_search": asked.search, "tuning_folder": asked.tuning}
    if stage == "fp8" and asked.keep:
        options |= {"keep_fp16": asked.keep}
    return stage_times(net, batches, exact, stage, options)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nets", nargs="+", default=list(NETS), choices=list(NETS), metavar="NET")
    parser.add_argument("--stages", nargs="+", default=["fused"], choices=[*OPTIONS, PLAIN])
    parser.add_argument("--keep", nargs="*", default=[], metavar="LAYER", help="layers that fp8 keeps in fp16")
    parser.add_argument("--search", default="auto", help="the stages' option inductor_search")
    parser.add_argument("--tuning", default=tempfile.mkdtemp(), help="folder that keeps the chosen tiles")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    rows: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    for name in asked.nets:
        for stage in asked.stages:
            try:
                row = measured(NETS[name], stage, asked)
            except Exception as error:  # noqa: BLE001 - the other networks are still worth their figures
                traceback.print_exc()
                row = {"failed": f"{type(error).__name__}: {error}"}
            rows[f"{name}: {stage}"] = row
            write_json(rows, asked.out)
            shown = {key: value for key, value in row.items() if key not in ("choices", "passes", "said")}
            sys.stdout.write(f"{name}: {stage}: {json.dumps(shown)}\n")


if __name__ == "__main__":
    main()
