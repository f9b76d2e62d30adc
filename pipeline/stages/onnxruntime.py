"""ONNX Runtime: exported by torch, checked, and run on the provider that was asked for, or not at all."""

from typing import Literal

import torch

from pipeline.compiler.half import SHORT
from pipeline.records.diagnostics import SearchAsked, SearchCount
from pipeline.records.run_record import Execution, Order
from pipeline.stages.api import Runner, StageError, Workload, no_traffic
from pipeline.stages.common.network_forms import checked_form
from pipeline.stages.common.onnx_models import PROVIDERS, assignments, bound, bound_call, export, open_session


def build(
    workload: Workload,
    *,
    provider: Literal["auto", "cuda", "cpu"] = "auto",
    dtype: Literal["auto", "fp32", "fp16"] = "auto",
    algo_search: Literal["EXHAUSTIVE", "HEURISTIC", "DEFAULT"] = "EXHAUSTIVE",
    nhwc: bool = True, tf32: bool = True, cuda_graph: bool = True, fuse_conv_bias: bool = True,
) -> Runner:  # fmt: skip
    """Export, check, open a session, bind fixed buffers on the device."""
    here, batch = workload.device.type, workload.inputs[0]
    if provider == "cuda" and here != "cuda":
        reason = "provider=cuda was asked for and this run is on the CPU; provider=cpu runs it there"
        raise StageError(reason, "wrong device")
    wanted = here if provider == "auto" else provider
    # ONNX Runtime's CUDA convolutions have no bf16.
    precision = torch.float32 if dtype == "fp32" or (dtype == "auto" and here == "cpu") else torch.float16
    opset, casts = export(workload.model, precision, batch, path := workload.folder / "model.onnx")
    stream = torch.cuda.Stream() if wanted == "cuda" else None
    switches = cuda_switches(nhwc, tf32, cuda_graph, fuse_conv_bias)
    # On the default stream, whose handle is 0, which the provider takes for none, no graph is captured.
    options = {name: str(int(on)) for name, on in switches.items()} if stream else {}
    if stream:
        options |= {"cudnn_conv_algo_search": algo_search, "user_compute_stream": str(stream.cuda_stream)}
    session = open_session(path, wanted, options)
    run, nodes = bound_call(*bound(session, batch, precision), stream), assignments(session)
    layout: Order = "NHWC" if stream and nhwc else "NCHW"
    said = [PROVIDERS[wanted]]
    if stream:
        said += [layout, "biases fused" if switches["fuse_conv_bias"] else "biases apart", *["CUDA graph"] * cuda_graph]
    rounds = stream and tf32 and precision == torch.float32
    return Runner(
        checked_form(run, workload, "ONNX Runtime", precision),
        description=", ".join([*said, SHORT[precision], f"opset {opset}"]) + casts,
        execution=Execution(
            "tf32" if rounds else SHORT[precision],
            layout=layout,
            provider=f"ONNX Runtime {PROVIDERS[wanted]}",
            captured=stream is not None and cuda_graph,
            fuses=True,  # convolutions with what follows them
        ),
        details={"providers": session.get_providers(), "nodes": nodes, "opset": opset},
        searches_asked=(SearchAsked("cuDNN for ONNX Runtime", algo_search.lower()),) if stream else (),
        searched=nodes_searched(nodes, algo_search),
        save=lambda folder: sorted(folder.glob("model.onnx*")),
        traffic=no_traffic,
        onnx_model=path,
    )


def nodes_searched(nodes: dict[str, dict[str, int]], algo_search: str) -> tuple[SearchCount, ...]:
    """Count the convolutions for which ONNX Runtime asks cuDNN, node by node; empty if one algorithm is for all."""
    on_gpu = nodes.get(PROVIDERS["cuda"], {})
    count = sum(number for kind, number in on_gpu.items() if kind.endswith(("Conv", "ConvTranspose")))
    if algo_search == "DEFAULT" or not count:
        return ()
    return (SearchCount("cuDNN for ONNX Runtime", "nodes", count, algo_search.lower()),)


def cuda_switches(nhwc: bool, tf32: bool, cuda_graph: bool, fuse_conv_bias: bool) -> dict[str, bool]:
    """Return the CUDA provider's options that are on or off, by its own names."""
    fuses = fuse_conv_bias and nhwc  # cuDNN has no engine that does both in NCHW (onnxruntime 1.31, fp16)
    return {"prefer_nhwc": nhwc, "use_tf32": tf32, "enable_cuda_graph": cuda_graph, "fuse_conv_bias": fuses}
