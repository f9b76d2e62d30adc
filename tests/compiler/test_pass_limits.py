"""What rewrites of the graph may not touch, and what is computed once: in fp32, if small, as its readers want it."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import Mock

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
from pipeline.compiler.graph.lowering import Plan, lower
from pipeline.compiler.passes import FOR_ANY_BACKEND, FOR_THE_KERNELS, rewrite
from pipeline.compiler.passes.constant_folding import STRAIGHT, add_parallel_convolutions, fold_constants
from pipeline.kernels.common.capability import reaching_views_barred
from pipeline.kernels.common.epilogue import Epilogue, Outputs
from pipeline.kernels.conv3x3.conv3x3_triton import Operands, check_operands
from pipeline.profiling.layers import compute_layers, layer_work
from tests.compiler.nets import image, lively
from tests.compiler.nets_that_passes_leave import CASES, Made, conv
from tests.compiler.rewriting import called, copied, distance, kept, layers, lowered, rewritten, rewritten_from

PASSES = [*FOR_ANY_BACKEND, *FOR_THE_KERNELS]
BATCH = image(1, 3, 8, 8)


@cache
def together() -> tuple[nn.ModuleList, ExportedNet]:
    """All nets as one, since each export takes half a second: their answers in one row."""
    torch.manual_seed(0)
    cases = [lively(make()) for make in CASES.values()]
    net = Made(lambda image, *cases: torch.cat([case(image).flatten(1) for case in cases], dim=1), *cases).eval()
    return net.layers, export(net, BATCH, torch.float32)


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
    "another window": lambda: after(lambda y, c: c(y), conv3d(8, 8, 7)),
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
    limit = 1e-3 if call is in_single_precision else 1e-2
    found = kept(after(call, conv3d(8, 8, size)), image(2, 8, 4, 16, 6), limit, torch.float16)
    assert found.matched["volumes_as_images"] == ["layers.0"]


@pytest.mark.parametrize(("depth", "height", "sums"), [(4, 12, 0), (3, 20, 0), (1, 12, 2), (4, 16, 2)])
def test_slices_that_no_block_of_rows_divides_are_summed_by_nobody_s_kernel(depth: int, height: int, sums: int) -> None:
    """Their convolutions are layers all the same: of three slices and of one, before an instance and a group norm."""
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


class StandardConv(nn.Conv2d):
    """A convolution whose weight is standardised by a batch norm at each call, as BiT's ResNets have it."""

    def forward(self, x: Tensor) -> Tensor:
        flat = self.weight.reshape(1, self.out_channels, -1)
        weight = functional.batch_norm(flat, None, None, training=True, momentum=0.0, eps=1e-6)
        return functional.conv2d(x, weight.reshape_as(self.weight), self.bias, self.stride, self.padding)


class Standardised(nn.Module):
    """Convolutions whose weights, and a batch norm whose weight, are computed of parameters and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = StandardConv(3, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)
        self.masked, self.halves = nn.Conv2d(32, 32, 3, padding=1), nn.Parameter(torch.randn(2, 16, 32, 3, 3) / 17)
        self.norm, self.mask = nn.BatchNorm2d(32), nn.Buffer((torch.rand(32, 32, 3, 3) > 0.3).float())
        self.gamma, self.alike = nn.Parameter(torch.randn(32) / 9), nn.Parameter(torch.ones(16, 32, 3, 3) / 17)

    def forward(self, batch: Tensor) -> Tensor:
        weight = self.second.weight
        weight = (weight - weight.mean((1, 2, 3), keepdim=True)) / weight.std((1, 2, 3), keepdim=True) / 17
        x = functional.conv2d(self.first(batch).relu(), weight, self.second.bias, padding=1).relu()
        x = functional.conv2d(x, self.masked.weight * self.mask, self.masked.bias, padding=1)
        mean, variance = self.norm.running_mean, self.norm.running_var
        x = functional.batch_norm(x, mean, variance, 1 + self.gamma, self.norm.bias).relu()
        x = functional.conv2d(x, self.halves.reshape(32, 32, 3, 3), padding=1).relu()
        return functional.conv2d(x, torch.cat([self.alike, self.halves[0] * 2]), padding=1)


@pytest.fixture(scope="module")
def standardised() -> tuple[Standardised, Tensor]:
    torch.manual_seed(0)
    return Standardised().eval(), image(2, 3, 16, 16)


def computed_once(net: nn.Module, batch: Tensor, dtype: torch.dtype = torch.float16) -> ExportedNet:
    made = export(net.eval(), batch, dtype)
    rewrite(made, [fold_constants])
    return made


def known_weights(net: ExportedNet) -> list[Tensor]:
    """The weights of a net's convolutions that passes know, [out, in, k, k] each, in order."""
    convs = [node for node in net.module.graph.nodes if str(node.target) == "aten.conv2d.default"]
    return [weight for conv in convs if (weight := net.constant(conv.args[1])) is not None]


@torch.no_grad()
def test_weights_are_computed_in_fp32_and_rounded_once(standardised: tuple[Standardised, Tensor]) -> None:
    net, batch = standardised
    made = computed_once(net, batch)
    wanted = net.second.weight
    wanted = (wanted - wanted.mean((1, 2, 3), keepdim=True)) / wanted.std((1, 2, 3), keepdim=True) / 17
    found = known_weights(made)
    assert len(found) == 5
    assert {weight.dtype for weight in found} == {torch.float32}
    assert torch.allclose(found[1], wanted, rtol=1e-6, atol=0)
    assert torch.equal(found[2], net.masked.weight * net.mask)
    stored = [buffer for buffer in made.module.buffers() if buffer.shape == (32, 32, 3, 3)]
    assert any(torch.equal(buffer, found[1].half()) for buffer in stored)
    computing = {f"aten.{name}" for name in ("mean.dim", "std.correction", "std.dim", "mul.Tensor", "cat.default")}
    assert not (computing | {"aten.add.Tensor"}) & set(called(made.module))


def test_kernels_take_layers_and_norms_are_folded(standardised: tuple[Standardised, Tensor], tmp_path: Path) -> None:
    net, batch = standardised
    with torch.no_grad():
        wanted = net(batch)
    made = rewritten_from(net, batch, torch.float32)
    assert distance(made.module, batch, wanted) < 1e-6
    assert len(layers(made)) == 5
    assert len(made.matched["fold_batch_norm"]) == 1
    graph = lower(rewritten_from(net, batch, torch.float16), Plan())
    assert distance(graph, batch, wanted) < 3e-3
    save(graph, batch, tmp_path)
    assert torch.equal(load(tmp_path)(batch), graph(batch))


class Written(nn.Module):
    """What a test writes of an image and this net's parameters, a vector and a kernel."""

    def __init__(self, form: Callable[["Written", Tensor], Tensor]) -> None:
        super().__init__()
        self.vector, self.kernel = nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(3, 3, 3, 3))
        self.steps, self.form = nn.Buffer(torch.zeros(1)), form

    def forward(self, batch: Tensor) -> Tensor:
        return self.form(self, batch)


STAYS: dict[str, Callable[[Written, Tensor], Tensor]] = {
    "random": lambda net, x: x + torch.randn(3, 1, 1) * net.vector[:, None, None],
    "what depends on the image": lambda net, x: functional.conv2d(x, net.kernel * x.mean()),
    "a vector's broadcast to a map": lambda net, x: x + (net.vector[:, None, None] * torch.ones(3, 512, 512)),
    "a view that no layer reads as its weight": lambda net, x: x * net.vector[:, None, None],
    "a map of one number": lambda _, x: x + torch.full((3, 16, 16), 2.0).reshape(3, 16, 16),
    "a buffer that the net counts in": lambda net, x: x + net.steps.add_(1) * 2,
    "a weight as it is": lambda net, x: functional.conv2d(x, net.kernel),
}


@pytest.mark.parametrize("case", STAYS)
def test_it_leaves(case: str) -> None:
    side = 512 if "broadcast" in case else 16
    assert computed_once(Written(STAYS[case]), image(1, 3, side, side)).matched["fold_constants"] == []


def test_only_what_is_small_enough_is_kept() -> None:
    """A map's grid of positions is, up to a mebibyte; what is made of it beyond that is made at each call."""

    def grid(_: Written, x: Tensor) -> Tensor:
        rows, columns = torch.meshgrid(torch.arange(512.0), torch.arange(512.0), indexing="ij")
        return x + torch.stack([rows, columns, rows * 0]).sin()

    made = computed_once(Written(grid), image(1, 3, 512, 512), torch.float32)
    kept = [made.constant(node) for node in made.module.graph.nodes]
    assert max(constant.numel() * 4 for constant in kept if constant is not None) == 2**20
    assert "aten.sin.default" in called(made.module)


@pytest.mark.parametrize(
    ("added", "wanted"),
    [
        (lambda _, x: x + torch.arange(16).reshape(4, 4) % 3, torch.arange(16).reshape(4, 4) % 3),
        (lambda _, x: x + torch.arange(4).to(x) / 3, torch.arange(4) / 3),
    ],
)
def test_a_grid_is_exact_until_it_is_rounded(added: Callable[[Written, Tensor], Tensor], wanted: Tensor) -> None:
    made = computed_once(Written(added), image(1, 3, 4, 4))
    (add,) = [node for node in made.module.graph.nodes if str(node.target) == "aten.add.Tensor"]
    found = made.constant(add.args[1])
    assert found is not None
    assert torch.equal(found, wanted)


def biased(net: Written, x: Tensor) -> Tensor:
    """Attention among an image's rows, with a bias for each pair that is looked up in a table, as Swin has it."""
    bias = net.kernel.reshape(27, 3)[torch.arange(64) % 27].reshape(8, 8, 3).permute(2, 0, 1).contiguous()[None]
    return functional.scaled_dot_product_attention(x, x, x, attn_mask=bias)


def test_what_is_computed_once_lies_as_its_readers_want_it() -> None:
    """A mask of attention with its heads side by side would be copied at each call; a weight has its channels so."""
    made = computed_once(Written(biased), image(1, 3, 8, 8))
    (bias,) = [part for part in made.module.buffers() if part.shape == (1, 3, 8, 8)]
    assert bias.is_contiguous()
    made = computed_once(Written(lambda net, x: functional.conv2d(x, (net.kernel * 2).contiguous())), image(1, 3, 8, 8))
    assert made.matched["fold_constants"]
    (weight,) = [part for part in made.module.buffers() if part.shape == (3, 3, 3, 3)]
    assert weight.is_contiguous(memory_format=torch.channels_last)
    made = computed_once(Written(lambda net, x: x + (net.kernel * 2).contiguous()), image(3, 3, 3, 3))
    (added,) = [part for part in made.module.buffers() if part.shape == (3, 3, 3, 3)]
    assert added.is_contiguous(memory_format=torch.channels_last)


def test_what_torch_cannot_compute_once_stays_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    net = export(Written(lambda net, x: x * net.vector.exp()[:, None, None]).eval(), image(1, 3, 4, 4), torch.float16)
    (exp,) = [node for node in net.module.graph.nodes if str(node.target) == "aten.exp.default"]
    monkeypatch.setattr(exp.target, "_op", Mock(side_effect=RuntimeError("no memory")))
    assert list(fold_constants(net)) == []


@torch.no_grad()
def test_one_that_the_net_s_own_autocast_runs_is_not_folded() -> None:
    """Its convolution reads bf16, and would be given weights in the net's type; the convolution before it is folded."""

    def both(x: torch.Tensor, first: nn.Module, before: nn.Module, second: nn.Module, after: nn.Module) -> torch.Tensor:
        y = before(first(x))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            made: torch.Tensor = after(second(y))
        return made.float()

    net = lively(Made(both, conv(3, 8), nn.BatchNorm2d(8), conv(8, 8), nn.BatchNorm2d(8)))
    batch = image(2, 3, 9, 9)
    made = export(net, batch, torch.float32)
    rewrite(made, FOR_ANY_BACKEND)
    assert made.matched["fold_batch_norm"] == ["layers.0"]
    torch.testing.assert_close(made.module(batch), net(batch), rtol=2e-2, atol=2e-2)


def normed(inner: int, outer: int, size: int, **options: Any) -> nn.Sequential:
    return nn.Sequential(conv(inner, outer, size, bias=False, **options), nn.BatchNorm2d(outer))


def branched(*branches: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 16, 1), Made(lambda x, *added: sum(one(x) for one in added).relu(), *branches))


ALONE: dict[str, Any] = {"groups": 16}
BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "RepVGG": lambda: branched(normed(16, 16, 3), normed(16, 16, 1), nn.BatchNorm2d(16)),
    "strided": lambda: branched(normed(16, 16, 3, stride=2), normed(16, 16, 1, stride=2)),
    "dilated": lambda: branched(normed(16, 16, 3, padding=2, dilation=2), normed(16, 16, 1, dilation=2)),
    "even windows": lambda: branched(nn.Conv2d(16, 16, 4, 2, 2), nn.Conv2d(16, 16, 2, 2, 1)),
    "MobileOne": lambda: branched(
        nn.BatchNorm2d(16), normed(16, 16, 1, **ALONE), *[normed(16, 16, 3, **ALONE) for _ in range(4)]),
    "RepViT": lambda: Made(
        lambda x, first, one, other, norm: (lambda y: norm(one(y) + other(y) + y))(first(x)),
        nn.Conv2d(3, 16, 1), normed(16, 16, 3, **ALONE), nn.Conv2d(16, 16, 1, **ALONE), nn.BatchNorm2d(16)),
    "ACNet": lambda: branched(
        nn.Conv2d(16, 16, (1, 3), padding=(0, 1)), nn.Conv2d(16, 16, (3, 1), padding="same"), normed(16, 16, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_of_branches_becomes_one_convolution(name: str) -> None:
    net, batch = lively(BLOCKS[name]()), image(2, 3, 7, 9)
    found = export(net, batch, torch.float32)
    rewrite(found, FOR_ANY_BACKEND)
    left = {str(node.target) for node in found.module.graph.nodes if node.op == "call_function"}
    convolutions = [node for node in found.module.graph.nodes if str(node.target) in STRAIGHT]
    assert len(convolutions) == 2
    assert left <= {*STRAIGHT, "aten.relu.default", "aten._to_copy.default", "aten.to.dtype"}
    with torch.no_grad():
        assert distance(found.module, batch, net(batch)) < 1e-6


def test_what_is_no_branch_is_still_added() -> None:
    def summed(x: Tensor, first: nn.Module, one: nn.Module, other: nn.Module, last: nn.Module) -> Tensor:
        y = first(x)
        return one(y) + (y.tanh() + other(y)) + (y + last(y.tanh()) + y)

    net = lively(Made(summed, nn.Conv2d(3, 16, 1), *[normed(16, 16, side) for side in (1, 3, 3)]))
    batch = image(2, 3, 7, 9)
    found = rewritten_from(net, batch)
    assert found.matched["add_parallel_convolutions"] == ["layers.2.0"]
    assert [layer.name for layer in layers(found).values()] == ["layers.2.0", "layers.3.0"]
    with torch.no_grad():
        assert distance(lowered(found), batch, net(batch)) < 1e-3


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
def test_a_window_padded_by_a_row_more_on_one_side_is_left() -> None:
    net = Made(lambda x, a, b: a(x) + b(x), nn.Conv2d(3, 8, 4, padding="same"), conv(3, 8, 1)).eval()
    found = export(net, image(1, 3, 7, 9), torch.float32)
    assert list(add_parallel_convolutions(found)) == []
