"""torchvision's segmentation networks by name, for which published figures exist."""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from torchvision.models import get_model, segmentation

from pipeline.errors import ModelError, nearest

NAMES = ("fcn_resnet50", "deeplabv3_resnet50", "deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large")


class SegmentationNet(nn.Module):
    """The network `net` of `NAMES`, which answers with the tensor "out" alone; its layers keep torchvision's names."""

    def __init__(self, net: str = "deeplabv3_resnet50", classes: int = 2) -> None:
        super().__init__()
        if net not in NAMES:
            raise ModelError(f"model.options.net={net}: {nearest(str(net), NAMES)}")
        made: Any = get_model(net, weights=None, weights_backbone=None, num_classes=classes)
        self.backbone = made.backbone
        self.classifier = made.classifier
        self.takes_all_levels = isinstance(made, segmentation.LRASPP)

    def forward(self, image: Tensor) -> Tensor:
        """Return logits [batch, classes, height, width] of an image [batch, 3, height, width]."""
        levels: dict[str, Tensor] = self.backbone(image)
        logits = self.classifier(levels if self.takes_all_levels else levels["out"])
        return functional.interpolate(logits, size=image.shape[-2:], mode="bilinear", align_corners=False)
