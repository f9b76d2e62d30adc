"""A net rewritten for the project's kernels, as `fused` and `fp8` build it: its candidates, and the fastest of them."""

import copy
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from pipeline.compiler.artifact import save
from pipeline.compiler.autotune import HOME, Tuner
from pipeline.compiler.choose import choose, untimed_library
from pipeline.compiler.exported_net import ExportedNet, export
from pipeline.compiler.fx_graph import shape_of
from pipeline.compiler.layer_nodes import inputs_of, layer_of
from pipeline.compiler.lowering import Plan, lower
from pipeline.compiler.own_norms import put_own_norms
from pipeline.compiler.passes import FOR_ANY_BACKEND, FOR_THE_KERNELS, rewrite
from pipeline.compiler.upsampled_layer import UpsampledLayer
from pipeline.kernels.common.capability import reaching_views_barred
from pipeline.measure.accuracy import distance
from pipeline.measure.timers import full_load_ms
from pipeline.records.error_line import typed_line
from pipeline.records.run_record import CompileFacts, Execution
from pipeline.records.run_record import Precision as PrecisionName
from pipeline.records.samples import Calibration
from pipeline.stages.api import IMAGE_RANK, Runner, Workload
from pipeline.stages.common.graph_capture import Captured
from pipeline.stages.common.inductor import compile_counting_bytes
from pipeline.stages.common.precision import Half, allow_tf32, eager_execution

# How far a candidate may be from the net by Inductor (relative L2): a wrong kernel is off by more, whatever the net.
# How right a stage must be is its tolerance, against fp32.
AGREES: dict[PrecisionName | None, float] = {"fp16": 0.1, "fp8": 0.5}

QUOTED_CHARACTERS = 200  # of a compiler's error


class WrongAnswerError(Exception):
    """A candidate that doesn't compute the net."""


@dataclass
class Candidate:
    """One way to run the net, compiled and captured.

    Attributes:
        name: for the record.
        captured: its CUDA graph.
        execution: its properties.
        call: the same, kernel by kernel.
        moved_bytes: through the GPU's memory in a call, by Inductor's own count.
        lowered: the graph with the kernels' operations; None where there are none.
        plan: how it was lowered.
        details: what the record keeps of how it came about.
        calibration: the images that it was chosen on.
        left_out: batches that it must not be judged on, by their number in the verdict.
    """

    name: str
    captured: Captured
    execution: Execution
    call: Callable[..., Tensor]
    moved_bytes: int
    lowered: fx.GraphModule | None = None
    plan: Plan = field(default_factory=Plan)
    details: dict[str, Any] = field(default_factory=dict)
    calibration: Calibration | None = None
    left_out: tuple[int, ...] = ()


class Rewritten:
    """A workload's net, exported and rewritten, and "all of it to Inductor" as its first candidate.

    Attributes:
        workload: gives the net and its images.
        net: with its layers.
        tuner: measures.
        barred: why no kernel runs on this GPU; None where they do.
        refused: for each candidate that could not be built, or was wrong, the reason in a line.
        plain: the net without a kernel of the project, to be called or compiled.
    """

    def __init__(self, workload: Workload, tuner: Tuner, barred: str | None) -> None:
        self.workload, self.tuner, self.barred = workload, tuner, barred
        switch_on_the_library()
        batch = workload.batches[0]
        workload.progress("exporting the net")
        self.net: ExportedNet = export(workload.model, batch, torch.float16)
        rewrite(self.net, FOR_ANY_BACKEND)
        self.refused: dict[str, str] = {}
        self.plain = fx.GraphModule(self.net.module, copy.deepcopy(self.net.module.graph))
        if barred is None:
            rewrite(self.net, FOR_THE_KERNELS)

    @cached_property
    def by_inductor(self) -> Candidate | None:
        """The net without a kernel of the project; None where Inductor can't compile it."""
        batch = self.workload.batches[0]
        self.workload.progress("all of it by Inductor")
        return self._built("Inductor", lambda: captured("Inductor", self.plain, execution("fp16", 0), batch))

    def candidate(
        self,
        scales: Mapping[str, float],
        precision: PrecisionName,
        kept: list[str] | None = None,
        *,
        own_norms: bool = False,
    ) -> Candidate | None:
        """The net with its layers by the fastest tiles; None where no layer is a kernel's, or where it was refused.

        Args:
            scales: of the values in fp8, by their nodes' names.
            precision: of most layers.
            kept: the layers that stay in fp16.
            own_norms: whether own kernels take the norms' passes; None where there are none, too.
        """
        if own_norms and not self.net.matched.get("sum_where_made"):
            return None
        name = f"{precision}, own norms" if own_norms else precision
        return self._built(name, lambda: self._candidate(scales, precision, kept or [], own_norms=own_norms))

    def _built(self, name: str, build: Callable[[], Candidate | None]) -> Candidate | None:
        """A candidate, if it can be built and answers as the net without our kernels does."""
        try:
            found = build()
            if found is not None and name != "Inductor":
                self._check(found)
        except Exception as error:  # noqa: BLE001 - whatever a compiler raises, the other candidates stay
            traceback.print_exc()
            self.refused[name] = typed_line(error)[:QUOTED_CHARACTERS]
            return None
        return found

    def _check(self, found: Candidate) -> None:
        """Raise WrongAnswerError where a candidate isn't finite where the plain net is, or is far from it.

        That is Inductor's, if it is built; else torch's own, operation by operation.
        """
        batch, built = self.workload.batches[0], vars(self).get("by_inductor")
        by, run = ("torch", self.plain) if built is None else ("Inductor", built.captured)
        with torch.inference_mode(), untimed_library():
            error = distance(found.captured(batch), run(batch))
        if error > AGREES[found.execution.precision]:
            raise WrongAnswerError(f"its logits are {error:.3g} off those of the net by {by} (relative L2)")

    def _candidate(
        self, scales: Mapping[str, float], precision: PrecisionName, kept: list[str], *, own_norms: bool
    ) -> Candidate | None:
        batch, norms = self.workload.batches[0], {}
        with torch.inference_mode():
            plan = choose(self.net, scales, batch, self.tuner, self.workload.progress)
            lowered = lower(self.net, plan)
            if own_norms:
                self.workload.progress("own kernels for norms")
                norms = put_own_norms(lowered, batch, self.tuner)
        if not plan.tiles or (own_norms and not norms):
            return None
        layers: dict[str, PrecisionName] = dict.fromkeys(kept, "fp16")
        self.workload.progress(f"{len(plan.tiles)} layers by own kernels, the rest by Inductor")
        how = replace(execution(precision, len(plan.tiles), layers), layer_flops=composed_flops(self.net))
        found = captured("own kernels and norms" if own_norms else "own kernels", lowered, how, batch)
        found.lowered, found.plan, found.details = lowered, plan, {"norms": norms} if norms else {}
        return found


def composed_flops(net: ExportedNet) -> dict[str, float]:
    """FLOPs an image of the layers that are composed of two, by their names: they multiply less than the two do."""
    found = [(node, layer_of(net.module, node)) for node in net.module.graph.nodes]
    return {
        layer.name: layer.flops_per_image([shape_of(value) for value in inputs_of(node)])
        for node, layer in found
        if isinstance(layer, UpsampledLayer)
    }


def switch_on_the_library() -> None:
    """CuDNN may time its algorithms, and round what is left in fp32 to TF32."""
    allow_tf32(True)
    torch.backends.cudnn.benchmark = True


def tuner_in(folder: str | None) -> Tuner:
    """A tuner that keeps what it measures in a folder; without one, where all builds of this user do."""
    return Tuner(Path(folder) if folder else HOME)


def execution(precision: PrecisionName, ours: int, layers: dict[str, PrecisionName] | None = None) -> Execution:
    """How a candidate runs, `ours` of its layers by own kernels and `layers` in other precisions."""
    provider = "own kernels" if ours else "Inductor"
    return Execution(precision, layers or {}, "NHWC", provider, captured=True, fuses=True, own_kernels=ours)


def captured(name: str, module: nn.Module, how: Execution, *inputs: Tensor) -> Candidate:
    """A candidate, compiled for inputs of any shape, these, and captured."""
    with torch.inference_mode():
        call, moved = compile_counting_bytes(module, *inputs)
        return Candidate(name, Captured(call, *inputs), how, call, moved)


def fastest(rewritten: Rewritten, candidates: list[Candidate | None]) -> Runner:
    """The fastest candidate at full load as a stage; the half net, where there is none."""
    torch.cuda.empty_cache()  # the weights of the lowered graphs that were measured
    there = [candidate for candidate in candidates if candidate is not None]
    if not there:
        return half_instead(rewritten.workload, "; ".join(rewritten.refused.values()))
    times = full_load_ms([candidate.captured.graph for candidate in there]) if len(there) > 1 else [0.0]
    best = there[times.index(min(times))]
    return as_stage(rewritten, best, {candidate.name: took for candidate, took in zip(there, times, strict=True)})


def as_stage(rewritten: Rewritten, best: Candidate, candidates_ms: Mapping[str, float]) -> Runner:
    """The candidate that was the fastest, with the milliseconds of all."""
    measured = rewritten.tuner.measured
    details = best.details | {
        "candidates_ms": dict(candidates_ms),
        "refused": rewritten.refused,
        "passes": rewritten.net.matched,
        "choices": {**best.plan.tiles, **dict.fromkeys(best.plan.by_library, "library")},
        "kernels_barred": rewritten.barred or reaching_views_barred() or "",
        "choices_unkept": rewritten.tuner.unkept,
    }
    lowered, batch = best.lowered, rewritten.workload.batches[0]
    return Runner(
        best.captured,
        description=described(best, details["kernels_barred"], rewritten.refused),
        execution=best.execution,
        details=details,
        calibration=best.calibration,
        left_out=best.left_out,
        compile_facts=lambda: CompileFacts(candidates_measured=measured),
        save=None if lowered is None else lambda folder: save(lowered, batch, folder / "net"),
        uncaptured=best.call,
        traffic=lambda *_: (best.moved_bytes, "Inductor"),
    )


def owned_up(runner: Runner, promised: PrecisionName) -> Runner:
    """The stage, saying what runs where none of the project's kernels does, or none in the promised precision."""
    how, details = runner.execution, runner.details
    assert how is not None
    if how.own_kernels and promised in (how.precision, "fp16"):
        return runner
    ran = f"{how.own_kernels} layers by own kernels" if how.own_kernels else f"all of it by {how.provider}"
    refused = "; ".join(f"{name} was refused: {why}" for name, why in details.get("refused", {}).items())
    why = details.get("not_rewritten") or details.get("kernels_barred") or refused or "the fastest of what was tried"
    return replace(runner, execution=replace(how, instead=f"{ran}, in {how.precision}: {why}"))


def described(best: Candidate, barred: str, refused: Mapping[str, str]) -> str:
    """What runs, in a line, and what could not."""
    ours = best.execution.own_kernels or 0
    precision = best.execution.precision
    text = f"{precision}, {ours} layers by own kernels, the rest by Inductor, one CUDA graph"
    if not ours:
        text = f"{precision}, all by Inductor, one CUDA graph"
    failed = "".join(f"; {name} was refused: {why}" for name, why in refused.items())
    return text + (f"; kernels are barred: {barred}" if barred else "") + failed


def by_inductor_alone(workload: Workload, why: str) -> Runner:
    """The half net by Inductor in one CUDA graph, for inputs that no kernel of the project takes."""
    switch_on_the_library()
    half = Half(workload.model, torch.float16).eval()
    try:
        found = captured("Inductor", half, execution("fp16", 0), *workload.inputs[0])
    except Exception as error:  # noqa: BLE001 - whatever a compiler raises
        traceback.print_exc()
        return half_instead(workload, f"{why}; Inductor: {typed_line(error)[:QUOTED_CHARACTERS]}")
    return Runner(
        found.captured,
        description=f"{described(found, '', {})}: {why}",
        execution=found.execution,
        details={"not_rewritten": why},
        uncaptured=found.call,
        traffic=lambda *_: (found.moved_bytes, "Inductor"),
    )


def beyond_kernels(workload: Workload) -> str:
    """Why the project's kernels take nothing of a net with such inputs; empty where they may."""
    if workload.others:
        return f"the project's kernels are for nets of one input, and this one takes {1 + len(workload.others)}"
    if (rank := len(workload.shape)) != IMAGE_RANK:
        return f"the project's kernels are for images of two dimensions, and this net's input has {rank} axes"
    return ""


def half_instead(workload: Workload, why: str) -> Runner:
    """The half net, for a net that torch can't export."""
    run = Captured(Half(workload.model, torch.float16).eval(), *workload.inputs[0])
    how = eager_execution("fp16", "NHWC", captured=True)
    return Runner(run, f"fp16 half net in one CUDA graph: {why}", how, {"not_rewritten": why})
