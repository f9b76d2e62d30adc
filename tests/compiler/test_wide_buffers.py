"""Concatenations that share values share buffers, whatever else a net does with them."""

from collections.abc import Callable
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor, fx, nn

from models.library_nets import smp_net
from pipeline.compiler.batch import Order
from pipeline.compiler.fp8_build import largest
from pipeline.compiler.graph.exported_net import ExportedNet, export
from pipeline.compiler.graph.fp8_values import scales
from tests.compiler.further_nets import NewestFirst, NewestLast, Shared, conv
from tests.compiler.nets import image, lively
from tests.compiler.nets_that_passes_leave import Made
from tests.compiler.rewriting import called, distance, kept, layers, lowered, own_calls, rewrite_all, rewritten

ODD = (2, 3, 9, 13)
FP8 = torch.float8_e4m3fn
NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {  # the size, and how often ATen copies
    "the newest first": (NewestFirst, ODD, 0),
    "the newest last": (NewestLast, ODD, 1),  # what a pool makes
    "shared": (Shared, (1, 3, 16, 24), 3),  # two up-samplings and the skip
}


def counts(graph: fx.GraphModule) -> tuple[int, int]:
    """How many concatenations happen, and how often something is written through a view."""
    names = called(graph)
    return names.count("aten.cat.default"), names.count("aten.copy_.default")


@torch.no_grad()
def made(net: nn.Module, batch: Tensor, layout: Order = "NHWC") -> tuple[ExportedNet, Tensor]:
    found = export(net, batch, torch.float32, layout)
    rewrite_all(found)
    return found, net(batch)


@pytest.mark.parametrize("name", NETS)
def test_nothing_but_what_must_be_is_copied_in_fp16_and_in_fp8(name: str) -> None:
    make, size, copies = NETS[name]
    batch = image(*size)
    net, wanted = made(lively(make()), batch)
    graph = lowered(net)
    assert counts(graph) == (0, copies)
    assert distance(graph, batch, wanted) < 1e-3
    with torch.no_grad():
        known = scales(net, [], largest(net, [batch]))
    graph = lowered(net, scales=known)
    assert counts(graph) == (0, copies)
    assert 1e-3 < distance(graph, batch, wanted) < 0.1


@pytest.mark.parametrize("name", ["the newest first", "shared"])
def test_a_buffer_is_of_one_type(name: str) -> None:
    make, size, _ = NETS[name]
    net, _ = made(make().eval(), image(*size))
    for keep in ([], ["layers.2", "again"]):
        with torch.no_grad():
            known = scales(net, keep, largest(net, [image(*size)]))
        memory = [node for node in lowered(net, scales=known).graph.nodes if "empty_strided" in str(node.target)]
        wide = [node for node in memory if node.args[0][1] > 16]
        assert {node.kwargs["dtype"] for node in wide} == {torch.float32 if keep else FP8}


def test_values_whose_scales_differ_are_joined_by_torch() -> None:
    batch = image(*ODD)
    net, _ = made(NewestFirst().eval(), batch)
    with torch.no_grad():
        known = scales(net, [], largest(net, [batch]))
    some = next(name for name in known if name.startswith("getitem"))
    assert counts(lowered(net, scales={**known, some: 2 * known[some]}))[0] > 0


def test_a_value_that_a_kernel_reads_begins_where_it_can_read() -> None:
    def between(batch: Tensor, first: nn.Module, second: nn.Module, joined: nn.Module) -> Tensor:
        value = first(batch).relu()
        torchs = torch.sigmoid(value)
        return joined(torch.cat([value[:, :4], torchs, value[:, 4:8]], 1)) + second(torchs)

    assert counts(lowered(kept(Made(between, conv(3), conv(16), conv(24)), image(*ODD))))[0] == 1


def test_logits_can_be_joined() -> None:
    """They are written in memory of their own, and in fp32 they are of the type of what is joined."""

    def answers(batch: Tensor, first: nn.Module, *heads: nn.Module) -> Tensor:
        value = first(batch).relu()
        logits = [head(value) for head in heads]
        return torch.cat([torch.cat([*logits, value], 1), torch.cat(logits[:2], 1) * 2], 1)

    kept(Made(answers, conv(3), *[nn.Conv2d(16, 4, 1) for _ in range(4)]), image(*ODD))


@pytest.mark.skipif(find_spec("segmentation_models_pytorch") is None, reason="smp isn't installed")
@pytest.mark.filterwarnings("ignore")  # smp's own
@pytest.mark.parametrize(
    ("architecture", "encoder", "depth", "joined", "copies"),
    [("UnetPlusPlus", "resnet18", 4, 3, 0), ("Unet", "densenet121", 2, 6, 1)],
)
def test_a_library_s_net_copies_nothing(architecture: str, encoder: str, depth: int, joined: int, copies: int) -> None:
    widths = (32, 16, 16, 16)[:depth]
    net = smp_net(architecture, encoder, encoder_depth=depth, decoder_channels=widths, encoder_weights=None)
    graph, _ = made(lively(net), image(1, 3, 32, 32))
    assert [str(node.target) for node in graph.module.graph.nodes].count("aten.cat.default") == joined
    assert counts(lowered(graph)) == (0, copies)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_what_is_read_by_its_place_in_memory_is_there(layout: Order) -> None:
    """Passes lay values out otherwise, or as channels of a wider buffer: `as_strided` would read their neighbours."""

    def by_storage(batch: Tensor, first: nn.Module, second: nn.Module, last: nn.Module) -> Tensor:
        one = first(batch)
        both = torch.cat([one, second(one)], 1)
        spread = one.mean(1, keepdim=True).expand(-1, 32, -1, -1).clone()
        read = [part.contiguous().as_strided((16, 60), (60, 1)) for part in (both, nn.InstanceNorm2d(16)(one), spread)]
        return last(torch.cat([both, one], 1)) + sum(part.sin().mean() for part in read)

    batch = image(2, 3, 6, 10)
    found, wanted = made(Made(by_storage, *[conv(inner) for inner in (3, 16, 48)]).eval(), batch, layout)
    assert distance(lowered(found), batch, wanted) < 1e-3


BATCH = image(2, 3, 8, 12)
Parts = Callable[[Tensor, Tensor, Tensor], Tensor]


@pytest.mark.parametrize(
    ("join", "channels", "last", "left"),
    [
        (lambda a, b, c: torch.cat([b, a], 1), 32, 16, (0, 0)),
        (lambda a, b, c: torch.cat([b, c], 1), 32, 16, (0, 1)),
        (lambda a, b, c: torch.cat([c, a, b], dim=-3), 48, 16, (0, 1)),
        (lambda a, b, c: torch.cat([a, a], 1), 32, 16, (0, 1)),
        (lambda a, b, c: torch.cat([a, b], 2), 16, 16, (1, 0)),
        (lambda a, b, c: torch.cat([b, a], 1), 24, 8, (0, 0)),
        (lambda a, b, c: torch.cat([b, a], 1), 20, 4, (1, 0)),
        (lambda a, b, c: torch.cat([c[:, :3], a], 1), 19, 16, (1, 0)),
        (lambda a, b, c: torch.cat([a, b, -c], 1)[:, 16:] * torch.cat([a, b], 1), 32, 16, (0, 1)),
        (lambda a, b, c: torch.cat([-c, a, b], 1)[:, :32] * torch.cat([a, b], 1), 32, 16, (0, 1)),
        (lambda a, b, c: torch.cat([-c, a, b, c], 1)[:, 32:] * torch.cat([a, b], 1), 32, 16, (0, 2)),
        (lambda a, b, c: torch.cat([torch.cat([b, a], 1), -c], 1)[:, 16:], 32, 16, (0, 1)),
        (lambda a, b, c: torch.cat([torch.cat([b, a], 1), b], 1)[:, 16:], 32, 16, (0, 1)),
        (lambda a, b, c: torch.cat([a, b], 1) * torch.cat([-c, a], 1), 32, 16, (0, 2)),
        (lambda a, b, c: torch.cat([a, b, -c], 1)[:, 16:] * torch.cat([c, a, b], 1)[:, 16:], 32, 16, (0, 3)),
        (lambda a, b, c: torch.cat([a, b, -c], 1)[:, 16:] * torch.cat([b, a], 1), 32, 16, (1, 1)),
    ],
)
def test_concatenations_alike_share_buffers(join: Parts, channels: int, last: int, left: tuple[int, int]) -> None:
    """What torch makes is written in place, and of two buffers that want a value one has a copy of it."""

    def joining(batch: Tensor, first: nn.Module, second: nn.Module, joined: nn.Module) -> Tensor:
        value = first(batch).relu()
        return joined(join(value, second(value).relu(), torch.sigmoid(value)))

    net, wanted = made(Made(joining, conv(3), conv(16, last), conv(channels)).eval(), BATCH)
    graph = lowered(net)
    assert counts(graph) == left
    assert distance(graph, BATCH, wanted) < 1e-3


@pytest.mark.parametrize("net", ["bilinear, odd size", "one level, batch 3"])
def test_a_part_that_the_library_makes_is_written_where_it_belongs(net: str) -> None:
    known = rewritten(net)
    for name in layers(known.net):
        graph = lowered(known.net, by_library=[name])
        assert counts(graph)[0] == 0
        assert len(own_calls(graph)) == len(layers(known.net)) - 1
        assert known.error(graph) < 1e-3, name
