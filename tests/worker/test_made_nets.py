"""A net is made before anything is asked of it: what goes wrong then, or what it leaves behind, is one line."""

import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from models.unet import UNet
from pipeline.compiler.batch import batched
from pipeline.errors import ModelError
from pipeline.records.request import ModelSpec
from pipeline.worker.net_contract import copied
from pipeline.worker.reference import fp64_error, save_logits
from pipeline.worker.workload import net_of_spec


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, 2, 1)


class Quantised(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.quantize_per_tensor(torch.zeros(4), 0.1, 0, torch.qint8))


class Sparse(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.eye(4).to_sparse())


class Meta(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(4, device="meta"))


class Lazy(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.LazyConv2d(2, 1)


class Normed(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.utils.weight_norm(self.head)


def scripted() -> nn.Module:
    return torch.jit.script(Plain())


class Exits(Plain):
    def __init__(self) -> None:
        sys.exit(3)


class Doubles(Plain):
    def __init__(self) -> None:
        torch.set_default_dtype(torch.float64)
        super().__init__()


class Threads(Plain):
    def __init__(self) -> None:
        super().__init__()
        torch.set_num_threads(torch.get_num_threads() + 1)


def made(name: str) -> nn.Module:
    return net_of_spec(ModelSpec("custom", f"{__name__}.{name}", {}, None), seed=0)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Quantised", r"makes table with a sparse or quantized layout; make a network whose weights are plain tensors"),
        ("Sparse", "makes table with a sparse or quantized layout"),
        ("Meta", "makes table with no values"),
        ("Lazy", r"makes table\.weight with no values"),
        ("scripted", r"is what torch\.jit\.script or torch\.jit\.load made already; give the layer itself"),
        ("Exits", r"ends the program \(sys\.exit\(3\)\) when it is made"),
    ],
)
def test_a_net_that_cannot_be_made_is_named(name: str, said: str) -> None:
    with pytest.raises(ModelError, match=rf"^model\.target: {__name__}\.{name} {said}"):
        made(name)


@pytest.mark.parametrize(
    ("name", "said"),
    [("Doubles", r"default dtype was torch\.float32, is torch\.float64"), ("Threads", r"threads was \d+, is \d+")],
)
def test_a_net_that_changes_the_process_as_it_is_made_is_named(name: str, said: str) -> None:
    """Doubles beside fp32 would make the baseline slow, and every ratio large; the others change what was asked."""
    threads = torch.get_num_threads()
    try:
        with pytest.raises(ModelError, match=f"{name} changes the process where it is imported or made: {said}"):
            made(name)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(threads)
    assert made("Plain").get_parameter("head.weight").dtype is torch.float32


class InFp32(Plain):
    """Its input becomes fp32, which no convolution of fp64 takes."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(image.float())


def test_a_net_that_has_no_form_in_fp64_lacks_that_figure_alone(capsys: pytest.CaptureFixture[str]) -> None:
    net, image = InFp32().eval(), torch.rand(1, 3, 4, 4)
    with torch.inference_mode():
        assert fp64_error(net, batched(image), net(image), []) is None
        apart = fp64_error(net.head, batched(image), net(image), [])
    assert apart < 1e-6
    assert "no figure against fp64, in which the network fails: RuntimeError" in capsys.readouterr().err


class Itself(UNet):
    def __deepcopy__(self, memo: object) -> "Itself":
        return self


class AnotherNet(UNet):
    def __deepcopy__(self, memo: object) -> "AnotherNet":
        return AnotherNet(base=2, depth=1)


class NoNet(UNet):
    def __deepcopy__(self, memo: object) -> None:
        return None


class Locked(UNet):
    def __init__(self, base: int, depth: int) -> None:
        super().__init__(base=base, depth=depth)
        self.lock = threading.Lock()


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Locked, r"Locked can't be copied, .*: TypeError: cannot pickle '_thread\.lock' object"),
        (Itself, "Itself gives its own weights to its copy"),
        (AnotherNet, r"a copy of AnotherNet hasn't its [\w.]+ \(by its"),
        (NoNet, "NoNet gives a NoneType for its copy"),
    ],
)
def test_a_net_that_cannot_be_copied_is_named(kind: type[UNet], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        copied(kind(base=2, depth=1))


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")
def test_a_net_with_torchs_older_weight_norm_can_be_copied() -> None:
    image = torch.rand(1, 3, 4, 4)
    net = made("Normed").get_submodule("head")
    copy = copied(net)
    with torch.inference_mode():
        assert torch.equal(copy(image), net(image))


def test_answers_that_no_disk_takes_are_told_with_their_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=f"^{tmp_path}: can't be written .*Is a directory"):
        save_logits({"judged": [torch.zeros(1)]}, tmp_path)
