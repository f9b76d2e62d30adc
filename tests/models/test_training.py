"""Training takes any net that the configuration can name, and refuses in one line what it can't."""

import errno
import os
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from models import checkpoint, train, training
from models.train import typed_net
from models.training import side_of
from pipeline.errors import ModelError
from pipeline.inputs.generated import CLASSES

SMALL = ["model=unet", "model.options.base=2", "model.options.depth=1"]


class Pair(nn.Module):
    """Answers with two tensors, of which the second holds the logits; of volumes where dims is 3."""

    def __init__(self, dims: int = 2) -> None:
        super().__init__()
        self.head = (nn.Conv3d if dims == 3 else nn.Conv2d)(3, len(CLASSES), 1)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        return image.mean(), self.head(image)


def custom(net: type[nn.Module]) -> list[str]:
    return ["model=custom", f"model.target={__name__}.{net.__name__}"]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["model=custom", "model.target=a.B", "model.options.base=8"], "No module named 'a'"),
        (["model=custom"], "model.target names no class"),
        (["model=unet", "+model.options.bas=3"], "options don't fit"),
    ],
)
def test_a_net_that_is_not_there_is_refused_in_one_line(overrides: list[str], said: str) -> None:
    with pytest.raises(ModelError, match=said) as refused:
        training.net_of(typed_net(overrides), 0)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--minutes", "-1"], "--minutes -1: expected a number above 0"),
        (["--minutes", "nan"], "--minutes nan: expected a number above 0"),
        (["--minutes", "inf"], "--minutes inf: expected a number above 0, at most 10,080"),
        (["--out", "weights.pt"], "--out weights.pt: name a .safetensors file"),
        (["--out", "/proc/weights.safetensors"], "--out /proc/weights.safetensors: can't be written ("),
        (["model.options.in_channels=4"], "UNet reads 4 channels, and the drawn images have 3; choose a network"),
        (["model.options.classes=2"], "UNet answers [1, 3, 256, 256] with [1, 2, 256, 256]; choose a network t"),
        (["model.output=1"], "model.output=1: UNet answers with a tensor without parts; leave it out"),
        ([*custom(Pair), "+model.options.dims=3"], "Pair is a network of volumes, and the drawn labels are of images"),
        (custom(Pair), "model.output: Pair answers with a tuple of 2 (0, 1); name the logits in it: model.output=0"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_refused_before_minutes_are_spent(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = [] if "--out" in words else ["--out", str(tmp_path / "weights.safetensors")]
    net = [] if "model=custom" in words else SMALL
    monkeypatch.setattr(training, "fit", lambda *_: pytest.fail("it was trained"))
    monkeypatch.setattr("sys.argv", ["train", *net, *out, *words])
    assert train.main() == 2
    told = capsys.readouterr().err
    assert told.startswith(f"error: {said}")
    assert told.count("\n") == 1
    assert not [*tmp_path.iterdir()]


def test_disk_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "weights.safetensors"
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(checkpoint, "save", Mock(side_effect=full))
    monkeypatch.setattr("sys.argv", ["train", *SMALL, "--minutes", "0.0005", "--out", str(out)])
    assert train.main() == 1
    said = f"error: --out {out}: can't be written (No space left on device)"
    assert capsys.readouterr().err.splitlines()[-1] == said


@pytest.mark.parametrize(
    "words",
    [SMALL, [*SMALL, "model.options.in_channels=1"], [*custom(Pair), "model.output=1"]],
    ids=["colour", "grey", "output"],
)
def test_a_net_is_trained_on_the_channels_that_it_reads_by_the_part_that_holds_its_logits(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "weights.safetensors"
    monkeypatch.setattr(training, "HELD_OUT", 2)
    monkeypatch.setattr("sys.argv", ["train", *words, "--minutes", "0.0005", "--out", str(out)])
    assert train.main() == 0
    checkpoint.load_into(training.net_of(typed_net(words), 0), str(out))
    said = capsys.readouterr().out
    assert all(f"{name} 0." in said for name in CLASSES)


def test_a_training_notes_what_its_last_quarter_did_to_the_mean_dice() -> None:
    net = nn.Conv2d(3, len(CLASSES), 1)
    batch = torch.zeros(1, 3, 4, 4), torch.zeros(1, 4, 4, dtype=torch.int64)
    dice = iter([[0.25, 0.75], [0.5, 0.75]])
    notes, last = training.fit(net, lambda: batch, 0.005, lambda: [*next(dice), float(net.training)])
    assert (notes["dice_moved"], last, int(notes["steps"]) > 1) == ("+0.08333", [0.5, 0.75, 0.0], True)


@pytest.mark.parametrize(("least", "side"), [(1, 128), (200, 256)])
def test_images_are_as_large_as_the_network_needs(least: int, side: int) -> None:
    """As pix2pix needs them; its statistics are left as they were."""

    class Picky(nn.BatchNorm2d):
        def forward(self, image: Tensor) -> Tensor:
            if image.shape[-1] < least:
                raise RuntimeError("kernel size can't be greater than input size")
            return super().forward(image)

    net = Picky(3)
    assert side_of(net, torch.zeros(1, 3, 256, 256)) == side
    assert net.num_batches_tracked == 0
    images, labels = next(training.batches(training.Drawn("train", 8, side=side), torch.device("cpu")))
    assert (images.shape, labels.shape) == ((8, 3, side, side), (8, side, side))
