"""A rewrite that can't apply leaves the graph alone."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.compiler.artifact import load, save
from pipeline.compiler.fp8_build import largest
from pipeline.compiler.graph.exported_net import ExportedNet, export
from pipeline.compiler.graph.fp8_values import layers_in_fp8, scales
from pipeline.compiler.graph.fx_graph import is_matrix_work, module_of
from pipeline.compiler.graph.fx_graph import layers as modules_of
from pipeline.compiler.passes import FOR_ANY_BACKEND, FOR_THE_KERNELS, rewrite
from pipeline.kernels.common.capability import reaching_views_barred
from pipeline.kernels.common.epilogue import Epilogue, Outputs
from pipeline.kernels.conv3x3.conv3x3_triton import Operands, check_operands
from pipeline.profiling.layers import compute_layers, layer_work
from tests.compiler.nets import image, lively
from tests.compiler.nets_that_passes_leave import CASES, Made
from tests.compiler.rewriting import copied, kept, layers, lowered, rewritten, rewritten_from

PASSES = [*FOR_ANY_BACKEND, *FOR_THE_KERNELS]


class Together(nn.Module):
    """All nets as one, since each export takes half a second: their answers in one row."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cases = nn.ModuleList([lively(make()) for make in CASES.values()])

    def forward(self, image: Tensor) -> Tensor:
        return torch.cat([case(image).flatten(1) for case in self.cases], dim=1)


BATCH = image(1, 3, 8, 8)


@cache
def together() -> tuple[nn.ModuleList, ExportedNet]:
    net = Together().eval()
    return net.cases, export(net, BATCH, torch.float32)


def exported_for(name: str) -> tuple[list[nn.Module], ExportedNet]:
    """The nets of a pass, and of the exported graph what computes their answers, in one row."""
    cases, whole = together()
    chosen = [number for number, case in enumerate(CASES) if case.startswith(f"{name}:")]
    net = copied(whole)
    graph = net.module.graph
    (row,) = graph.find_nodes(op="call_function", target=torch.ops.aten.cat.default)[-1:]
    answers = [row.args[0][number] for number in chosen]
    row.args = (answers, 1)
    row.meta["val"] = row.meta["val"][:, : sum(answer.meta["val"].shape[1] for answer in answers)]
    graph.eliminate_dead_code()
    net.module.recompile()
    return [cases[number] for number in chosen], net


@pytest.mark.parametrize("name", sorted({case.partition(":")[0] for case in CASES}))
def test_a_rewrite_that_cannot_apply_changes_nothing(name: str) -> None:
    cases, exported = exported_for(name)
    place = [step.__name__ for step in PASSES].index(name)
    rewrite(exported, PASSES[:place])
    before = snapshot(exported)
    assert list(PASSES[place](exported)) == []
    assert snapshot(exported) == before
    rewrite(exported, PASSES[place:])
    with torch.no_grad():
        answers = [case(BATCH).flatten(1) for case in cases]
        lengths = [answer.shape[1] for answer in answers]
        got = lowered(exported)(BATCH).split(lengths, dim=1)
    for case, answer, wanted in zip(cases, got, answers, strict=True):
        assert float((answer - wanted).norm() / wanted.norm()) < 1e-3, case


def snapshot(net: ExportedNet) -> tuple[object, ...]:
    own = {**dict(net.module.named_parameters()), **dict(net.module.named_buffers())}
    read = [str(node.target) for node in net.module.graph.find_nodes(op="get_attr")]
    made = [
        (name, layer.op.name, layer.activation, layer.pool, layer.head, layer.stores_out)
        for name, layer in layers(net).items()
    ]
    return str(net.module.graph), {name: id(own[name]) for name in read}, list(net.exact), made


def conv3d(inner: int, outer: int, size: int = 3, **options: Any) -> nn.Conv3d:
    return nn.Conv3d(inner, outer, size, padding=options.pop("padding", size // 2), **options)


def after(call: Callable[..., Tensor], *made: nn.Module) -> nn.Module:
    """A net whose first convolution a kernel takes, and so all that follows it is on images."""
    return Made(lambda x, first, *others: call(first(x), *others), conv3d(8, 8), *made)


# What a net does beside one convolution that has a kernel.
OF_VOLUMES: dict[str, Callable[[], nn.Module]] = {
    "dilated": lambda: after(lambda y, c: c(y), conv3d(8, 8, padding=2, dilation=2)),
    "dilated, the same size": lambda: after(lambda y, c: c(y), nn.Conv3d(8, 8, 3, padding="same", dilation=2)),
    "grouped": lambda: after(lambda y, c: c(y), conv3d(8, 8, groups=2)),
    "strided by depth alone": lambda: after(lambda y, c: c(y), nn.Conv3d(8, 8, 3, (2, 1, 1), 1)),
    "strided by height alone": lambda: after(lambda y, c: c(y), nn.Conv3d(8, 8, 3, (1, 2, 1), 1)),
    "strided within slices, dilated": lambda: after(lambda y, c: c(y), nn.Conv3d(8, 8, 3, (1, 2, 2), 2, 2)),
    "strided, unpadded": lambda: after(lambda y, c: c(y), nn.Conv3d(8, 8, 3, 2)),
    "strided, grouped": lambda: after(lambda y, c: c(y), conv3d(8, 8, stride=2, groups=2)),
    "unpadded": lambda: after(lambda y, c: c(y), conv3d(8, 8, padding=0)),
    "unpadded, by a word": lambda: after(lambda y, c: c(y), nn.Conv3d(8, 8, 3, padding="valid")),
    "another window": lambda: after(lambda y, c: c(y), conv3d(8, 8, 5)),
    "channels that no box has": lambda: after(lambda y, c, d: d(c(y)), conv3d(8, 12), conv3d(12, 8)),
    "transposed, grouped": lambda: after(lambda y, c: c(y), nn.ConvTranspose3d(8, 8, 2, stride=2, groups=2)),
    "transposed, padded": lambda: after(lambda y, c: c(y), nn.ConvTranspose3d(8, 8, 2, stride=2, padding=1)),
    "transposed, another window": lambda: after(lambda y, c: c(y), nn.ConvTranspose3d(8, 8, 3, stride=2)),
    "1×1×1, strided": lambda: after(lambda y, c: c(y), conv3d(8, 8, 1, stride=2)),
    "1×1×1, padded": lambda: after(lambda y, c: c(y), conv3d(8, 8, 1, padding=1)),
    "1×1×1, grouped": lambda: after(lambda y, c: c(y), conv3d(8, 8, 1, groups=4)),
    "joined along the depth": lambda: after(lambda y: torch.cat([y, 2 * y], dim=2)),
    "joined along the width": lambda: after(lambda y: torch.cat([y, 2 * y], dim=-1)),
    "a sum that broadcasts": lambda: after(lambda y: y + y[:, :, :1]),
    "a product that broadcasts": lambda: after(lambda y: y * y.mean((2, 3, 4), keepdim=True)),
    "a cast to another layout": lambda: after(lambda y: y.to(torch.float64, memory_format=torch.contiguous_format)),
    "slices, one after the other": lambda: after(lambda y, c: torch.stack([c(part) for part in y]), conv3d(8, 8)),
}


@pytest.mark.parametrize("name", OF_VOLUMES)
def test_the_answer_stays(name: str) -> None:
    torch.manual_seed(0)
    found = kept(OF_VOLUMES[name](), image(2, 8, 4, 16, 6), 1e-5)
    assert found.matched["volumes_as_images"] == ["layers.0"]
    assert not [layer for layer in layers(found).values() if layer.name != "layers.0"]


def in_single_precision(y: Tensor, c: nn.Conv3d) -> Tensor:
    far = functional.conv3d(y.float(), c.weight.float() * 1e6, padding=(c.kernel_size[0] // 2,) * 3)
    return (far / 1e6).to(y.dtype)


def in_a_cast_of_its_own(y: Tensor, c: nn.Conv3d) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made: Tensor = c(y)
    return made.to(y.dtype)


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("call", [in_single_precision, in_a_cast_of_its_own])
def test_what_computes_in_another_type_than_the_net_s_is_left(call: Callable[..., Tensor], size: int) -> None:
    torch.manual_seed(0)
    limit = 1e-3 if call is in_single_precision else 1e-2
    found = kept(after(call, conv3d(8, 8, size)), image(2, 8, 4, 16, 6), limit, torch.float16)
    assert found.matched["volumes_as_images"] == ["layers.0"]


@pytest.mark.parametrize(("depth", "height", "sums"), [(4, 12, 0), (3, 20, 0), (1, 12, 2), (4, 16, 2)])
def test_slices_that_no_block_of_rows_divides_are_summed_by_nobody_s_kernel(depth: int, height: int, sums: int) -> None:
    """Their convolutions are layers all the same: of three slices and of one, before an instance and a group norm."""
    torch.manual_seed(0)
    flat = nn.Conv3d(32, 32, (1, 3, 3), padding=(0, 1, 1))
    net = nn.Sequential(conv3d(8, 32), nn.InstanceNorm3d(32), nn.ReLU(), flat, nn.GroupNorm(4, 32), nn.SiLU())
    found = kept(net, image(2, 8, depth, height, 6), 1e-5)
    assert [layer.op.name for layer in layers(found).values()] == ["conv3x3x3", "conv1x3x3"]
    assert len(found.matched["sum_where_made"]) == sums


NO_PAIR = [(1, 8, 3, 16, 6), (1, 8, 4, 24, 6), (1, 8, 4, 16, 7)]  # of slices, blocks of rows, or columns
BY_SIZE: list[tuple[Callable[[], nn.Module], tuple[int, ...], list[str]]] = [
    (lambda: nn.Sequential(conv3d(8, 8)), (1, 8, 4, 6, 16), []),  # slices of less rows than half a tile
    *((lambda: nn.Sequential(conv3d(8, 8), conv3d(8, 8, stride=2)), size, ["0"]) for size in NO_PAIR),
    # Growing slices of a block and a half: the kernel jumps over slices, or each is an image.
    (lambda: nn.Sequential(conv3d(8, 8), nn.ConvTranspose3d(8, 8, 2, 2)), (1, 8, 2, 12, 6), ["0"]),
    (lambda: nn.Sequential(conv3d(8, 8), nn.ConvTranspose3d(8, 8, (1, 2, 2), (1, 2, 2))), (1, 8, 2, 12, 6), ["0", "1"]),
]


@pytest.mark.parametrize(("make", "size", "taken"), BY_SIZE)
def test_what_no_tile_divides_is_left(make: Callable[[], nn.Module], size: tuple[int, ...], taken: list[str]) -> None:
    torch.manual_seed(0)
    assert kept(make(), image(*size), 1e-5).matched["volumes_as_images"] == taken


def test_a_pointwise_convolution_of_any_padding_word_is_one_of_images() -> None:
    net = after(lambda y, c, d: d(c(y)), nn.Conv3d(8, 16, 1, padding="same"), conv3d(16, 8))
    found = rewritten_from(net.eval(), image(1, 8, 2, 8, 6))
    assert [layer.op.name for layer in layers(found).values()] == ["conv3x3x3", "conv1x1", "conv3x3x3"]


def test_a_channel_of_zeros_is_one_in_fp8() -> None:
    """Its weights have a scale all the same, in the precision that the net runs in."""
    mixing = conv3d(16, 16, 1, bias=False)
    net, batch = nn.Sequential(conv3d(8, 16), mixing, conv3d(16, 16)).eval(), image(1, 8, 2, 8, 6)
    with torch.no_grad():
        mixing.weight[3] = 0
        found = rewritten_from(net, batch, torch.float16)
        stored = scales(found, [], largest(found, [batch]))
        assert layers_in_fp8(found, stored) == ["1", "2"]
        answer = lowered(found, scales=stored)(batch)
        assert answer.isfinite().all()
        assert float((answer - net(batch)).norm() / net(batch).norm()) < 0.2


@pytest.mark.parametrize("name", ["volumes", "volumes of slices far apart", "dilated"])
def test_layers_that_the_library_runs_can_be_saved_with_their_sums(name: str, tmp_path: Path) -> None:
    made = rewritten(name)
    graph = lowered(made.net, by_library=list(layers(made.net)))
    save(graph, made.batch, tmp_path / "net")
    with torch.inference_mode():
        assert torch.equal(load(tmp_path / "net")(made.batch), graph(made.batch))


@pytest.mark.parametrize(("outer", "slices", "rows"), [(32, 4, 64), (24, 2, 64), (32, 3, 32), (40, 4, 40)])
def test_a_layer_is_packed_as_its_kernel_takes_it(outer: int, slices: int, rows: int) -> None:
    net, batch = nn.Sequential(conv3d(8, 8), conv3d(8, outer)).eval(), image(1, 8, slices, 8, 6)
    (_, layer) = layers(rewritten_from(net, batch, torch.float16)).values()
    packed = layer.packed(torch.float16, None, 1.0, 8)
    assert packed.weight is not None
    assert packed.weight.shape[1] == (outer if reaching_views_barred() else rows)
    x, out = torch.zeros(1, slices * 8, 6, 8).half(), torch.zeros(1, slices * 8, 6, outer).half()
    check_operands(Operands(x, packed.weight, Epilogue(bias=packed.bias, slices=slices), Outputs(out)))


def test_a_convolution_without_a_batch_leaves_the_kernels_to_the_images() -> None:
    def mixed(batch: Tensor, flat: nn.Module, deep: nn.Module) -> Tensor:
        value = flat(batch)
        return value + deep(value.transpose(0, 1)).transpose(0, 1)

    found = kept(Made(mixed, nn.Conv2d(8, 8, 3, padding=1), conv3d(8, 8)), image(2, 8, 8, 8), 1e-5)
    assert [layer.name for layer in layers(found).values()] == ["layers.0"]


IMAGE = torch.zeros(1, 3, 8, 8)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        self.all_modules = nn.Sequential(self.conv, nn.ReLU())

    def forward(self, image: Tensor) -> Tensor:
        return self.all_modules(self.all_modules(image)) + 1


def holding(name: str) -> nn.Module:
    class Holder(nn.Module):
        def forward(self, image: Tensor) -> Tensor:
            return getattr(self, name)(image)

    holder = Holder()
    holder.add_module(name, Block())
    return holder.eval()


@pytest.mark.parametrize("name", ["block", "net", "network", "net_1"])
def test_each_exporter_calls_a_layer_by_its_first_path(name: str) -> None:
    assert [layer.layer for layer in compute_layers(holding(name), IMAGE)] == [f"{name}.conv"] * 2
    nodes = export(holding(name), IMAGE, torch.float32).module.graph.nodes
    assert [module_of(node) for node in nodes if is_matrix_work(node)] == [f"{name}.conv"] * 2
    assert [module_of(node) for node in nodes if "add" in str(node.target)] == [name]


class Padded(nn.Conv2d):
    def __init__(self) -> None:
        super().__init__(3, 4, 3)
        self.static_padding = nn.Sequential(nn.ZeroPad2d(1))

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        return super().forward(self.static_padding(input))


def test_a_convolution_that_pads_by_a_module_of_its_own_is_one_layer() -> None:
    net = nn.Sequential(Padded(), nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 1)), nn.Sequential())
    assert [name for name, _ in modules_of(net)] == ["0", "1", "2"]
    work = layer_work(net.eval(), IMAGE)
    assert [(layer.name, layer.flops) for layer in work if layer.flops] == [("0", 2 * 27 * 256), ("1", 2 * 4 * 256)]


def test_attention_is_one_layer() -> None:
    assert [name for name, _ in modules_of(nn.TransformerEncoderLayer(8, 2, 16))][:2] == ["self_attn", "linear1"]
    assert [name for name, _ in modules_of(Padded())] == [""]  # a net that is a layer
