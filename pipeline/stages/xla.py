"""XLA through torchax: JAX traces and compiles the network as a function; tensors pass by DLPack, without a copy."""

import os
from collections.abc import Callable, MutableMapping
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.dlpack import from_dlpack

from pipeline.compiler.half import SHORT, half_net
from pipeline.errors import first_line
from pipeline.records.run_record import Execution
from pipeline.stages.api import Runner, StageError, Workload, images_alone, library, no_traffic
from pipeline.stages.common.network_forms import Dtype, checked_form, half_dtype, taken_by, why_fp32

EXTRA = "xla"
PLATFORMS = {"cuda": "cuda,cpu", "cpu": "cpu"}  # JAX's names; the first is where it computes


def build(workload: Workload, *, dtype: Dtype | Literal["fp32"] = "auto") -> Runner:
    """Trace, and compile for the batch's shape by a call."""
    images_alone(workload, "XLA by torchax")
    device = workload.device
    precision = torch.float32 if dtype == "fp32" else half_dtype(dtype, device)
    prepare_process(device, os.environ)
    jax, torchax = library("jax", EXTRA), library("torchax", EXTRA)
    check_device(jax, device)
    model = half_net(workload.model, precision, workload.inputs[0], layout="NCHW")
    tf32 = precision == torch.float32 and device.type == "cuda"
    with torch.no_grad():
        weights = {name: to_jax(jax, tensor) for name, tensor in model.state_dict(keep_vars=False).items()}
        net = functional(jax, torchax, model, "tensorfloat32" if tf32 else "highest")
    run = compiled(jax, net, weights)
    with taken_by("torchax"), torch.inference_mode():
        run(workload.batches[0])
    return Runner(
        checked_form(run, workload, "XLA", precision),
        description=f"XLA by torchax {torchax.__version__}, jax {jax.__version__}, {SHORT[precision]}, "
        f"{model.folds} batch norms folded{model.and_casts}",
        execution=Execution("tf32" if tf32 else SHORT[precision], provider="XLA", captured=False, fuses=True),
        details={"devices": [str(found) for found in jax.devices()], **why_fp32(precision)},
        compilations=lambda: int(net._cache_size()),  # of each shape
        traffic=no_traffic,
    )


def prepare_process(device: torch.device, environment: MutableMapping[str, str]) -> None:
    """Set what JAX reads when it is imported: platform, memory left to torch, and threads."""
    environment["JAX_PLATFORMS"] = PLATFORMS[device.type]
    environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    environment["NPROC"] = str(torch.get_num_threads())  # of XLA's pool on a CPU, which else takes every core


def check_device(jax: ModuleType, device: torch.device) -> None:
    """Raise `build`'s StageError where JAX would compute elsewhere than torch."""
    try:
        found = jax.devices()[0].platform
    except RuntimeError as error:
        raise StageError(f"JAX has no {device.type} device here: {first_line(error)}", "missing library") from error
    if (found != "cpu") != (device.type == "cuda"):
        raise StageError(f"asked for {device.type}, JAX computes on {found}; is its CUDA plugin there?", "wrong device")


def to_jax(jax: ModuleType, tensor: Tensor) -> object:
    """Return the same memory as an array of JAX, whose stream waits for torch's."""
    return jax.dlpack.from_dlpack(tensor.detach().contiguous())


def functional(jax: ModuleType, torchax: ModuleType, model: nn.Module, precision: str) -> Any:
    """Compile the network as a function of weights and a batch [batch, channels, height, width] of JAX."""
    environment = torchax.default_env()

    def net(weights: object, batch: object) -> object:
        # In inference mode torch would hand composite operators over whole, which torchax takes in parts.
        with torch.inference_mode(False), torch.no_grad(), environment, jax.default_matmul_precision(precision):
            tensors = torchax.interop.torch_view(weights)
            logits = torch.func.functional_call(model, tensors, (torchax.interop.torch_view(batch),))
            return torchax.interop.jax_view(logits)

    return jax.jit(net)


def compiled(jax: ModuleType, net: Any, weights: object) -> Callable[[Tensor], Tensor]:
    """Return a call from torch through XLA and back, on one device."""

    # `from_dlpack` makes JAX's stream wait for torch's, and torch's current stream wait for the answer.
    def run(batch: Tensor) -> Tensor:
        return from_dlpack(net(weights, to_jax(jax, batch)))

    return run
