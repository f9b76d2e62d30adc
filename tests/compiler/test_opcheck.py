"""Torch finds no fault with any operation of the project's namespace; one that nobody gives a sample fails here.

Those of the kernels are sampled from nets in test_custom_ops, which asks for each of them.
"""

import importlib
import pkgutil
from typing import Any

import pytest
import torch

import pipeline.compiler
import pipeline.kernels
from pipeline.compiler.custom_ops import NAMESPACE, OPERATIONS, REFERENCE, operation
from pipeline.kernels.common.block_statistics import statistics_of

# The last traces forwards and backwards, which what writes into its arguments refuses where gradients are wanted.
ALL_CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
Sample = tuple[tuple[Any, ...], dict[str, Any], tuple[str, ...]]  # arguments, the named ones, and what is checked


def registered() -> set[str]:
    """The operations of the namespace once every module of both rooms is imported, whoever registers them."""
    for room in (pipeline.compiler, pipeline.kernels):
        for found in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
            importlib.import_module(found.name)
    names = (name.split("::") for name in torch._C._dispatch_get_all_op_names())
    return {name.partition(".")[0] for namespace, name in names if namespace == NAMESPACE}


def of_norms() -> dict[str, list[Sample]]:
    """A norm's pass and the convolution that norms what it reads: with groups, a residual, without statistics."""
    y = torch.randn(2, 8, 16, 16)
    x, counted, weight = y.permute(0, 3, 1, 2), statistics_of(y), torch.rand(16)[:, None, None]
    norm: dict[str, Any] = {"counted": counted, "norm_weight": weight, "norm_bias": None, "eps": 1e-5, "phases": 1}
    norm |= {"norm_activation": "relu", "norm_slope": 0.0, "tile": REFERENCE}
    alone = {**norm, "norm_scale": 1.0, "result": torch.empty_like(x)}
    kept = {"weight": torch.randn(9, 8, 16), "bias": torch.rand(8), "activation": "none", "slope": 0.0, "layer": "a"}
    made = {"result": torch.empty(2, 8, 16, 8).permute(0, 3, 1, 2), "statistics": torch.empty(2, 1, 2, 8)}
    groups, whole = {"group_width": 4}, {**norm, **kept, **made}
    head = {"head_weight": torch.randn(2, 16), "head_bias": torch.rand(2), "result": torch.empty(2, 2, 8, 16)}
    added = {"residual": torch.randn(2, 8, 16, 8).half().permute(0, 3, 1, 2), "residual_scale": 0.5}
    return {
        "normalised": [((x,), alone | named, ALL_CHECKS) for named in ({}, groups, head)],
        "normed_conv3x3": [
            ((x,), whole | named, ALL_CHECKS[:3]) for named in ({}, groups, added, {"statistics": None})
        ],
    }


def samples() -> dict[str, list[Sample]]:
    counted, vector = statistics_of(torch.randn(2, 16, 36, 8), 2), torch.randn(8)
    layers = [torch.randn(4, 8), torch.randn(4), torch.randn(4, 8), vector]
    factors = [(counted, *ends, 1e-5, [16, 36], 2) for ends in ((vector, vector), (None, None))]
    return {
        "merged_statistics": [((counted, 16, 36, 2), {}, ALL_CHECKS)],
        "norm_factors": [((*given, *width), {}, ALL_CHECKS) for given in factors for width in ((), (4,))],
        "excitation": [((counted, layers, "silu", 0.0, "sigmoid", [16, 36], 2), {}, ALL_CHECKS)],
        **of_norms(),
    }


@pytest.mark.parametrize("name", sorted(registered() - set(OPERATIONS)))
def test_torch_finds_no_fault_with_an_operation_beside_the_kernels(name: str) -> None:
    """Of each there must be a sample: an operation that was added without one fails."""
    for given, named, checks in samples()[name]:
        torch.library.opcheck(operation(name), given, named, test_utils=checks)


def test_the_kernels_and_the_samples_are_all_there_is() -> None:
    """So that none is sampled which is registered nowhere, either."""
    assert registered() == set(OPERATIONS) | set(samples())
