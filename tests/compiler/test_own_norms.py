"""Own kernels in the place of norms' passes, also of groups: where they go, what is measured; the answer stays."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from pipeline.compiler.agreement import distance
from pipeline.compiler.artifact import load, save
from pipeline.compiler.batch import Batch, batched
from pipeline.compiler.custom_ops import REFERENCE, RUNS
from pipeline.compiler.graph.exported_net import ExportedNet
from pipeline.compiler.graph.fp8_values import fp8_groups, reads_fp8
from pipeline.compiler.ops import tile_text
from pipeline.compiler.passes.norms import factor_and_shift, variance_and_mean
from pipeline.compiler.tuning.autotune import NothingRunsError, Tuner
from pipeline.compiler.tuning.own_norms import IN_A_PASS, NORMING, WHEN_READ, found_passes, put_own_norms, put_pass
from pipeline.kernels.common.capability import reaching_views_barred
from pipeline.kernels.conv3x3 import conv3x3_narrow
from tests.compiler import rewriting
from tests.compiler.nets import image, lively
from tests.compiler.nets_that_passes_leave import Made
from tests.compiler.rewriting import called, computing, lowered, own_calls, rewritten_from

BATCH, VOLUMES = image(2, 3, 8, 16), image(1, 1, 4, 8, 16)
NARROW = tile_text(conv3x3_narrow.Tile(16, 4, 2, 3))


class Normed(nn.Module):
    """Norms whose answer one layer reads, two layers read, a concatenation holds, and the logits are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(inner, 32, 3, padding=1) for inner in (3, 32, 32, 64))
        self.norms = nn.ModuleList(nn.InstanceNorm2d(32, affine=True) for _ in range(4))
        self.head = nn.Conv2d(32, 2, 1)

    def block(self, number: int, x: Tensor) -> Tensor:
        value: Tensor = self.norms[number](self.convs[number](x))
        return functional.leaky_relu(value)

    def forward(self, batch: Tensor) -> Tensor:
        high = self.block(1, self.block(0, batch))
        value = self.block(3, torch.cat([self.block(2, high), high], 1))
        return self.head(value)


@cache
def exported() -> ExportedNet:
    torch.manual_seed(0)
    return rewritten_from(lively(Normed()), BATCH, torch.float16)


def graph(tile: str = NARROW, **scales: float) -> fx.GraphModule:
    """The net lowered, its convolutions by a narrow tile, as if that had been chosen."""
    return by_tile(lowered(exported(), scales=scales), tile)


def by_tile(made: fx.GraphModule, tile: str) -> fx.GraphModule:
    for node in made.graph.nodes:
        if node.target in NORMING:
            node.kwargs = {**node.kwargs, "tile": tile}
    return made


@pytest.fixture(autouse=True)
def by_references(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("normalised", "normed_conv3x3"):
        monkeypatch.setitem(RUNS, name, lambda given, _, run=RUNS[name]: run(given, None))  # type: ignore[misc]


def tuner(folder: Path, preferred: str) -> Tuner:
    """One by whose clock the preferred way, and of tiles the first, is the fastest."""
    ticks = iter(range(1, 10_000))

    def clock(call: Any) -> float:
        call()
        return float(next(ticks)) * (1e-6 if preferred in map(str, call.args) else 1.0)

    return Tuner(folder, clock)


def put(made: fx.GraphModule, given: Tensor | Batch, tuner: Tuner, within: float = 2e-3) -> dict[str, int]:
    """How many own norms were put in the place of passes, each way; the answer is within a limit (relative L2)."""
    wanted = made(*batched(given))
    counts = put_own_norms(made, given, tuner)
    assert distance(made(*batched(given)), wanted) < within
    return counts


@torch.no_grad()
def test_passes_of_a_net_of_several_inputs_are_measured_with_all(tmp_path: Path) -> None:
    inputs = Batch((BATCH, BATCH.flip(0)), ("batch", "other"))
    net = lively(Made(lambda batch, other, net: net(batch * other), Normed()))
    made = by_tile(lowered(rewritten_from(net, inputs, torch.float16)), NARROW)
    assert put(made, inputs, tuner(tmp_path, IN_A_PASS), 5e-3) == {IN_A_PASS: 3, WHEN_READ: 0}


@torch.no_grad()
def test_own_kernels_take_the_passes_and_the_answer_stays(tmp_path: Path) -> None:
    """The last of them makes the logits of what it gives, which is stored nowhere."""
    made = graph()
    before = own_calls(made)
    assert put(made, BATCH, tuner(tmp_path, IN_A_PASS)) == {IN_A_PASS: 4, WHEN_READ: 0}
    assert own_calls(made) == [call for name in before for call in (name, "normalised")]
    assert "aten.leaky_relu.default" not in computing(made)
    assert "aten.copy_.default" not in computing(made)


@torch.no_grad()
def test_a_layer_norms_what_it_alone_reads_where_that_is_faster(tmp_path: Path) -> None:
    """The second reads the first's norm; what two layers or a concatenation hold has to be written."""
    made = graph()
    assert put(made, BATCH, tuner(tmp_path, WHEN_READ)) == {IN_A_PASS: 3, WHEN_READ: 1}
    assert own_calls(made)[:3] == ["conv_first", "normed_conv3x3", "normalised"]


def of_volumes() -> fx.GraphModule:
    parts = [
        part
        for inner in (1, 16)
        for part in (nn.Conv3d(inner, 16, 3, padding=1), nn.InstanceNorm3d(16, affine=True), nn.LeakyReLU())
    ]
    net = nn.Sequential(*parts, nn.Conv3d(16, 2, 1))
    return by_tile(
        lowered(rewritten_from(lively(net), VOLUMES, torch.float16)), tile_text(conv3x3_narrow.VolumeTile(16, 2, 2))
    )


@torch.no_grad()
@pytest.mark.skipif(reaching_views_barred() is not None, reason=str(reaching_views_barred()))
def test_a_narrow_layer_of_volumes_sums_and_norms_what_it_reads(tmp_path: Path) -> None:
    made = of_volumes()
    assert all(node.kwargs["statistics"] for node in made.graph.nodes if node.target in NORMING)
    assert put(made, VOLUMES, tuner(tmp_path, WHEN_READ)) == {IN_A_PASS: 1, WHEN_READ: 1}
    assert own_calls(made) == ["conv_first_volumes", "normed_conv3x3", "normalised"]


@torch.no_grad()
@pytest.mark.parametrize(("tile", "scaled"), [(REFERENCE, False), (NARROW, True)], ids=["another kernel", "fp8"])
def test_other_kernels_and_fp8_keep_the_pass(tile: str, scaled: bool, tmp_path: Path) -> None:
    made = graph(tile, **({"leaky_relu": 0.02} if scaled else {}))
    found = put(made, BATCH, tuner(tmp_path, WHEN_READ), within=5e-2 if scaled else 2e-3)
    assert found == {IN_A_PASS: 4, WHEN_READ: 0}
    assert ("aten.clamp.default" in computing(made)) is False


@torch.no_grad()
def test_a_second_build_finds_every_choice(tmp_path: Path) -> None:
    known, made, by_norms = tuner(tmp_path, WHEN_READ), graph(), graph()
    put_own_norms(made, BATCH, known)
    again = tuner(tmp_path, IN_A_PASS)
    assert put_own_norms(graph(), BATCH, again) == {IN_A_PASS: 3, WHEN_READ: 1}
    assert again.measured == 0 < known.measured
    assert put_own_norms(by_norms, BATCH, Tuner(tmp_path / "empty"), made.meta["norms"]) == {IN_A_PASS: 3, WHEN_READ: 1}
    assert str(by_norms.graph) == str(made.graph)


@torch.no_grad()
def test_a_pass_that_is_wrong_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    twice_where_a_tile_runs(monkeypatch, "normalised")
    with pytest.raises(NothingRunsError, match=r"normalised; .*: no candidate gives the reference's answer"):
        put_own_norms(graph(), BATCH, tuner(tmp_path, WHEN_READ))


@torch.no_grad()
def test_a_layer_that_norms_wrongly_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    twice_where_a_tile_runs(monkeypatch, "normed_conv3x3")
    assert put_own_norms(graph(), BATCH, tuner(tmp_path, WHEN_READ)) == {IN_A_PASS: 4, WHEN_READ: 0}


def twice_where_a_tile_runs(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let an operation's kernel, and not its reference, give twice what it should."""
    run = RUNS[name]

    def wrong(given: dict[str, Any], tile: Any) -> None:
        run(given, None)
        if tile is not None:
            given["result"].mul_(2)

    monkeypatch.setitem(RUNS, name, wrong)


def with_silu(made: fx.GraphModule) -> fx.GraphModule:
    for node in made.graph.find_nodes(op="call_function", target=torch.ops.aten.leaky_relu.default):
        node.target, node.args = torch.ops.aten.silu.default, node.args[:1]
    made.recompile()
    return made


@torch.no_grad()
def test_a_pass_ends_in_silu_scaled_or_not(tmp_path: Path) -> None:
    """No layer applies it when it reads; where a pass of ours rounds it to fp8, the scale comes after it."""
    made = with_silu(graph())
    assert put(made, BATCH, tuner(tmp_path, WHEN_READ)) == {IN_A_PASS: 4, WHEN_READ: 0}
    assert "aten.silu.default" not in called(made)
    scaled = with_silu(graph(leaky_relu=0.02))
    assert [found.scale for found in found_passes(scaled.graph)].count(None) == 3
    assert [found.scale for found in found_passes(scaled.graph) if found.scale] == pytest.approx([0.02])
    fp8 = put(scaled, BATCH, tuner(tmp_path / "scaled", WHEN_READ), within=1e-2)  # steps of fp8, where rounding tips
    assert fp8 == {IN_A_PASS: 4, WHEN_READ: 0}


@pytest.mark.parametrize("how", ["activation", "residual"])
def test_a_pass_that_does_more_stays_inductors(how: str) -> None:
    made = graph()
    assert len(list(found_passes(made.graph))) == 4
    for node in [node for node in made.graph.nodes if str(node.target) == "aten.leaky_relu.default"]:
        if how == "activation":
            node.target = torch.ops.aten.sin.default
        else:
            with made.graph.inserting_after(node):
                added = made.graph.call_function(torch.ops.aten.add.Tensor, (node, 1.0))
            node.replace_all_uses_with(added, delete_user_cb=lambda user, added=added: user is not added)
    assert list(found_passes(made.graph)) == []


@torch.no_grad()
def test_a_pass_into_fp8_of_scale_1_writes_fp8() -> None:
    made = graph(leaky_relu=1.0)
    wanted = made(BATCH)
    for found in list(found_passes(made.graph)):
        put_pass(found)
    made.recompile()
    stored = [node.kwargs["dtype"] for node in made.graph.nodes if node.target is torch.ops.aten.empty_strided.default]
    assert stored.count(torch.float8_e4m3fn) == 1
    assert float((made(BATCH) - wanted).norm() / wanted.norm()) < 1e-2


def test_a_value_that_is_read_again_keeps_its_head_with_inductor() -> None:
    made = graph()
    logits: Any = made.graph.find_nodes(op="call_function", target=torch.ops.aten.cat.default)[0]
    normed = logits.args[0][0].args[0].args[0].args[0].args[0]
    out: Any = made.graph.find_nodes(op="output")[0]
    with made.graph.inserting_before(out):
        again = made.graph.call_function(torch.ops.aten.neg.default, (normed,))
    out.args = ((*out.args[0], again),)
    assert [one.head for one in found_passes(made.graph)] == [None] * 3


LARGER = image(2, 3, 16, 24)


def group_norm(groups: int, channels: int) -> nn.GroupNorm:
    norm = nn.GroupNorm(groups, channels)
    nn.init.uniform_(norm.weight, 0.5, 1.5)
    nn.init.normal_(norm.bias, std=0.2)
    return norm


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(group_norm(8, channels) for _ in range(2))
        self.convs = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        value = self.convs[0](self.norms[0](x).relu())
        return self.convs[1](self.norms[1](value).relu()) + x


class PreActivated(nn.Module):
    """A small SegResNet, with groups of four and of eight channels; a first layer whose answer lies far from zero."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.down = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 3, 2, 1, bias=False)
        self.high, self.last, self.low = Residual(32), Residual(32), nn.Sequential(Residual(64), Residual(64))
        self.narrow, self.head = nn.Conv2d(64, 32, 1, bias=False), nn.Conv2d(32, 2, 1)
        self.norm = group_norm(8, 32)
        assert self.first.bias is not None
        nn.init.uniform_(self.first.bias, 5.0, 9.0)

    def forward(self, batch: Tensor) -> Tensor:
        high = self.high(self.first(batch))
        low = functional.interpolate(self.narrow(self.low(self.down(high))), scale_factor=2.0)
        return self.head(self.norm(self.last(low + high)).relu())


def diffusing() -> nn.Module:
    """Group norms and SiLU between convolutions, as diffusers' UNet2DModel has; groups of 4 and of 16 channels."""
    parts = [
        part
        for inner, outer, groups in ((3, 32, 8), (32, 64, 4), (64, 32, 8))
        for part in (nn.Conv2d(inner, outer, 3, padding=1), group_norm(groups, outer), nn.SiLU())
    ]
    return nn.Sequential(*parts, nn.Conv2d(32, 4, 3, padding=1))


def between(channels: int, norm: nn.Module) -> nn.Module:
    first, second = nn.Conv2d(3, channels, 3, padding=1), nn.Conv2d(channels, 32, 3, padding=1)
    return nn.Sequential(first, norm, nn.ReLU(), second, nn.Conv2d(32, 2, 1))


def volumes() -> nn.Module:
    """Group norms of volumes, in groups of 4, 16 and 32 channels, the last up to the logits."""
    high = [nn.Conv3d(1, 32, 3, padding=1), group_norm(8, 32), nn.ReLU()]
    middle = [nn.Conv3d(32, 32, 3, padding=1), group_norm(2, 32), nn.ReLU()]
    last = [nn.Conv3d(32, 32, 3, padding=1), group_norm(1, 32), nn.ReLU()]
    return nn.Sequential(*high, *middle, *last, nn.Conv3d(32, 2, 1))


def made_of(net: nn.Module, dtype: torch.dtype = torch.float32, **scales: float) -> fx.GraphModule:
    return rewriting.lowered(rewriting.rewritten_from(lively(net), LARGER, dtype), scales=scales)


def factors(made: fx.GraphModule) -> list[int]:
    """How wide the groups are of each norm that is a factor and a shift; of an instance norm's 1."""
    nodes = made.graph.find_nodes(op="call_function", target=factor_and_shift)
    return [cast("int", node.args[-1]) for node in nodes]


class Conditioned(nn.Module):
    def __init__(self, computed: str) -> None:
        super().__init__()
        self.weight, self.bias = nn.Buffer(torch.linspace(0.5, 1.5, 32)), nn.Buffer(torch.linspace(-1, 1, 32))
        self.computed = computed

    def forward(self, x: Tensor) -> Tensor:
        added = x.mean((0, 2, 3))
        weight, bias = (
            (self.weight + added, self.bias) if self.computed == "weight" else (self.weight, self.bias + added)
        )
        return functional.group_norm(x, 8, weight, bias)


WIDTHS: dict[str, tuple[Callable[[], nn.Module], Tensor, list[int]]] = {
    "SegResNet": (PreActivated, LARGER, [4, 4, *[8] * 4, 4, 4]),
    "diffusers": (diffusing, LARGER, [4, 16, 4]),
    "volumes": (volumes, torch.randn(2, 1, 8, 16, 16), [4, 16, 32]),
    "of three channels, by torch": (lambda: between(96, group_norm(32, 96)), LARGER, []),
    "of 96, by torch": (lambda: between(96, group_norm(1, 96)), LARGER, []),
    "of six, by torch": (lambda: between(96, group_norm(16, 96)), LARGER, []),
    "without ends": (lambda: between(32, nn.GroupNorm(8, 32, affine=False)), LARGER, [4]),
    "of ones and zeros": (lambda: between(32, nn.GroupNorm(8, 32, eps=0.1)), LARGER, [4]),
    "a computed weight": (lambda: between(32, Conditioned("weight")), LARGER, [4]),
    "a computed bias": (lambda: between(32, Conditioned("bias")), LARGER, [4]),
}


@pytest.mark.parametrize("name", WIDTHS)
@torch.no_grad()
def test_group_norms_become_factors_but_for_widths_that_no_kernel_has(name: str) -> None:
    make, batch, widths = WIDTHS[name]
    net = lively(make())
    made = rewriting.lowered(rewriting.rewritten_from(net, batch))
    assert factors(made) == widths
    assert bool(made.graph.find_nodes(op="call_function", target=variance_and_mean)) == (not widths)
    assert rewriting.distance(made, batch, net(batch)) < 1e-3


@pytest.mark.parametrize(
    ("make", "ways"),
    [(PreActivated, {IN_A_PASS: 1, WHEN_READ: 7}), (diffusing, {IN_A_PASS: 3, WHEN_READ: 0})],
    ids=["SegResNet", "diffusers"],
)
@torch.no_grad()
def test_own_kernels_norm_groups(make: Callable[[], nn.Module], ways: dict[str, int], tmp_path: Path) -> None:
    net = lively(make())
    made = by_tile(made_of(net, torch.float16), NARROW)
    assert put(made, LARGER, tuner(tmp_path, WHEN_READ), within=3e-3) == ways
    assert rewriting.own_calls(made).count("normalised") == ways[IN_A_PASS]
    assert rewriting.own_calls(made).count("normed_conv3x3") == ways[WHEN_READ]
    assert rewriting.distance(made, LARGER, net(LARGER)) < 1e-2
    save(made, LARGER, tmp_path / "net")
    assert torch.equal(load(tmp_path / "net")(LARGER), made(LARGER))


@torch.no_grad()
def test_a_layer_that_adds_what_the_norm_gives_leaves_the_pass(tmp_path: Path) -> None:
    convs = [nn.Conv2d(inner, 32, 3, padding=1) for inner in (3, 32)]

    def added(batch: Tensor, first: nn.Module, second: nn.Module, norm: nn.Module, head: nn.Module) -> Tensor:
        value = norm(first(batch)).relu()
        return head(functional.relu(second(value) + value))

    net = lively(Made(added, *convs, group_norm(8, 32), nn.Conv2d(32, 2, 1)))
    made = by_tile(made_of(net, torch.float16), NARROW)
    assert put_own_norms(made, LARGER, tuner(tmp_path, WHEN_READ)) == {IN_A_PASS: 1, WHEN_READ: 0}
    assert rewriting.distance(made, LARGER, net(LARGER)) < 1e-2


@torch.no_grad()
def test_a_pass_into_fp8_is_ours_whatever_it_ends_in() -> None:
    scales = {"silu": 0.02, "silu_1": 0.02}
    made = [found.scale for found in found_passes(made_of(diffusing(), torch.float16, **scales).graph)]
    assert made[2] is None  # the last stays in fp16
    assert made[:2] == pytest.approx([0.02, 0.02])
    relu = made_of(between(32, group_norm(8, 32)), torch.float16, relu=0.02)
    (found,) = found_passes(relu.graph)
    assert put_pass(found).kwargs["group_width"] == 4
    assert found.scale == pytest.approx(0.02)


NAME = "late windows, depthwise, squeeze and excitation"


def test_no_value_of_another_than_16_channels_is_stored_in_fp8() -> None:
    net = rewriting.rewritten(NAME).net
    assert {int(value.meta["val"].shape[1]) % 16 for group in fp8_groups(net, []) for value in group} <= {0}
    narrow = [layer for layer in rewriting.layers(net).values() if layer.bias is not None and len(layer.bias) == 24]
    assert narrow
    assert not any(reads_fp8(layer) for layer in narrow)
