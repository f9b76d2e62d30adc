"""The meaning of a user's images and labels: channels, normalisation, and the values of labels."""

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

Normalization = Literal["centred", "unit", "imagenet", "zscore", "ct", "own"]
Axes = Literal["zyx", "xyz"]
ChannelOrder = Literal["rgb", "bgr"]

VOLUME = "volume"  # the name of data that are volumes
UNLABELLED = 255  # the class of pixels that are not labelled

Positive = Annotated[float, Meta(gt=0, le=1e300)]

# Mean and standard deviation of values in 0 to 1; one number holds for every channel.
NAMED: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "centred": ((0.5,), (0.25,)),
    "unit": ((0.0,), (1.0,)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),  # as torchvision's transforms of its ImageNet weights
    **dict.fromkeys(("zscore", "ct"), ((), ())),  # of each image, and of the dataset's foreground
}


@dataclass(frozen=True)
class InputContract:
    """The normalisation of a network's input: (value / scale − mean) / std, channel by channel, in fp32.

    With "ct" it is (min(max(value / scale, low), high) − mean) / std, the intensity normalisation of nnU-Net for CT
    (Isensee et al., Nature Methods 18, 203-211, 2021): low and high are the 0.5th and the 99.5th percentile of the
    dataset's foreground, mean and std those of its values.
    """

    channels: Annotated[int, Meta(ge=1)] = 3  # of the input
    normalize: Normalization = "centred"  # "own": the user's; "zscore": of each image; "ct": with clipping
    mean: tuple[float, ...] = NAMED["centred"][0]  # of scaled values, one or one for each channel; empty for "zscore"
    std: tuple[Positive, ...] = NAMED["centred"][1]  # their standard deviation, likewise
    scale: Positive | None = None  # divisor of values; None: 255 of uint8, 65535 of uint16, 1 of floats
    low: tuple[float, ...] = ()  # limits of scaled values, one or one for each channel; empty without clipping
    high: tuple[float, ...] = ()  # likewise
    channel_order: ChannelOrder = "rgb"  # of the input; "bgr": the reverse of a file's, before it is normalised
    axes: Axes = "zyx"  # order of the axes of NIfTI volumes
    fill: float | None = None  # replaces NaN, infinite values and a GeoTIFF's nodata; None: the first two are refused

    def __post_init__(self) -> None:
        """Raise ValueError if a rule has neither one figure nor one for each channel."""
        for name in ("mean", "std", "low", "high"):
            count = len(getattr(self, name))
            if count > 1 and count != self.channels:
                given = f"{count} figures for data.channels={self.channels}"
                raise ValueError(f"data.{name}: {given}; give one, or one for each channel")


@dataclass(frozen=True)
class LabelRules:
    """The rules by which values in label files become class indices."""

    pattern: str = "*.png"  # file name of a label; each * stands for the same part as in `image`
    positive: int | None = None  # the value of class 1, all others being class 0; None: values are class indices
    ignore: int | None = 255  # the value of unlabelled pixels; None: every pixel is labelled
    colors: tuple[tuple[int, int, int], ...] = ()  # red, green and blue of class 0, 1, …; empty: one channel
    image: str = "*"  # an image's name without its suffix, or with it
