"""A rewritten net can be saved, and runs in a process that has never seen its class, by own kernels without Dynamo."""

import hashlib
import io
import json
import pickle
import re
import subprocess
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from safetensors.torch import load_file, save_file
from torch import Tensor, fx, nn
from triton.runtime.cache import get_cache_manager

from models.build import build_model
from pipeline.compiler import artifact, standalone
from pipeline.compiler.agreement import distance
from pipeline.compiler.batch import Batch
from pipeline.compiler.fp8_build import largest
from pipeline.compiler.graph.exported_net import ExportedNet, export
from pipeline.compiler.graph.fp8_values import scales
from pipeline.compiler.graph.fx_graph import channel_concatenations
from pipeline.compiler.graph.lowering import Plan, lower
from pipeline.compiler.half import Half
from pipeline.compiler.ops import tile_text
from pipeline.compiler.tuning.autotune import Tuner
from pipeline.compiler.tuning.choose import LIBRARY, MeasuredLayer, choose
from pipeline.kernels.conv3x3 import conv3x3_triton
from tests.compiler.nets import image, lively
from tests.compiler.nets_that_passes_leave import Made
from tests.compiler.rewriting import layers, lowered, own_calls, rewritten, rewritten_from
from tests.fork_server import torch_alone
from tests.input_nets import SEVERAL

ELSEWHERE = """
import sys
from pathlib import Path
import torch
from safetensors.torch import load_file, save_file
from pipeline.compiler.artifact import load
for folder in map(Path, sys.argv[1:]):
    with torch.no_grad():
        logits = load(folder)(load_file(folder / "batch")["batch"])
    save_file({"logits": logits.contiguous()}, folder / "logits")
assert not [name for name in sys.modules if name.split(".")[0] in ("models", "tests")]
"""
TILE = conv3x3_triton.Tile(8, 16, 64, 32)


def in_fp8(name: str) -> tuple[fx.GraphModule, Tensor]:
    made = rewritten(name)
    with torch.no_grad():
        return lowered(made.net, scales=scales(made.net, [], largest(made.net, [made.batch]))), made.batch


def half_by_library(name: str) -> tuple[fx.GraphModule, Tensor]:
    made = rewritten(name)
    names = list(layers(made.net))
    return lowered(made.net, tiles=dict.fromkeys(names[1::2], tile_text(TILE)), by_library=names[::2]), made.batch


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("artefact")
    graph, batch = half_by_library("one level, batch 3")
    assert [path.name for path in artifact.save(graph, batch, folder)] == [artifact.NET, artifact.ABOUT]
    return folder


def copied(written: Path, folder: Path) -> Path:
    for path in written.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def test_a_fresh_process_gives_the_same_answers(written: Path, tmp_path: Path) -> None:
    nets = {
        "library": half_by_library("one level, batch 3"),
        "odd": in_fp8("bilinear, odd size"),
        "mixed": in_fp8("group norm, SiLU, attention"),
        "read twice": in_fp8("few channels"),
    }
    (tmp_path / "library").mkdir()
    copied(written, tmp_path / "library")
    for name, (graph, batch) in nets.items():
        if name != "library":
            artifact.save(graph, batch, tmp_path / name)
        save_file({"batch": batch}, tmp_path / name / "batch")
    folders = [str(tmp_path / name) for name in nets]
    with torch_alone():
        subprocess.run([sys.executable, "-c", ELSEWHERE, *folders], check=True)
    for name, (graph, batch) in nets.items():
        with torch.no_grad():
            assert torch.equal(load_file(tmp_path / name / "logits")["logits"], graph(batch)), name


def test_tiles_survive(written: Path) -> None:
    loaded = artifact.load(written)
    ours = [node for node in loaded.graph.nodes if str(node.target).startswith("unet_ladder.")]
    arguments = [[*node.args, *node.kwargs.values()] for node in ours]
    assert arguments
    assert all(tile_text(TILE) in given for given in arguments)


def test_an_input_that_the_net_would_answer_wrongly_is_refused_in_one_line(written: Path) -> None:
    """A batch of whole numbers hasn't been normalised, and gradients would end at the first kernel."""
    net, batch = artifact.load(written), rewritten("one level, batch 3").batch
    shape = list(batch.shape)
    for other, message in (
        (batch[:2], f"input 0 is {[2, *shape[1:]]} float32, and this network was saved for {shape} float32"),
        (torch.zeros(1, 3, 8, 8), f"input 0 is [1, 3, 8, 8] float32, and this network was saved for {shape} float32"),
        (batch.half(), f"input 0 is {shape} float16, and this network was saved for {shape} float32"),
        (batch.to(torch.uint8), f"input 0 is {shape} uint8, and this network was saved for {shape} float32"),
        (batch.clone().requires_grad_(), "this network's kernels give no gradients"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)) as caught:
            net(other)
        assert "\n" not in str(caught.value)


@torch.no_grad()
def test_a_batch_in_another_layout_gets_the_same_answer(written: Path) -> None:
    net, batch = artifact.load(written), rewritten("one level, batch 3").batch
    wanted = net(batch)
    wide = torch.cat([batch, batch], -1)[..., : batch.shape[-1]]
    for other in (batch.contiguous(memory_format=torch.channels_last), wide):
        torch.testing.assert_close(net(other), wanted, rtol=1e-6, atol=1e-6)


def with_net(folder: Path, content: bytes, *, described: bool = False) -> None:
    """Put another net into the folder, told in about.json or not."""
    (folder / artifact.NET).write_bytes(content)
    if described:
        described_as(folder, net_sha256=hashlib.sha256(content).hexdigest())


def described_as(folder: Path, **changed: object) -> None:
    about = json.loads((folder / artifact.ABOUT).read_text())
    (folder / artifact.ABOUT).write_text(json.dumps(about | changed))


WHOLE = f'{{"format": {artifact.FORMAT}'
OTHER = f"{artifact.NET} isn't the one that {artifact.ABOUT} was written with"
REFUSED: list[tuple[Callable[[Path], object], str]] = [
    (lambda folder: (folder / artifact.NET).unlink(), "no rewritten network"),
    (lambda folder: (folder / artifact.ABOUT).unlink(), "no rewritten network"),
    *((partial(described_as, format=other), f"format {other}, this version reads") for other in (1, 99, None)),
    (lambda folder: with_net(folder, (folder / artifact.NET).read_bytes()[:5000]), OTHER),
    (lambda folder: with_net(folder, (folder / artifact.NET).read_bytes()[:-1] + b"x"), OTHER),
    *((partial(with_net, content=content, described=True), "no whole archive") for content in (b"", b"PK", bytes(999))),
    (lambda folder: (folder / artifact.ABOUT).write_text(""), "no rewritten network"),
    (lambda folder: (folder / artifact.ABOUT).write_text("[]"), "format None"),
    (lambda folder: (folder / artifact.ABOUT).write_text(f"{WHOLE}}}"), OTHER),
    (lambda folder: (folder / artifact.ABOUT).write_text(f'{WHOLE}, "net_sha256"'), "no rewritten network"),
    (partial(described_as, batch=None), "doesn't say what the network takes"),
    (partial(described_as, others=[{"shape": [1]}]), "doesn't say what the network takes"),
]


@pytest.mark.parametrize(("spoil", "said"), REFUSED)
def test_a_spoilt_folder_is_one_line(spoil: Callable[[Path], object], said: str, written: Path, tmp_path: Path) -> None:
    spoil(copied(written, tmp_path))
    with pytest.raises(artifact.ArtefactError, match=said) as caught:
        artifact.load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
def test_what_a_net_does_in_place_is_saved_as_what_is_not() -> None:
    """What most libraries' nets hold: activations in place, and a sum that is written over."""

    def call(batch: Tensor, layers: nn.Module) -> Tensor:
        values = layers(batch)
        values += 1.0
        return nn.functional.leaky_relu_(values)

    layers = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.ReLU(inplace=True), nn.SiLU(inplace=True))
    net, batch = Made(call, layers).eval(), torch.randn(1, 1, 4, 4)
    program = torch.export.load(artifact.checked_archive(artifact.archive_of(net, batch)))
    with torch.no_grad():
        torch.testing.assert_close(program.module()(batch), net(batch))


@torch.no_grad()
def test_a_net_whose_parts_have_odd_names_is_saved_and_loaded(tmp_path: Path) -> None:
    parts = {"slice(1, 4, None)": nn.Conv2d(3, 16, 3, padding=1), "norm-1": nn.BatchNorm2d(16), 'a "b"\n': nn.ReLU()}
    parts |= {"größe = 1": nn.Conv2d(16, 2, 1), "尺寸": nn.Conv2d(2, 2, 1)}
    net, batch = lively(nn.Sequential(OrderedDict(parts))), image(1, 3, 32, 32)
    made = rewritten_from(net, batch, torch.float32)
    assert list(layers(made))
    artifact.save(graph := lower(made, Plan()), batch, tmp_path)
    assert torch.equal(artifact.load(tmp_path)(batch), graph(batch))
    plain = artifact.checked_archive(artifact.archive_of(net, batch))
    assert torch.equal(torch.export.load(plain).module()(batch), net(batch))


Members = dict[str, bytes]


def members_of(path: Path) -> Members:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(members: Members, compression: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


class Bomb:
    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.canary,)


def test_no_pickle_is_read(written: Path, tmp_path: Path) -> None:
    """Neither as an example of the inputs, which torch unpickles, nor as a weight."""
    canary, members = tmp_path / "canary", members_of(written / artifact.NET)
    example = next(name for name in members if name.endswith(artifact.INPUTS))
    members[example] = pickle.dumps(Bomb(canary), protocol=2)
    torch.export.load(artifact.checked_archive(packed(members)))
    config = next(name for name in members if name.endswith(artifact.CONFIGS[0]))
    members[config] = members[config].replace(b'"use_pickle": false', b'"use_pickle": true')
    with pytest.raises(artifact.ArchiveError, match="pickled weight, which could run code"):
        artifact.checked_archive(packed(members))
    assert not canary.exists()


def test_archives_that_inflate_are_refused(written: Path) -> None:
    members = members_of(written / artifact.NET)
    with pytest.raises(artifact.ArchiveError, match="compressed"):
        artifact.checked_archive(packed({**members, "net/data/weights/weight_9": bytes(10**7)}, zipfile.ZIP_DEFLATED))
    whole = bytearray(packed(members))
    central = whole.rindex(b"PK\x01\x02")
    whole[central + 20 : central + 28] = (2**31).to_bytes(4, "little") * 2
    with pytest.raises(artifact.ArchiveError, match="more than the file's"):
        artifact.checked_archive(bytes(whole))


KERNELS = {  # that take their layers, in the order of the graph
    "conditioned": ["conv_first", "conv_head"],
    "two images": ["conv_first", "conv_first", "conv3x3", "upsampled_conv3x3", "conv_head"],
    "masked": ["conv_first", "conv3x3"],
}


@cache
def made(name: str, dtype: torch.dtype) -> tuple[nn.Module, Batch, ExportedNet]:
    make, drawn = SEVERAL[name]
    torch.manual_seed(0)
    net, inputs = lively(make()), drawn()
    return net, inputs, rewritten_from(net, inputs, dtype)


def others(name: str) -> Batch:
    torch.manual_seed(1)
    return SEVERAL[name][1]()


@pytest.mark.parametrize("name", SEVERAL)
@torch.no_grad()
def test_passes_and_kernels_keep_the_answer(name: str) -> None:
    """In fp32, of other inputs than those of the export; the first layer's weights are fp16 in its kernel."""
    net, _, exported = made(name, torch.float32)
    given = others(name)
    assert distance(exported.module(*given), net(*given)) < 1e-5
    graph = lower(exported, Plan())
    assert own_calls(graph) == KERNELS[name]
    assert distance(graph(*given), net(*given)) < 2e-3


@pytest.mark.parametrize("name", SEVERAL)
@torch.no_grad()
def test_in_half_precision_each_input_is_as_the_half_net_has_it(name: str) -> None:
    """Images and states become fp16; whole numbers, time steps and booleans stay."""
    net, _, exported = made(name, torch.float16)
    given = others(name)
    assert distance(lower(exported, Plan())(*given), Half(net, torch.float16).eval()(*given).float()) < 5e-3


@torch.no_grad()
def test_whole_numbers_are_joined_as_whole_numbers() -> None:

    def joined(image: Tensor, low: Tensor, high: Tensor, conv: nn.Module) -> Tensor:
        return conv(image) * (torch.cat([low, high], 1) % 1000).to(image.dtype)

    net, numbers = Made(joined, nn.Conv2d(3, 16, 3, padding=1)).eval(), torch.randint(2**40, (2, 2, 16, 8, 8))
    given = Batch((torch.rand(2, 3, 8, 8), numbers[0, :, :8], numbers[1, :, 8:]), ("image", "low", "high"))
    exported = rewritten_from(net, given)
    assert channel_concatenations(exported.module.graph) == []
    assert distance(lower(exported, Plan())(*given), net(*given)) < 2e-3


@torch.no_grad()
def test_a_first_input_of_whole_numbers_stays() -> None:
    net = nn.Sequential(nn.Embedding(5000, 16), nn.Flatten(1)).eval()
    given = torch.randint(2049, 5000, (2, 1, 8, 8))
    exported = export(net, given, torch.float16)
    assert distance(exported.module(given), net(given)) < 1e-3


def by_call(call: Callable[[], None]) -> float:
    call()
    return 1.0


@pytest.mark.parametrize("name", SEVERAL)
@torch.no_grad()
def test_each_layer_is_measured_on_all_inputs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MeasuredLayer, "candidates", lambda _: iter([LIBRARY]))
    net, inputs, exported = made(name, torch.float32)
    said: list[str] = []
    plan = choose(exported, {}, inputs, Tuner(tmp_path, by_call), said.append)
    assert list(plan.by_library) == list(layers(exported))
    assert len(said) == len(KERNELS[name])
    assert distance(lower(exported, plan)(*inputs), net(*inputs)) < 2e-3


ALONE = """
import sys
from pathlib import Path
import torch
from pipeline.compiler.standalone import load
folder = Path(sys.argv[1])
batch = torch.linspace(-1, 1, 384).reshape(2, 3, 8, 8)
with torch.inference_mode():
    torch.save(load(folder, batch)(batch), folder / "answer")
assert not {"torch._dynamo", "torch._inductor", "sympy"} & sys.modules.keys()
"""


def test_own_kernels_alone_need_no_dynamo(tmp_path: Path) -> None:
    batch = torch.linspace(-1, 1, 384).reshape(2, 3, 8, 8)
    net = build_model("models.unet.UNet", {"base": 16, "depth": 1}, None, 1)
    artifact.save(lowered(rewritten_from(net, batch)), batch, tmp_path)
    read = artifact.load(tmp_path)
    assert standalone.write(read, tmp_path)
    subprocess.run([sys.executable, "-c", ALONE, str(tmp_path)], check=True)
    with torch.inference_mode():
        torch.testing.assert_close(torch.load(tmp_path / "answer"), read(batch), rtol=0, atol=0)


def test_a_network_that_launches_more_stays_an_archive(tmp_path: Path) -> None:
    batch = torch.rand(2, 3, 8, 8)
    artifact.save(torch.nn.Softplus(), batch, tmp_path)
    assert not standalone.write(artifact.load(tmp_path), tmp_path)
    torch.testing.assert_close(standalone.load(tmp_path, batch)(batch), torch.nn.Softplus()(batch))


def test_carried_programs_come_before_the_cache_which_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "first" / "triton"))
    for key in ("aa", "bb"):
        cache = get_cache_manager(key)
        group = {f"k.{kind}": cache.put(b"{}", f"k.{kind}") for kind in ("json", "cubin", "ttir")}
        cache.put_group("k.json", group)
    standalone.carry_compiled(tmp_path / "first", tmp_path / "net")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "second"))
    monkeypatch.setattr(standalone.Carried, "folders", [])
    monkeypatch.setitem(vars(triton.knobs.cache), "manager_class", standalone.Carried)
    standalone.Carried.take(tmp_path / "net" / standalone.PROGRAMS)
    found = get_cache_manager("aa").get_group("k.json")
    assert found is not None
    assert sorted(found) == ["k.cubin", "k.json"]
    assert not (tmp_path / "second").exists()
    other = get_cache_manager("cc")
    assert other.get_group("k.json") is None
    assert Path(other.put(b"a file", "other.so")).parent.parent == tmp_path / "second"
