"""torchvision's segmentation nets, as the ladder takes them."""

from pathlib import Path

import pytest
import torch
from torchvision.models import segmentation

from models import checkpoint
from models.build import build_model
from models.torchvision_nets import NETS, SegmentationNet
from pipeline.errors import CheckpointError, ModelError

TARGET = "models.torchvision_nets.SegmentationNet"
SMALLEST = "lraspp_mobilenet_v3_large"


@pytest.mark.parametrize("name", NETS)
def test_the_answer_has_the_image_s_height_and_width(name: str) -> None:
    """[batch, classes, height, width], for an odd size, too; the answer is torchvision's own."""
    net = build_model(TARGET, {"net": name, "classes": 3}, None, seed=0)
    with torch.device("meta"):
        theirs = NETS[name](weights=None, weights_backbone=None, num_classes=3).eval()
    theirs.load_state_dict(net.state_dict(), assign=True)
    image = torch.randn(1, 3, 33, 47)
    with torch.inference_mode():
        logits = net(image)
        assert logits.shape == (1, 3, 33, 47)
        assert torch.equal(logits, theirs(image)["out"])


def test_a_checkpoint_of_torchvision_s_own_class_loads(tmp_path: Path) -> None:
    theirs = segmentation.lraspp_mobilenet_v3_large(num_classes=2, weights_backbone=None)
    torch.save(theirs.state_dict(), tmp_path / "net.pt")
    ours = SegmentationNet(SMALLEST)
    checkpoint.load_into(ours, str(tmp_path / "net.pt"))
    assert torch.equal(ours.get_parameter("classifier.low_classifier.weight"), theirs.classifier.low_classifier.weight)


def test_an_auxiliary_head_of_a_checkpoint_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It helped training; one line says so, and other strange names are refused all the same."""
    ours, other = SegmentationNet(SMALLEST), SegmentationNet(SMALLEST)
    head = {"aux_classifier.0.weight": torch.zeros(1), "aux_classifier.4.bias": torch.zeros(1)}
    torch.save(other.state_dict() | head, tmp_path / "net.pt")
    checkpoint.load_into(ours, str(tmp_path / "net.pt"))
    assert torch.equal(ours.state_dict()["backbone.0.0.weight"], other.state_dict()["backbone.0.0.weight"])
    assert (
        "2 tensors of an auxiliary head for training left out, first aux_classifier.0.weight" in capsys.readouterr().err
    )
    torch.save(other.state_dict() | {"another.weight": torch.zeros(1)}, tmp_path / "net.pt")
    with pytest.raises(CheckpointError, match="another"):
        checkpoint.load_into(ours, str(tmp_path / "net.pt"))
    named = {"aux_classifier.0.weight": torch.zeros(1)}
    assert checkpoint.without_training_head(named, named) == (named, "")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fcn_resnet5", "did you mean 'fcn_resnet50'?"),
        ("u2", "choose one of: fcn_resnet50, deeplabv3_resnet50, deeplabv3_mobilenet_v3_large, " + SMALLEST),
    ],
)
def test_an_unknown_net_is_one_line(name: str, said: str) -> None:
    with pytest.raises(ModelError) as caught:
        build_model(TARGET, {"net": name}, None, seed=0)
    assert str(caught.value) == f"model.options.net={name}: {said}"
