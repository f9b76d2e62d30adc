"""A copy of the network runs its own weights, eager runs no compiled part, and what one output leaves out is said."""

import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from models.build import build_model
from models.model_output import with_output
from pipeline.errors import ModelError
from pipeline.stages.api import Workload
from pipeline.worker import reference
from pipeline.worker.net_contract import check
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
