"""torch.compile with Inductor, on the network in half precision; built cold, in a cache of the stage's own."""

from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

from pipeline.compiler.half import SHORT
from pipeline.compiler.inductor import Mode, compilations, count_bytes
from pipeline.compiler.network_calls import allow_tf32
from pipeline.errors import without_places
from pipeline.records.diagnostics import SearchAsked
from pipeline.records.run_record import INDUCTOR, CompileFacts, Execution
from pipeline.stages.api import Runner, Traffic, Workload
from pipeline.stages.common.inductor import bytes_in, check_compiled, check_possible, generated, keep_graphs, own_cache
from pipeline.stages.common.network_forms import Dtype, half_dtype, half_net, why_fp32


def build(
    workload: Workload, *, mode: Mode = "default", dynamic: bool | None = None, fullgraph: bool = False,
    freezing: bool = False, dtype: Dtype = "auto",
) -> Runner:  # fmt: skip
    """Compile, and make the call that triggers it."""
    check_possible(device := workload.device)
    half = half_dtype(dtype, device)
    allow_tf32(device.type == "cuda")
    cache, model = own_cache(workload.caches, cold=workload.earlier is None), half_net(workload, half)
    asked = ["freezing"] * freezing + ["fullgraph"] * fullgraph
    with torch.inference_mode():
        compiled = compile_net(model, workload.inputs[0], mode, dynamic, fullgraph, freezing)
    return Runner(
        lambda *inputs: run_compiled(compiled, *inputs),
        description=", ".join([f"Inductor {mode}", *asked, model.in_words]),
        execution=Execution(
            SHORT[half],
            layout=model.layout,
            provider=INDUCTOR,
            captured=device.type == "cuda" and mode in ("reduce-overhead", "max-autotune"),
            fuses=True,
            casts_own_values=model.casts_own_values,
        ),
        details=dict(why_fp32(half)),
        compile_facts=lambda: compile_facts(cache),
        searches_asked=(SearchAsked("Inductor"),) if mode.startswith("max-autotune") else (),
        compilations=compilations,
        save=lambda folder: generated(cache, folder),
        traffic=traffic,
        generated_code=cache,
    )


def compile_net(
    model: nn.Module, inputs: Iterable[Tensor], mode: Mode, dynamic: bool | None, fullgraph: bool, freezing: bool
) -> Callable[..., Tensor]:
    """Compile the network by a call on its inputs, of any shape."""
    torch.backends.cudnn.benchmark = True
    torch._inductor.config.freezing = freezing
    count_bytes()
    keep_graphs()
    compiled = torch.compile(model, mode=mode, dynamic=dynamic, fullgraph=fullgraph)
    run_compiled(compiled, *inputs)
    check_compiled()
    return compiled


def run_compiled(compiled: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Call the compiled network on inputs of any shape; CUDA graph trees may overwrite the last answer."""
    torch.compiler.cudagraph_mark_step_begin()
    logits: Tensor = compiled(*inputs)
    return logits


def compile_facts(cache: Path) -> CompileFacts:
    """Return what was compiled in this process so far; `cache` is Inductor's folder."""
    breaks = torch._dynamo.utils.counters["graph_break"]
    reasons = [str(found.recompile_reason or "") for found in torch._dynamo.utils.get_compilation_metrics()]
    return CompileFacts(
        graphs=compilations(),
        graph_breaks={without_places(str(reason)): int(count) for reason, count in breaks.items()},
        recompile_reasons=[without_places(reason) for reason in reasons if reason],
        generated_kernels=int(torch._inductor.metrics.generated_kernel_count),
        cache_bytes=bytes_in(cache),
    )


def traffic(*_: Tensor) -> Traffic:
    """Return bytes of any batch by Inductor's count of the graphs compiled so far; a call runs each once."""
    return int(torch._inductor.metrics.num_bytes_accessed), "Inductor"
