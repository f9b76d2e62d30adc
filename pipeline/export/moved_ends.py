"""What production does around a net, moved into its graph: the normalisation before it, the choice of classes after."""

import torch
from torch import Tensor, nn

from pipeline.export.export_request import Ends
from pipeline.inputs.input_contract import InputContract

EIGHT_BITS = 256  # classes, or values of a channel


def with_ends(net: nn.Module, contract: InputContract, ends: Ends, device: torch.device) -> nn.Module:
    """The net with these ends, on a device; itself without any."""
    return WithEnds(net, contract, ends).eval().to(device) if ends.flags else net


class WithEnds(nn.Module):
    """A net with ends of its path in its graph; what they compute is fp32, whatever the net is in.

    Args:
        net: from a normalised batch [batch, channels, height, width] to logits.
        contract: how an image becomes that batch.
        ends: those to be moved.
    """

    mean: Tensor
    std: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, net: nn.Module, contract: InputContract, ends: Ends) -> None:
        super().__init__()
        self.net, self.ends = net, ends
        self.by_image = contract.normalize == "zscore"
        self.scale = float(contract.scale or EIGHT_BITS - 1)
        self.clips = contract.normalize == "ct"
        for name in ("mean", "std", *(["low", "high"] if self.clips else [])):
            values = torch.tensor(getattr(contract, name), dtype=torch.float32)
            self.register_buffer(name, values, persistent=True)

    def forward(self, given: Tensor) -> Tensor:
        """Logits, or classes [batch, height, width], of a batch or of uint8 images [batch, height, width, channels]."""
        answer: Tensor = self.net(self.normalised(given) if self.ends.images_in else given)
        return classes(answer) if self.ends.classes_out else answer

    def normalised(self, images: Tensor) -> Tensor:
        """Images [batch, height, width, channels], uint8, as `to_batch` makes them; of volumes a depth before."""
        planes = images.movedim(-1, 1).to(torch.float32) / self.scale
        space, ones = tuple(range(2, images.dim())), [1] * (images.dim() - 2)
        if self.clips:
            planes = planes.clamp(self.low.reshape(-1, *ones), self.high.reshape(-1, *ones))
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
