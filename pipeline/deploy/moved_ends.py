"""What production does around a net, moved into its graph: the normalisation before it, the choice of classes after."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from models.input_contract import InputContract

EIGHT_BITS = 256  # classes, or values of a channel


@dataclass(frozen=True)
class Ends:
    """Which ends of the path from an image to its mask lie in the graph.

    Attributes:
        images_in: it takes images as their files hold them, uint8, and normalises them.
        classes_out: it gives the class of every pixel.
    """

    images_in: bool = False
    classes_out: bool = False

    @property
    def flags(self) -> list[str]:
        """The words of the command line that ask for them."""
        return ["--uint8-in"] * self.images_in + ["--classes-out"] * self.classes_out

    def around(self, net: nn.Module, contract: InputContract, device: torch.device) -> nn.Module:
        """The net with these ends, on a device; itself without any."""
        return WithEnds(net, contract, self).eval().to(device) if self.flags else net


class WithEnds(nn.Module):
    """A net with ends of its path in its graph; what they compute is fp32, whatever the net is in.

    Args:
        net: from a normalised batch [batch, channels, height, width] to logits.
        contract: how an image becomes that batch.
        ends: those to be moved.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, net: nn.Module, contract: InputContract, ends: Ends) -> None:
        super().__init__()
        self.net, self.ends = net, ends
        self.by_image = contract.normalize == "zscore"
        self.scale = float(contract.scale or EIGHT_BITS - 1)
        of_channels = (torch.tensor(part, dtype=torch.float32) for part in (contract.mean, contract.std))
        for name, values in zip(("mean", "std"), of_channels, strict=True):
            self.register_buffer(name, values, persistent=True)

    def forward(self, given: Tensor) -> Tensor:
        """Logits, or classes [batch, height, width], of a batch or of uint8 images [batch, height, width, channels]."""
        answer: Tensor = self.net(self.normalised(given) if self.ends.images_in else given)
        return classes(answer) if self.ends.classes_out else answer

    def normalised(self, images: Tensor) -> Tensor:
        """Images [batch, height, width, channels], uint8, as `to_batch` makes them; of volumes a depth before."""
        planes = images.movedim(-1, 1).to(torch.float32) / self.scale
        space, ones = tuple(range(2, images.dim())), [1] * (images.dim() - 2)
        if not self.by_image:
            return ((planes - self.mean.reshape(-1, *ones)) / self.std.reshape(-1, *ones)).contiguous()
        mean = planes.mean(space, keepdim=True)
        std = ((planes - mean) ** 2).mean(space, keepdim=True).sqrt()
        plain = planes.amax(space, keepdim=True) == planes.amin(space, keepdim=True)
        return ((planes - mean) / torch.where(plain, torch.ones_like(std), std)).contiguous()


def classes(logits: Tensor) -> Tensor:
    """[batch, height, width]: the largest logit's class, of a single channel whether it is above 0.

    uint8 of up to 256 classes, else int32.
    """
    kind = torch.uint8 if logits.shape[1] <= EIGHT_BITS else torch.int32
    return (logits.argmax(1) if logits.shape[1] > 1 else logits[:, 0] > 0).to(kind)
