"""The driver: exports a network, rewrites it, builds candidates, and returns the fastest one that answers right.

A network that can't be rewritten is left to Inductor alone, and one that Inductor can't compile to torch in half
precision. The fastest candidate's name is kept beside the choices of tiles: a later build makes that one alone.
"""

import copy
import gc
import hashlib
import statistics
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from pipeline.compiler import network_calls
from pipeline.compiler.agreement import check_agreement, check_finite
from pipeline.compiler.ahead import compiled_beside, compilers_started, programs_of
from pipeline.compiler.batch import Batch, Order
from pipeline.compiler.candidate import INDUCTOR, MODES, SEARCHED, Candidate, Properties, Search, TooLongError, captured
from pipeline.compiler.cuda_graphs import Captured, as_normal, full_load_ms
from pipeline.compiler.custom_ops import layout
from pipeline.compiler.ends import Ends
from pipeline.compiler.errors import CompileError, UnsupportedError, typed_line
from pipeline.compiler.folding import folded
from pipeline.compiler.graph.exported_net import CASTS, ExportedNet, export, without_checks
from pipeline.compiler.graph.fp8_values import left_to_inductor
from pipeline.compiler.graph.fx_graph import shape_of
from pipeline.compiler.graph.layers import TokensLayer, UpsampledLayer, inputs_of, layer_calls
from pipeline.compiler.graph.lowering import Plan, lower
from pipeline.compiler.half import FULL, SHORT, Half, Precision, half_net, layers_within
from pipeline.compiler.inductor import check_compiled, compile_counting_bytes
from pipeline.compiler.passes import FOR_ANY_BACKEND, FOR_THE_KERNELS, rewrite
from pipeline.compiler.passes.volumes_as_images import signals_as_images
from pipeline.compiler.tuning.autotune import Tuner, processors
from pipeline.compiler.tuning.choose import choose
from pipeline.compiler.tuning.compile_processes import CompilingProcesses
from pipeline.compiler.tuning.own_norms import put_own_norms
from pipeline.kernels.common.capability import barred_on, gluon_barred, is_cuda, reaching_views_barred
from pipeline.kernels.common.program import Programs

SIGNALS, IMAGES, VOLUMES = 3, 4, 5  # axes of [batch, channels, length], with a height, and with a depth
AS_IMAGES = "Inductor, signals as images"  # a candidate
# Seconds on a host with an H100: of the first program, and of each on one processor; of Inductor for each node.
FIRST_PROGRAM, A_PROGRAM, A_NODE = 7.0, 1.5, 0.015
A_WHILE, LONG = 3.0, 20.0
# Of the kernels' layers, so many may be Inductor's before its form is built at once, beside the kernels. nnU-Net's
# residual 3-D network has a quarter, and its own form takes 0.59 of Inductor's time, whose build takes 40 s (H200).
MOST_LEFT = 1 / 3
# The search takes minutes and gains at most a tenth: compile_max takes 0.89 to 1.2 of the milliseconds that a captured
# graph takes by the defaults, on nine networks of docs/h200/nets.md (of different runs).
CLEARLY = 0.9
# Of a search that wasn't asked for. On an H200 it took 84 to 167 s for most networks of docs/h200/nets.md, seven
# minutes for EfficientNet, more than four for diffusers' UNet2DConditionModel; a build may take ten with measure=quick.
MOST_SECONDS = 360.0
CHOSEN = ("tiles", "by_library", "failed", "slower")  # of a plan, as a later build needs it
Makers = dict[str, Callable[[], Candidate | None]]
Scales = Callable[[Collection[str]], Mapping[str, float]]  # of values in fp8, where layers of these names read none


def silent(_: str) -> None:
    """Ignore the progress of a build."""


@dataclass(frozen=True)
class Request:
    """A network to compile, and the options of its build."""

    network: nn.Module  # in fp32 and eval mode; it is never changed
    inputs: Batch  # of one call, on the network's device; images or volumes first, in fp32
    tuner: Tuner = field(default_factory=Tuner)  # measures tiles, and keeps what was measured
    search: Search = "auto"  # whether Inductor also times its choices
    kept: Sequence[str] = ()  # paths of modules that stay in fp32
    layout: Order = "NHWC"  # in which the network's own code runs
    progress: Callable[[str], None] = silent  # is told what the build does


@dataclass(frozen=True)
class Built:
    """A compiled network."""

    run: Callable[..., Tensor]  # takes the inputs; the next call overwrites the logits that it returns
    description: str  # what runs, in a line
    properties: Properties
    details: dict[str, Any]  # how it was chosen; plain JSON values
    call: Callable[..., Tensor] | None = None  # launches the kernels of `run` one by one; None where `run` itself does
    moved_bytes: int | None = None  # that a call moves through device memory, by Inductor's own count
    lowered: nn.Module | None = None  # the graph with the kernels' operations; None where there are none
    candidates_measured: int | None = None  # how many tiles were timed; None where the network wasn't rewritten
    plain: nn.Module | None = None  # the exported graph without kernels; None where the network wasn't rewritten

    def owned_up(self, promised: Precision) -> "Built":
        """Return the same, which says what runs where not the fastest kernels do, or none in the promised precision."""
        how, details = self.properties, self.details
        fastest = not details.get("kernels_barred") or gluon_barred() is not None  # as far as this GPU has them
        if how.own_kernels and promised in (how.precision, "fp16") and fastest:
            return self
        ran = f"{how.own_kernels} layers by own kernels" if how.own_kernels else f"all of it by {how.provider}"
        refused = "; ".join(f"{name} was refused: {why}" for name, why in details.get("refused", {}).items())
        tried = details.get("candidates_ms", {}).keys() - MODES.keys()
        unsuited = "no layer of the network suits the project's kernels"
        fastest_of_all = "the fastest of what was tried" if tried else unsuited
        why = details.get("not_rewritten") or details.get("kernels_barred") or refused or fastest_of_all
        return replace(self, properties=replace(how, instead=f"{ran}, in {how.precision}: {why}"))

    def with_kept(self, network: nn.Module, kept: Sequence[str]) -> "Built":
        """Return the same, which names the modules of the network that it keeps in fp32, by their paths."""
        within: dict[str, Precision] = dict.fromkeys(layers_within(network, kept), "tf32")
        how = replace(self.properties, layer_precision=self.properties.layer_precision | within)
        said = f"{self.description}; {', '.join(kept)} in fp32, products in TF32" if kept else self.description
        return replace(self, description=said, properties=how, details=self.details | {"kept_in_fp32": [*kept]})


def build(request: Request) -> Built:
    """Return the fastest form of a network in fp16, or all of it by Inductor; CompileError for unknown `kept`."""
    barred = partial(barred_on, request.inputs.device, torch.float16)
    built = best_form(request, barred, lambda net: fastest_or_known(net, without_fp8(net)))
    return built.with_kept(request.network, request.kept).owned_up("fp16")


def best_form(request: Request, barred: Callable[[], str | None], best: Callable[["Rewritten"], Built]) -> Built:
    """Return what `best` makes of the rewritten network, or all of it by Inductor; `barred` tells why no kernel is."""
    rank = len(request.inputs.shape)
    if rank not in (IMAGES, VOLUMES):
        why = f"the project's kernels are for images and volumes, and this network's input has {rank} axes"
        return by_inductor_alone(request, why)
    reason, device = barred(), request.inputs.device
    started = compilers_started(device, request.progress) if is_cuda(device) else nullcontext()
    with seldom_collected(), started as elsewhere:
        try:
            rewritten = Rewritten(request, reason, elsewhere)
        except UnsupportedError as error:
            return by_inductor_alone(request, str(error))
        return best(rewritten)


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Keep Python from looking for garbage among what is there already: torch's modules take seconds of a build."""
    frozen = gc.get_freeze_count()
    gc.freeze()
    try:
        yield
    finally:
        if not frozen:  # else by somebody who means it to last
            gc.unfreeze()


class Whole:
    """A network as one module without a kernel of the library, and its candidates by Inductor."""

    plain: nn.Module
    precision: Precision = "fp16"
    barred: str | None = None
    takes_most = False  # whether kernels take most products, so that Inductor alone is hardly the fastest

    def __init__(self, request: Request) -> None:
        self.request = request
        self.made: dict[str, Candidate | None] = {}  # by Inductor alone
        self.refused: dict[str, str] = {}
        self.given_up: dict[str, str] = {}
        self.kept_choices: dict[str, Any] = {}  # of an earlier build's fastest candidate, while that is built
        self.findings: dict[str, Any] = {}  # for the details of the build, whichever candidate is the fastest
        network_calls.switch_on_the_library()

    def as_built(self, best: Candidate | None, milliseconds: Mapping[str, float]) -> Built:
        """Return the fastest candidate, with the times of all; without one what runs nevertheless."""
        raise NotImplementedError

    @contextmanager
    def compiling(self, *_: Mapping[str, float]) -> Iterator[None]:
        """Compile kernels of candidates beside what happens within."""
        yield

    def by(self, name: str) -> Candidate | None:
        """Return all of the network by `INDUCTOR` or by `SEARCHED`, built once; None where it can't be compiled so."""
        if name not in self.made:
            request = self.request
            limit = MOST_SECONDS if name == SEARCHED and request.search == "auto" else None
            self._announce(f"all of it by {name}", self.plain)
            how = Properties(self.precision, layout=request.layout)
            build = partial(captured, name, self.plain, how, *request.inputs, mode=MODES[name], most_seconds=limit)
            self.made[name] = self._built(name, build)
        return self.made[name]

    def _announce(self, what: str, graph: nn.Module) -> None:
        """Tell what is compiled, and how long that takes where it is a while."""
        seconds = A_NODE * len(graph.graph.nodes) if isinstance(graph, fx.GraphModule) else 0.0
        self.request.progress(what if seconds < A_WHILE else f"{what}, about {seconds:.0f} s")

    def _built(self, name: str, build: Callable[[], Candidate | None]) -> Candidate | None:
        """Build and check a candidate; None if it can't be built, or its answer differs from the plain network's."""
        try:
            candidate = build()
            if candidate is not None:
                inputs, built = self.request.inputs, self.made.get(INDUCTOR)
                by, run = ("torch", self.plain) if built is None else ("Inductor", built.captured)
                with torch.inference_mode(), network_calls.untimed_library(), network_calls.without_tf32():
                    answer, in_fp32 = candidate.captured(*inputs), partial(self.request.network, *inputs)
                    if name == INDUCTOR:  # what others are compared with
                        check_finite(answer, in_fp32)
                    else:
                        check_agreement(answer, run(*inputs), in_fp32, candidate.properties.precision, by)
        except Exception as error:  # noqa: BLE001 - whatever a compiler raises, the other candidates stay
            traceback.print_exc()
            self.refused[name] = typed_line(error)
            if isinstance(error, TooLongError):
                self.given_up[name] = typed_line(error)
            return None
        return candidate


class Rewritten(Whole):
    """A network, exported, rewritten; or UnsupportedError. `net` is the graph with its layers."""

    plain: fx.GraphModule

    def __init__(self, request: Request, barred: str | None, elsewhere: CompilingProcesses | None = None) -> None:
        super().__init__(request)
        self.barred, self.elsewhere = barred, elsewhere
        request.progress("exporting the network")
        # A batch norm between modules that are kept would round what they hand on, and overflow.
        network = folded(request.network, request.inputs)[0] if request.kept else request.network
        self.net: ExportedNet = export(network, request.inputs, torch.float16, request.layout, request.kept)
        try:
            with network_calls.without_tf32():  # what is computed once, is computed exactly
                rewrite(self.net, FOR_ANY_BACKEND)
            self.plain = fx.GraphModule(self.net.module, copy.deepcopy(self.net.module.graph))
            if not barred:
                rewrite(self.net, FOR_THE_KERNELS)
        except Exception as error:
            traceback.print_exc()
            raise UnsupportedError(f"a rewrite failed: {typed_line(error)}") from error
        taken = layer_calls(self.net.module)
        tokens = sum(isinstance(layer, TokensLayer) for _, layer in taken)  # in fp16 the library's
        few = MOST_LEFT * (len(taken) - tokens) >= len(left_to_inductor(self.net)) + tokens
        self.takes_most = not barred and request.search != "always" and few
        self.with_norms = list[Precision]()  # built with own norms; another form of these would take too long

    @contextmanager
    def compiling(self, *scales: Mapping[str, float]) -> Iterator[None]:
        """Compile the kernels of candidates with such scales beside what happens within, and wait for the last."""
        request = self.request
        programs: Programs = {}
        try:
            with torch.inference_mode():
                for each in scales if is_cuda(self.net.device) and not self.barred else ():
                    programs |= programs_of(self.net, each, request.inputs, request.tuner)
        except Exception as error:  # noqa: BLE001 - a network whose shapes follow from its values, say
            traceback.print_exc()
            request.progress(f"each layer's kernels are compiled at its turn: {typed_line(error)}")
        if programs:
            seconds = FIRST_PROGRAM + len(programs) * A_PROGRAM / processors()
            request.progress(f"compiling {len(programs)} kernels, about {seconds:.0f} s, meanwhile")
        with compiled_beside(programs, request.progress, self.elsewhere):
            yield

    def candidate(self, scales: Scales, precision: Precision, *, own_norms: bool = False) -> Candidate | None:
        """Return the network by its fastest tiles, values of `scales` in fp8, or None."""
        if precision in self.with_norms or (own_norms and not self.net.matched.get("sum_where_made")):
            return None
        name = f"{precision}, own norms" if own_norms else precision
        made = self._built(name, lambda: self._candidate(scales, precision, own_norms=own_norms))
        if made is not None and own_norms and A_NODE * len(self.net.module.graph.nodes) > LONG:
            self.with_norms.append(precision)
        return made

    def _candidate(self, scales: Scales, precision: Precision, *, own_norms: bool) -> Candidate | None:
        request, norms = self.request, {}
        with torch.inference_mode():
            if earlier := self.kept_choices:
                plan = Plan(scales(earlier["slower"]), **{name: earlier[name] for name in CHOSEN})
            else:
                plan = choose(self.net, scales(()), request.inputs, request.tuner, request.progress)
                if slower := plan.slower:
                    plan = choose(self.net, scales(slower), request.inputs, request.tuner, request.progress)
                    plan = replace(plan, slower=slower)
            lowered = lower(self.net, plan)
            if own_norms:
                request.progress("own kernels for norms")
                norms = put_own_norms(lowered, request.inputs, request.tuner, earlier.get("norms"))
        if not plan.tiles or (own_norms and not norms):
            return None
        by_library = [layer.name for node, layer in layer_calls(self.net.module) if node.name in plan.by_library]
        how = Properties(
            precision, dict.fromkeys(by_library if plan.scales else [], "fp16"), provider="own kernels",
            own_kernels=len(plan.tiles), layer_flops=composed_flops(self.net),
        )  # fmt: skip
        self._announce(f"{len(plan.tiles)} layers by own kernels, the rest by Inductor", lowered)
        candidate = captured("own kernels and norms" if own_norms else "own kernels", lowered, how, *request.inputs)
        candidate.lowered, candidate.plan, candidate.details = lowered, plan, {"norms": norms} if norms else {}
        return candidate

    def as_built(self, best: Candidate | None, milliseconds: Mapping[str, float]) -> Built:
        """Return the fastest candidate, with the times of all; without one the network in half precision."""
        request, tuner = self.request, self.request.tuner
        if best is None:
            half = half_net(request.network, torch.float16, request.inputs, request.kept, request.layout)
            return uncompiled(half, request, "; ".join(self.refused.values()))
        details = {
            **best.details, **self.findings, "candidates_ms": dict(milliseconds), "refused": self.refused,
            "passes": self.net.matched, "kernels_barred": self.barred or reaching_views_barred() or "",
            "choices": {**best.plan.tiles, **dict.fromkeys(best.plan.by_library, "library")},
            "choices_unkept": tuner.unkept, "kernels_failed": dict(best.plan.failed),
        }  # fmt: skip
        casts = CASTS in self.net.matched
        return Built(
            best.captured, best.described(details["kernels_barred"], self.refused, casts=casts), best.properties,
            details, best.call, best.moved_bytes, best.lowered, tuner.measured, self.plain,
        )  # fmt: skip


def composed_flops(net: ExportedNet) -> dict[str, float]:
    """Return the FLOPs an image of layers that are composed of two, which multiply less than the two do."""
    return {
        layer.name: layer.flops_per_image([shape_of(value) for value in inputs_of(node)])
        for node, layer in layer_calls(net.module)
        if isinstance(layer, UpsampledLayer)
    }


def without_fp8(rewritten: Rewritten) -> Makers:
    """Return what builds the candidates in fp16; Inductor's comes first, as the others are checked against it."""
    own: Makers = {
        "fp16, own norms": lambda: rewritten.candidate(lambda _: {}, "fp16", own_norms=True),
        "fp16": lambda: rewritten.candidate(lambda _: {}, "fp16"),
    }
    return {INDUCTOR: partial(rewritten.by, INDUCTOR), **({} if rewritten.barred else own)}


def fastest_or_known(
    whole: Whole, makers: Makers, given: str = "", scales: Sequence[Mapping[str, float]] = ({},)
) -> Built:
    """Return the candidate that an earlier build with the same `given` found the fastest; else the fastest of all."""
    tuner = whole.request.tuner
    name = f"whole net {digest_of(whole, [*makers, whole.request.search, given])}"
    known = tuner.known(name)
    times, choices, given_up = (known.get(part) for part in ("tried_ms", "choices", "given_up"))
    winner = (makers | {SEARCHED: partial(whole.by, SEARCHED)}).get(str(known.get("choice")))
    if winner is not None and isinstance(times, dict):
        whole.kept_choices = choices if isinstance(choices, dict) and "tiles" in choices else {}
        known_best = winner()
        whole.kept_choices = {}
        if known_best is not None:
            known_best.details["known"] = True
            whole.refused |= given_up if isinstance(given_up, dict) else {}
            return whole.as_built(known_best, times)
    own = {maker: make for maker, make in makers.items() if maker != INDUCTOR}
    with whole.compiling(*scales):
        candidates = {} if own and whole.takes_most else {INDUCTOR: makers[INDUCTOR]()}
    candidates |= {maker: make() for maker, make in own.items()}
    built = fastest(whole, list(candidates.values()))
    candidates |= whole.made
    best = [maker for maker, found in candidates.items() if found is not None and found.captured is built.run]
    if best and whole.refused.get(SEARCHED) == whole.given_up.get(SEARCHED):  # another failure of a search may pass
        tried = {"tried_ms": built.details["candidates_ms"], "given_up": whole.given_up}
        tuner.keep(name, {"choice": best[0], **tried, "choices": choices_of(candidates[best[0]])})
    return built


def choices_of(candidate: Candidate | None) -> dict[str, Any]:
    """Return the choices of tiles in a candidate, by which the next build lowers the network; none of Inductor's."""
    if candidate is None or candidate.lowered is None:
        return {}
    plan, norms = candidate.plan, candidate.lowered.meta.get("norms")
    choices = {name: getattr(plan, name) for name in CHOSEN}
    return choices if norms is None else choices | {"norms": norms}


def fastest(whole: Whole, candidates: list[Candidate | None]) -> Built:
    """Return the fastest candidate at full load; Inductor is among them, also with its search, where it may be it.

    It isn't built where own kernels, with all of the network around them, take less than the library's convolutions,
    which Inductor calls, and one pass over what each makes.
    """
    torch.cuda.empty_cache()  # the weights of the lowered graphs that were measured
    there = [candidate for candidate in candidates if candidate is not None]
    bound = max((candidate.plan.library_ms for candidate in there), default=0.0)
    alone, times = whole.made.get(INDUCTOR), _milliseconds(there)
    if bound and alone not in there and min(times.values()) <= CLEARLY * bound:
        whole.findings["library_ms"] = bound
    elif INDUCTOR not in whole.made:
        alone = whole.by(INDUCTOR)
        there = there if alone is None else [alone, *there]
        times = _milliseconds(there)
    if not there:
        return whole.as_built(None, {})
    searched = whole.by(SEARCHED) if worth_searching(whole.request.search, times) else None
    if searched is not None:
        there.append(searched)
        times = _milliseconds(there)
    return whole.as_built(min(there, key=lambda candidate: times[candidate.name]), times)


def worth_searching(asked: Search, milliseconds: Mapping[str, float]) -> bool:
    """Return whether Inductor is to time its choices: by "auto" where no candidate takes 0.9 of its default's time."""
    default = milliseconds.get(INDUCTOR)
    if default is None or asked != "auto":
        return asked == "always"
    return min(milliseconds.values()) >= CLEARLY * default


def _milliseconds(candidates: list[Candidate]) -> dict[str, float]:
    if len(candidates) == 1 and not candidates[0].plan.library_ms:  # nothing to compare it with
        return {candidates[0].name: 0.0}
    times = full_load_ms([candidate.captured.graph for candidate in candidates])
    return {candidate.name: statistics.median(took) for candidate, took in zip(candidates, times, strict=True)}


def digest_of(whole: Whole, others: Iterable[str]) -> str:
    """Return the SHA-256 of a network as one module, its inputs, why kernels are barred, and other texts."""
    plain, inputs = whole.plain, whole.request.inputs
    structure = str(plain.graph) if isinstance(plain, fx.GraphModule) else str(plain)
    held = {name: part for name, part in plain.state_dict().items() if isinstance(part, Tensor)}
    shapes = [f"{name} {layout(value)}" for name, value in held.items()]
    text = "\n".join([structure, *shapes, *map(layout, inputs), whole.barred or "", *others])
    return hashlib.sha256(text.encode()).hexdigest()


class _Unrewritten(Whole):
    def __init__(self, request: Request, half: Half, why: str) -> None:
        super().__init__(request)
        self.plain, self.precision, self.why = half, precision_of(half), why

    def as_images(self) -> Candidate | None:
        """Return a network of signals as one of images by Inductor; None without a 1-D convolution, or if it fails."""
        self._announce(f"all of it by {AS_IMAGES}", self.plain)
        return self._built(AS_IMAGES, self._as_images)

    def _as_images(self) -> Candidate | None:
        graph = network_calls.exported_program(self.plain, self.request.inputs).module()
        assert isinstance(graph, fx.GraphModule)
        without_checks(graph)
        how = Properties(self.precision)
        return captured(AS_IMAGES, graph, how, *self.request.inputs) if signals_as_images(graph) else None

    def as_built(self, best: Candidate | None, milliseconds: Mapping[str, float]) -> Built:
        """Return the fastest candidate, with the times of all; without one the network in pieces."""
        assert isinstance(self.plain, Half)
        if best is None:
            why = f"{self.why}; as one graph by Inductor: {self.refused[INDUCTOR]}"
            return in_pieces(self.plain, self.request, why)
        details = best.details | {"not_rewritten": self.why, "candidates_ms": dict(milliseconds)}
        details |= {"refused": self.refused} if self.refused else {}
        said = f"{best.described('', self.refused)}{self.plain.and_casts}: {self.why}"
        return Built(best.captured, said, best.properties, details, best.call, best.moved_bytes)


def by_inductor_alone(request: Request, why: str) -> Built:
    """Return the network in half precision, or TF32 where it doesn't run so, by Inductor in one CUDA graph."""
    half = half_net(request.network, torch.float16, request.inputs, request.kept, request.layout)
    if network_calls.refuses(half, request.inputs):
        half = half_net(request.network, torch.float32, request.inputs, layout=request.layout)
        why = f"in fp16 it doesn't run; {why}"
    whole = _Unrewritten(request, half, why)
    makers: Makers = {INDUCTOR: partial(whole.by, INDUCTOR)}
    if len(request.inputs.shape) == SIGNALS:
        makers[AS_IMAGES] = whole.as_images
    return fastest_or_known(whole, makers, ", ".join([half.and_casts, *half.kept]))


def in_pieces(half: Half, request: Request, why: str) -> Built:
    """Return the network as torch.compile runs it with graph breaks; in half precision by torch, where that fails."""
    request.progress("by Inductor, with graph breaks")
    try:
        with torch.inference_mode():
            compiled: Callable[..., Tensor] = torch.compile(half)
            compiled(*request.inputs)
        check_compiled()
    except Exception as error:  # noqa: BLE001 - whatever a compiler raises
        traceback.print_exc()
        return uncompiled(half, request, f"{why}; in pieces: {typed_line(error)}")
    precision = precision_of(half)
    how = Properties(precision, layout=request.layout, captured=False)
    said = f"{precision}, by Inductor, with graph breaks{half.and_casts}: {why}"
    return Built(in_inference(compiled), said, how, {"not_rewritten": why})


def uncompiled(half: Half, request: Request, why: str) -> Built:
    """Return the network in half precision by torch's own operations, in a CUDA graph unless it can't be captured."""
    run: Callable[..., Tensor]
    how = Properties(precision_of(half), layout=request.layout, provider="PyTorch eager", fuses=False)
    where = "in one CUDA graph"
    try:
        run = Captured(half, *request.inputs)
    except Exception as error:  # noqa: BLE001 - whatever CUDA raises, such as for a network that looks at its values
        traceback.print_exc()
        run, how, where = in_inference(half), replace(how, captured=False), "uncaptured"
        why = f"{why}; captured: {typed_line(error)}"
    return Built(run, f"{how.precision} half network {where}{half.and_casts}: {why}", how, {"not_rewritten": why})


def in_inference(call: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a call that runs in inference mode, and whose answer may be used in every mode of torch's gradients."""

    def run(*inputs: Tensor) -> Tensor:
        with torch.inference_mode(), network_calls.library_switches():
            answer = call(*inputs)
        return as_normal(answer)

    return run


def precision_of(half: Half) -> Precision:
    """Return the precision in which a copy in half precision computes, where fp32 is TF32."""
    return SHORT[half.dtype] if half.dtype != FULL else "tf32"


def with_ends(built: Built, ends: Ends, given: Batch) -> Built:
    """Return a compiled network with its ends, for inputs as `given`; CompileError where they can't be compiled."""
    if not ends.in_words:
        return built
    net: Callable[..., Tensor] = getattr(built.run, "model", built.run) if built.call is None else built.call
    with torch.inference_mode():
        before, moved_before = _compiled_step(ends.before, given.first)
        after, moved_after = _compiled_step(ends.after, built.run(*ends.inputs(given)))

    def call(first: Tensor, *others: Tensor) -> Tensor:
        return after(net(before(first), *others))

    return replace(
        built,
        run=Captured(call, *given) if built.properties.captured else in_inference(call),
        description=f"{built.description}{ends.in_words}",
        call=call if built.call is not None else None,
        moved_bytes=None if built.moved_bytes is None else built.moved_bytes + moved_before + moved_after,
        lowered=None if built.lowered is None else ends.whole(built.lowered),
        plain=None if built.plain is None else ends.whole(built.plain),
    )


def _compiled_step(step: nn.Module | None, example: Tensor) -> tuple[Callable[[Tensor], Tensor], int]:
    """Return a step compiled for one shape, and the bytes that it moves."""
    if step is None:
        return lambda tensor: tensor, 0
    try:
        graph = network_calls.exported_program(step, [example]).module()  # its own: no other shape makes it dynamic
        return compile_counting_bytes(graph, example, mode="default")
    except Exception as error:
        raise CompileError(f"{type(step).__name__}: {typed_line(error)}") from error
