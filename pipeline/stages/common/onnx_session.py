"""Sessions of ONNX Runtime on one provider, or none at all, and calls of them on fixed buffers of torch's."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from torch import Tensor

from pipeline.records.error_line import first_line
from pipeline.stages.api import StageError
from pipeline.stages.common.onnx_export import INPUT, OUTPUT

PROVIDERS = {"cuda": "CUDAExecutionProvider", "cpu": "CPUExecutionProvider", "tensorrt": "TensorrtExecutionProvider"}
ASSIGNMENT = "session.record_ep_graph_assignment_info"
NUMPY_TYPES = {torch.float32: np.float32, torch.float16: np.float16}


def open_session(
    path: Path, wanted: str, options: dict[str, str], optimised: Path | None = None
) -> ort.InferenceSession:
    """A session on the provider that is wanted.

    Args:
        path: of the model.
        wanted: a key of `PROVIDERS`.
        options: the provider's.
        optimised: where the graph is written as the session runs it.

    Raises:
        StageError: it landed on another one.
    """
    settings = ort.SessionOptions()
    settings.log_severity_level = 3
    settings.add_session_config_entry(ASSIGNMENT, "1")
    if optimised:
        settings.optimized_model_filepath = str(optimised)
    if wanted != "cpu":
        ort.preload_dlls()
        settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    else:
        settings.intra_op_num_threads = torch.get_num_threads()
    try:
        session = ort.InferenceSession(str(path), settings, providers=[(PROVIDERS[wanted], options)])
    except Exception as error:
        raise StageError(f"no session on {PROVIDERS[wanted]}: {first_line(error)}", "missing library") from error
    landed = session.get_providers()[0]
    if landed != PROVIDERS[wanted]:
        raise StageError(
            f"asked for {PROVIDERS[wanted]}, the session landed on {landed}; are its libraries there?", "wrong device"
        )
    return session


def assignments(session: ort.InferenceSession) -> dict[str, dict[str, int]]:
    """For each provider, how many nodes of each operator it runs."""
    nodes: dict[str, Counter[str]] = {}
    for subgraph in session.get_provider_graph_assignment_info():
        for node in subgraph.get_nodes():
            nodes.setdefault(subgraph.ep_name, Counter())[node.op_type] += 1
    return {provider: dict(sorted(counts.items())) for provider, counts in sorted(nodes.items())}


def bound(
    session: ort.InferenceSession, batch: Tensor, precision: torch.dtype
) -> tuple[Tensor, Tensor, Callable[[], None]]:
    """Fixed buffers for input and output, as a CUDA graph demands, and the call that goes from one to the other.

    Input [batch, channels, height, width], output [batch, classes, height, width].
    """
    fixed = batch.clone()
    shape = [int(length) for length in session.get_outputs()[0].shape]
    logits = torch.empty(shape, dtype=precision, device=batch.device)
    binding: Any = session.io_binding()
    binding.bind_input(INPUT, batch.device.type, 0, np.float32, tuple(fixed.shape), fixed.data_ptr())
    binding.bind_output(OUTPUT, batch.device.type, 0, NUMPY_TYPES[precision], tuple(logits.shape), logits.data_ptr())
    unsynchronised = ort.RunOptions()
    unsynchronised.add_run_config_entry("disable_synchronize_execution_providers", "1")
    return fixed, logits, lambda: session.run_with_iobinding(binding, unsynchronised)


def in_place(fixed: Tensor, logits: Tensor, replay: Callable[[], None]) -> Callable[[Tensor], Tensor]:
    """A call on the CPU: from a batch [batch, channels, height, width] to logits [batch, classes, height, width]."""

    def run(batch: Tensor) -> Tensor:
        fixed.copy_(batch)
        replay()
        return logits

    return run


def on_stream(
    fixed: Tensor, logits: Tensor, replay: Callable[[], None], stream: torch.cuda.Stream
) -> Callable[[Tensor], Tensor]:
    """A call on the session's stream, which waits for the caller's and is waited for by it.

    From a batch [batch, channels, height, width] to logits [batch, classes, height, width].
    """

    def run(batch: Tensor) -> Tensor:
        caller = torch.cuda.current_stream()
        stream.wait_stream(caller)
        with torch.cuda.stream(stream):
            fixed.copy_(batch)
            replay()
        caller.wait_stream(stream)
        return logits

    return run
