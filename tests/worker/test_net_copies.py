"""A copy of the network runs its own weights, and eager no compiled part; networks of files that others exported."""

import sys
import types
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from models.build import build_model
from models.model_output import with_output
from pipeline.config.model_request import read_model
from pipeline.config.request_error import RequestError
from pipeline.errors import ModelError
from pipeline.records.request import ModelSpec
from pipeline.stages.api import Workload
from pipeline.worker import net_file, reference, workload
from pipeline.worker.net_contract import check
from pipeline.worker.net_file import net_of_file
from tests.input_nets import Conditioned
from tests.process_state import own_switches
from tests.worker.jobs import EAGER, job

IMAGES = torch.linspace(-1, 1, 4 * 3 * 8 * 8).reshape(4, 3, 8, 8)
kept: dict[str, Tensor] = {}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU())
        self.head, self.aux = nn.Conv2d(8, 2, 1), nn.Sequential(nn.Conv2d(8, 16, 1), nn.Conv2d(16, 5, 1))

    def forward(self, image: Tensor) -> Any:
        return self.head(self.body(image))


class Several(Net):
    def forward(self, image: Tensor) -> Any:
        kept_here = self.body(image)
        return {"out": self.head(kept_here), "aux": self.aux(kept_here)}


class Hooked(Net):
    """Its skip is kept by a hook that closes over a dict of the first network."""

    def __init__(self, *, primed: bool = False) -> None:
        super().__init__()
        self.kept = kept
        kept.clear()
        self.body.register_forward_hook(lambda _, __, output: kept.update(skip=output))
        if primed:
            self.body(IMAGES[:2])

    def forward(self, image: Tensor) -> Any:
        self.body(image)
        return self.head(self.kept["skip"])


class Compiled(Net):
    """Compiled in a part, by a decorated method, by a method of an instance and in place."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.compile(self.body, backend="eager")  # type: ignore[assignment]
        self.last = torch.compile(self.last, backend="eager")  # type: ignore[method-assign]
        self.head.compile(backend="eager")

    def last(self, image: Tensor) -> Any:
        return self.head(image)

    @torch.compile(backend="eager")
    def forward(self, image: Tensor) -> Any:
        return self.last(self.body(image))


@torch.compile(backend="eager")
def activation(image: Tensor) -> Tensor:
    return image * torch.sigmoid(1.7 * image)


class Calling(Net):
    def forward(self, image: Tensor) -> Any:
        return self.head(activation(self.body(image)))


class Scripted(Net):
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.jit.script(self.body)  # type: ignore[assignment]


class Quantised(Net):
    def __init__(self) -> None:
        super().__init__()
        self.body.append(torch.ao.nn.quantized.dynamic.Linear(8, 8))


class Lazy(Net):
    def forward(self, image: Tensor) -> Any:
        if not hasattr(self, "grid"):
            self.register_buffer("grid", torch.zeros(image.shape[-1]))
        return super().forward(image) + self.grid


class Frames(Net):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Conv2d(12, 8, 1)), nn.Conv2d(8, 8, 1)

    def forward(self, image: Tensor) -> Any:
        joined = image.reshape(len(image) // 4, 12, *image.shape[2:])
        return super().forward(joined).reshape(len(image), 2, *image.shape[2:])


class Positions(Net):
    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, image: Tensor) -> Any:
        return super().forward(image) + torch.zeros(self.side, self.side)


class LateVolumes(Net):
    def forward(self, image: Tensor) -> Any:
        planes = image.transpose(1, 2).flatten(0, 1)
        return super().forward(planes).unflatten(0, (len(image), -1)).transpose(1, 2).contiguous()


def closed_over() -> nn.Module:
    net = Several()
    whole = net.forward
    net.forward = lambda image: whole(image)["out"]  # type: ignore[method-assign]
    return net


def bound() -> nn.Module:
    net = Net()
    net.forward = types.MethodType(Several.forward, net)  # type: ignore[method-assign]
    return net


def work(model: nn.Module, images: Tensor = IMAGES, labels: np.ndarray | None = None) -> Workload:
    return Workload(model.eval(), [images] * 3, torch.device("cpu"), Path(), labels=labels)


COPIES: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "a hook": (Hooked, r"a copy of Hooked answers .* differently"),
    "a hook that has run": (lambda: Hooked(primed=True), "a hook or a forward that was set on an instance"),
    "a forward": (closed_over, r"a copy of Several reads the first network's body\.0\.weight"),
    "a part of its answer": (lambda: with_output(closed_over(), None), "reads the first network's"),
    "a buffer": (Lazy, "makes its grid at its first call"),
}


@pytest.mark.parametrize("kind", COPIES)
def test_a_net_whose_copy_is_not_itself_is_refused(kind: str) -> None:
    make, said = COPIES[kind]
    with pytest.raises(ModelError, match=said):
        check(work(make()))


def test_a_forward_that_was_set_on_the_net_gives_the_wanted_part() -> None:
    net = with_output(bound(), "out")
    assert net(IMAGES).shape == (4, 2, 8, 8)
    assert [warning.code for warning in check(work(net), output="out")] == ["parts left out"]


def test_compiled_parts_run_eagerly_and_a_compiled_function_is_refused() -> None:
    net = build_model(f"{__name__}.Compiled", {}, None, 0)
    assert {*net.state_dict()} == {*Net().state_dict()}
    (warning,) = check(work(net))
    assert "was compiled in part (body, last, forward and 1 more)" in warning.text
    torch.testing.assert_close(net(IMAGES), build_model(f"{__name__}.Net", {}, None, 0)(IMAGES))
    with pytest.raises(ModelError, match=r"Calling calls a function that torch\.compile has compiled"):
        check(work(Calling()))


@pytest.mark.parametrize(("name", "said"), [("Scripted", r"torch\.jit\.script"), ("Quantised", "is quantised")])
def test_a_part_that_is_no_plain_layer_is_named(name: str, said: str) -> None:
    with pytest.raises(ModelError, match=rf"body.* of {__name__}\.{name} .*{said}"):
        build_model(f"{__name__}.{name}", {}, None, 0)


def test_all_outputs_that_fit_are_named_and_labels_choose_among_them() -> None:
    with pytest.raises(ModelError, match=r"2 fit; .*: model\.output=out or model\.output=aux$"):
        check(work(Several()))
    labels = np.zeros((4, 8, 8), np.uint8)
    for classes, wanted in ((2, "out"), (5, "aux"), (4, "aux")):
        labels[0, 0, 0] = classes - 1
        with pytest.raises(ModelError, match=rf"name the one with the logits: model\.output={wanted}$"):
            check(work(Several(), labels=labels))


def test_what_an_output_leaves_out_is_said() -> None:
    (warning,) = check(work(with_output(Several(), "out")), output="out")
    assert "leaves out the outputs aux, and aux (" in warning.text
    assert check(work(Net())) == []


def test_a_net_whose_batch_is_a_unit_is_taken(tmp_path: Path) -> None:
    frames = work(Frames())
    assert check(frames) == []
    described, _ = reference.compute(frames, job(EAGER, tmp_path, "reference"))
    assert described.flops_per_image == 2 * 8 * 8 * (12 * 8 + 8 * 8) // 4
    assert [layer.flops for layer in described.layers if layer.name == "head"] == [2 * 8 * 8 * 8 * 8 // 4]


def test_volumes_are_taken_by_convolutions_of_images() -> None:
    assert check(work(LateVolumes(), torch.rand(2, 3, 4, 8, 8))) == []


@pytest.mark.parametrize("side", [96, 128])
def test_a_failing_size_is_answered_with_one_that_works(side: int) -> None:
    with pytest.raises(ModelError, match=rf"; it takes data\.size={side}$"):
        check(work(Positions(side)))


def test_channels_are_those_of_the_first_convolution_that_runs() -> None:
    net = Net()
    net.aux, net.body = nn.Sequential(nn.Conv2d(7, 1, 1)), nn.Sequential(nn.Conv2d(4, 8, 1))
    with pytest.raises(ModelError, match="its first convolution takes 4 channels"):
        check(work(net))
    assert check(replace(work(net), batches=[IMAGES[:, [0, 1, 2, 0]]] * 3)) == []


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
