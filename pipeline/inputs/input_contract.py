"""What a user's images and labels mean: channels, normalisation, and the values of labels. Free of torch."""

from dataclasses import dataclass
from typing import Literal

Normalization = Literal["centred", "unit", "imagenet", "zscore", "ct", "own"]

# Mean and standard deviation of values in 0 to 1; one figure stands for every channel.
NAMED: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "centred": ((0.5,), (0.25,)),
    "unit": ((0.0,), (1.0,)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),  # torchvision.transforms' for its ImageNet weights
    "zscore": ((), ()),  # each image's own
}


@dataclass(frozen=True)
class InputContract:
    """What a net's input is made of: (value / scale − mean) / std, channel by channel, in fp32.

    With "ct" it is (min(max(value / scale, low), high) − mean) / std, the intensity normalisation of nnU-Net for CT
    (Isensee et al., Nature Methods 18, 203-211, 2021): low and high are the 0.5th and the 99.5th percentile of the
    dataset's foreground, mean and std those of its values.

    Attributes:
        channels: of the input.
        normalize: the rule's name; "own" where mean and std are the user's, "zscore" where they are each image's own,
            "ct" where values are clipped as well.
        mean: of a scaled value, one for all channels or one for each; empty for "zscore".
        std: likewise; a scaled value's standard deviation.
        scale: what a value is divided by; None for what its type holds: 255 of uint8, 65535 of uint16, 1 of a float.
        low, high: what a scaled value is clipped to, one for all channels or one for each; empty where it isn't.
    """

    channels: int = 3
    normalize: Normalization = "centred"
    mean: tuple[float, ...] = NAMED["centred"][0]
    std: tuple[float, ...] = NAMED["centred"][1]
    scale: float | None = None
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True)
class LabelRules:
    """How the values in a file of labels become class indices.

    Attributes:
        pattern: a label's file name; * stands for the image's own without its suffix.
        positive: the value that is class 1, where all others are class 0; None where values are class indices.
        ignore: the value of pixels without a label; None where every pixel has one.
        colors: red, green and blue of class 0, 1, …; empty where labels have one channel.
    """

    pattern: str = "*.png"
    positive: int | None = None
    ignore: int | None = 255
    colors: tuple[tuple[int, int, int], ...] = ()
