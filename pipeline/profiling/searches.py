"""The searches for the fastest algorithm that a stage's shape took, by who made them."""

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import torch
from torch import Tensor

from pipeline.compiler.batch import Batch
from pipeline.profiling.operators import Dispatched, Operator
from pipeline.records.diagnostics import SearchAsked, SearchCount
from pipeline.stages.api import Runner

Input = TypeVar("Input")
BENCHMARKER = "benchmarking."
TIMINGS = (".benchmark_gpu", ".benchmark_cpu")  # the methods of Inductor's benchmarker that end in a timing
DYNAMO = "torch._dynamo.utils"  # holds Inductor's counters; importing it takes seconds, so that only its user has it


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
    problems: set[tuple[object, ...]] = set()

    def see(operator: Operator) -> None:
        if "convolution" in operator.name:
            problems.add(problem(operator))

    with torch.inference_mode(), eagerly(), Dispatched(see):
        run(batch)
    return len(problems)


def eagerly() -> AbstractContextManager[object]:
    """Run what torch.compile compiled as torch does without it, within; nothing is compiled anew."""
    return torch.compiler.set_stance("force_eager") if DYNAMO in sys.modules else nullcontext()


def problem(operator: Operator) -> tuple[object, ...]:
    """Return what tells one convolution from another for cuDNN: shapes, order of dimensions, type, strides."""
    given = operator.by_name
    image, weight = given.get("input", given.get("self")), given["weight"]
    assert image is not None
    shapes = [(tuple(part.shape), part.dim_order(), part.dtype) for part in (image, weight)]
    how = [str(given.get(name)) for name in ("stride", "padding", "dilation", "groups", "transposed", "output_padding")]
    return (*shapes, *how)
