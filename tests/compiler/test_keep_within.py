"""Which layers keep more bits: those that take the least time of all that are enough."""

import pytest
import torch

from pipeline.compiler.budget import keep_within
from pipeline.compiler.fp8_values import groups, scales
from pipeline.compiler.least_time import least_seconds
from tests.compiler.rewriting import rewritten

HARM = {"large": 0.5, "small": 0.3, "tiny": 0.1}
PRICE = {"large": 10.0, "small": 1.0, "tiny": 1.0}


def kept_within(spare: float) -> list[str]:
    """What is kept where all three layers together do 0.9 of the budget's harm, and so much else is there."""

    def cost(kept: list[str]) -> float:
        return spare + sum(harm for name, harm in HARM.items() if name not in kept)

    return keep_within(list(HARM), cost, lambda kept: sum(PRICE[name] for name in kept))[0]


def test_the_cheaper_of_two_that_are_enough_is_kept() -> None:
    """Not the one that saves most."""
    assert kept_within(0.3) == ["small"]
    assert kept_within(0.1) == []


def test_a_layer_that_a_later_one_makes_superfluous_goes_again() -> None:
    """The small one was the best buy, but the large one is needed and enough."""
    assert kept_within(0.55) == ["large"]
    assert kept_within(0.75) == ["small", "large"]


@torch.no_grad()
def test_layers_that_share_their_input_are_paid_for_together() -> None:
    """A skip is read by the next level and by the decoder: both read fp16, whichever of them is to."""
    net = rewritten("classic").net
    seen = {value.name: 1.0 for group in groups(net) for value in group}

    def seconds(*kept: str) -> float:
        return least_seconds(net, scales(net, kept, seen))

    both = seconds("encoder.1.0", "decoder.1.0")
    assert seconds() < seconds("encoder.1.0") == pytest.approx(both)
    assert seconds("encoder.1.0") < seconds("encoder.1.0", "encoder.0.3")
