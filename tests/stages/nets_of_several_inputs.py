"""Small nets of several inputs of which layers can read fp8, each with a file of its inputs."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.input_nets import Masked

Tensors = dict[str, Tensor]


class Attending(nn.Module):
    """Latents, a time step and hidden states to noise, as a text-to-image net: a residual block and cross attention."""

    def __init__(self, channels: int = 4, width: int = 32, states: int = 8) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv2d(channels, width, 3, padding=1), nn.Conv2d(width, channels, 3, padding=1)
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.norm, self.later = nn.GroupNorm(4, width), nn.GroupNorm(4, width)
        self.time, self.query = nn.Embedding(1000, width), nn.Linear(width, width)
        self.key, self.value = nn.Linear(states, width), nn.Linear(states, width)
        self.last = nn.Conv2d(width, width, 1)

    def forward(self, sample: Tensor, timestep: Tensor, encoder_hidden_states: Tensor) -> Tensor:
        entered = self.enter(sample)
        hidden = self.first(functional.silu(self.norm(entered))) + self.time(timestep)[:, :, None, None]
        hidden = entered + self.second(functional.silu(self.later(hidden)))
        places = self.query(hidden.flatten(2).transpose(1, 2))
        found = functional.scaled_dot_product_attention(
            places, self.key(encoder_hidden_states), self.value(encoder_hidden_states)
        )
        return self.leave(hidden + self.last(found.transpose(1, 2).reshape(hidden.shape)))


class Guided(nn.Module):
    """Latents with a dict of a text's vector and a mask, and with a tuple of maps, as diffusers has them."""

    def __init__(self, channels: int = 4, width: int = 16, text: int = 6) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv2d(channels, width, 3, padding=1), nn.Conv2d(width, channels, 3, padding=1)
        self.text, self.joined = nn.Linear(text, width), nn.Conv2d(2 * width, width, 3, padding=1)

    def forward(self, sample: Tensor, added: Tensors, maps: tuple[Tensor, ...]) -> Tensor:
        hidden = torch.relu(self.enter(sample)) + self.text(added["text"])[:, :, None, None]
        hidden = self.joined(torch.cat([hidden, maps[0]], 1)).masked_fill(~added["inside"], 0.0)
        return self.leave(torch.relu(hidden))


def of_masked(count: int) -> Tensors:
    inside = torch.rand(count, 1, 16, 16) > 0.3
    return {"image": torch.rand(count, 3, 16, 16), "kind": torch.randint(5, (count,)), "inside": inside}


def of_attending(count: int) -> Tensors:
    steps = torch.randint(1000, (count,))
    return {
        "sample": torch.randn(count, 4, 16, 16),
        "timestep": steps,
        "encoder_hidden_states": torch.randn(count, 5, 8),
    }


def of_guided(count: int) -> Tensors:
    """What `Guided` takes; the maps are of another magnitude than the net's own values."""
    inside = torch.rand(count, 1, 16, 16) > 0.3
    maps = 30 * torch.randn(count, 16, 16, 16)
    return {
        "sample": torch.randn(count, 4, 16, 16),
        "added.text": torch.randn(count, 6),
        "added.inside": inside,
        "maps.0": maps,
    }


MADE: dict[str, tuple[type[nn.Module], Callable[[int], Tensors]]] = {
    "masked": (Masked, of_masked),
    "attending": (Attending, of_attending),
    "guided": (Guided, of_guided),
}
