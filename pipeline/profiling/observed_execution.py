"""The execution of a stage, observed in one more call at torch's dispatcher, whether or not the stage declares it."""

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from pipeline.compiler.batch import Batch, of_batches
from pipeline.errors import first_line, per_cent, without_places
from pipeline.profiling.layers import hooked, layers_of
from pipeline.profiling.layout_changes import AXES, order
from pipeline.profiling.operators import Dispatched, Operator, flops, net_flops, of_each_operator
from pipeline.records.chrome_trace import DRIVER, TraceEvent, of
from pipeline.records.diagnostics import SearchAsked, SearchCount
from pipeline.records.run_record import Execution, Layout, Precision
from pipeline.stages.api import Runner, Workload

PRECISIONS: dict[torch.dtype, Precision] = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float8_e4m3fn: "fp8",
    torch.float8_e5m2: "fp8",
}
Input = TypeVar("Input")
MANTISSA_BITS: dict[Precision, int] = {"fp64": 52, "fp32": 23, "tf32": 10, "fp16": 10, "bf16": 7, "fp8": 3}
SEEN_SHARE = 0.9  # of the network's FLOPs that must be seen, or what the rest runs in would be a guess
MIXED_SHARE = 0.05  # of the FLOPs in the other layout, from which the layout is mixed
CAPTURES = "GraphLaunch"  # in the name of the driver's call that replays a graph
BENCHMARKER = "benchmarking."
TIMINGS = (".benchmark_gpu", ".benchmark_cpu")  # the methods of Inductor's benchmarker that end in a timing
DYNAMO = "torch._dynamo.utils"  # holds Inductor's counters; importing it takes seconds, so that only its user has it


@dataclass
class Seen:
    """FLOPs of one call's convolutions and matrix products, by their operands' precision and layout, and by layer."""

    by_precision: Counter[Precision | None] = field(default_factory=Counter)
    by_layout: Counter[Layout] = field(default_factory=Counter)
    by_layer: dict[str, Counter[Precision | None]] = field(default_factory=dict)  # module path to FLOPs by precision
    layers: list[str] = field(default_factory=list)  # those at work, the innermost last

    def see(self, operator: Operator) -> None:
        """Add an operator, if it is one with FLOPs."""
        count = flops(operator)
        operands = [part for part in operator.inputs if part.is_floating_point()]
        if count is None or not operands:
            return
        precision = precision_of(operator, operands[0])
        self.by_precision[precision] += count
        if self.layers:
            self.by_layer.setdefault(self.layers[-1], Counter())[precision] += count
        images = next((part for part in operands if part.dim() in AXES), None)
        layout = order(images.shape, images.stride()) if images is not None else None
        if layout is not None:
            self.by_layout[layout] += count

    @property
    def flops(self) -> int:
        """All FLOPs that were seen."""
        return sum(self.by_precision.values())

    @property
    def precision(self) -> Precision | None:
        """The precision of most FLOPs."""
        return self.by_precision.most_common(1)[0][0] if self.by_precision else None

    @property
    def layout(self) -> Layout | None:
        """The layout of nearly all FLOPs on images or volumes, or "mixed"."""
        total = sum(self.by_layout.values())
        if not total:
            return None
        if min(self.by_layout["NCHW"], self.by_layout["NHWC"]) > MIXED_SHARE * total:
            return "mixed"
        return self.by_layout.most_common(1)[0][0]

    @property
    def layer_precision(self) -> dict[str, Precision]:
        """The layers whose precision isn't that of most FLOPs."""
        mains = {name: found.most_common(1)[0][0] for name, found in self.by_layer.items()}
        return {name: main for name, main in mains.items() if main is not None and main != self.precision}


def precision_of(operator: Operator, operand: Tensor) -> Precision | None:
    """Return the precision in which a convolution or matrix product computes; TF32 is a GPU's, if allowed."""
    precision = PRECISIONS.get(operand.dtype)
    if precision == "fp32" and operand.is_cuda and tf32_allowed("convolution" in operator.name):
        return "tf32"
    return precision


def tf32_allowed(for_convolutions: bool) -> bool:
    """Return whether the process lets fp32 convolutions, or matrix products, round their inputs to TF32 now."""
    backends: Any = torch.backends
    of_kind = backends.cudnn.conv if for_convolutions else backends.cuda.matmul
    return str(of_kind.fp32_precision) == "tf32"


def observed(run: Callable[[Input], object], module: nn.Module | None, batch: Input) -> Seen:
    """Observe one call of a stage at torch's dispatcher; compiled code runs uncompiled for it."""
    seen = Seen()

    def leave(*_: object) -> None:
        seen.layers.pop()

    hooks = hooked(layers_of(module), lambda name, _: seen.layers.append(name), leave)
    with torch.inference_mode(), eagerly(), hooks, Dispatched(seen.see):
        run(batch)
    return seen


def complete(runner: Runner, work: Workload, events: list[TraceEvent]) -> tuple[Execution, str]:
    """Return the stage's execution, declared or else observed, and what contradicts its declaration, or empty."""
    declared = runner.execution or Execution()
    if declared.captured is None and events:
        declared = replace(declared, captured=any(CAPTURES in event.name for event in of(events, *DRIVER)))
    batch, named = work.inputs[0], named_tf32(declared, events)
    if runner.steps_aside:
        return with_reason(
            declared, "where torch's dispatcher looks on, torch runs the network and not its runtime"
        ), named
    try:
        seen = observed(of_batches(runner.one_by_one), runner.module, batch)
    except (RuntimeError, NotImplementedError) as error:
        return with_reason(declared, f"torch's dispatcher can't show it ({first_line(error)})"), named
    share = seen.flops / max(1, net_flops(work.model, *batch))
    if share < SEEN_SHARE:
        return with_reason(declared, f"only {per_cent(share)} of the network's FLOPs pass torch's dispatcher"), named
    found = replace(
        declared,
        precision=declared.precision or seen.precision,
        layer_precision=declared.layer_precision or seen.layer_precision,
        layout=declared.layout or seen.layout,
    )
    contradicted = contradiction(declared, seen, share) or named
    return with_reason(found, "the runtime of a stage is known by its declaration alone"), contradicted


def with_reason(found: Execution, reason: str) -> Execution:
    """Return the execution, with the reason if something of it is unknown."""
    unknown = None in (found.precision, found.layout, found.provider, found.captured, found.fuses)
    return replace(found, unknown=reason if unknown else "")


def contradiction(declared: Execution, seen: Seen, share: float) -> str:
    """Return what most FLOPs ran in, if that contradicts the declared precision; else empty."""
    if declared.precision is None or share < SEEN_SHARE or seen.precision is None:
        return ""
    allowed = {declared.precision, *declared.layer_precision.values()}
    others = Counter({found: flops for found, flops in seen.by_precision.items() if found not in allowed})
    if seen.precision == declared.precision:
        finest = MANTISSA_BITS[declared.precision]
        others = Counter({found: flops for found, flops in others.items() if found and MANTISSA_BITS[found] < finest})
        if others.total() <= MIXED_SHARE * seen.flops:
            return ""
    if not others.total():
        return ""
    most = others.most_common(1)[0][0]
    return f"it declares {declared.precision}, and {per_cent(others.total() / seen.flops)} of its FLOPs ran in {most}"


def named_tf32(declared: Execution, events: list[TraceEvent]) -> str:
    """Return what the names of NVIDIA's kernels say against a declared fp32; empty if nothing."""
    kernels = of(events, "kernel")
    named = sum(event.duration_us for event in kernels if "tf32" in event.name.lower())
    total = sum(event.duration_us for event in kernels)
    if declared.precision != "fp32" or named <= MIXED_SHARE * total:
        return ""
    return f"it declares fp32, and {per_cent(named / total)} of its kernels' time is in kernels for TF32"


def gave_up() -> str:
    """Return why compiled calls run eagerly in this process, in one line; empty if they don't."""
    # Dynamo gives up after `recompile_limit` compilations of a frame, and if it could compile none.
    if DYNAMO not in sys.modules:
        return ""
    entries = sys.modules[DYNAMO].get_compilation_metrics()
    for entry in entries:
        said = f"{entry.fail_type} {entry.fail_reason}".lower()
        if "recompile" in said and "limit" in said:
            said = without_places(str(entry.recompile_reason or "nothing says why"))
            cause = said.splitlines()[0].partition("#")[0].strip()
            return f"fell back to eager: Dynamo reached its recompile limit ({cause})"
    if entries and all(entry.fail_type for entry in entries):
        return f"fell back to eager: Dynamo compiled none of {len(entries)} frames ({entries[-1].fail_type})"
    return ""


def searches(runner: Runner, batch: Batch | Tensor) -> list[SearchCount]:
    """Return who searched, with how many problems, nodes or candidates; uncounted and empty searches are left out."""
    cudnn = batch.is_cuda and torch.backends.cudnn.benchmark
    compiled = sys.modules[DYNAMO].counters["inductor"] if DYNAMO in sys.modules else {}
    facts = runner.compile_facts() if runner.compile_facts else None
    found = [
        SearchCount("cuDNN", "problems", convolution_problems(runner.one_by_one, batch) if cudnn else 0),
        SearchCount("Inductor's templates", "problems", int(compiled.get("select_algorithm_autotune", 0))),
        SearchCount("Inductor", "candidates", timed_candidates(compiled)),
        SearchCount("own kernels", "candidates", (facts and facts.candidates_measured) or 0),
        *runner.searched,
    ]
    return [each for each in found if each.count]


def asked(runner: Runner, device: str) -> list[SearchAsked]:
    """Return who a stage on "cuda" or "cpu" asks to search: those that it names, and cuDNN if switched on."""
    cudnn = device == "cuda" and torch.backends.cudnn.benchmark
    return [*[SearchAsked("cuDNN")] * cudnn, *runner.searches_asked]


def timed_candidates(counters: Mapping[str, int]) -> int:
    """Return the candidates that Inductor timed, kernels and templates; 0 if this torch doesn't count them."""
    # Its benchmarker counts a call of each method; `benchmark` only hands on to one of those that are summed here.
    return sum(
        int(count) for name, count in counters.items() if name.startswith(BENCHMARKER) and name.endswith(TIMINGS)
    )


def convolution_problems(run: Callable[[Input], object], batch: Input) -> int:
    """Count the distinct convolutions of one call, for each of which cuDNN searches once."""
    with torch.inference_mode(), eagerly():
        problems = of_each_operator(problem, lambda: run(batch))
    return len(set(filter(None, problems)))


def eagerly() -> AbstractContextManager[object]:
    """Run what torch.compile compiled as torch does without it, within; nothing is compiled anew."""
    return torch.compiler.set_stance("force_eager") if DYNAMO in sys.modules else nullcontext()


def problem(operator: Operator) -> tuple[object, ...]:
    """Return what tells one convolution from another for cuDNN: shapes, order of dimensions, type, strides."""
    if "convolution" not in operator.name:
        return ()
    given = operator.by_name
    image, weight = given.get("input", given.get("self")), given["weight"]
    assert image is not None
    shapes = [(tuple(part.shape), part.dim_order(), part.dtype) for part in (image, weight)]
    how = [str(given.get(name)) for name in ("stride", "padding", "dilation", "groups", "transposed", "output_padding")]
    return (*shapes, *how)
