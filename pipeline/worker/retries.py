"""Build a stage that failed or answers wrongly once more: with modules in fp32, or in NCHW."""
# A network fails in channels_last only if its own code takes a view that the layout forbids, or reads strides.

import copy
import gc
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from pipeline.compiler.agreement import distance
from pipeline.compiler.batch import Batch, laid_out, net_laid_out
from pipeline.compiler.folding import folded
from pipeline.compiler.half import SHORT
from pipeline.compiler.network_calls import trial, untimed_library, without_tf32
from pipeline.profiling.layers import hooked, level
from pipeline.protocol import PipeReporter
from pipeline.records.diagnostics import PrecisionFault, fault_text
from pipeline.records.plan import Phase
from pipeline.records.run_record import FailureKind, Order
from pipeline.stages.api import LayoutChoice, Skip, StageError
from pipeline.stages.common.network_forms import HALVES, half_net
from pipeline.worker.bench import Bench
from pipeline.worker.contract import ANSWER_MOVED, RIGHT, Finding
from pipeline.worker.failures import failure_of

MOST_KEPT = 8  # modules; a network with more of them isn't suited to half precision
LOCATED: frozenset[FailureKind | None] = frozenset({"wrong answer", "accuracy limit"})
OPTION, AUTO = "keep_fp32", "auto"
KEPT = "kept_in_fp32"  # in the details of a stage with that option
Verify = Callable[[Bench], Finding]
ORDERS: tuple[Order, ...] = ("NCHW", "NHWC")
OF_A_NET: tuple[FailureKind, ...] = ("error", "unsupported")  # kinds of failures that a layout may cause
JUMP = 8.0  # times by which an error must exceed every one before it, and the precision's own rounding
ROUNDING = {"fp16": 2.0**-11, "bf16": 2.0**-8}  # unit roundoff of the two formats
Half = Literal["fp16", "bf16"]


def settled(bench: Bench, reporter: PipeReporter, verify: Verify) -> Finding:
    """Verify the stage; where `keep_fp32` is "auto", retry with modules in fp32; return the final finding."""
    auto, faults = bench.job.stage.options.get(OPTION) == AUTO, list[PrecisionFault]()
    while (finding := verify(bench)) is not RIGHT and finding.failure in LOCATED:
        fault = first_fault(bench)
        if fault is None:
            break
        known = {"", *(each.module for each in faults)}
        again = auto and fault.module not in known and len(faults) < MOST_KEPT
        finding = finding._replace(reason=f"{finding.reason}; {fault_text(fault)}")
        again = again and _rebuilt(bench, reporter, [*(each.module for each in faults), fault.module])
        faults.append(replace(fault, kept=again))
        reporter.report(precision_faults=faults, reason=finding.reason)
        if not again:
            break
    return finding


def first_fault(bench: Bench) -> PrecisionFault | None:
    """Locate where half precision goes wrong; None if no place stands out or the modules are unknown."""
    precision = _precision(bench)
    if precision is None:
        return None
    try:
        return _located(bench, precision)
    except Exception:  # noqa: BLE001 - the finding stands without its place
        traceback.print_exc()
        return None


@untimed_library()
def _located(bench: Bench, precision: Half) -> PrecisionFault | None:
    module, run = bench.runner.module, bench.runner.one_by_one
    if module is None and KEPT in bench.runner.details:
        # Of a compiled stage that can keep modules: those of the same network in half precision, run by torch.
        run = half_net(bench.workload, HALVES[precision], bench.job.stage.options.get(OPTION))
        module = run.net
    if module is None:
        return None
    known, inputs = bench.workload.model, bench.workload.inputs[0]
    exact = next((net for net in (known, folded(known, inputs)[0]) if alike(net, module)), None)
    if exact is None:
        return None
    broken = (number for number, part in enumerate(bench.verified) if not bool(part.isfinite().all()))
    batch = bench.workload.inputs[next(broken, 0)]  # normalised, and none has moved yet
    if bench.runner.module is None:
        with torch.inference_mode():
            off = distance(run(*batch).float(), exact(*batch))
        if off <= bench.job.stage.tolerance.relative_l2:
            return None  # the fault isn't half precision
    sides = Side(exact, lambda: exact(*batch)), Side(module, lambda: run(*batch))
    return locate(*sides, precision)


def _rebuilt(bench: Bench, reporter: PipeReporter, kept: list[str]) -> bool:
    """Build the stage with these modules in fp32; return False and restore the former build if that fails."""
    job, runner = bench.job, bench.runner
    bench.job = replace(job, stage=replace(job.stage, options={**job.stage.options, OPTION: kept}))
    reporter.enter(Phase.VERIFY)  # its time limit starts anew
    reporter.progress(f"again, with {kept[-1]} in fp32")
    try:
        reporter.report(**bench.build())
        if bench.runner.details.get(KEPT) != kept:
            raise StageError(f"{job.stage.name} keeps no modules in fp32", "unsupported")
    except Exception:  # noqa: BLE001 - the first attempt's outcome stands
        traceback.print_exc()
        bench.job, bench.runner = job, runner
        return False
    return True


def _precision(bench: Bench) -> Half | None:
    """Return the stage's half precision, as declared or by most of its weights; None for any other."""
    runner = bench.runner
    declared = runner.execution.precision if runner.execution else None
    if declared == "fp8" and KEPT in runner.details:
        return "fp16"  # what isn't in fp8
    if declared is None and runner.module is not None:
        sizes = dict.fromkeys((torch.float16, torch.bfloat16), 0)
        for part in runner.module.parameters():
            if part.dtype in sizes:
                sizes[part.dtype] += part.numel()
        most = max(sizes, key=lambda dtype: sizes[dtype])
        declared = SHORT[most] if sizes[most] else None
    return declared if declared in ("fp16", "bf16") else None


def built(bench: Bench, again: Callable[[str], None]) -> dict[str, object]:
    """Build the stage, a second time in NCHW if the network needs it; return what `bench.build` reports."""
    try:
        return bench.build()
    except Skip:
        raise
    except Exception as error:
        nhwc = bench.workload.layout_choice.taken == "NHWC"
        why = refusal(bench, error) if nhwc and failure_of(error)[0] in OF_A_NET else ""
        if not why:
            raise
        traceback.print_exc()
    return _built_as_it_lies(bench, again, why)


def verified(bench: Bench, reporter: PipeReporter, verify: Verify) -> Finding:
    """Verify a stage, after a second build in NCHW if the network answers differently in channels_last."""
    finding = verify(bench)
    nhwc = bench.workload.layout_choice.taken == "NHWC"
    if finding.failure not in LOCATED or not nhwc or not _answers_otherwise(bench):
        return finding
    again = partial(begun_again, reporter, Phase.VERIFY)
    why = "the network's own code answers differently in channels_last"
    work, runner = bench.workload, bench.runner
    try:
        reporter.report(**_built_as_it_lies(bench, again, why))
    except StageError:
        raise  # such as from a stage that runs in channels_last alone
    except Exception:  # noqa: BLE001 - the first build's outcome stands
        traceback.print_exc()
        bench.workload, bench.runner = work, runner
        return finding
    return verify(bench)


def begun_again(reporter: PipeReporter, phase: Phase, text: str) -> None:
    """Restart the phase's time limit for a second build."""
    reporter.enter(phase)
    reporter.progress(text)


def _built_as_it_lies(bench: Bench, again: Callable[[str], None], why: str) -> dict[str, object]:
    again("again in NCHW, as the network doesn't take channels_last")
    gc.collect()
    if bench.job.device == "cuda":
        torch.cuda.empty_cache()
    bench.workload = replace(bench.workload, layout_choice=LayoutChoice("NCHW", why))
    fields = bench.build()
    said = f"{bench.job.stage.name} runs the network in NCHW, as {why}; its set-up is that of a second build"
    bench.warn("something else ran", said, "let that code take any layout, as Tensor.reshape does, and measure again")
    return fields


def _answers_otherwise(bench: Bench) -> bool:
    """Return whether the network itself, in fp32, answers differently in channels_last."""
    net, inputs = bench.workload.model, bench.workload.inputs[0]
    answers = []
    try:
        for layout in ORDERS:
            with trial(inputs), without_tf32(), untimed_library():
                answers.append(_answer(net, inputs, layout))
    except Exception:  # noqa: BLE001 - the answer is known to be wrong; its cause then isn't
        traceback.print_exc()
        return False
    return distance(*answers) > ANSWER_MOVED


def _answer(net: nn.Module, inputs: Batch, layout: Order) -> Tensor:
    """Return the answer [batch, ...] of a copy of the network in a layout."""
    logits: Tensor = net_laid_out(copy.deepcopy(net), layout)(*[laid_out(part, layout) for part in inputs.clone()])
    return logits


def refusal(bench: Bench, error: Exception) -> str:
    """Return the error of the network's code if it fails in channels_last and not in NCHW; else empty."""
    traceback.clear_frames(error.__traceback__)
    bench.__dict__.pop("runner", None)
    net, inputs = bench.workload.model, bench.workload.inputs[0]
    said = _raised(net, inputs, "NHWC")
    return "" if not said or _raised(net, inputs, "NCHW") else said


def _raised(net: nn.Module, inputs: Batch, layout: Order) -> str:
    """Return the error of calling a copy of the network in a layout; empty without one, or if memory ran out."""
    try:
        with torch.inference_mode():
            _answer(net, inputs, layout)
    except Exception as error:  # noqa: BLE001 - a network's code may raise anything
        kind, reason = failure_of(error)
        return "" if kind == "out of memory" else f"the network's own code doesn't take channels_last: {reason}"
    return ""


class Side(NamedTuple):
    """One of the two networks."""

    net: nn.Module
    forward: Callable[[], object]  # runs it on the batch


class Output(NamedTuple):
    """The answer of one call of a module."""

    name: str
    values: Tensor  # any shape, fp32, on the CPU
    input_magnitude: float | None


def alike(one: nn.Module, other: nn.Module) -> bool:
    """Return whether two networks have the same modules under the same names."""
    types = [{name: type(part) for name, part in net.named_modules()} for net in (one, other)]
    return types[0] == types[1]


def locate(exact: Side, half: Side, precision: Half) -> PrecisionFault | None:
    """Return the first and smallest module at which half precision goes wrong; None if its error grows slowly."""
    fault: PrecisionFault | None = None
    path, before = "", ROUNDING[precision]
    while True:
        with without_tf32():  # which is as coarse as fp16
            expected = outputs(exact, path)
        inner = first_wrong(expected, outputs(half, path), precision, before)
        if inner is None:
            return fault
        fault, path, before = inner, inner.module, inner.error_before


def first_wrong(expected: list[Output], got: list[Output], precision: Half, before: float) -> PrecisionFault | None:
    """Return the fault of the first of the outputs that overflows, or whose error jumps."""
    for exact, half in zip(expected, got, strict=False):
        if exact.name != half.name or exact.values.shape != half.values.shape:
            return None
        overflows = bool((exact.values.isfinite() & ~half.values.isfinite()).any())
        size = float(exact.values.norm())
        error = float((half.values - exact.values).norm()) / size if size else 0.0
        if overflows or error > JUMP * before:
            return PrecisionFault(
                module=exact.name,
                level=level(exact.name),
                kind="overflow" if overflows else "error jump",
                precision=precision,
                magnitude=float(exact.values.abs().max()),
                input_magnitude=exact.input_magnitude,
                error=None if overflows else error,
                error_before=before,
            )
        before = max(before, error)
    return None


def outputs(side: Side, path: str) -> list[Output]:
    """Return what each child of the module at `path` gave, call by call."""
    seen: list[Output] = []

    def keep(name: str, _: nn.Module, inputs: tuple[object, ...], answer: object) -> None:
        if isinstance(answer, Tensor) and answer.is_floating_point():
            taken = [float(part.abs().max()) for part in inputs if isinstance(part, Tensor) and part.numel()]
            seen.append(Output(name, answer.detach().float().cpu(), max(taken, default=None)))

    with torch.inference_mode(), hooked(children(side.net.get_submodule(path), path), leave=keep):
        side.forward()
    return seen


def children(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    """Return the modules that a module may call, with their paths in the network; lists of modules are opened."""
    for name, part in module.named_children():
        below = f"{path}.{name}".lstrip(".")
        if isinstance(part, nn.ModuleList | nn.ModuleDict):
            yield from children(part, below)
        else:
            yield below, part
