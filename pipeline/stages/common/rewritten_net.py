"""A net rewritten for the project's kernels, as `fused` and `fp8` build it: its candidates, and the fastest of them."""

import copy
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial

import torch
from torch import fx

from pipeline.compiler.agreement import check_agreement
from pipeline.compiler.artifact import save
from pipeline.compiler.autotune import Tuner
from pipeline.compiler.choose import choose, untimed_library
from pipeline.compiler.compile_ahead import compiled_beside, programs_of
from pipeline.compiler.errors import UnsupportedError
from pipeline.compiler.exported_net import CASTS, ExportedNet, export
from pipeline.compiler.folding import folded
from pipeline.compiler.fx_graph import shape_of
from pipeline.compiler.half import in_half
from pipeline.compiler.layer_nodes import inputs_of, layer_of
from pipeline.compiler.lowering import Plan, lower
from pipeline.compiler.network_calls import without_tf32
from pipeline.compiler.own_norms import put_own_norms
from pipeline.compiler.passes import FOR_ANY_BACKEND, FOR_THE_KERNELS, FOR_THE_LIBRARY, rewrite
from pipeline.compiler.timing import full_load_ms
from pipeline.compiler.upsampled_layer import UpsampledLayer
from pipeline.compiler.wide_buffers import find_places
from pipeline.devices.kinds import is_cuda
from pipeline.kernels.common.capability import reaching_views_barred
from pipeline.kernels.common.program import Programs
from pipeline.records.run_record import CompileFacts
from pipeline.records.run_record import Precision as PrecisionName
from pipeline.stages.api import Runner, Workload
from pipeline.stages.common.inductor import triton_as_inductor_has_it
from pipeline.stages.common.inductor_search import INDUCTOR, MODES, SEARCHED, Search, most_seconds, worth_it
from pipeline.stages.common.net_candidate import (
    Candidate,
    captured,
    described,
    execution,
    quoted,
    switch_on_the_library,
)
from pipeline.stages.common.not_rewritten import beyond_kernels, by_inductor_alone, uncompiled
from pipeline.stages.common.precision import half_net
from pipeline.stages.common.time_limit import TooLongError

Barred = Callable[[], str | None]  # why no kernel runs on this GPU
COMPOSED = "Inductor of the rewritten net"  # the name of a candidate


class Rewritten:
    """A workload's net, exported and rewritten, and "all of it to Inductor" as its first candidate.

    Attributes:
        workload: gives the net and its images.
        net: with its layers.
        tuner: measures.
        barred: why no kernel runs on this GPU; None where they do.
        search: whether Inductor is also to time its choices.
        kept: paths of the modules that compute in fp32.
        refused: for each candidate that could not be built, or was wrong, the reason in a line.
        given_up: those of them that took too long, as they would again.
        plain: the net without a kernel of the project, to be called or compiled.

    Raises:
        UnsupportedError: torch can't export the net, or it can't be rewritten.
    """

    def __init__(
        self, workload: Workload, tuner: Tuner, barred: str | None, search: Search = "auto", kept: Sequence[str] = ()
    ) -> None:
        self.workload, self.tuner, self.barred, self.search, self.kept = workload, tuner, barred, search, kept
        self.refused: dict[str, str] = {}
        self.given_up: dict[str, str] = {}
        switch_on_the_library()
        if is_cuda(workload.device.type):
            triton_as_inductor_has_it(workload.device)
        workload.progress("exporting the net")
        self.net: ExportedNet = self._exported()
        try:
            with without_tf32():  # what is computed once, is computed exactly
                rewrite(self.net, FOR_ANY_BACKEND)
            self.plain = fx.GraphModule(self.net.module, copy.deepcopy(self.net.module.graph))
            rewrite(self.net, FOR_THE_LIBRARY if barred else FOR_THE_KERNELS)
        except Exception as error:
            traceback.print_exc()
            raise UnsupportedError(f"a rewrite failed: {quoted(error)}") from error

    def _exported(self) -> ExportedNet:
        work, inputs = self.workload, self.workload.inputs[0]
        # A batch norm between modules that are kept would round what they hand on, and overflow.
        model = folded(work.model, inputs)[0] if self.kept else work.model
        return export(model, inputs, torch.float16, work.layout, partial(in_half, kept=self.kept))

    @contextmanager
    def compiling(self, *scales: Mapping[str, float]) -> Iterator[None]:
        """Compile the kernels of candidates with such scales beside what happens within, and wait for the last.

        What can't be known beforehand is compiled as each layer is measured.
        """
        inputs = self.workload.inputs[0]
        programs: Programs = {}
        try:
            with torch.inference_mode():
                for each in scales if is_cuda(self.net.device.type) and not self.barred else ():
                    programs |= programs_of(self.net, each, inputs, self.tuner)
        except Exception as error:  # noqa: BLE001 - a net whose shapes follow from its values, say
            traceback.print_exc()
            self.workload.progress(f"each layer's kernels are compiled at its turn: {quoted(error)}")
        if programs:
            self.workload.progress(f"compiling {len(programs)} kernels meanwhile")
        with compiled_beside(programs, self.workload.progress):
            yield

    @cached_property
    def by_inductor(self) -> Candidate | None:
        """The net without a kernel of the project; None where Inductor can't compile it."""
        return self._by(INDUCTOR)

    @cached_property
    def by_searching_inductor(self) -> Candidate | None:
        """The same by Inductor that times its choices, for minutes; None where it can't compile it so."""
        return self._by(SEARCHED)

    def _by(self, name: str) -> Candidate | None:
        inputs, limit = self.workload.inputs[0], most_seconds(name, self.search)
        self.workload.progress(f"all of it by {name}")
        how = execution("fp16", 0, order=self.workload.layout)
        return self._built(name, lambda: captured(name, self.plain, how, *inputs, mode=MODES[name], most_seconds=limit))

    def composed(self) -> Candidate | None:
        """The net by Inductor, up-samplings composed by the library and concatenations joined where their parts lie.

        It is for a GPU that no kernel runs on; None where there is nothing of either, or where it was refused.
        """
        return self._built(COMPOSED, self._composed)

    def _composed(self) -> Candidate | None:
        nodes = [node.name for node in self.net.module.graph.nodes if layer_of(self.net.module, node)]
        if not nodes and not find_places(self.net, {}).joined:
            return None
        self.workload.progress(f"all of it by {COMPOSED}")
        plan, inputs = Plan(by_library=nodes), self.workload.inputs[0]
        lowered, how = lower(self.net, plan), execution("fp16", 0, order=self.workload.layout)
        found = captured(COMPOSED, lowered, replace(how, layer_flops=composed_flops(self.net)), *inputs)
        found.lowered, found.plan = lowered, plan
        return found

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
            kept: the layers that compute in fp16 nevertheless, Inductor's among them.
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
            if found is not None and name != INDUCTOR:
                self._check(found)
        except Exception as error:  # noqa: BLE001 - whatever a compiler raises, the other candidates stay
            traceback.print_exc()
            self.refused[name] = quoted(error)
            if isinstance(error, TooLongError):
                self.given_up[name] = quoted(error)
            return None
        return found

    def _check(self, found: Candidate) -> None:
        """Raise WrongAnswerError where a candidate doesn't answer as the plain net does.

        That is Inductor's, if it is built; else torch's own, operation by operation.
        """
        inputs, built = self.workload.inputs[0], vars(self).get("by_inductor")
        by, run = ("torch", self.plain) if built is None else ("Inductor", built.captured)
        with torch.inference_mode(), untimed_library(), without_tf32():
            answer, plain = found.captured(*inputs), run(*inputs)
            check_agreement(answer, plain, lambda: self.workload.model(*inputs), found.execution.precision, by)

    def _candidate(
        self, scales: Mapping[str, float], precision: PrecisionName, kept: list[str], *, own_norms: bool
    ) -> Candidate | None:
        inputs, norms = self.workload.inputs[0], {}
        with torch.inference_mode():
            plan = choose(self.net, scales, inputs, self.tuner, self.workload.progress)
            lowered = lower(self.net, plan)
            if own_norms:
                self.workload.progress("own kernels for norms")
                norms = put_own_norms(lowered, inputs, self.tuner)
        if not plan.tiles or (own_norms and not norms):
            return None
        nodes = [node for node in self.net.module.graph.nodes if node.name in plan.by_library]
        by_library = [layer.name for node in nodes if (layer := layer_of(self.net.module, node))]
        layers: dict[str, PrecisionName] = dict.fromkeys([*kept, *by_library] if scales else [], "fp16")
        self.workload.progress(f"{len(plan.tiles)} layers by own kernels, the rest by Inductor")
        how = replace(execution(precision, len(plan.tiles), layers), layer_flops=composed_flops(self.net))
        found = captured("own kernels and norms" if own_norms else "own kernels", lowered, how, *inputs)
        found.lowered, found.plan, found.details = lowered, plan, {"norms": norms} if norms else {}
        return found


def best_form(
    work: Workload,
    tuner: Tuner,
    search: Search,
    kept: Sequence[str],
    barred: Barred,
    best: Callable[[Rewritten], Runner],
) -> Runner:
    """The best form of the net, which `best` gives; for one that can't be rewritten, all of it by Inductor."""
    if why := beyond_kernels(work):
        return by_inductor_alone(work, why, tuner, search, kept)
    reason = barred()
    try:
        rewritten = Rewritten(work, tuner, reason, search, kept)
    except UnsupportedError as error:
        return by_inductor_alone(work, str(error), tuner, search, kept)
    return best(rewritten)


def composed_flops(net: ExportedNet) -> dict[str, float]:
    """FLOPs an image of the layers that are composed of two, by their names: they multiply less than the two do."""
    found = [(node, layer_of(net.module, node)) for node in net.module.graph.nodes]
    return {
        layer.name: layer.flops_per_image([shape_of(value) for value in inputs_of(node)])
        for node, layer in found
        if isinstance(layer, UpsampledLayer)
    }


def fastest(rewritten: Rewritten, candidates: list[Candidate | None]) -> Runner:
    """The fastest candidate at full load as a stage; the half net, where there is none.

    Inductor that times its choices is tried beside them where that may be faster than all of these.
    """
    torch.cuda.empty_cache()  # the weights of the lowered graphs that were measured
    there = [candidate for candidate in candidates if candidate is not None]
    if not there:
        half = half_net(rewritten.workload, torch.float16, rewritten.kept)
        return uncompiled(half, rewritten.workload, "; ".join(rewritten.refused.values()))
    times = _milliseconds(there)
    if worth_it(rewritten.search, times) and (more := rewritten.by_searching_inductor) is not None:
        there.append(more)
        times = _milliseconds(there)
    best = min(there, key=lambda candidate: times[candidate.name])
    return as_stage(rewritten, best, times)


def _milliseconds(candidates: list[Candidate]) -> dict[str, float]:
    """Of a call of each at full load, by their names; of a single one they don't matter."""
    if len(candidates) == 1:
        return {candidates[0].name: 0.0}
    times = full_load_ms([candidate.captured.graph for candidate in candidates])
    return {candidate.name: took for candidate, took in zip(candidates, times, strict=True)}


def as_stage(rewritten: Rewritten, best: Candidate, candidates_ms: Mapping[str, float]) -> Runner:
    """The candidate that was the fastest, with the milliseconds of all."""
    run, measured = best.captured, rewritten.tuner.measured
    details = best.details | {
        "candidates_ms": dict(candidates_ms),
        "refused": rewritten.refused,
        "passes": rewritten.net.matched,
        "choices": {**best.plan.tiles, **dict.fromkeys(best.plan.by_library, "library")},
        "kernels_barred": rewritten.barred or reaching_views_barred() or "",
        "choices_unkept": rewritten.tuner.unkept,
        "kernels_failed": dict(best.plan.failed),
    }
    lowered, inputs = best.lowered, rewritten.workload.inputs[0]
    return Runner(
        run,
        description=described(best, details["kernels_barred"], rewritten.refused, casts=CASTS in rewritten.net.matched),
        execution=best.execution,
        details=details,
        calibration=best.calibration,
        left_out=best.left_out,
        compile_facts=lambda: CompileFacts(candidates_measured=measured),
        save=None if lowered is None else lambda folder: save(lowered, inputs, folder / "net"),
        uncaptured=best.call,
        traffic=lambda *_: (best.moved_bytes, "Inductor"),
    )
