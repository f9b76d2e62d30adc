"""Networks made of a dotted name, the part of their answer that is taken, and the project's own."""

import copy
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from models.bottleneck_nets import LargeChannels, ManyTinyLayers, WidePointwise
from models.build import build_model
from models.checkpoint import LOADED, Loaded
from models.model_output import with_output
from models.unet import UNet, Upsampling
from pipeline.config.model_request import read_model
from pipeline.config.request_error import RequestError
from pipeline.errors import CheckpointError, ModelError
from pipeline.profiling.layers import layer_work
from pipeline.profiling.operators import counted

MINE = """
from dataclasses import dataclass, field
from torch import nn
from models.unet import UNet

def net(norm, width: int = 4): return nn.Sequential(nn.Conv2d(3, width, 1), norm(width))
def variant_of(variant, width):
    '''Make a network.

    Args:
        variant (str): the size ('S' or 'L').
    '''
@dataclass
class Inner: kernel: int = 1
@dataclass
class Settings:
    width: int = 4
    inner: Inner = field(default_factory=Inner)
def of_settings(settings: Settings): return nn.Conv2d(3, settings.width, settings.inner.kernel)
def of_namespace(config): return nn.Conv2d(3, config.width, 1)
made = nn.Conv2d(3, 2, 1)
def number(): return 5
def refuses(): raise ValueError("no GPU")
def nothing(): return None
class Thing: ...
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "my_factory.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "my_factory"
    sys.modules.pop("my_factory", None)


def test_a_function_of_the_users_own_makes_the_net(mine: str) -> None:
    """Its options are checked before anything is imported; a class is an option's value."""
    norm = {"_class_": "torch.nn.InstanceNorm2d"}
    asked = {"name": "custom", "target": f"{mine}.net", "options": {"norm": norm, "width": 8}, "checkpoint": None}
    model = read_model(asked)
    assert mine not in sys.modules
    net: Any = build_model(model.target, model.options, None, 0)
    assert isinstance(net[1], nn.InstanceNorm2d)
    assert net[0].out_channels == 8
    for options, said in (({"norm": norm, "widht": 8}, "did you mean 'width'"), ({}, "add '+model.options.norm=…'")):
        with pytest.raises(RequestError, match=re.escape(said)):
            read_model({**asked, "options": options})
    words = "add '+model.options.variant=S' '+model.options.width=…'; variant: the size ('S' or 'L')"
    with pytest.raises(RequestError, match=re.escape(words)):
        read_model({**asked, "target": f"{mine}.variant_of", "options": {}})


READS = """
import torch, numpy
from safetensors import safe_open
from torch import nn

def drawn(): return nn.Conv2d(3, 2, 1)
def seeded(): return torch.manual_seed(0) and nn.Conv2d(3, 2, 1)
def loaded(): return filled(drawn(), torch.load("net.pt"))
def opened():
    with safe_open("net.safetensors", "pt") as file:
        return filled(drawn(), {name: file.get_tensor(name) for name in file.keys()})
def arrays(): return filled(drawn(), {name: torch.from_numpy(part) for name, part in numpy.load("net.npz").items()})
def half(): return nn.Sequential(loaded(), drawn())
def filled(net, state): return net.load_state_dict(state) and net
"""


@pytest.mark.parametrize(
    ("name", "trained"),
    [("drawn", False), ("seeded", False), ("loaded", True), ("opened", True), ("arrays", True), ("half", False)],
)
def test_a_network_whose_code_reads_all_its_weights_is_trained(
    name: str, trained: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = nn.Conv2d(3, 2, 1).state_dict()
    torch.save(state, tmp_path / "net.pt")
    save_file(state, tmp_path / "net.safetensors")
    np.savez(tmp_path / "net.npz", **{key: part.numpy() for key, part in state.items()})
    (tmp_path / "my_reader.py").write_text(READS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_reader", raising=False)
    model = build_model(f"my_reader.{name}", {}, None, 0)
    assert LOADED.get(model, Loaded()).itself is trained


class FromFolder(nn.Conv2d):
    """A class of a library that reads the folder which its save_pretrained wrote."""

    def __init__(self, out: int = 2) -> None:
        super().__init__(3, out, 1)

    @classmethod
    def from_pretrained(cls, folder: str) -> "FromFolder":
        return cls(json.loads(Path(folder, "config.json").read_text())["out"])


def test_a_library_s_class_makes_the_network_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"out": 4}')
    wanted = FromFolder(4)
    save_file(wanted.state_dict(), tmp_path / "model.safetensors")
    made = build_model("tests.models.test_build.FromFolder", {}, str(tmp_path), 0)
    assert torch.equal(made.get_parameter("weight"), wanted.weight)
    save_file({"weight": wanted.weight}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="1 of 2 missing, first bias"):
        build_model("tests.models.test_build.FromFolder", {}, str(tmp_path), 0)


def test_an_option_becomes_the_dataclass_that_the_network_takes(mine: str) -> None:
    options = {"settings": {"width": 8, "inner": {"kernel": 3}}}
    assert build_model(f"{mine}.of_settings", options, None, 0).get_parameter("weight").shape == (8, 3, 3, 3)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("number", {}, "returns int, no"),
        ("refuses", {}, "no GPU; it takes no options"),
        ("nothing", {}, "returns NoneType"),
        ("Thing", {}, "no class of a network"),
        ("made", {}, "a network that is made already; name its class"),
        ("of_settings", {"settings": {"widht": 8}}, "unexpected keyword argument 'widht'"),
        ("of_namespace", {"config": {"width": 8}}, "no attribute 'width'; name a function of yours that makes the obj"),
    ],
)
def test_a_function_that_makes_no_net_is_refused(mine: str, name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        build_model(f"{mine}.{name}", options, None, 0)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import parts", r"No module named 'parts'\); it lies in research/nets/: add that to PYTHONPATH"),
        ("raise KeyError('a')", r"can't be imported \(KeyError: 'a'\)"),
        ("import sys; sys.exit(2)", r"ends the program \(sys\.exit\(2\)\) when it is imported"),
    ],
)
def test_a_broken_module_is_one_line(source: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In folders without an __init__.py, whose options are none that the source shows."""
    folder = tmp_path / "research" / "nets"
    folder.mkdir(parents=True)
    (folder / "parts.py").touch()
    (folder / "mine.py").write_text(f"{source}\ndef net(width): ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RequestError, match=r"research\.nets\.mine\.net needs it"):
        read_model({"name": "custom", "target": "research.nets.mine.net", "options": {}, "checkpoint": None})
    with pytest.raises(ModelError, match=said):
        build_model("research.nets.mine.net", {"width": 4}, None, 0)


@pytest.mark.parametrize("target", ["os.system", "Conv2d", "torch.nn.functional.relu", None, 5])
def test_what_is_no_layer_is_no_option_s_value(target: Any) -> None:
    for value in ({"_class_": target}, {"_class_": "torch.nn.ReLU", "eps": 1}):
        with pytest.raises(ModelError, match="no class of a layer"):
            build_model("models.unet.UNet", {"layers": [{"inner": value}]}, None, 0)


@pytest.mark.parametrize(
    ("target", "options", "said"),
    [
        ("os.system", {}, "no class of a network"),
        ("UNet", {}, "no class of a network"),
        ("..unet.UNet", {}, "no class of a network"),
        ("no_such_package.Net", {}, "can't be imported .*; install it, or start in the folder"),
        ("models.unet.Unet", {}, "did you mean UNet"),
        ("torch.Linear", {}, r"did you mean torch\.nn\.Linear\?"),
        ("models.unet.UNet", {"bases": 4}, "it takes in_channels, classes, base"),
        ("models.unet.UNet", {"base": 0}, "classes=2 base=0 depth=4: each is at least 1"),
        ("torch.nn.GroupNorm", {"num_groups": 0, "num_channels": 4}, r"torch\.nn\.GroupNorm fails with them: Zero"),
        ("models.unet.UNet", {"norm": {"_class_": "torch.nn.InstanceNorm"}}, "did you mean InstanceNorm"),
        ("models.unet.UNet", {"norm": {"_class_": "torch.nn.nn.Conv"}}, "can't be imported"),
    ],
)
def test_a_target_that_is_no_net_is_refused(target: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        build_model(target, options, None, 0)


def test_random_weights_follow_the_seed() -> None:
    first, again, other = (build_model("models.unet.UNet", {"base": 4}, None, seed) for seed in (0, 0, 1))
    weight = "head.weight"
    assert torch.equal(first.get_parameter(weight), again.get_parameter(weight))
    assert not torch.equal(first.get_parameter(weight), other.get_parameter(weight))


class Pair(NamedTuple):
    logits: Tensor
    features: Tensor


@dataclass
class Sample:
    sample: Tensor
    steps: int = 1


ANSWERS: dict[str, Callable[[Tensor], object]] = {
    "tuple": lambda logits: (logits, logits.mean()),
    "list": lambda logits: [logits, logits[..., ::2, ::2]],
    "dict": lambda logits: {"out": logits, "aux": logits + 1},
    "named": lambda logits: Pair(logits, logits),
    "dataclass": Sample,
    "nested": lambda logits: ({"out": [logits]},),
    "tensor": lambda logits: logits,
    "coarse": lambda logits: {
        "logits": logits
    },  # of a quarter of the image's size, as transformers' SegFormer has them
}


class Answers(nn.Module):
    def __init__(self, kind: str, head: nn.Module | None = None) -> None:
        super().__init__()
        self.kind, self.head = kind, head or nn.Conv2d(3, 2, 1)

    def forward(self, sample: Tensor, steps: int = 1) -> Any:
        return ANSWERS[self.kind](self.head(sample))


IMAGE = torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)
PARTS = [("tuple", 0), ("tuple", "0"), ("list", 0), ("dict", "out"), ("named", "logits"), ("named", 0)]
PARTS += [("dataclass", "sample"), ("nested", "0.out.0")]


@pytest.mark.parametrize(("kind", "output"), PARTS)
def test_a_part_of_the_answer_is_taken(kind: str, output: int | str) -> None:
    net = Answers(kind).eval()
    names, expected = list(net.state_dict()), net.head(IMAGE)
    adapted = with_output(net, output)
    assert torch.equal(adapted(IMAGE), expected)
    assert torch.equal(copy.deepcopy(adapted)(IMAGE), expected)
    assert (type(adapted).__name__, list(adapted.state_dict())) == ("Answers", names)


def test_every_way_of_compiling_sees_the_adapted_answer() -> None:
    net = with_output(Answers("dict").eval(), "out")
    exported = torch.export.export(net, (IMAGE,), strict=False)
    assert torch.equal(exported.module()(IMAGE), net(IMAGE))
    assert exported.graph_signature.user_inputs == ("sample",)
    traced = torch.jit.trace(net, (IMAGE,), check_trace=False)
    assert torch.equal(traced(IMAGE), net(IMAGE))
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    assert torch.equal(compiled(IMAGE), net(IMAGE))


@pytest.mark.parametrize(
    ("kind", "output", "said"),
    [
        ("dict", "ot", "model.output=ot: no such part of Answers's dict of 2 (out, aux); did you mean 'out'?"),
        ("tuple", 2, "model.output=2: no such part of Answers's tuple of 2 (0, 1); choose one of: 0, 1"),
        ("tensor", 0, "Answers answers with a tensor without parts; leave it out"),
        ("dict", "out.0", "answers with a tensor without parts"),
        ("nested", 0, "a dict of 1 (out); name a tensor in it: model.output=0.out.0"),
    ],
)
def test_a_part_that_is_not_there_is_one_line(kind: str, output: int | str, said: str) -> None:
    with pytest.raises(ModelError, match=re.escape(said)):
        with_output(Answers(kind), output)(IMAGE)


@pytest.mark.parametrize(("mode", "space"), [("bilinear", (16, 24)), ("nearest", (16, 24)), ("bilinear", (8, 16, 12))])
def test_logits_of_a_lower_resolution_are_brought_to_the_image_s_size(mode: str, space: tuple[int, ...]) -> None:
    coarse = (nn.Conv2d if len(space) == 2 else nn.Conv3d)(3, 2, 4, stride=4)
    net, image = Answers("coarse", coarse).eval(), torch.rand(2, 3, *space)
    few = net(image)["logits"]
    smooth = {"mode": "bilinear" if len(space) == 2 else "trilinear", "align_corners": False}
    wanted = nn.functional.interpolate(few, space, **(smooth if mode == "bilinear" else {"mode": mode}))
    adapted = with_output(net, "logits", mode)
    assert torch.equal(adapted(image), wanted)
    assert torch.equal(torch.export.export(copy.deepcopy(adapted), (image,)).module()(image), wanted)


@pytest.mark.parametrize(("upsampling", "parameters"), [("transposed", 31_037_698), ("aligned", 17_263_042)])
def test_the_classic_net_and_its_copied_form_have_the_published_sizes(upsampling: Upsampling, parameters: int) -> None:
    """64-128-256-512-1024 channels; bilinear with align_corners=True halves the lowest."""
    assert sum(part.numel() for part in UNet(upsampling=upsampling).parameters()) == parameters


@pytest.mark.parametrize("upsampling", ["transposed", "bilinear", "aligned"])
@pytest.mark.parametrize("size", [(32, 32), (33, 47), (1, 1), (64, 16)])
def test_logits_have_the_image_s_size(upsampling: Upsampling, size: tuple[int, int]) -> None:
    net = UNet(base=4, classes=3, upsampling=upsampling).eval()
    with torch.no_grad():
        assert net(torch.rand(2, 3, *size)).shape == (2, 3, *size)


def test_an_odd_size_without_padding_and_a_net_that_no_machine_holds_are_refused() -> None:
    with pytest.raises(ValueError, match="33×48 is no multiple of 16; set pad=true"):
        UNet(base=4, pad=False)(torch.rand(1, 3, 33, 48))
    with pytest.raises(ValueError, match=r"^base=64 depth=40: a lowest level of .* channels; 16384 at most$"):
        UNet(depth=40)


@pytest.mark.parametrize(
    ("net", "size", "least", "most"),
    [(ManyTinyLayers(), 33, 0, 4), (WidePointwise(), 64, 0, 2), (LargeChannels(2, 512), 256, 100, 1e4)],
)
def test_bottleneck_nets_compute_little_or_much_per_byte(net: nn.Module, size: int, least: float, most: float) -> None:
    image = torch.randn(1, 3, size, size)
    layers = layer_work(net.eval(), image)
    assert least < sum(part.flops for part in layers) / counted(net, image) < most
    assert len(layers) > 40 or not isinstance(net, ManyTinyLayers)
    with torch.inference_mode():
        assert net(image).shape == (1, 2, size, size)
