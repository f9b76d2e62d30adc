"""The stage `fp8` says how many layers read fp8; a net of which none can isn't called fp8."""

from pathlib import Path

import pytest
import torch
from torch import nn

from models.unet import UNet
from pipeline.compiler.calibrate import largest, mixed, quantisable
from pipeline.compiler.graph import Graph
from pipeline.compiler.lowering import Program
from pipeline.compiler.passes import rewrite
from pipeline.compiler.quantize import Precision
from pipeline.compiler.torch_export import trace
from pipeline.stages import fp8
from pipeline.stages.api import Workload

CPU = torch.device("cpu")


def workload(net: nn.Module, folder: Path) -> Workload:
    batches = list(torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1)).split(1))
    return Workload(model=net.eval(), batches=batches, device=CPU, folder=folder, verified=2)


@torch.no_grad()
def calibrated(work: Workload) -> tuple[Graph, dict[str, float]]:
    graph = trace(work.model, work.batches[0])
    rewrite(graph)
    return graph, largest(Program(graph, Precision("fp32"), CPU), work.batches)


@pytest.fixture
def classic(tmp_path: Path) -> Workload:
    torch.manual_seed(0)
    return workload(UNet(base=16, depth=1), tmp_path)


def test_the_first_layer_reads_the_image_and_is_never_in_fp8(classic: Workload) -> None:
    graph, _ = calibrated(classic)
    assert [node.op for node in graph.nodes if node.name not in quantisable(graph)] == ["conv_first", "joined"]


def test_what_ran_counts_the_layers_that_read_fp8(classic: Workload) -> None:
    graph, seen = calibrated(classic)
    names = quantisable(graph)
    assert fp8.stored(graph, mixed(graph, seen, [], "fp16"), []) == f"fp8 in {len(names)} layers (0 kept in fp16)"
    one = mixed(graph, seen, ["bottleneck.3"], "fp16")
    assert fp8.stored(graph, one, ["bottleneck.3"]) == f"fp8 in {len(names) - 1} layers (1 kept in fp16)"
    assert fp8.stored(graph, mixed(graph, seen, names, "fp16"), names) == "fp16 (no layer reads fp8)"


def test_a_net_whose_values_torch_reads_has_no_layer_in_fp8(tmp_path: Path) -> None:
    norm = nn.InstanceNorm2d(16)
    work = workload(
        nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), norm, nn.Conv2d(16, 16, 3, padding=1), norm), tmp_path
    )
    graph, seen = calibrated(work)
    assert [node.op for node in graph.nodes].count("conv3x3") == 1
    assert quantisable(graph) == []
    assert fp8.stored(graph, mixed(graph, seen, [], "fp16"), []) == "fp16 (no layer reads fp8)"
