"""A net as torch.export wrote it: loaded without its code, checked before torch reads it, and run by the stages."""

import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipeline.config.model_request import read_model
from pipeline.config.request_error import RequestError
from pipeline.errors import ModelError
from pipeline.records.request import ModelSpec
from pipeline.stages.api import Workload
from pipeline.worker import net_file, workload
from pipeline.worker.net_file import net_of_file
from tests.input_nets import Conditioned
from tests.process_state import own_switches
from tests.worker.jobs import EAGER, job

INPUTS = (torch.randn(2, 4, 8, 8), torch.tensor([10, 900]), torch.randn(2, 5, 6))
MEMORY = 2**40


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("exported") / "net.pt2"
    torch.export.save(torch.export.export(Conditioned().eval(), INPUTS), path)
    return path


@pytest.fixture(scope="module")
def net(file: Path) -> nn.Module:
    return net_of_file(str(file), MEMORY)


def test_it_answers_as_the_net_does(net: nn.Module) -> None:
    torch.manual_seed(0)
    exact = Conditioned().eval()
    other = (torch.randn(2, 4, 8, 8), torch.tensor([1, 2]), torch.randn(2, 5, 6))
    with torch.inference_mode():
        torch.testing.assert_close(net(*other), exact(*other))
        alone = tuple(part[:1] for part in other)
        torch.testing.assert_close(net(*alone), exact(*alone))
    assert not net.training


@pytest.mark.parametrize("name", ["half", "torchscript"])
def test_stages_run_it(name: str, net: nn.Module, tmp_path: Path) -> None:
    first, *rest = INPUTS
    others = {name: [part] for name, part in zip(("timestep", "encoder_hidden_states"), rest, strict=True)}
    work = Workload(net, [first], torch.device("cpu"), tmp_path, name="sample", others=others)
    with own_switches(), torch.inference_mode():
        runner = import_module(f"pipeline.stages.{name}").build(work, dtype="bf16")
        torch.testing.assert_close(runner.run(*INPUTS).float(), net(*INPUTS), rtol=5e-2, atol=5e-2)


def typed_file(file: Path | str, **others: str) -> ModelSpec:
    whole: dict[str, object] = {"name": "file", "file": str(file), "target": None, "options": {}, "checkpoint": None}
    return read_model({**whole, **others})


def test_a_job_names_it(file: Path, tmp_path: Path) -> None:
    spec = typed_file(file)
    assert (spec.file, spec.weights) == (str(file), str(file))
    found = workload.net_of(replace(job(EAGER, tmp_path), model=spec))
    assert sum(part.numel() for part in found.parameters()) == sum(part.numel() for part in Conditioned().parameters())


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ({"target": "my.Net"}, "is a network with its weights; leave one out"),
        ({"checkpoint": "w.pt"}, "is a network with its weights; leave one out"),
        ({"file": "missing.pt2"}, "model.file=missing.pt2: no such file"),
        ({"file": __file__}, f"need the class: model=custom model.target=… model.checkpoint={__file__}"),
    ],
)
def test_a_wrong_request_is_one_line(typed: dict[str, str], said: str, file: Path) -> None:
    with pytest.raises(RequestError) as caught:
        typed_file(**{"file": str(file), **typed})
    assert said in str(caught.value)


def test_a_file_that_is_none_is_refused_by_name(file: Path, tmp_path: Path) -> None:
    torn = tmp_path / "torn.pt2"
    torn.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ModelError, match=r"model\.file=.*torn\.pt2: .*; torch\.export\.save"):
        net_of_file(str(torn), MEMORY)
    half = tmp_path / "half.pt2"
    torch.export.save(torch.export.export(nn.Conv2d(3, 2, 1).half().eval(), (torch.ones(1, 3, 4, 4).half(),)), half)
    with pytest.raises(ModelError, match=r"weights in torch\.float16; export the network in fp32"):
        net_of_file(str(half), MEMORY)
    with pytest.raises(ModelError, match=r"it takes .* GiB, and this machine has"):
        net_of_file(str(file), 10)
    with pytest.raises(ModelError, match="it can't be read"):
        net_of_file(str(tmp_path / "missing.pt2"), MEMORY)


def test_a_net_of_dynamic_shapes_is_told_how_to_export_it(tmp_path: Path) -> None:
    net, batch = nn.Conv2d(3, 2, 1).eval(), torch.zeros(2, 3, 8, 8)
    program = torch.export.export(net, (batch,), dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=16)},))
    torch.export.save(program.run_decompositions({}), tmp_path / "net.pt2")
    with pytest.raises(ModelError, match="its shapes are dynamic: export it without dynamic_shapes"):
        net_of_file(str(tmp_path / "net.pt2"), MEMORY)


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize("made", [torch.jit.script, lambda net: torch.jit.trace(net, torch.ones(2, 3, 16, 16))])
@pytest.mark.parametrize("suffix", ["ts", "pt"])
def test_torchscript_is_one(made: Callable[[nn.Module], torch.jit.ScriptModule], suffix: str, tmp_path: Path) -> None:
    net, batch = (
        nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1)),
        torch.rand(2, 3, 16, 16),
    )
    made(net.eval()).save(path := str(tmp_path / f"net.{suffix}"))
    found = net_of_file(str(typed_file(path).file), MEMORY, lambda: (batch,))
    assert torch.allclose(found(batch), net(batch), atol=1e-6)
    assert {*map(len, found.parameters())} == {*map(len, net.parameters())}
    with pytest.raises(ModelError, match=r"it takes data\.channels=3, not inputs \[2, 5, 16, 16\]"):
        net_of_file(path, MEMORY, lambda: (torch.rand(2, 5, 16, 16),))
    with pytest.raises(ModelError, match=r"this TorchScript file can't be turned into a graph for inputs \[2, 3\]"):
        net_of_file(path, MEMORY, lambda: (torch.rand(2, 3),))


class Fixed(nn.Conv2d):
    def forward(self, image: Tensor) -> Tensor:
        return super().forward(image) + torch.ones(2, 2, 16, 16)


def test_onnx_is_read_by_a_converter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, batch, path = Fixed(3, 2, 1).eval(), torch.rand(2, 3, 16, 16), tmp_path / "net.onnx"
    torch.onnx.export(net, (batch,), path, dynamo=True, opset_version=18)
    monkeypatch.setitem(sys.modules, "onnx2torch", None)
    with pytest.raises(ModelError, match="reads ONNX; install it: python -m pip install onnx2torch"):
        net_of_file(str(path), MEMORY, lambda: (batch,))

    def convert(model: Any) -> nn.Module:
        if [each.version for each in model.opset_import] != [17]:
            raise NotImplementedError("Converter is not implemented (OperationDescription(operation_type='Resize', …))")
        return net

    monkeypatch.setitem(sys.modules, "onnx2torch", SimpleNamespace(convert=convert))
    torch.testing.assert_close(net_of_file(str(path), MEMORY, lambda: (batch,))(batch), net(batch))
    with pytest.raises(ModelError, match=r"takes inputs \[2, 3, 16, 16\], not \[2, 3, 8, 8\]: set data.batch_size"):
        net_of_file(str(path), MEMORY, lambda: (batch[..., :8, :8],))
    monkeypatch.setattr(net_file, "READ_OPSET", 18)
    with pytest.raises(ModelError, match=r"\(onnx2torch has no form of Resize\); export the network"):
        net_of_file(str(path), MEMORY, lambda: (batch,))
    path.write_bytes(b"hello")
    with pytest.raises(ModelError, match=r"net.onnx: can't be read as ONNX \("):
        net_of_file(str(path), MEMORY, lambda: (batch,))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamo", [False, True])
def test_an_onnx_file_that_resizes_answers_as_the_net_does(dynamo: bool, tmp_path: Path) -> None:
    pytest.importorskip("onnx2torch")
    net = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.Upsample(scale_factor=2), nn.Conv2d(4, 2, 1))
    batch = torch.rand(2, 3, 16, 16)
    torch.onnx.export(net.eval(), (batch,), tmp_path / "net.onnx", dynamo=dynamo)
    torch.testing.assert_close(net_of_file(str(tmp_path / "net.onnx"), MEMORY, lambda: (batch,))(batch), net(batch))
