"""torchao's fp8 on a GPU: convolutions whose weights and values are rounded to e4m3, each call scaling its own values.

As torchao 0.18 has it (quantization/quantize_/workflows/float8/float8_tensor.py): convolutions without groups whose
channels are multiples of 16, none transposed, by kernels of MSLK's for compute capability 10; their bias is left out.
"""

import copy
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.compiler.agreement import Budget
from pipeline.compiler.half import Half
from pipeline.compiler.inductor import compilations
from pipeline.errors import first_line
from pipeline.records.run_record import Execution, Precision
from pipeline.stages.api import Runner, Skip, StageError, Workload, images_alone, library, no_traffic
from pipeline.stages.common.fewer_bits import convolutions, judges, layer_details, layers_to_keep, passed
from pipeline.stages.common.inductor import compiled, own_cache
from pipeline.stages.common.network_forms import half_net

EXTRA = "torchao"
LEAST = (10, 0)  # compute capability
CHANNELS = 16  # of which a layer's must be a multiple
KERNELS = "mslk"


def build(
    workload: Workload, *, keep_bf16: str | list[str] = "auto", budget: float = 1e-3, error_budget: float = 5e-2,
    dice_budget: float = 1e-2,
) -> Runner:  # fmt: skip
    """Quantize the weights, decide what stays in bf16, compile."""
    if workload.device.type != "cuda":
        raise Skip("torchao's convolutions in fp8 need a CUDA GPU")
    images_alone(workload, "torchao's fp8")
    torchao = library("torchao.quantization", EXTRA)
    check_kernels(torch.cuda.get_device_capability(workload.device), find_spec(KERNELS) is not None)
    own_cache(workload.caches, workload.earlier is None)
    by = judges(workload, 0, keep_bf16, Budget(budget, error_budget, dice_budget))
    half, names = half_net(workload, torch.bfloat16), suitable(workload.model)
    if not names:
        raise StageError("no convolution of the network has the form that torchao takes in fp8", "unsupported")
    kept, gains = layers_to_keep(
        keep_bf16, names, lambda kept: by.used(in_fp8(torchao, half, names, kept)), "keep_bf16", "fp8"
    )
    workload.progress("compiling")
    run = compiled(in_fp8(torchao, half, names, kept), workload.batches[0])
    in_bits = [name for name in names if name not in kept]
    others: dict[str, Precision] = {name: "bf16" for name in convolutions(workload.model) if name not in in_bits}
    layout = workload.layout_choice.layout
    return Runner(
        run,
        description=f"Inductor, {len(in_bits)} convolutions in fp8 by torchao, {len(others)} in bf16{half.and_casts}",
        execution=Execution("fp8", others, layout, "Inductor with torchao", captured=False, fuses=True),
        details=layer_details(kept, gains, passed(run, by, "fp8")) | {"fp8_layers": len(in_bits)},
        calibration=by.calibration,
        left_out=by.left_out,
        compilations=compilations,
        traffic=no_traffic,
    )


def check_kernels(capability: tuple[int, int], has_kernels: bool) -> None:
    """Raise `build`'s Skip where torchao would find no kernel for a GPU of that compute capability."""
    if capability < LEAST:
        reason = f"torchao's convolutions in fp8 need compute capability 10.0 (this is {capability[0]}.{capability[1]})"
        raise Skip(f"{reason}; stage=fp8 has this project's kernels")
    if not has_kernels:
        raise Skip(
            f"{KERNELS} isn't installed, whose kernels torchao's convolutions in fp8 are; PyTorch's own package index "
            "has it, which pip is given by --index-url; PyPI holds no more than its name",
            "missing library",
        )


def suitable(net: nn.Module) -> list[str]:
    """Return the module paths of the convolutions that torchao has fp8 kernels for."""
    plain = [
        (name, layer)
        for name, layer in net.named_modules()
        if type(layer) is nn.Conv2d
        and layer.groups == 1
        and layer.padding_mode == "zeros"
        and not isinstance(layer.padding, str)
    ]
    return [name for name, layer in plain if layer.in_channels % CHANNELS == 0 == layer.out_channels % CHANNELS]


class BiasAfter(nn.Module):
    """A convolution for torchao, which drops a bias, and the bias as an addition of its own."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.conv, self.bias = layer, layer.bias
        self.conv.bias = None

    def forward(self, image: Tensor) -> Tensor:
        """Convolve [batch, in, height, width] and add the bias."""
        moved: Tensor = self.conv(image)
        return moved if self.bias is None else moved + self.bias[:, None, None]


def in_fp8(torchao: ModuleType, half: Half, eligible: list[str], kept: list[str]) -> Half:
    """Copy a network in bf16 with the eligible layers in fp8, except those in `kept`."""
    made, names = copy.deepcopy(half), [name for name in eligible if name not in kept]
    layers: dict[nn.Module, nn.Module] = {layer: BiasAfter(layer) for layer in map(made.net.get_submodule, names)}
    for parent in list(made.modules()):  # a network may hold a layer under several names
        parent._modules |= {leaf: layers[part] for leaf, part in parent._modules.items() if part in layers}
    # The settings of Inductor that it recommends would set switches of the process that other stages' figures rest on.
    config = torchao.Float8DynamicActivationFloat8WeightConfig(
        granularity=torchao.PerTensor(), set_inductor_config=False
    )
    try:
        with torch.inference_mode(False), torch.no_grad():
            # It meets a layer once under each of its names.
            torchao.quantize_(
                made, config, filter_fn=lambda part, _: part in layers and not hasattr(part.weight, "qdata")
            )
    except Exception as error:  # torchao raises many kinds
        raise StageError(f"torchao can't quantize the network: {first_line(error)}", "unsupported") from error
    weights = [(name, layer.weight) for name, layer in zip(names, layers, strict=True)]
    if left := [name for name, weight in weights if not hasattr(weight, "qdata")]:
        raise StageError(f"torchao left {left[0]} in bf16", "wrong device")
    return made
