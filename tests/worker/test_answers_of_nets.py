"""A net's answer is a plain tensor of its own, of each image for itself: else no two answers could be compared."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from models.build import build_model
from pipeline.compiler.graph.exported_net import Entry
from pipeline.compiler.half import AsItLies
from pipeline.errors import ModelError
from pipeline.worker.net_contract import check
from tests.worker.test_net_contract import IMAGES, Head, work


class Own(Tensor):
    """A tensor of a class of its own."""


class Through(Head):
    def forward(self, image: Tensor) -> Any:
        return image[:, :2]


class Asking(Head):
    def forward(self, image: Tensor) -> Any:
        return super().forward(image.requires_grad_()).detach()


class Buffered(Head):
    kept: Tensor | None = None

    def forward(self, image: Tensor) -> Any:
        answer = super().forward(image)
        self.kept = answer if self.kept is None else self.kept
        return self.kept.copy_(answer)


class Remembering(Head):
    """Answers what it did, where the sum over the images is the same."""

    def forward(self, image: Tensor) -> Any:
        kept = vars(self).setdefault("kept", {})
        if (seen := float(image.sum())) not in kept:
            kept[seen] = super().forward(image)
        return kept[seen]


class Forgetful(nn.Conv2d):
    """Its `eval`, `float` and `to` return nothing, as is often forgotten."""

    def __init__(self) -> None:
        super().__init__(3, 2, 1)

    def eval(self) -> None:  # type: ignore[override]
        super().eval()

    def float(self) -> None:  # type: ignore[override]
        super().float()

    def to(self, *where: object) -> None:  # type: ignore[override]
        super().to(*where)  # type: ignore[call-overload]


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "subclass": (lambda: Head(lambda y: y.as_subclass(Own)), "Own; it must give a plain torch.Tensor"),
    "layout": (lambda: Head(lambda y: y.to_sparse()), "answers in the layout torch.sparse_coo; it must give"),
    "nested": (lambda: Head(lambda y: torch.nested.nested_tensor([*y])), "answers with a nested tensor"),
    "no values": (lambda: Head(lambda y: y.to("meta")), "answers on meta, and its input is on cpu"),
    "8 bits": (lambda: Head(lambda y: y.to(torch.float8_e4m3fn)), "answers in torch.float8_e4m3fn; it must give 16"),
    "gradients": (lambda: Head(lambda y: y.clone().requires_grad_()), "requires gradients, where none are asked for"),
    "its input": (Through, "Through answers in the memory of its input"),
    "gradients of its input": (Asking, "Asking asks for gradients of its input (requires_grad)"),
    "its last answer": (Buffered, "Buffered gives each answer in the memory of the one before"),
    "remembered": (Remembering, "Remembering gives each answer in the memory of the one before"),
    "others of the batch": (
        lambda: Head(lambda y: y - y.mean(0, keepdim=True)),
        "what Head answers to an image depends on the rest of its batch: alone it is 1 (relative L2) off",
    ),
    "no class": (lambda: Head(lambda y: y[:, :0]), "answers [2, 0, 8, 8] to images"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_an_answer_that_cannot_be_compared_is_one_line(kind: str) -> None:
    make, said = REFUSED[kind]
    with pytest.raises(ModelError) as caught:
        check(work(make()))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_batch_of_one_has_no_others() -> None:
    net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2, track_running_stats=False)).eval()
    alone = work(net)
    alone.batches[:] = [part[:1] for part in alone.batches]
    assert check(alone) == []
    with pytest.raises(ModelError, match=r"without running statistics; data.batch_size=1 measures it"):
        check(work(net))


def test_a_net_that_forgets_to_return_itself_is_made() -> None:
    net = build_model(f"{__name__}.Forgetful", {}, None, 0)
    assert not net.training
    assert net(IMAGES).shape == (2, 2, 8, 8)
    for around in (AsItLies, Entry):
        assert around(net, torch.float32)(IMAGES).shape == (2, 2, 8, 8)


class Kept(Head):
    def get_extra_state(self) -> dict[str, int]:
        return {"version": 1}


def test_a_state_beside_the_weights_is_no_weight() -> None:
    assert check(work(Kept())) == []


class Cast(Head):
    """Casts by itself, as many nets do that were trained so."""

    def forward(self, image: Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(image)


def test_a_net_that_casts_by_itself_is_told() -> None:
    """Its stages were refused for a precision that they hadn't chosen."""
    (warning,) = check(work(Cast()))
    assert warning.code == "net in doubt"
    assert warning.text.startswith("Cast computes 100 % of its FLOPs in bf16 by itself")
