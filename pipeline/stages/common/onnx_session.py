"""Sessions of ONNX Runtime on one provider, or none at all, and calls of them on fixed buffers of torch's."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch
from torch import Tensor

from pipeline.compiler.batch import Batch, batched
from pipeline.compiler.input_forms import Form, check_forms, form_of
from pipeline.records.error_line import first_line
from pipeline.stages.api import StageError
from pipeline.stages.common.onnx_export import OUTPUT

PROVIDERS = {"cuda": "CUDAExecutionProvider", "cpu": "CPUExecutionProvider", "tensorrt": "TensorrtExecutionProvider"}
ASSIGNMENT = "session.record_ep_graph_assignment_info"
NUMPY_TYPES = {
    torch.float32: np.float32, torch.float16: np.float16, torch.int64: np.int64, torch.bool: np.bool_,
}  # fmt: skip


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
    # Else it binds its threads to processors of its own choice, also to such as this process may not use.
    settings.intra_op_num_threads = torch.get_num_threads()
    settings.add_session_config_entry(ASSIGNMENT, "1")
    if optimised:
        settings.optimized_model_filepath = str(optimised)
    if wanted != "cpu":
        ort.preload_dlls()
        settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
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
    session: ort.InferenceSession, batch: Tensor | Batch, precision: torch.dtype
) -> tuple[Batch, Tensor, Callable[[], None]]:
    """Fixed buffers for inputs and output, as a CUDA graph demands, and the call that goes from these to that.

    Output [batch, classes, height, width], in `precision`. An input that the exporter found without use isn't bound.
    """
    fixed, taken = batched(batch).clone(), {found.name for found in session.get_inputs()}
    shape = [int(length) for length in session.get_outputs()[0].shape]
    logits = torch.empty(shape, dtype=precision, device=fixed.device)
    kind = fixed.device.type
    binding = session.io_binding()
    for name, part in zip(fixed.names, fixed, strict=True):
        if name in taken:
            binding.bind_input(name, kind, 0, NUMPY_TYPES[part.dtype], tuple(part.shape), part.data_ptr())
    binding.bind_output(OUTPUT, kind, 0, NUMPY_TYPES[precision], tuple(logits.shape), logits.data_ptr())
    unsynchronised = ort.RunOptions()
    unsynchronised.add_run_config_entry("disable_synchronize_execution_providers", "1")
    return fixed, logits, lambda: session.run_with_iobinding(binding, unsynchronised)


def fill(fixed: Batch, forms: list[Form], inputs: Sequence[Tensor]) -> None:
    """Copy a call's inputs, of any shape, into the fixed ones, which are of these forms.

    Raises:
        ValueError: an input's shape, type or device is another than that of the fixed one.
    """
    check_forms(inputs, forms)
    for part, given in zip(fixed.tensors, inputs, strict=True):
        part.copy_(given)


def in_place(fixed: Batch, logits: Tensor, replay: Callable[[], None]) -> Callable[..., Tensor]:
    """A call on the CPU: from the net's inputs to logits [batch, classes, height, width]; it raises as `fill`."""
    forms = [form_of(part) for part in fixed]

    def run(*inputs: Tensor) -> Tensor:
        fill(fixed, forms, inputs)
        replay()
        return logits

    return run


def on_stream(
    fixed: Batch, logits: Tensor, replay: Callable[[], None], stream: torch.cuda.Stream
) -> Callable[..., Tensor]:
    """A call on the session's stream, which waits for the caller's and is waited for by it.

    From the net's inputs to logits [batch, classes, height, width]; it raises as `fill`.
    """
    forms = [form_of(part) for part in fixed]

    def run(*inputs: Tensor) -> Tensor:
        caller = torch.cuda.current_stream()
        stream.wait_stream(caller)
        with torch.cuda.stream(stream):
            fill(fixed, forms, inputs)
            replay()
        caller.wait_stream(stream)
        return logits

    return run
