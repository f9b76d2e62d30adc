"""A captured graph reads its input where the caller has it, if that is proven; else it is copied, and why is said."""

import pytest
import torch
from torch import Tensor

from pipeline.stages.common import graph_inputs as room
from pipeline.stages.common.graph_inputs import GraphInput, prove_inputs
from tests.stages.driver_stub import BYTES, SHAPE, Status, StubDriver, StubGraph, address, aligned, moves


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
        prove_inputs(self.graph, [known], self.answer)  # type: ignore[arg-type]
        known.in_place = known.proven
        return known

    def called(self, known: GraphInput, part: Tensor) -> Tensor:
        known.give(part)
        self.graph.replay()
        return self.answer


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch) -> Net:
    torch.manual_seed(0)
    return Net(monkeypatch)


def assert_in_place(net: Net) -> None:
    """It is read where it lies: right, and the graph's own memory is as it was."""
    before, known = net.fixed.clone(), net.known()
    assert known.proven
    assert torch.equal(net.fixed, before)
    for _ in range(3):
        given = aligned(torch.randn(SHAPE))
        assert torch.equal(net.called(known, given), given)
        assert torch.equal(net.fixed, before)


def assert_copied(net: Net, why: str) -> None:
    """It is copied, which is right, too."""
    before, known = net.fixed.clone(), net.known()
    assert (known.proven, known.copied) == (False, why)
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
    assert_in_place(net)


def test_kernels_may_read_parts_of_it_and_hold_its_address_within_an_argument(net: Net) -> None:
    """As ATen's pass a structure with the addresses of all they read, which may lie within the input."""
    half = BYTES // 2
    net.graph.launch(moves(8, half), b"\1" * 8 + address(net.fixed), address(net.answer))
    net.graph.launch(moves(0, half), address(net.fixed, half), address(net.answer, half))
    assert_in_place(net)


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
    """No argument has the address, such as where a kernel reads it from memory."""
    hidden = moves()
    net.graph.launch(lambda _: hidden([address(net.fixed), address(net.answer)]))
    assert_copied(net, "no kernel has its address among its arguments")


def test_an_address_that_only_a_part_of_the_kernels_is_told_is_not_enough(net: Net) -> None:
    """The graph's own memory holds other values while this is tried."""
    half, rest = BYTES // 2, moves(0, BYTES // 2)
    net.graph.launch(moves(0, half), address(net.fixed), address(net.answer))
    net.graph.launch(lambda _: rest([address(net.fixed, half), address(net.answer, half)]))
    assert_copied(net, "the graph reads or writes it otherwise than by its address")


def test_a_net_that_writes_to_its_input_gets_a_copy(net: Net) -> None:
    """The caller's own would change."""
    ones = torch.ones(SHAPE)
    net.graph.launch(moves(), address(net.fixed), address(net.answer))
    net.graph.launch(moves(), address(ones), address(net.fixed))
    assert_copied(net, "the graph reads or writes it otherwise than by its address")


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


def test_small_inputs_and_whole_numbers_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the first takes no longer than its launch; the order of indices, or of steps, may mean something."""
    monkeypatch.setattr(room, "import_module", lambda _: StubDriver())
    found = [GraphInput(torch.zeros(SHAPE, dtype=torch.int64)), GraphInput(torch.zeros(8))]
    prove_inputs(StubGraph(), found, torch.zeros(1))  # type: ignore[arg-type]
    assert [each.copied for each in found] == ["it is small, or holds whole numbers"] * 2


def test_it_may_be_asked_again_after_a_call(net: Net) -> None:
    """The graph reads the caller's memory then, which is nobody's by now."""
    net.graph.launch(moves(), address(net.fixed), address(net.answer))
    known, given = net.known(), aligned(torch.randn(SHAPE))
    net.called(known, given)
    given.zero_()
    prove_inputs(net.graph, [known], net.answer)  # type: ignore[arg-type]
    assert known.proven
    assert torch.equal(net.called(known, given), given)


def test_an_answer_that_is_given_back_is_copied_first(net: Net) -> None:
    """As in `run(run(x))`: the graph writes where it would read."""
    net.answer = aligned(net.answer)
    net.graph.launch(moves(), address(net.fixed), address(net.answer))
    known, given = net.known(), aligned(torch.randn(SHAPE))
    again = net.called(known, net.called(known, given))
    assert torch.equal(again, given)
    assert torch.equal(net.fixed, given)


def test_an_answer_that_shows_nothing_of_the_input_proves_nothing(net: Net) -> None:
    """Such as one that is no number for any input."""
    hidden, nothing = moves(), torch.full(SHAPE, float("nan"))
    net.graph.launch(lambda _: hidden([address(nothing), address(net.answer)]))
    net.graph.launch(lambda _: None, address(net.fixed))
    assert not net.known().proven
    assert net.known().copied == "other values of it give the same answer"


def test_a_kernel_whose_arguments_the_driver_won_t_tell_is_an_error(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of its arguments that ends too soon would be read beyond its end."""
    net.graph.launch(moves(), address(net.fixed), address(net.answer))
    monkeypatch.setattr(net.driver, "cuFuncGetParamInfo", lambda *_: (Status.CUDA_ERROR_NOT_SUPPORTED, 0, 0))
    with pytest.raises(RuntimeError, match="CUDA's driver answers CUDA_ERROR_NOT_SUPPORTED"):
        net.known()
