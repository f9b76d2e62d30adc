"""Builds a stage twice, each time in a fresh process, and says where the time goes: from nothing, and from its caches.

    python -m models.train model=unet --minutes 0.15 --device cuda --out classic.safetensors
    python -m tests.benchmarks.build_times --checkpoint classic.safetensors --stages fp8 --batch 1 --out build.json

With `--launches` the first process then times what it built with and without dependent launches
(`kernels/common/dependent_launch.py`), interleaved at full load, and compares their answers bit for bit. With
`--inputs` it times calls on batches in rotation that are read where they lie, and calls that copy them first.
"""

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.config.schema import DataSpec, Job, ModelSpec
from pipeline.measure.clock import TorchClock
from pipeline.measure.timers import full_load_ms, time_calls
from pipeline.records.atomic_json import write_json
from pipeline.stages.common.graph_capture import Captured
from pipeline.worker.workload import load
from tests.worker.jobs import EAGER, job

# What a build consists of, by module and function; a function's seconds include those of the functions that it calls.
STEPS = {
    "pipeline.stages.common.rewritten_net": (
        "export",
        "rewrite",
        "choose",
        "lower",
        "full_load_ms",
    ),
    "pipeline.stages.common.net_candidate": ("compile_counting_bytes", "Captured"),
    "pipeline.compiler.autotune": ("build_side_by_side", "graph_replay_ms"),
    "pipeline.compiler.choose": ("is_right",),
    "pipeline.stages.fp8": ("largest", "layers_to_keep", "values_digest"),
}
LOOP_SECONDS, ROUNDS_OF_LOOPS, HOST_CALLS = 0.5, 3, 30
ROUNDS = 200  # of calls with other images each time, whose answers are compared


class Stopwatch:
    """Seconds and calls of functions by their names."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)

    def watch(self, module: Any, name: str) -> None:
        """Put a function that is timed in the place of a module's."""
        inner = getattr(module, name)

        @functools.wraps(inner)
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.monotonic()
            try:
                return inner(*args, **kwargs)
            finally:
                self.seconds[name] += time.monotonic() - began
                self.calls[name] += 1

        setattr(module, name, timed)


def main() -> None:
    """Build in two processes, or be one of them; the figures as JSON, and the totals as lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", help="of the classic net; random weights without")
    parser.add_argument("--stages", nargs="+", default=["fused", "fp8"], choices=["fused", "fp8"])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--budget", type=float, default=7e-4, help="share of pixels that fp8 may change")
    parser.add_argument("--launches", action="store_true", help="time and check dependent launches, too")
    parser.add_argument("--inputs", action="store_true", help="time and check inputs that are copied, too")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--caches", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.caches:
        build_all(asked)
        return
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as caches:
        for name in ("cold", "warm"):
            part = asked.out.with_name(f"{asked.out.stem}-{name}.json")
            given = [option for option in sys.argv[1:] if option not in ("--launches", "--inputs") or name == "cold"]
            own = {"TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor", "TRITON_CACHE_DIR": f"{caches}/triton"}
            command = [sys.executable, "-m", "tests.benchmarks.build_times", *given, "--out", str(part)]
            subprocess.run([*command, "--caches", caches], check=False, env=os.environ | own)
            found[name] = json.loads(part.read_text()) if part.exists() else "failed"
            write_json(found, asked.out)


def build_all(asked: argparse.Namespace) -> None:
    """One process: every stage built once, each step timed, and perhaps the launches compared."""
    found: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    with tempfile.TemporaryDirectory() as folder:
        given = classic(asked, Path(folder))
        for stage in asked.stages:
            for part in stage_built(stage, given, asked):
                found[stage] = found.get(stage, {}) | part
                write_json(found, asked.out)


def classic(asked: argparse.Namespace, folder: Path) -> Job:
    """A job on the classic net and two batches of the demo's images, as it was asked for."""
    return replace(
        job(EAGER, folder),
        model=ModelSpec("unet", "models.unet.UNet", {}, asked.checkpoint),
        data=DataSpec("stain", None, None, size=asked.size, batch_size=asked.batch, batches=2),
        device="cuda",
    )


def stage_built(stage: str, given: Job, asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What is found of a stage: of its build, then of its launches where that is asked for."""
    torch._dynamo.reset()
    watch, said = Stopwatch(), []
    work = load(given, None)
    began = time.monotonic()

    def say(text: str) -> None:
        said.append((round(time.monotonic() - began, 2), text))

    with watched(watch) as made:
        build = import_module(f"pipeline.stages.{stage}").build
        options = {"budget": asked.budget} if stage == "fp8" else {}
        runner = build(replace(work, progress=say), tuning_folder=f"{asked.caches}/tiles", **options)
    row = {"build_seconds": time.monotonic() - began, "ran": runner.description, "said": said}
    details = ("candidates_ms", "kept_fp16", "sensitivity", "refused", "choices", "known")
    row |= {"seconds": watch.seconds, "calls": watch.calls} | {name: runner.details.get(name) for name in details}
    tell(stage, row)
    yield row
    batches = [batch.clone() for batch in work.batches[:2]]
    if asked.inputs:
        built = {one.name: inputs_compared(one.captured, batches) for one in made if one is not None}
        sys.stdout.write(f"{stage}, inputs: {json.dumps(built)}\n")
        yield {"inputs": built}
    if asked.launches:
        found = {one.name: compared(one.captured, batches) for one in made if one is not None}
        sys.stdout.write(f"{stage}, launches: {json.dumps(found)}\n")
        yield {"launches": found}


def tell(stage: str, row: dict[str, Any]) -> None:
    """Print a build's line, and one for each step."""
    brief = {name: row[name] for name in ("candidates_ms", "kept_fp16", "refused", "known")}
    sys.stdout.write(f"{stage}: built in {row['build_seconds']:.1f} s: {json.dumps(brief)}\n")
    for name, seconds in row["seconds"].items():
        sys.stdout.write(f"  {name}: {seconds:.2f} s in {row['calls'][name]} calls\n")
    sys.stdout.flush()


@contextmanager
def watched(watch: Stopwatch) -> Iterator[list[Any]]:
    """The build's steps timed within, and its candidates; None for one that was refused."""
    nets = import_module("pipeline.stages.common.rewritten_net")
    before = {(module, name): getattr(import_module(module), name) for module in STEPS for name in STEPS[module]}
    for module, name in before:
        watch.watch(import_module(module), name)
    made: list[Any] = []
    inner: Callable[..., Any] = nets.Rewritten._built

    def kept(*args: Any) -> Any:
        made.append(inner(*args))
        return made[-1]

    nets.Rewritten._built = kept
    try:
        yield made
    finally:
        nets.Rewritten._built = inner
        for (module, name), function in before.items():
            setattr(import_module(module), name, function)


def inputs_compared(captured: Captured, batches: list[Tensor]) -> dict[str, Any]:
    """Of calls on batches [batch, channels, H, W] in rotation, read where they lie and copied, some rounds of each.

    Milliseconds a call in loops of `LOOP_SECONDS`, the host's microseconds for one, and whether the bits are the same.
    """
    given = [part.clone() for part in batches for _ in range(2)]
    chosen, clock = captured.without_copies().copied, TorchClock(given[0].device)

    def batches_of(calls: int) -> list[Tensor]:
        return [given[number % len(given)] for number in range(calls)]

    found: dict[str, Any] = {"chosen_copied": chosen, "in_place_ms": [], "copied_ms": []}
    answers: dict[str, list[Tensor]] = {}
    with torch.inference_mode():
        for name in ("copied", "in_place") * ROUNDS_OF_LOOPS:
            for known in captured._inputs:
                known.in_place = known.proven and name == "in_place"
            answers[name] = [captured(part).clone() for part in given]
            clock.synchronize()
            began = clock.now()
            for part in batches_of(HOST_CALLS):
                captured(part)
            found[f"{name}_host_us"] = 1e6 * (clock.now() - began) / HOST_CALLS
            clock.synchronize()
            calls = int(LOOP_SECONDS * HOST_CALLS / time_calls(captured, batches_of(HOST_CALLS), clock)[0])
            found[f"{name}_ms"].append(1e3 * time_calls(captured, batches_of(calls), clock)[0] / calls)
    for known in captured._inputs:
        known.in_place = not known.copied
    same = all(torch.equal(*pair) for pair in zip(answers["copied"], answers["in_place"], strict=True))
    return found | {"same_bits": same}


def compared(captured: Captured, batches: list[Tensor]) -> dict[str, Any]:
    """Milliseconds with and without dependent launches of a captured net on batches [batch, channels, H, W].

    And how many of `ROUNDS` calls, each right after one on the other batch, gave other bits than plain launches do.
    """
    launcher = import_module("triton.backends.nvidia.driver").CudaLauncher
    inner = launcher.__call__

    def plain(self: Any, *args: Any) -> Any:
        asked, self.launch_pdl = self.launch_pdl, False
        try:
            return inner(self, *args)
        finally:
            self.launch_pdl = asked

    launcher.__call__ = plain
    try:
        without = Captured(captured.model, *captured.fixed)
    finally:
        launcher.__call__ = inner
    with torch.inference_mode():
        wanted = [without(batch).clone() for batch in batches]
        wrong = torch.zeros((), device="cuda", dtype=torch.int64)
        for turn in range(ROUNDS):
            number = turn % len(batches)
            wrong += (captured(batches[number]) != wanted[number]).any()
    times = full_load_ms([captured.graph, without.graph])
    return {"dependent_ms": times[0], "plain_ms": times[1], "wrong_answers": int(wrong), "of": ROUNDS}


if __name__ == "__main__":
    main()
