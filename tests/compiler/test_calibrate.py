"""A trained net keeps its masks in fp8, and as many layers stay in fp16 as it takes."""

import pytest
import torch
from torch import Tensor, nn

from models.build import build_model
from models.image_batches import to_batch
from pipeline.compiler.fp8_build import keep_for, largest
from pipeline.compiler.graph.exported_net import ExportedNet
from pipeline.compiler.graph.fp8_values import layers_in_fp8, quantisable, scales
from pipeline.compiler.graph.lowering import Plan, lower
from pipeline.compiler.tuning.budget import Budget
from pipeline.inputs.datasets import load_dataset
from tests.compiler.nets import classic, image
from tests.compiler.rewriting import rewritten_from

SHIPPED = ("models.unet.UNet", {"base": 16, "depth": 4}, "models/weights/unet_small.safetensors", 0)


class Judged:
    """A net, rewritten, and batches to judge it on."""

    def __init__(self, module: nn.Module, batches: list[Tensor]) -> None:
        self.module, self.batches = module, batches
        self.net: ExportedNet = rewritten_from(module, batches[0])
        self.seen = largest(self.net, batches)
        self.exact = [module(batch) for batch in batches]

    def answers(self, keep: list[str]) -> list[Tensor]:
        """The logits of all batches, with these layers in fp16."""
        run = lower(self.net, Plan(scales(self.net, keep, self.seen)))
        return [run(batch) for batch in self.batches]

    def error(self, keep: list[str]) -> float:
        """Relative L2 distance from the net's logits."""
        got, want = torch.cat(self.answers(keep)), torch.cat(self.exact)
        return float((got - want).norm() / want.norm())

    def flips(self, keep: list[str]) -> float:
        """The share of pixels of another class than the net's."""
        got, want = torch.cat(self.answers(keep)), torch.cat(self.exact)
        return float((got.argmax(1) != want.argmax(1)).float().mean())


@pytest.fixture(scope="module")
def trained() -> Judged:
    """The shipped net on the tissue that it was trained for."""
    with torch.no_grad():
        return Judged(build_model(*SHIPPED), list(to_batch(load_dataset("samples", None, None, 64, 4).images).split(2)))


@pytest.fixture(scope="module")
def small() -> Judged:
    """A net of which every layer can be tried in a moment."""
    torch.manual_seed(0)
    with torch.no_grad():
        return Judged(classic(depth=1), list(image(4, 3, 32, 32).split(2)))


@torch.no_grad()
def test_a_trained_net_keeps_its_masks_in_fp8(trained: Judged) -> None:
    known = scales(trained.net, [], trained.seen)
    assert layers_in_fp8(trained.net, known) == quantisable(trained.net)
    assert len(quantisable(trained.net)) == 17  # all but the one at the image
    assert 1e-3 < trained.error([]) < 3e-2
    assert trained.flips([]) < 5e-3


@torch.no_grad()
def test_where_all_is_kept_nothing_is_in_fp8(trained: Judged) -> None:
    assert trained.error(quantisable(trained.net)) < 2e-3


@torch.no_grad()
def test_layers_are_kept_until_the_masks_are_within_the_budget(small: Judged) -> None:
    every = small.flips([])
    assert every > 0
    kept, taken = keep_for(small.net, small.seen, small.batches, Budget(0.6 * every, 1.0))
    assert 0 < len(kept) < len(quantisable(small.net))
    assert set(taken) == set(quantisable(small.net))
    assert small.flips(kept) <= 0.6 * every * 1.2  # judged by fp16's masks, which are nearly the net's
    assert keep_for(small.net, small.seen, small.batches, Budget(2 * every, 1.0)) == ([], {})


@torch.no_grad()
def test_layers_are_kept_until_the_logits_are_within_the_budget(small: Judged) -> None:
    """Although no pixel may be said to flip too much: masks can be right where the logits are far off."""
    every = small.error([])
    kept, _ = keep_for(small.net, small.seen, small.batches, Budget(1.0, 0.7 * every))
    assert kept
    assert small.error(kept) < 0.75 * every
