"""A captured graph reads its input where the caller has it, if that is proven; else it is copied, and why is said."""

import ctypes
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipeline.stages.common import graph_capture as capture_room
from pipeline.stages.common import graph_inputs as room
from pipeline.stages.common.graph_capture import Captured
from pipeline.stages.common.graph_inputs import ALIGNED, GraphInput, spare_copies
from tests.stages.driver_stub import StubDriver, StubGraph

SHAPE = (4, 64, 128)  # 128 KiB of fp32, large enough to be read where it lies
BYTES = 4 * 4 * 64 * 128


def address(part: Tensor, further: int = 0) -> bytes:
    return struct.pack("<Q", part.data_ptr() + further)


def aligned(values: Tensor) -> Tensor:
    """The same values where memory of CUDA's driver may begin."""
    room = torch.empty(values.nbytes + ALIGNED, dtype=torch.uint8)
    skipped = -room.data_ptr() % ALIGNED
    return room[skipped : skipped + values.nbytes].view(values.dtype).view(values.shape).copy_(values)


def moves(begin: int = 0, count: int = BYTES) -> Callable[[Sequence[bytes]], None]:
    """A kernel that copies from the address in its first argument, at `begin` within it, to that in its second."""

    def kernel(arguments: Sequence[bytes]) -> None:
        (source,) = struct.unpack_from("<Q", arguments[0], begin)
        (target,) = struct.unpack("<Q", arguments[1])
        ctypes.memmove(target, source, count)

    return kernel


class Net:
    """A graph and the memory that it was captured on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, driver: StubDriver | None = None) -> None:
        self.driver = driver or StubDriver()
        monkeypatch.setattr(room, "import_module", lambda _: self.driver)
        self.graph = StubGraph()
        self.fixed, self.answer = torch.randn(SHAPE), torch.zeros(SHAPE)

    def known(self) -> GraphInput:
        self.graph.instantiate()
        known = GraphInput(self.fixed)
        spare_copies(self.graph, [known], self.answer)  # type: ignore[arg-type]
        return known

    def called(self, known: GraphInput, part: Tensor) -> Tensor:
        known.give(part)
        self.graph.replay()
        return self.answer


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch) -> Net:
    torch.manual_seed(0)
    return Net(monkeypatch)


def in_place(net: Net) -> None:
    """It is read where it lies: right, and the graph's own memory is as it was."""
    before, known = net.fixed.clone(), net.known()
    assert known.copied == ""
    assert torch.equal(net.fixed, before)
    for _ in range(3):
        given = aligned(torch.randn(SHAPE))
        assert torch.equal(net.called(known, given), given)
        assert torch.equal(net.fixed, before)


def copied(net: Net, why: str) -> None:
    """It is copied, which is right, too."""
    before, known = net.fixed.clone(), net.known()
    assert known.copied == why
    assert torch.equal(net.fixed, before)
    for _ in range(2):
        given = aligned(torch.randn(SHAPE))
        kept = given.clone()
        assert torch.equal(net.called(known, given), kept)
        assert torch.equal(given, kept)


@pytest.mark.parametrize("libraries", [False, True])
def test_an_input_is_read_where_it_lies(libraries: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a kernel is a module's function or a library's."""
    net = Net(monkeypatch, StubDriver(libraries=libraries))
    net.graph.launch(lambda _: None)
    net.graph.launch(moves(), address(net.fixed), address(net.answer), b"\0" * 4)
    in_place(net)


def test_kernels_may_read_parts_of_it_and_hold_its_address_within_an_argument(net: Net) -> None:
    """As ATen's pass a structure with the addresses of all they read, which may lie within the input."""
    half = BYTES // 2
    net.graph.launch(moves(8, half), b"\1" * 8 + address(net.fixed), address(net.answer))
    net.graph.launch(moves(0, half), address(net.fixed, half), address(net.answer, half))
    in_place(net)


def test_an_input_that_lies_otherwise_is_copied(net: Net) -> None:
    """Strides, an address that the kernels weren't chosen for, and values that are the negative of the memory."""
    net.graph.launch(moves(), address(net.fixed), address(net.answer))
    known, values = net.known(), torch.randn(SHAPE)
    beside = aligned(torch.zeros(BYTES // 4 + 1))[1:].view(SHAPE).copy_(values)
    turned = aligned(values.movedim(1, 2).contiguous()).movedim(1, 2)
    negative = torch._neg_view(aligned(-values))
    for given in (beside, turned, negative, aligned(values)):
        assert torch.equal(net.called(known, given), values)
        assert torch.equal(net.fixed, values) is (given.data_ptr() != known._address)
        net.fixed.zero_()


def test_what_a_kernel_knows_otherwise_is_copied(net: Net) -> None:
    """An address that no argument has, one that only a part of the kernels is told, a net that writes to its input."""
    hidden = moves()
    net.graph.launch(lambda _: hidden([address(net.fixed), address(net.answer)]))
    copied(net, "no kernel has its address among its arguments")


def test_an_address_that_only_a_part_of_the_kernels_is_told_is_not_enough(net: Net) -> None:
    """The graph's own memory is spoilt while this is tried."""
    half, rest = BYTES // 2, moves(0, BYTES // 2)
    net.graph.launch(moves(0, half), address(net.fixed), address(net.answer))
    net.graph.launch(lambda _: rest([address(net.fixed, half), address(net.answer, half)]))
    copied(net, "the graph reads or writes it otherwise than by its address")


def test_a_net_that_writes_to_its_input_gets_a_copy(net: Net) -> None:
    """The caller's own would change."""
    ones = torch.ones(SHAPE)
    net.graph.launch(moves(), address(net.fixed), address(net.answer))
    net.graph.launch(moves(), address(ones), address(net.fixed))
    copied(net, "the graph reads or writes it otherwise than by its address")


def test_a_driver_that_refuses_leaves_the_graph_as_it_was_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it had told one kernel of two already."""
    net = Net(monkeypatch, StubDriver(refuses=1))
    half = BYTES // 2
    for begin in (0, half):
        net.graph.launch(moves(0, half), address(net.fixed, begin), address(net.answer, begin))
    copied(net, "RuntimeError: CUDA's driver answers CUDA_ERROR_INVALID_VALUE")


def test_a_driver_that_refuses_in_a_call_is_told_and_no_stale_address_is_kept(net: Net) -> None:
    """The next call tells all kernels anew."""
    half = BYTES // 2
    for begin in (0, half):
        net.graph.launch(moves(0, half), address(net.fixed, begin), address(net.answer, begin))
    known, first, second = net.known(), aligned(torch.randn(SHAPE)), aligned(torch.randn(SHAPE))
    net.called(known, first)
    net.driver.refuses = net.driver.calls + 1
    with pytest.raises(RuntimeError, match="CUDA's driver answers CUDA_ERROR_INVALID_VALUE"):
        net.called(known, second)
    net.driver.refuses = None
    assert torch.equal(net.called(known, first), first)


def test_without_bindings_of_the_driver_an_input_is_copied(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is the import's."""
    monkeypatch.setattr(room, "import_module", __import__)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    net.graph.launch(moves(), address(net.fixed), address(net.answer))
    assert net.known().copied.startswith("ModuleNotFoundError: ")


def test_small_inputs_and_whole_numbers_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index that is spoilt would be read from anywhere."""
    monkeypatch.setattr(room, "import_module", lambda _: StubDriver())
    found = [GraphInput(torch.zeros(SHAPE, dtype=torch.int64)), GraphInput(torch.zeros(8))]
    spare_copies(StubGraph(), found, torch.zeros(1))  # type: ignore[arg-type]
    assert [each.copied for each in found] == ["it is small, or holds whole numbers"] * 2


def test_it_may_be_asked_again_after_a_call(net: Net) -> None:
    """The graph reads the caller's memory then, which is nobody's by now."""
    net.graph.launch(moves(), address(net.fixed), address(net.answer))
    known, given = net.known(), aligned(torch.randn(SHAPE))
    net.called(known, given)
    given.zero_()
    spare_copies(net.graph, [known], net.answer)  # type: ignore[arg-type]
    assert known.copied == ""
    assert torch.equal(net.called(known, given), given)


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_a_net_on_a_gpu_reads_its_images_where_they_lie(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether that is faster or not, eager and compiled, with images anywhere; the graph alone reads the capture's."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 2, 3, padding=1)).cuda().eval()
    run: Any = torch.compile(net) if compiled else net
    images = [torch.randn(2, 3, 128, 160, device="cuda") for _ in range(3)]
    with torch.inference_mode():
        run(images[0])
        captured = Captured(run, images[0])
        wanted = [run(image).clone() for image in images]
        beside = torch.empty(images[2].numel() + 1, device="cuda")[1:].view_as(images[2]).copy_(images[2])
        turned = images[2].to(memory_format=torch.channels_last)
        given, right = [*images, beside, turned, images[1]], [*wanted, wanted[2], wanted[2], wanted[1]]
        for asked in (captured, captured.without_copies()):
            for image, answer in zip(given, right, strict=True):
                assert torch.equal(asked(image), answer)
        monkeypatch.setattr(capture_room, "why_copied", lambda *_: "")
        captured.without_copies()
        for image, answer in zip(given, right, strict=True):
            assert torch.equal(captured(image), answer)
        captured.graph.replay()
        torch.testing.assert_close(captured.logits, run(captured.fixed[0]), rtol=0, atol=0)
        if compiled:
            assert captured.copied == {}
