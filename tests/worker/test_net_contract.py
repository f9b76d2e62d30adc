"""What is asked of a net and of its answers is asked before anything is measured, and what it lacks is one line."""

import math
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from models.build import build_model
from models.model_output import with_output
from pipeline.compiler.batch import Batch, batched
from pipeline.compiler.graph.exported_net import Entry
from pipeline.compiler.half import Half
from pipeline.errors import ImageError, ModelError
from pipeline.records.request import DataSpec, Job
from pipeline.stages.api import StageError, Workload
from pipeline.worker import run_stage, workload
from pipeline.worker.answer_checks import Net, rank_hint
from pipeline.worker.net_contract import check, check_memory, first_look
from tests.worker.jobs import EAGER, Recorder, job

IMAGES = torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)


class Head(nn.Module):
    def __init__(
        self, then: Callable[[Tensor], object] = lambda logits: logits, channels: int = 3, classes: int = 2
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Conv2d(channels, classes, 1)
        self.norm = nn.BatchNorm2d(classes)
        self.then = then

    def forward(self, image: Tensor) -> Any:
        return self.then(self.norm(self.head(image)))


class Denoiser(nn.Module):
    def forward(self, sample: Tensor, timestep: Tensor, encoder_hidden_states: Tensor, cond: object = None) -> Any:
        return sample


class Nothing(nn.Module):
    def forward(self) -> Tensor:
        return IMAGES


class Typed(Head):
    def forward(self, image: Tensor) -> Any:
        return self.norm(self.head(self.then(image)))


class Second(Head):
    calls = 0

    def forward(self, image: Tensor) -> Any:
        self.calls += 1
        if self.calls > 1:
            raise RuntimeError(f"call {self.calls}")
        return super().forward(image)


def work(net: nn.Module, **fields: Any) -> Workload:
    return Workload(net.eval(), [IMAGES.clone() for _ in range(3)], torch.device("cpu"), Path(), **fields)


def with_variance(value: float) -> nn.Module:
    net = Head()
    net.norm.running_var[:] = value
    return net


class Parts(NamedTuple):
    logits: Tensor
    spread: Tensor


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


class Known(Head):
    """Looks each answer up by the images' values, so that it is right and takes no time."""

    def forward(self, image: Tensor) -> Any:
        kept = vars(self).setdefault("kept", {})
        if (key := image.numpy().tobytes()) not in kept:
            kept[key] = super().forward(image)
        return kept[key].clone()


class Cropped(nn.Conv2d):
    def __init__(self) -> None:
        super().__init__(3, 2, 3)

    def forward(self, image: Tensor) -> Any:
        return {"masks": super().forward(image), "count": image.mean()}


class Recurrent(Head):
    """A network of a video, whose states come last and go in at the next frame."""

    def forward(self, image: Tensor, slow: Tensor | None = None, fast: Tensor | None = None) -> Any:
        logits = super().forward(image)
        slow, fast = (logits / 2 if state is None else (state + logits) / 2 for state in (slow, fast))
        return logits.sigmoid(), slow + fast, slow, fast


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
    "arguments": (Denoiser, "Denoiser takes 3 tensors (sample, timestep, encoder_hidden_states); only sample is given"),
    "no argument": (Nothing, "Nothing.forward takes no tensor"),
    "channels": (lambda: Head(channels=1), "fails on a batch [2, 3, 8, 8] in fp32: RuntimeError: Given groups=1, "),
    "channels' knob": (lambda: Head(channels=1), "its first convolution takes 1 channels, data.channels=3 gives 3"),
    "rank": (lambda: nn.Conv3d(1, 2, 1), "Conv3d has Conv3d alone; images have two dimensions"),
    "weights": (lambda: with_variance(math.inf), "1 weights of Head hold NaN or infinite values, first norm.running_v"),
    "a variance": (lambda: with_variance(-1.0), "model.checkpoint: norm.running_var holds a variance below 0"),
    "in place": (lambda: Typed(lambda x: x.sub_(0.5)), "Typed changes its input in place"),
    "tuple": (lambda: Head(lambda y: (y, y.mean())), "tuple of 2 (0, 1); name the one with the logits: model.output=0"),
    "dict": (lambda: Head(lambda y: {"small": y[..., ::2], "out": y}), "model.output=out"),
    "list of none": (lambda: Head(lambda y: [y[..., ::2, ::2]]), "model.output=0 with model.upsample_logits=bilinear,"),
    "logits of a lower resolution": (lambda: Head(lambda y: y[..., ::2, ::2]), "model.upsample_logits=bilinear, which"),
    "named tuple": (lambda: Head(lambda y: Parts(y, y.std())), "Parts of 2 (logits, spread); name the one with the"),
    "no tensor": (lambda: Head(lambda y: [y.numpy()]), "answers with a list, in which there is no tensor; it must"),
    "nothing": (lambda: Head(lambda y: None), "Head answers with None, in which there is no tensor"),
    "type": (lambda: Head(lambda y: y.argmax(1)), "answers in torch.int64; it must give logits, before any argmax"),
    "complex": (lambda: Head(lambda y: y.to(torch.complex64)), "answers in torch.complex64"),
    "unpadded convolutions": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 3)),
        "it needs padding='same' in its unpadded convolutions, of which 0 is the first, or images that its forward",
    ),
    "a lower resolution and unpadded convolutions": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.Conv2d(4, 2, 2)),
        "it needs model.upsample_logits=bilinear, which brings",
    ),
    "unpadded convolutions at one size": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), Head(lambda y: y + torch.ones(6, 6), channels=4)),
        "it needs padding='same' in its unpadded convolutions, of which 0 is the first, or",
    ),
    "unpadded convolutions, of several outputs": (
        Cropped,
        "none of which has an image's size; model.output=masks with padding='same' in its unpadded convolutions",
    ),
    "no classes": (lambda: Head(lambda y: y[:, 0]), "must give logits [2, classes, 8, 8]"),
    "batch": (lambda: Head(lambda y: y[:1]), "answers [1, 2, 8, 8]"),
    "classes": (lambda: Head(classes=256), "Head has 256 classes; at most 255 are judged"),
    "end of the program": (
        lambda: Head(lambda _: sys.exit("enough")),
        "Head ends the program (sys.exit('enough')) when",
    ),
    "second call": (lambda: Second(lambda y: y), "Second fails on a batch [2, 3, 8, 8] in fp32: RuntimeError: call 2"),
    "NaN": (lambda: Head(lambda y: y / 0), "of Head's fp32 answer is NaN or infinite"),
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
    "known": (Known, "keeps what it has computed, and no time would be that of new inputs"),
    "others of the batch": (
        lambda: Head(lambda y: y - y.mean(0, keepdim=True)),
        "what Head answers to an image depends on the rest of its batch: alone it is 1 (relative L2) off",
    ),
    "a type of its own": (lambda: Typed(lambda x: x.double()), "let its forward cast to their type"),
    "gradients in its forward": (
        lambda: Typed(lambda x: torch.autograd.grad(x.sum(), x)[0]),
        "its forward takes gradients, which nothing records here",
    ),
    "a dict": (
        lambda: Typed(lambda x: x["photo"]),
        "it takes a dict: give it as data=tensors, by the names image.photo",
    ),
    "a list": (lambda: Typed(torch.stack), "it takes a list of images: name a class that takes"),  # type: ignore[arg-type]
    "no class": (lambda: Head(lambda y: y[:, :0]), "answers [2, 0, 8, 8] to images"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_a_net_lacks_is_one_line(kind: str) -> None:
    make, said = REFUSED[kind]
    with pytest.raises(ModelError) as caught:
        check(work(make()))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


class Kept(Head):
    def get_extra_state(self) -> dict[str, int]:
        return {"version": 1}


class Hidden(Head):
    """Has layers where a module doesn't look for them, and perhaps calls one, which `known` shows to it."""

    def __init__(self, kept: Any, calls: bool = True, known: bool = False) -> None:
        super().__init__()
        self.kept, self.calls = kept, calls
        if known:
            self.first = kept[0]

    def forward(self, image: Tensor) -> Any:
        layers = list(self.kept.values()) if isinstance(self.kept, dict) else self.kept
        return super().forward(layers[0](image) if self.calls else image)


@pytest.mark.parametrize(
    "net",
    [
        Head(),
        with_output(Head(lambda y: (y, y)), 0),
        Head(lambda y: y + 1e-8 * torch.rand_like(y)),
        Head(lambda y: y.sigmoid() - 0.5, classes=3),
        Kept(),
        Hidden([nn.Conv2d(3, 3, 1)], calls=False),
        Hidden([nn.Identity()], known=True),
    ],
)
def test_a_net_that_keeps_it_all_passes_without_a_word(net: nn.Module) -> None:
    assert check(work(net)) == []


def test_states_of_the_next_frame_are_named() -> None:
    states, others = check(work(with_output(Recurrent(), 1)), output=1)
    assert states.text.startswith(
        "Recurrent seems to keep states per frame: its inputs slow, fast take its outputs 2, 3; run and export drop"
    )
    assert (states.code, others.code) == ("parts left out", "parts left out")
    assert others.text.startswith("model.output=1 leaves out the outputs 0: compilers")
    (masked,) = check(work(with_output(Head(lambda y: (y, y.mean())), 0)), output=0)
    assert masked.text.startswith("model.output=0 leaves out the outputs 1: compilers")


class Cast(Head):
    def forward(self, image: Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(image)


def unmoved() -> nn.Module:
    nn.init.zeros_((net := Head()).norm.weight)
    return net


DOUBTS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "random": (lambda: Head(lambda y: functional.dropout(y, 0.5)), r"apart \(relative L2\); .*at random"),
    "sigmoid": (lambda: Head(torch.sigmoid, classes=1), "thresholded at 0, so that every pixel is foreground"),
    "sigmoids": (
        lambda: Head(torch.sigmoid, classes=3),
        "3 channels that don't sum to 1, as sigmoids': an image's mask is the",
    ),
    "whole numbers": (lambda: Head(lambda y: (10 * y).round()), "are whole numbers, as after an argmax or"),
    "softmax": (lambda: Head(lambda y: y.softmax(1), classes=3), "they sum to 1, as a softmax's"),
    "casts": (Cast, "^Cast computes 100 % of its FLOPs in bf16 by itself"),
    "work by values": (
        lambda: Head(lambda y: y + y.sigmoid() if y.mean() > 0.1 else y),
        r"^Head does up to 1\.\d+ times as much work for some images as for others$",
    ),
    "one answer": (unmoved, "^Head answers the same to every image,"),
}


@pytest.mark.parametrize("kind", DOUBTS)
def test_what_a_net_keeps_in_part_is_a_warning(kind: str) -> None:
    make, said = DOUBTS[kind]
    given = work(make())
    given.batches[1].add_(1)
    (found,) = check(given)
    assert found.code == "net in doubt"
    assert re.search(said, found.text)
    assert ("task=regression without data.labels" in found.remedy) is (kind == "sigmoids")


def test_labels_beyond_the_net_s_classes_are_refused_with_the_file() -> None:
    labels = np.zeros((2, 8, 8), np.uint8)
    labels[1, 0, :3] = 255, 3, 2
    named = {"sources": ("a.png", "b.png"), "labels": labels}
    with pytest.raises(ImageError, match=r"data\.labels: b\.png has labels 2, 3, and the network has classes 0 to 1"):
        check(work(Head(), **named))
    assert check(work(Head(classes=4), **named)) == []
    with pytest.raises(ImageError, match="classes 0 to 1"):
        check(work(Head(classes=1), **named))


def test_a_batch_that_cannot_fit_is_refused_without_memory() -> None:
    net = Net("Head", Head(), batched(IMAGES))
    with pytest.raises(ModelError, match=r"data\.batch_size=1000000: .* of Head alone holds .* GiB .* has 64;"):
        check_memory(net, (10**6, 3, 512, 512), 64 * 2**30)
    check_memory(net, (1, 3, 8, 8), 64 * 2**30)
    stubborn = replace(net, model=Head(lambda y: y * y.mean().item()))
    check_memory(stubborn, (10**6, 3, 512, 512), 0)


def test_a_net_whose_layers_have_two_names_keeps_its_weights() -> None:
    net = Net("Head", Head(lambda y: y * y.mean().item()), batched(IMAGES))
    net.model.add_module("again", net.model.get_submodule("head"))
    before = [(part, part.clone()) for part in net.model.parameters()]
    check_memory(net, (1, 3, 8, 8), 64 * 2**30)
    after = dict(net.model.named_parameters(remove_duplicate=False))
    assert all(part.device.type == "cpu" for part in after.values())
    assert after["again.weight"] is after["head.weight"]
    assert all(
        part is old and torch.equal(part, copied)
        for part, (old, copied) in zip(net.model.parameters(), before, strict=True)
    )


class Counting(Head):
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, image: Tensor) -> Any:
        self.seen.add_(1)
        return super().forward(image)


class InTraining(Head):
    def train(self, mode: bool = True) -> "InTraining":
        super().train(mode)
        self.norm.train()
        return self


@pytest.mark.parametrize(("kind", "changed"), [(Counting, "seen"), (InTraining, "norm.running_mean")])
def test_a_net_that_changes_itself_is_named(kind: type[Head], changed: str) -> None:
    with pytest.raises(ModelError, match=rf"^model\.target: {kind.__name__} changes its own {changed} where"):
        check(work(kind().eval()))


@pytest.mark.parametrize("kind", ["list", "dict", "tuple"])
def test_a_net_that_calls_a_layer_out_of_sight_is_named(kind: str) -> None:
    layer = nn.Conv2d(3, 3, 1)
    net = Hidden({"list": [layer], "dict": {"one": layer}, "tuple": (layer,)}[kind]).eval()
    with pytest.raises(ModelError, match=rf"^model\.target: Hidden calls what it keeps in kept, a {kind},"):
        check(work(net))
    assert not layer._forward_pre_hooks
    with pytest.raises(ModelError, match=r"Hidden calls what it keeps in kept, a list,"):
        check(work(Hidden([nn.Parameter(torch.ones(3))], calls=False)))


def test_a_batch_of_one_has_no_others() -> None:
    net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2, track_running_stats=False)).eval()
    for each in (net, Head(lambda y: y.reshape(1, 2, 8, 8))):
        assert check(replace(work(each), batches=[IMAGES[:1]] * 3)) == []
    with pytest.raises(ModelError, match=r"without running statistics; data.batch_size=1 measures it"):
        check(work(net))


def test_a_net_that_forgets_to_return_itself_is_made() -> None:
    net = build_model(f"{__name__}.Forgetful", {}, None, 0)
    assert not net.training
    assert net(IMAGES).shape == (2, 2, 8, 8)
    for around in (Half, Entry):
        assert around(net, torch.float32)(IMAGES).shape == (2, 2, 8, 8)


FOLDER = DataSpec("folder", "no/such/folder", None, size=96, batch_size=2, batches=3)


class Seeing(Head):
    """It keeps the size of the first image that it sees."""

    seen = 0

    def forward(self, image: Tensor) -> Any:
        self.seen = self.seen or image.shape[-1]
        return super().forward(image)


def test_a_net_that_changes_the_process_at_a_call_is_named(tmp_path: Path) -> None:
    def change(logits: Tensor) -> Tensor:
        torch.use_deterministic_algorithms(True)
        return logits

    said = "Head changes the process where it is called: deterministic algorithms was False, is True; leave that to"
    for look in (lambda: check(work(Head(change))), lambda: first_look(Head(change), asked(tmp_path))):
        try:
            with pytest.raises(ModelError, match=said):
                look()
        finally:
            torch.use_deterministic_algorithms(False)


def asked(folder: Path, size: int | None = 96) -> Job:
    return replace(job(EAGER, folder, "reference"), data=replace(FOLDER, size=size))


def only(side: int) -> Seeing:
    def check(logits: Tensor) -> Tensor:
        if logits.shape[-1] != side:
            raise ValueError(f"made for {side} pixels")
        return logits

    return Seeing(check)


def test_a_net_is_refused_before_its_images_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload, "net_of", lambda _: Seeing(lambda y: y[..., ::2, ::2]))
    with pytest.raises(ModelError, match=r"Seeing answers \[2, 2, 48, 48\] to images \[2, 3, 96, 96\]"):
        run_stage.run_stage(asked(tmp_path), Recorder())
    monkeypatch.setattr(workload, "net_of", lambda _: Seeing())
    with pytest.raises((ImageError, StageError, OSError)):
        run_stage.run_stage(asked(tmp_path), Recorder())


def test_a_net_for_one_size_is_judged_by_that(tmp_path: Path) -> None:
    """A tiny image that it refuses is no fault; and where the images' size isn't known, nothing is said yet."""
    first_look(only(96), asked(tmp_path))
    with pytest.raises(ModelError, match="made for 80 pixels"):
        first_look(only(80), asked(tmp_path))
    first_look(only(80), asked(tmp_path, size=None))


def test_nothing_is_left_in_the_net_nor_drawn_from_chance(tmp_path: Path) -> None:
    net, state = Seeing(lambda y: y + torch.rand_like(y)), torch.get_rng_state()
    first_look(net, asked(tmp_path))
    assert net.seen == 0
    assert torch.equal(torch.get_rng_state(), state)


def test_a_shortage_is_left_to_who_tells_it_better(tmp_path: Path) -> None:
    tried = []

    def starved(logits: Tensor) -> Tensor:
        tried.append(logits.shape[-1])
        raise torch.OutOfMemoryError("CUDA out of memory")

    first_look(Seeing(starved), asked(tmp_path))
    assert tried == [64, 96]


@pytest.mark.parametrize(("names", "hinted"), [(("image",), True), (("sample", "timestep"), False)])
def test_frames_beside_a_time_step_are_no_volumes(names: tuple[str, ...], hinted: bool) -> None:
    given = (torch.zeros(2, 4, 3, 8, 8), torch.zeros(2))[: len(names)]
    net = Net("Video", nn.Conv2d(4, 4, 1), Batch(given, names))
    assert ("spatial_dims=3" in rank_hint(net)) is hinted
