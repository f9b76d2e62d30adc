"""torch.compile by Inductor, with the bytes that its kernels move, and a check that it compiled anything."""

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import attrgetter
from types import FunctionType
from typing import Any, Literal

import torch
import torch._inductor.metrics
from torch import Tensor, fx, nn
from torch._inductor import list_mode_options
from torch._inductor.compile_fx import compile_fx
from torch._inductor.runtime.cache_dir_utils import triton_cache_dir
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from pipeline.compiler.errors import CompileError
from pipeline.compiler.tuning.autotune import code_digest, use_torchs_ptxas

# Where one is 1, torch.compile runs what it was given as it is; by the last, after an error.
LEAVING = ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE", "TORCHDYNAMO_SUPPRESS_ERRORS")
Mode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]


def triton_as_inductor_has_it(device: torch.device) -> None:
    """Name the folder that Triton keeps programs in, and its ptxas, as Inductor will, unless the environment does."""
    with suppress(OSError, KeyError):
        os.environ.setdefault("TRITON_CACHE_DIR", triton_cache_dir(device.index or 0))
    use_torchs_ptxas()


def count_bytes() -> None:
    """Have Inductor count the bytes that its kernels move, which it does for a log that somebody reads."""
    log = logging.getLogger("torch._inductor.compile_fx.__inductor_metrics")
    log.setLevel(logging.INFO)
    log.propagate = False
    log.addHandler(logging.NullHandler())


def compile_counting_bytes(
    module: nn.Module, *inputs: Tensor, mode: Mode = "default"
) -> tuple[Callable[..., Tensor], int]:
    """Compile a module by a call; return it, and the bytes that a call moves through memory by Inductor's count."""
    count_bytes()
    before = torch._inductor.metrics.num_bytes_accessed
    compiled: Callable[..., Tensor]
    graph = module.graph if isinstance(module, fx.GraphModule) else fx.Graph()
    names = [str(node.target) for node in graph.nodes if node.op in ("get_attr", "call_module")]
    if isinstance(module, fx.GraphModule) and all(isinstance(attrgetter(name)(module), Tensor) for name in names):
        compiled = compile_graph(module, inputs, mode)
        compiled(*inputs)
    else:
        compiled = torch.compile(module, mode=mode, fullgraph=True)
        compiled(*inputs)
        check_compiled()
    return compiled, int(torch._inductor.metrics.num_bytes_accessed - before)


def compile_graph(module: fx.GraphModule, inputs: Sequence[Tensor], mode: Mode) -> Callable[..., Tensor]:
    """Compile a graph by Inductor without Dynamo, which traces it once more and takes as long.

    Tensors that the module holds become inputs: torch's cache knows inputs by their layout, and attributes by nothing.
    """
    graph, held = fx.Graph(), dict[Tensor, fx.Node]()
    copied = {node: graph.placeholder(node.name) for node in module.graph.find_nodes(op="placeholder")}
    for node in module.graph.find_nodes(op="get_attr"):
        part = attrgetter(node.target)(module)
        if part not in held:
            held[part] = graph.placeholder(node.name)
        copied[node] = held[part]
    graph.output(graph.graph_copy(module.graph, copied))
    # Torch's cache takes functions of Python that it is told of, and graphs with an environment for their shapes.
    ours = [node.target for node in graph.nodes if isinstance(node.target, FunctionType)]
    known = {f"{function.__module__}.{function.__name__}": code_digest() for function in ours}
    options = {**list_mode_options(mode), "unsafe_marked_cacheable_functions": known}
    with torch._guards.tracing(torch._guards.TracingContext(FakeTensorMode(shape_env=ShapeEnv()))):
        run: Any = compile_fx(
            fx.GraphModule({}, graph), [*inputs, *held], config_patches=options, ignore_shape_env=True
        )
    return lambda *given: run(*given, *held)[0]


def compilations() -> int:
    """Return how many graphs Dynamo has compiled in this process, or since its counters were emptied."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def check_compiled() -> None:
    """Raise CompileError if torch.compile, which was called, has left the network eager, as it may without a word."""
    if compilations():
        return
    given = [f"{name}={os.environ[name]}" for name in LEAVING if os.environ.get(name) == "1"]
    why = f"{' '.join(given)} is set; unset it" if given else "the network, or its process, keeps Dynamo from it"
    raise CompileError(f"torch.compile compiled nothing: {why}")
