"""The driver beside a GPU that is made up: layers run by their references, nothing is compiled, times are given."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from models.unet import UNet
from pipeline.compiler import candidate, driver
from pipeline.compiler.batch import Batch, batched
from pipeline.compiler.candidate import Search
from pipeline.compiler.custom_ops import REFERENCE
from pipeline.compiler.driver import Request, Rewritten, silent
from pipeline.compiler.graph.exported_net import ExportedNet, export
from pipeline.compiler.graph.lowering import Plan
from pipeline.compiler.tuning.autotune import Tuner
from tests.compiler.rewriting import copied
from tests.process_state import own_switches

MOVED = 12345  # bytes, by the compiler that is made up


class Called:
    def __init__(self, model: Callable[..., Tensor], *_: Tensor) -> None:
        self.model = model
        self.graph = self

    def __call__(self, *inputs: Tensor) -> Tensor:
        with torch.no_grad():
            return self.model(*inputs)


def all_by_references(
    net: ExportedNet, scales: Mapping[str, float], _: object, tuner: Tuner, say: Callable[[str], None]
) -> Plan:
    """Stand in for `choose`: every layer's tile is its reference, and five were measured."""
    tuner.measured += 5
    layers = [node.name for node in net.module.graph.nodes if "kernel_layer" in str(node.target)]
    return Plan(scales, dict.fromkeys(layers, REFERENCE))


def as_it_is(module: fx.GraphModule, *_: Tensor, mode: str) -> tuple[Callable[..., Tensor], int]:
    return module, MOVED


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for room in (candidate, driver):
        monkeypatch.setattr(room, "Captured", Called)
        monkeypatch.setattr(room, "compile_counting_bytes", as_it_is)
    monkeypatch.setattr(driver, "choose", all_by_references)
    monkeypatch.setattr(driver, "reaching_views_barred", lambda: None)
    with own_switches():
        yield


def times(monkeypatch: pytest.MonkeyPatch, *given: float) -> None:
    """Say what the candidates take at full load, in their order; the last is of what is tried after the others."""
    rounds = [(took,) for took in given]
    monkeypatch.setattr(driver, "full_load_ms", lambda graphs: rounds[: len(graphs)])


def images(count: int = 2) -> list[Tensor]:
    return list(torch.randn(2 * count, 3, 16, 16, generator=torch.Generator().manual_seed(1)).split(2))


def request(
    net: nn.Module,
    folder: Path,
    search: Search = "auto",
    *,
    kept: Sequence[str] = (),
    progress: Callable[[str], None] = silent,
    inputs: Batch | None = None,
) -> Request:
    given = batched(images()[0]) if inputs is None else inputs
    return Request(net.eval(), given, Tuner(folder), search, kept, progress=progress)


def rewritten(net: nn.Module, folder: Path, search: Search = "auto", **named: Any) -> Rewritten:
    return Rewritten(request(net, folder, search, **named), None)


def small_unet() -> nn.Module:
    torch.manual_seed(0)
    return UNet(base=16, depth=1)


@cache
def exported() -> ExportedNet:
    return export(small_unet().eval(), images()[0], torch.float16)


@pytest.fixture
def exported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "export", lambda *_: copied(exported()))
