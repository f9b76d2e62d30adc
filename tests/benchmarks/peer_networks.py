"""Run networks of six libraries through export, rewriting, TorchScript and ONNX on a CPU, and write a table.

    python -m tests.benchmarks.peer_networks --jobs 64 --out peers.md [PART OF A NETWORK'S NAME …]

Needs segmentation-models-pytorch, torchvision, diffusers, transformers, MONAI and dynamic-network-architectures.
Weights are random and nothing is downloaded. Each network goes each way in a process of its own, of one thread, that
is ended after `--timeout` seconds. A way is right if its answers agree with the fp32 network's: on other images than it
was built with, and in fp32 also on zeros, white and ten times the values. `rewrite` has fp16, by the kernels'
references. PEERS.jsonl beside the table has each outcome, and the same command goes on where it ended. Exit code 1
where an answer is wrong, or a process died.
"""

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from pipeline.compiler.agreement import distance
from pipeline.compiler.ahead import rewrite_network
from pipeline.compiler.batch import Batch
from pipeline.compiler.errors import UnsupportedError
from pipeline.compiler.graph.lowering import Plan, lower
from pipeline.compiler.half import half_net
from pipeline.compiler.network_calls import exported_program
from pipeline.stages import onnxruntime, torchscript
from pipeline.stages.api import Runner, Skip, StageError, Workload
from pipeline.stages.common.network_forms import nudge
from pipeline.worker.failures import failure_of
from tests.benchmarks.hard_nets import with_real_statistics
from tests.benchmarks.peer_cases import Inputs, Peer, peers

FP32, FP16 = 1e-3, 2e-2  # relative L2 that an answer may be off
AMPLIFIED = 20.0  # times what the network itself is off with inputs changed by `NUDGE`, or in fp16
NUDGE = 1e-6
Way = Callable[[Workload], Callable[..., Tensor]]
Outcome = dict[str, str]


class NotJudgeableError(Exception):
    """A network whose own answers tell nothing; the text says why."""


def exported(work: Workload) -> Callable[..., Tensor]:
    """Return the network as torch.export has it."""
    return exported_program(work.model, work.inputs[0]).module()


def rewritten(work: Workload) -> Callable[..., Tensor]:
    """Return the network in fp16, rewritten for the kernels, by their references."""
    return lower(rewrite_network(work.model, *work.inputs[0]), Plan())


def of_stage(build: Callable[..., Runner], work: Workload) -> Callable[..., Tensor]:
    """Return the network as a stage runs it in fp32."""
    return build(work, dtype="fp32").run


WAYS: dict[str, Way] = {
    "export": exported, "rewrite": rewritten,
    "TorchScript": partial(of_stage, torchscript.build), "ONNX": partial(of_stage, onnxruntime.build),
}  # fmt: skip


def changed(inputs: Inputs, change: Callable[[Tensor], Tensor]) -> Inputs:
    """Return inputs whose floating values are changed; whole numbers, such as time steps, stay."""
    return tuple(change(part) if part.is_floating_point() else part for part in inputs)


EXTREMES: dict[str, Callable[[Tensor], Tensor]] = {
    "zeros": torch.zeros_like, "white": torch.ones_like, "ten times the values": lambda part: 10 * part,
}  # fmt: skip


def outcome(peer: Peer, way: str, folder: Path) -> Outcome:
    """Return what came of a network in a way: its kind, and why."""
    torch.manual_seed(0)
    net, seen, other = peer.make().eval(), peer.draw(), peer.draw()
    with_real_statistics(net, *[torch.cat(both) for both in zip(seen, other, strict=True)])
    named = Batch(seen, tuple(f"input_{number}" for number in range(len(seen))))
    others = {name: [part] for name, part in list(zip(named.names, named, strict=True))[1:]}
    work = Workload(net, [named.first], torch.device("cpu"), folder, name=named.names[0], others=others)
    try:
        with torch.no_grad():
            allowed = {"real images": allowance(net, other, way)}
        run = WAYS[way](work)
        with torch.no_grad():
            if way != "rewrite":
                allowed |= {name: allowance(net, changed(other, change), way) for name, change in EXTREMES.items()}
            for name, limit in allowed.items():
                inputs = changed(other, EXTREMES.get(name, lambda part: part))
                off = distance(run(*inputs).float(), net(*inputs))
                if not off <= limit:
                    return {"kind": "wrong", "why": f"{off:.2g} off on {name} (relative L2, {limit:.2g} allowed)"}
    except NotJudgeableError as error:
        return {"kind": "not judgeable", "why": str(error)}
    except (StageError, Skip, UnsupportedError) as error:
        return {"kind": "refused", "why": failure_of(error)[1]}
    except Exception as error:  # noqa: BLE001 - a way raises many kinds
        traceback.print_exc()
        return {"kind": "failed" if way != "export" else "refused", "why": failure_of(error)[1]}
    return {"kind": "right", "why": ""}


def allowance(net: nn.Module, inputs: Inputs, way: str) -> float:
    """Return how far an answer may be off, by what the network makes of rounding; raise NotJudgeableError."""
    exact = net(*inputs)
    if distance(net(*inputs), exact) > FP32:
        raise NotJudgeableError("it answers differently at each call")
    nudged = distance(net(*changed(inputs, lambda part: nudge(part, NUDGE, max(1.0, float(part.abs().max()))))), exact)
    if way != "rewrite":
        return FP32 + AMPLIFIED * (nudged if math.isfinite(nudged) else 0)
    by_torch = half_net(net, torch.float16, Batch.numbered(inputs), layout="NCHW")
    half = distance(by_torch(*inputs).float(), exact)
    if not math.isfinite(half) or half > FP16 * AMPLIFIED:
        raise NotJudgeableError("torch's own fp16 does not compute it")
    return FP16 + half * AMPLIFIED / 4


def in_process(name: str, way: str, timeout: float) -> Outcome:
    """Return what came of a network in a way, in a process of its own."""
    settings = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", __spec__.name, "--one", name, way]
    said: Outcome = {"network": name, "way": way}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, check=False, env={**os.environ, **settings}
        )
    except subprocess.TimeoutExpired:
        return said | {"kind": "timeout", "why": f"after {timeout:g} s"}
    if done.returncode:
        by = signal.Signals(-done.returncode).name if done.returncode < 0 else f"exit code {done.returncode}"
        return said | {"kind": "failed", "why": f"{by}: {(done.stderr.strip().splitlines() or [''])[-1][:200]}"}
    found: Outcome = json.loads(done.stdout.splitlines()[-1])
    return said | found


def one(name: str, way: str) -> None:
    """Print as JSON what comes of one network in one way."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        found = outcome(peers()[name], way, Path(folder))
    sys.stdout.write(f"\n{json.dumps(found)}\n")


KINDS = ("right", "refused", "wrong", "failed", "timeout", "not judgeable")


def table(found: list[Outcome]) -> str:
    """Return the outcomes in Markdown: a count by way and kind, each reason with its networks, and each network."""
    by_way = {way: Counter(part["kind"] for part in found if part["way"] == way) for way in WAYS}
    networks = list(dict.fromkeys(part["network"] for part in found))
    rows = [f"{len(networks)} networks.", "", f"| way | {' | '.join(KINDS)} |", f"| --- |{' --- |' * len(KINDS)}"]
    rows += [f"| {way} | {' | '.join(str(kinds[kind] or '–') for kind in KINDS)} |" for way, kinds in by_way.items()]
    rows += ["", "| network | way | outcome |", "| --- | --- | --- |"]
    told = [part for part in found if part["kind"] != "right"]
    for part in told:
        rows += [f"| {part['network']} | {part['way']} | {part['kind']}: {part['why'].replace('|', '/')} |"]
    right = [name for name in networks if name not in {part["network"] for part in told}]
    rows += ["", f"Right in every way ({len(right)}):", ""]
    for library in dict.fromkeys(name.split()[0] for name in right):
        own = [name.partition(" ")[2] for name in right if name.split()[0] == library]
        rows.append(f"- **{library}**: {'; '.join(own)}.")
    return "\n".join([*rows, ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help="of networks' names; all without")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one network in one way")
    parser.add_argument("--out", type=Path, default=Path("peers.md"), help="the table; the outcomes lie beside it")
    parser.add_argument("--one", nargs=2, metavar=("NETWORK", "WAY"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        one(*asked.one)
        return 0
    kept = asked.out.with_suffix(".jsonl")
    known = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    ended = {(part["network"], part["way"]): part for part in known}
    names = [name for name in peers() if not asked.parts or any(part in name for part in asked.parts)]
    wanted = [(name, way) for name in names for way in WAYS]
    with ThreadPoolExecutor(asked.jobs) as pool, kept.open("a", encoding="utf-8") as lines:
        tasks = [pool.submit(in_process, *pair, asked.timeout) for pair in wanted if pair not in ended]
        for number, task in enumerate(tasks, 1):
            found = task.result()
            ended[found["network"], found["way"]] = found
            lines.write(json.dumps(found) + "\n")
            lines.flush()
            sys.stderr.write(f"{number}/{len(tasks)} {' | '.join(map(str, found.values()))}\n")
    outcomes = [ended[pair] for pair in wanted]
    asked.out.write_text(table(outcomes), encoding="utf-8")
    sys.stdout.write("\n".join(table(outcomes).splitlines()[:8]) + "\n")
    return int(any(part["kind"] in ("wrong", "failed") for part in outcomes))


if __name__ == "__main__":
    sys.exit(main())
