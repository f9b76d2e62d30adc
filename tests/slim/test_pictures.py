"""The images of training and gate, which share no picture, and the batches that are drawn of them."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from pipeline.errors import ImageError
from pipeline.inputs.datasets import Dataset
from pipeline.inputs.input_contract import InputContract
from pipeline.records.request import DataSpec
from pipeline.slim.pictures import Batches, split
from pipeline.slim.student import DECAY, FILTERS_TIMES, RMS, Filters, Recipe, Recorded, Training, loss_of


def folder_of(place: Path, count: int, seed: int = 0) -> DataSpec:
    """Write pictures of 64×64 with labels, of which windows of 32×32 are cut."""
    for kind in ("images", "labels"):
        (place / kind).mkdir()
    for number in range(count):
        pixels = np.random.default_rng(seed + number).integers(0, 255, (64, 64, 3), np.uint8)
        Image.fromarray(pixels).save(place / "images" / f"{number}.png")
        Image.fromarray(pixels[..., 0] // 64).save(place / "labels" / f"{number}.png")
    return DataSpec("folder", str(place / "images"), str(place / "labels"), 32, batch_size=2)


def test_a_quarter_of_the_pictures_is_held_out_with_all_its_windows(tmp_path: Path) -> None:
    data = folder_of(tmp_path, 8)
    learnt, held = split(data, None, None, 0)
    assert (len(learnt.images), len(held.images)) == (24, 8)
    assert not set(learnt.pictures) & set(held.pictures)
    assert len(set(held.pictures)) == 2
    assert all(source.startswith(name) for source, name in zip(held.sources, held.pictures, strict=True))
    assert set(held.pictures) != set(split(data, None, None, 1)[1].pictures)
    assert set(held.pictures) == set(split(data, None, None, 0)[1].pictures)


def test_images_of_their_own_leave_all_of_the_run_held_out(tmp_path: Path) -> None:
    """Unlabelled ones are enough; one that is held out as well is refused."""
    (tmp_path / "more").mkdir()
    data, more = folder_of(tmp_path, 2), folder_of(tmp_path / "more", 3, seed=2)
    learnt, held = split(data, Path(str(more.path)), None, 0)
    assert (len(learnt.images), len(held.images)) == (12, 8)
    assert learnt.labels is None
    assert held.labels is not None
    (Path(str(more.path)) / "a.png").write_bytes((Path(str(data.path)) / "1.png").read_bytes())
    with pytest.raises(ImageError, match=r"--images .*: 1.png at .* of the run's held-out images are there, too"):
        split(data, Path(str(more.path)), None, 0)


@pytest.mark.parametrize("name", ["samples", "stain", "generated"])
def test_the_own_data_are_trained_on_other_pixels_than_are_judged(name: str) -> None:
    few = (3, 4) if name == "generated" else ()
    learnt, held = split(DataSpec(name, None, None, 64, images=9 if few else None), None, None, 0, *few)
    assert name != "generated" or len(learnt.images) == 3
    assert not {image.tobytes() for image in learnt.images} & {image.tobytes() for image in held.images}
    assert held.labels is not None
    assert len(held.images) == (4 if name == "generated" else 16)


def test_a_single_picture_can_not_be_held_out(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="one picture alone, and none could be held out; give --images"):
        split(folder_of(tmp_path, 1), None, None, 0)


def test_processes_draw_parts_of_one_batch(tmp_path: Path) -> None:
    """By step and seed, labels turned as their images are."""
    learnt, _ = split(folder_of(tmp_path, 8), None, None, 0)
    batches = Batches(learnt, InputContract(), torch.device("cpu"), 0)
    whole, labels, answers = batches.drawn(5, 4)
    assert labels is not None
    assert (whole.shape, answers) == ((4, 3, 32, 32), None)
    for rank in range(2):
        part = batches.drawn(5, 4, (rank, 2))[1]
        assert part is not None
        assert torch.equal(labels[rank::2], part)
    assert torch.equal(batches.drawn(5, 4)[0], whole)
    assert not torch.equal(batches.drawn(6, 4)[0], whole)
    off = (whole[:, 0] * 0.25 + 0.5) * 255 - (labels * 64.0 + 32)  # the label is the red channel, in steps of 64
    assert off.flatten(1).std(1).max() < 60


def tilted(images: Tensor, tilt: float) -> Tensor:
    """Shares by the three colours, and by the place in the image: all of the upper left pixel is the third class."""
    shares = (1 - tilt) * (9 * images).softmax(1)
    shares[:, 2, 0, 0] += tilt
    return shares


@pytest.mark.parametrize("sides", [(8, 8), (6, 8)])
def test_the_full_network_answers_once_with_the_mean_of_views(
    sides: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that turns with its image is drawn as turned; one of a fixed place is spread over the corners.

    Where two views of an image are asked, it is spread over two of them.
    """
    pixels = np.random.default_rng(0).integers(0, 255, (3, *sides, 3), np.uint8)
    names = [f"picture {number}" for number in range(3)]
    batches = Batches(Dataset(pixels, None, names, 3, names, 3), InputContract(), torch.device("cpu"), 0)
    batches.ask(partial(tilted, tilt=0.0), 2, (notes := list[str]()).append)
    assert [note.partition(" took ")[0] for note in notes] == ["the full network's answers"]
    inputs, labels, answers = batches.drawn(0, 16, strength=0.0)
    assert labels is None
    assert answers is not None
    assert torch.allclose(answers.float().exp(), (9 * inputs).softmax(1), atol=2e-3)
    monkeypatch.setattr("pipeline.slim.pictures.ALIKE", 0.0)
    batches.ask(partial(tilted, tilt=1.0), 2, notes.append)
    assert batches.answers is not None
    found = batches.answers[0].float().exp()[..., 2]
    assert torch.allclose(found[[0, 0, -1, -1], [0, -1, 0, -1]], torch.tensor(0.25), atol=1e-3)
    assert float(found.sum()) == pytest.approx(1.0, abs=1e-3)
    monkeypatch.setattr("pipeline.slim.pictures.MOST_VIEWS", 2 * len(pixels))
    batches.ask(partial(tilted, tilt=1.0), 2, notes.append)
    assert float((batches.answers[0].float().exp()[..., 2] > 0.49).sum()) == 2


def test_views_in_which_the_full_network_sees_other_classes_are_left_out(tmp_path: Path) -> None:
    """Here the left half is one class and the right half another, so that only upside down is alike."""
    batches = Batches(split(folder_of(tmp_path, 2), None, None, 0)[0], InputContract(), torch.device("cpu"), 0)
    halves = torch.stack(
        [torch.zeros(32, 32), *(((torch.arange(32) < 16) == left).expand(32, -1) for left in (True, False))]
    )
    batches.ask(lambda images: halves.expand(len(images), -1, -1, -1), 2, (notes := list[str]()).append)
    assert "sees other classes in 6 turned or mirrored views: they are left out" in notes[0]
    _, _, answers = batches.drawn(0, 4)
    assert answers is not None
    assert torch.equal(answers.argmax(1), halves.argmax(0).expand(4, -1, -1))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_filters_take_muon_s_steps_in_either_layout(layout: torch.memory_format) -> None:
    """As those of torch do, also where a stack has matrices of several sizes; the second has more rows than columns."""
    layers = [nn.Conv2d(6, 5, 3), nn.Conv2d(5, 12, 1), nn.Conv2d(12, 7, 3), nn.Conv2d(7, 33, 3)]
    net = nn.Sequential(*layers).to(memory_format=layout)  # type: ignore[call-overload, unused-ignore]
    weights = [layer.weight for layer in layers]
    filters, own = Filters(weights), [nn.Parameter(weight.detach().flatten(1).clone()) for weight in weights]
    assert len(filters.momenta) == 2
    muon = torch.optim.Muon(own, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw")
    for rate in (0.01, 0.02, 0.001):
        net.zero_grad()
        net(torch.rand(2, 6, 8, 8)).square().sum().backward()
        for matrix, weight in zip(own, weights, strict=True):
            assert weight.grad is not None
            matrix.grad = weight.grad.flatten(1)
        muon.param_groups[0]["lr"] = rate
        muon.step()
        filters.take(rate)
        for matrix, weight in zip(own, weights, strict=True):
            assert torch.allclose(weight.flatten(1), matrix, atol=2e-4)  # a step in bf16 is 4e-3 at most, in the mean


class Waiting(nn.Module):
    """A layer that waits for the GPU, so that no graph can be made of it."""

    def forward(self, values: Tensor) -> Tensor:
        return values * (values.sum().item() < 1e30)


ON_GPU = [pytest.param("cuda", waits, marks=pytest.mark.gpu) for waits in (False, True)]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch.compile's, after a break
@pytest.mark.parametrize(("device", "waits"), [("cpu", False), *ON_GPU])
def test_steps_are_as_large_as_asked_and_recorded_ones_are_the_launched_ones(
    device: str, waits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))  # otherwise Inductor sets it for good
    data, losses, notes = split(folder_of(tmp_path, 4), None, None, 0)[0], [], list[str]()
    for launched in (3, 1000):
        monkeypatch.setattr("pipeline.slim.student.LAUNCHED", launched)
        torch.manual_seed(0)
        layer = nn.Conv2d(8, 8, 3, padding=1)
        last = Waiting() if waits else nn.Identity()
        net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Dropout(0.2), layer, last)
        batches, before = Batches(data, InputContract(), torch.device(device), 0), layer.weight.detach().clone()
        recipe = Recipe("", 30, 1.0, 4, 0, by_labels_alone=True)
        training = Training(net, nn.Identity(), batches, recipe, tmp_path / "none.pt")
        take = training._taking(notes.append)
        losses.append([float(training._step(take))])
        moved = (layer.weight.detach().cpu() - before).square().mean().sqrt().item()
        assert moved == pytest.approx(FILTERS_TIMES * RMS * training.rate.item(), rel=0.3)
        losses[-1] += [float(training._step(take)) for _ in range(29)]
        assert (isinstance(take, Recorded) and bool(take.graph)) == (device == "cuda" and not waits and launched == 3)
    assert np.allclose(losses[0], losses[1], rtol=0.02)
    assert losses[0][-1] < losses[0][0]
    assert "".join(notes).count("note: no CUDA graph of a training step") == waits


def test_the_loss_is_least_for_the_full_network_s_answer_and_counts_known_pixels_alone() -> None:
    """One channel is as two of which the first is 0."""
    wanted, other, labels = torch.randn(2, 1, 4, 4), torch.randn(2, 1, 4, 4), torch.randint(0, 2, (2, 4, 4))
    two = [torch.cat([torch.zeros_like(part), part], 1) for part in (other, wanted)]
    assert torch.allclose(loss_of(other, wanted, labels), loss_of(two[0], two[1], labels))
    assert loss_of(wanted, wanted, None) < 1e-6 < loss_of(other, wanted, None)
    unknown = labels.masked_fill(torch.arange(4) > 1, 255)
    assert torch.allclose(loss_of(two[0], None, unknown), loss_of(two[0][..., :2], None, labels[..., :2]))
