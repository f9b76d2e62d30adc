"""One random net through everything: rewritten, lowered, in halves and in fp8, saved and loaded, by the references."""

import math
import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, fx, nn

from pipeline.compiler.agreement import distance
from pipeline.compiler.artifact import load, save
from pipeline.compiler.batch import Batch
from pipeline.compiler.fp8_build import largest
from pipeline.compiler.graph.exported_net import Entry, ExportedNet, export
from pipeline.compiler.graph.fp8_values import scales
from pipeline.compiler.graph.lowering import Plan, lower
from pipeline.compiler.tuning.own_norms import found_passes, put_pass
from pipeline.errors import typed_line
from tests.compiler.rewriting import layers, rewrite_all
from tests.random_nets.layers import Draw
from tests.random_nets.net import random_net

# Relative L2. What a net may be off beyond rounding's own part of it, which is measured on the net: nets of few pixels
# and of norms amplify it.
PASSES, LOWERED, HALVES, FP8 = 1e-4, 2e-3, 5e-3, 0.5
AS_ROUNDED = 4.0  # times what the net is off with weights and inputs in fp16, or run in fp16 by torch


@dataclass
class Trial:
    draw: Draw
    failures: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    layers: int = 0
    raised: str = ""

    def expect(self, name: str, found: float, limit: float) -> None:
        """Note a distance, and a failure where it isn't within a limit, as NaN never is."""
        self.figures[name] = max(found, self.figures.get(name, 0.0))
        if not found <= limit:
            self.failures.append(f"{name}: {found:.1e} off, at most {limit:.1e}")


@torch.no_grad()
def tried(seed: int, plain: frozenset[str] = frozenset(), whole: bool = False) -> Trial:
    """Take one net through everything, but for what only one net in four is taken through unless `whole`."""
    trial = Trial(Draw(seed, plain))
    turn = random.Random(seed).randrange(4)
    steps: list[Callable[[Trial, nn.Module, list[Batch], Tensor], None]] = [in_halves]
    steps += [in_fp32] if whole or turn == 0 else []
    try:
        net, batches = random_net(trial.draw)
        wanted = net(*batches[1]).float()
        trial.figures["rounded"] = rounded(net, batches[1], wanted)
        for step in steps:
            step(trial, net, batches, wanted)
        if whole or turn == 1:
            as_files(trial, net, batches)
    except Exception as error:  # noqa: BLE001 - it is what is looked for
        trial.raised = traceback.format_exc()
        trial.failures.append(typed_line(error))
    return trial


def rounded(net: nn.Module, inputs: Batch, wanted: Tensor) -> float:
    """How far a net with weights and inputs rounded to fp16 is from its answer of any shape."""
    entry = Entry(net, torch.float16)
    entry.net.float()
    parts = [part.half().float() if part.is_floating_point() else part for part in inputs]
    return distance(entry.net(*parts).float(), wanted)


def rewritten(net: nn.Module, inputs: Batch, dtype: torch.dtype) -> ExportedNet:
    with torch.enable_grad():
        exported = export(net, inputs, dtype)
    rewrite_all(exported)
    return exported


def in_fp32(trial: Trial, net: nn.Module, batches: list[Batch], wanted: Tensor) -> None:
    """Passes change no answer of any shape; nor does lowering, but for what is rounded, with layers by the library."""
    exported, off = rewritten(net, batches[0], torch.float32), trial.figures["rounded"]
    trial.expect("passes", distance(exported.module(*batches[1]), wanted), PASSES + off / 20)
    names = list(layers(exported))
    for part in ([], names[::2], names[1::2]):
        graph = lower(exported, Plan(by_library=part))
        trial.expect("lowered", distance(graph(*batches[1]), wanted), LOWERED + AS_ROUNDED * off)


def in_halves(trial: Trial, net: nn.Module, batches: list[Batch], wanted: Tensor) -> None:
    seen, other = batches
    try:
        half = distance(Entry(net, torch.float16)(*other).float(), wanted)
    except NotImplementedError:  # of some operations torch has no form in fp16 for a CPU
        return
    if not math.isfinite(half):  # torch's own fp16 overflows: no limit could be told from it
        return
    exported = rewritten(net, seen, torch.float16)
    trial.layers = len(layers(exported))
    limit = HALVES + AS_ROUNDED * max(half, trial.figures["rounded"])
    trial.expect("fp16", distance(lower(exported, Plan())(*other), wanted), limit)
    own = lower(exported, Plan())
    if with_own_norms(own):
        trial.expect("own norms", distance(own(*other), wanted), limit)
    known = in_fp8(exported, batches)
    for part in ([], list(layers(exported))[::2]) if known else ():
        graph = lower(exported, Plan(known, by_library=part))
        trial.expect("fp8", distance(graph(*other), wanted), FP8 + limit)


def with_own_norms(graph: fx.GraphModule) -> bool:
    """Whether a lowered graph has passes of norms, which are put into operations of their own."""
    found = [put_pass(one) for one in found_passes(graph.graph)]
    graph.graph.lint()
    graph.recompile()
    return bool(found)


def in_fp8(exported: ExportedNet, batches: list[Batch]) -> dict[str, float]:
    return scales(exported, [], largest(exported, batches))


def as_files(trial: Trial, net: nn.Module, batches: list[Batch]) -> None:
    exported = rewritten(net, batches[0], torch.float32)
    for known in ({}, in_fp8(exported, batches)):
        graph = lower(exported, Plan(known))
        with TemporaryDirectory() as folder:
            save(graph, batches[1], Path(folder))
            if not torch.equal(load(Path(folder))(*batches[1]), graph(*batches[1])):
                trial.failures.append("loaded: another answer")
