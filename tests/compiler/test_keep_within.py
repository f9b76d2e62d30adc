"""Which layers keep more bits: those that take the least time of all that are enough."""

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from models.build import build_model
from models.image_batches import to_batch
from pipeline.compiler.fp8_build import keep_for, largest, least_seconds
from pipeline.compiler.graph.exported_net import ExportedNet
from pipeline.compiler.graph.fp8_values import groups, layers_in_fp8, quantisable, scales
from pipeline.compiler.graph.lowering import Plan, lower
from pipeline.compiler.tuning.budget import NO_NUMBER, Budget, filled, keep_within, spent
from pipeline.inputs.datasets import load_dataset
from tests.compiler.nets import classic, image
from tests.compiler.rewriting import rewritten, rewritten_from

HARM = {"large": 0.5, "small": 0.3, "tiny": 0.1}
PRICE = {"large": 10.0, "small": 1.0, "tiny": 1.0}


def kept_in(budget: float, units: Sequence[Sequence[str]] = (("large",), ("small",), ("tiny",))) -> list[str]:
    """What is kept within so much of the harm of all layers, which adds up in squares."""

    def cost(kept: list[str]) -> float:
        return math.hypot(*(harm for name, harm in HARM.items() if name not in kept)) / budget

    kept, taken = filled(units, cost, lambda kept: sum(PRICE[name] for name in kept))
    assert cost(kept) <= 1
    assert not kept or set(taken) == set(HARM)
    return kept


def test_the_cheaper_of_those_that_are_enough_are_kept() -> None:
    """The large one does most harm, and takes ten times as long."""
    assert math.hypot(*HARM.values()) == pytest.approx(0.592, abs=1e-3)
    assert kept_in(0.6) == []
    assert kept_in(0.52) == ["small"]
    assert kept_in(0.505) == ["small", "tiny"]
    assert kept_in(0.4) == ["large"]
    assert kept_in(0.2) == ["large", "small"]
    assert kept_in(0.05) == ["large", "small", "tiny"]


def test_layers_that_go_together_are_kept_together() -> None:
    assert kept_in(0.52, [["large", "tiny"], ["small"]]) == ["small"]
    assert kept_in(0.4, [["large", "tiny"], ["small"]]) == ["large", "tiny"]


def test_what_is_over_the_budget_together_gives_way_and_what_fits_comes() -> None:
    """Harm that adds up faster, or slower, than in squares."""
    units, price = [["one"], ["two"], ["three"]], len
    kept, _ = filled(units, lambda kept: 0.0 if len(kept) == 3 else (0.5, 1.2, 1.5)[2 - len(kept)], price)
    assert kept == ["two", "three"]
    kept, _ = filled(units, lambda kept: 0.8 if kept else 1.1, price)
    assert kept == ["two", "three"]
    assert filled(units, lambda _: 1.1, price)[0] == ["one", "two", "three"]


def test_a_layer_that_later_ones_make_superfluous_goes_again() -> None:
    """It saved most, alone."""
    used = {"": 3.0, "a": 1.9, "b": 2.2, "c": 2.2, "ab": 1.5, "ac": 1.6, "bc": 1.0, "abc": 0.9}
    assert keep_within(["a", "b", "c"], lambda kept: used["".join(sorted(kept))])[0] == ["b", "c"]


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


def test_an_answer_that_is_no_number_is_over_every_budget() -> None:
    """Unless it should be none, as the infinite logit of a class that is ruled out."""
    right = torch.tensor([[-torch.inf, 1.0], [torch.nan, 2.0]])[..., None, None]
    budget = Budget(1e-3, 5e-2)
    assert budget.used(lambda given: given, [right], [right]) == 0.0
    for place, wrong in (((0, 1), torch.nan), ((0, 1), torch.inf), ((0, 0), 1.0), ((1, 0), 1.0)):
        given = right.clone()
        given[place] = wrong
        for asked in (budget, budget.of_answers(masks=False)):
            assert asked.used(lambda batch: batch, [given], [right]) == NO_NUMBER


def test_a_budget_of_nothing_takes_an_answer_that_is_the_same_and_no_other() -> None:
    nothing, right = Budget(0.0, 0.0, 0.0), torch.tensor([[1.0, 2.0], [3.0, 0.0]])[..., None, None]
    assert nothing.used(lambda given: given, [right], [right]) == 0.0
    assert nothing.used(lambda given: given + 1e-3, [right], [right]) == NO_NUMBER


@pytest.mark.parametrize("parts", [(-1e-3, 0.1, 0.1), (1e-3, math.nan, 0.1), (1e-3, 0.1, -math.inf)])
def test_a_budget_below_nothing_is_refused(parts: tuple[float, float, float]) -> None:
    """It was kept by any answer, as a share of it is below 1."""
    with pytest.raises(ValueError, match=r"^a budget must be 0 or more, got -?(0\.001|nan|inf)$"):
        Budget(*parts)


def test_values_have_no_classes() -> None:
    """Nor need they have an axis for them."""
    right = torch.tensor([3.0, 4.0])
    assert Budget(1e-3, 0.1).of_answers(masks=False).used(lambda given: given + 0.3, [right], [right]) > 0.8
    assert spent(lambda given: given, [right], [right], masks=False).flips == 0.0


@torch.no_grad()
def test_what_reads_a_value_without_end_reads_no_fp8() -> None:
    """Nor does what reads the values that share its scale."""
    net = rewritten("classic").net
    finite = {value.name: 1.0 for group in groups(net) for value in group}
    every = scales(net, [], finite)
    group = next(found for found in groups(net) if len(found) > 1 and next(iter(found)).name in every)
    names = {value.name for value in group}
    for amount in (math.inf, math.nan):
        left = scales(net, [], finite | {next(iter(names)): amount})
        assert left
        assert not names & left.keys()
        assert all(map(math.isfinite, left.values()))


SHIPPED = ("models.unet.UNet", {"base": 16, "depth": 4}, "models/weights/unet_small.safetensors", 0)


class Judged:
    def __init__(self, module: nn.Module, batches: list[Tensor]) -> None:
        self.module, self.batches = module, batches
        self.net: ExportedNet = rewritten_from(module, batches[0])
        self.seen = largest(self.net, batches)
        self.exact = [module(batch) for batch in batches]

    def answers(self, keep: list[str]) -> list[Tensor]:
        run = lower(self.net, Plan(scales(self.net, keep, self.seen)))
        return [run(batch) for batch in self.batches]

    def error(self, keep: list[str]) -> float:
        got, want = torch.cat(self.answers(keep)), torch.cat(self.exact)
        return float((got - want).norm() / want.norm())

    def flips(self, keep: list[str]) -> float:
        got, want = torch.cat(self.answers(keep)), torch.cat(self.exact)
        return float((got.argmax(1) != want.argmax(1)).float().mean())


@pytest.fixture(scope="module")
def trained() -> Judged:
    with torch.no_grad():
        return Judged(build_model(*SHIPPED), list(to_batch(load_dataset("samples", None, None, 64, 4).images).split(2)))


@pytest.fixture(scope="module")
def small() -> Judged:
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
