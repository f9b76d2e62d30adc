"""Inputs that a captured CUDA graph reads where the caller has them, in place of a copy into memory of its own.

A graph knows its inputs by address. Copying eight images of 512×512 to that address takes 13.5 µs on an H200, where
smp's Unet takes 0.97 ms in all (docs/h200/nets/smp). The kernels that read the input can be told another: the driver
changes the arguments of a kernel of an instantiated graph for the launches that follow
(cuGraphExecKernelNodeSetParams of CUDA's driver API). Which arguments these are, nobody says; so it is proven on the
graph itself, with other values in its own memory, and an input for which that fails is copied as ever.
"""

import ctypes
import itertools
import threading
from collections.abc import Iterator, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, Protocol, SupportsInt

import torch
from torch import Tensor

from pipeline.devices.kinds import is_cuda

ALIGNED = 256  # bytes; what a kernel was chosen or compiled for may need an address that divides as the driver's do
LEAST_BYTES = 2**16  # of an input: a copy of less takes the GPU no longer than its launch
NOWHERE = 0
SUCCESS, BEHIND_THE_LAST = 0, 1  # the driver's CUDA_SUCCESS, and its CUDA_ERROR_INVALID_VALUE for an argument's number
UNTRIED = "nobody asked for more"
BOUND = threading.local()  # whether a thread has the context that the driver works in
WORD = 8  # bytes of an address, which lies in a kernel's arguments at a multiple of it


class Launch(Protocol):
    """What a kernel is launched with: a module's function or a library's kernel, and where its arguments are."""

    func: SupportsInt
    kern: SupportsInt
    kernelParams: SupportsInt  # noqa: N815 - the driver's name


class KernelNode:
    """A kernel of a graph, with a copy of its arguments that may be changed.

    Attributes:
        arguments: the bytes of each.
    """

    def __init__(self, driver: ModuleType, executable: object, node: object) -> None:
        self._driver, self._executable, self._node = driver, executable, node
        self._launch: Launch = done(driver.cuGraphKernelNodeGetParams(node))
        sizes = list(argument_sizes(driver, self._launch)) if int(self._launch.kernelParams) else []
        given = (ctypes.c_void_p * len(sizes)).from_address(int(self._launch.kernelParams)) if sizes else ()
        parts = zip(given, sizes, strict=True)
        self.arguments = [ctypes.create_string_buffer(ctypes.string_at(at, size), size) for at, size in parts]
        self._pointers = (ctypes.c_void_p * len(sizes))(*map(ctypes.addressof, self.arguments))
        if sizes:
            self._launch.kernelParams = ctypes.addressof(self._pointers)

    def tell(self) -> None:
        """Have the instantiated graph launch it with the copy's arguments, as they are now.

        Raises:
            RuntimeError: the driver refuses.
        """
        done(self._driver.cuGraphExecKernelNodeSetParams(self._executable, self._node, self._launch))

    def words_within(self, begin: int, end: int) -> list[tuple[ctypes.c_uint64, int]]:
        """The words of its arguments that are an address of [begin, end), each with its distance from the begin."""
        places = [(part, at) for part in self.arguments for at in range(0, len(part) - WORD + 1, WORD)]
        words = [ctypes.c_uint64.from_buffer(part, at) for part, at in places]
        return [(word, word.value - begin) for word in words if begin <= word.value < end]


def done(answer: Sequence[object]) -> Any:
    """What a call of the driver gives beside its status: one thing, or a list.

    Raises:
        RuntimeError: the status is another than success.
    """
    status, *rest = answer
    if status != SUCCESS:
        raise RuntimeError(f"CUDA's driver answers {getattr(status, 'name', status)}")
    return rest[0] if len(rest) == 1 else rest


def argument_sizes(driver: ModuleType, launch: Launch) -> Iterator[int]:
    """The bytes of each argument of a kernel, which may be a module's function or a library's kernel."""
    asked, kernel = driver.cuFuncGetParamInfo, launch.func
    if not int(launch.func):
        asked, kernel = driver.cuKernelGetParamInfo, launch.kern
    for number in itertools.count():
        found = asked(kernel, number)
        if found[0] == BEHIND_THE_LAST:
            return
        yield done(found)[1]


class GraphInput:
    """An input of a captured graph.

    Attributes:
        fixed: the graph's own memory for it, of any shape.
        proven: whether its kernels may be told another address.
        in_place: whether a call tells them that of the caller's tensor, if it lies as `fixed` does.
        copied: why a call copies it into `fixed` in any case; "" where it doesn't.
    """

    def __init__(self, fixed: Tensor) -> None:
        self.fixed = fixed
        self.proven = self.in_place = False
        self.copied = UNTRIED
        self._words: list[tuple[ctypes.c_uint64, int]] = []
        self._nodes: list[KernelNode] = []
        self._address = fixed.data_ptr()
        self._answer = NOWHERE

    def told_of(self, nodes: Sequence[KernelNode]) -> None:
        """Find the kernels that are told the address."""
        begin = self.fixed.data_ptr()
        found = [(node, node.words_within(begin, begin + self.fixed.nbytes)) for node in nodes]
        self._nodes = [node for node, words in found if words]
        self._words = [word for _, words in found for word in words]

    def give(self, part: Tensor) -> None:
        """Let the next replay read this input, of any shape: that of the capture's, and its type.

        It must keep its values until the GPU is done with them, as it does for what the same stream is given later.
        """
        if self.in_place and self._may_be_read(part):
            self.read_at(part.data_ptr())
            return
        self.read_at(self.fixed.data_ptr())
        self.fixed.copy_(part)

    def _may_be_read(self, part: Tensor) -> bool:
        """Whether a tensor lies as `fixed` does, and not where the graph writes its answer."""
        alike = part.stride() == self.fixed.stride() and not part.is_neg()
        return alike and part.data_ptr() % ALIGNED == 0 and part.untyped_storage().data_ptr() != self._answer

    def leave(self, why: str) -> None:
        """Copy it from now on, for a graph that knows the address of the capture again."""
        self.proven = self.in_place = False
        self.copied, self._nodes, self._address = why, [], self.fixed.data_ptr()

    def read_at(self, address: int) -> None:
        """Tell the kernels the address of the input, for the replays that follow.

        Raises:
            RuntimeError: the driver refuses.
        """
        if address == self._address:
            return
        self._address = NOWHERE  # until all of them are told
        bind_context(self.fixed.device)
        for word, distance in self._words:
            word.value = address + distance
        for node in self._nodes:
            node.tell()
        self._address = address

    def prove(self, graph: torch.cuda.CUDAGraph, answer: Tensor) -> None:
        """Find out whether the graph gives the same bits from elsewhere, with other values in its own memory.

        These, which are the same in another order, must give another answer, as else nothing is shown; and it may not
        have written elsewhere. `answer` is what the graph writes, of any shape.
        """
        if not self._nodes:
            self.copied = "no kernel has its address among its arguments"
            return
        self._answer = answer.untyped_storage().data_ptr()
        values, elsewhere = self.fixed.clone(), self.fixed.clone()
        graph.replay()
        wanted = answer.clone()
        try:
            self.fixed.copy_(values.flatten().flip(0).view_as(values))
            graph.replay()
            seen = not _same(answer, wanted)
            self.read_at(elsewhere.data_ptr())
            graph.replay()
            self.proven = seen and _same(answer, wanted) and _same(elsewhere, values)
            self.read_at(self.fixed.data_ptr())
        finally:
            self.fixed.copy_(values)
        if not self.proven:
            told = "the graph reads or writes it otherwise than by its address"
            self.copied = told if seen else "other values of it give the same answer"


def bind_context(device: torch.device) -> None:
    """Let this thread have the context that the driver works in; torch makes it where a thread first asks for work."""
    if is_cuda(device.type) and not getattr(BOUND, "here", False):
        torch.cuda.current_stream(device).query()
        BOUND.here = True


def _same(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors of one shape hold the same values; what is no number is as good as another such."""
    return bool(((first == second) | (first.isnan() & second.isnan())).all())


def prove_inputs(graph: torch.cuda.CUDAGraph, inputs: Sequence[GraphInput], answer: Tensor) -> None:
    """Find out which inputs of a graph may be read where they lie.

    Args:
        graph: instantiated, captured with `keep_graph`, and run before.
        inputs: all of the graph; their memory holds values that the net takes.
        answer: the output of the capture, of any shape.

    Raises:
        ImportError: no bindings of the driver are installed.
        AttributeError: this torch gives no way to its graph.
        RuntimeError: the driver refuses, or memory runs out; some kernels may have been told an address, others not.
    """
    for each in inputs:
        each.read_at(each.fixed.data_ptr())
        small = each.fixed.nbytes < LEAST_BYTES or not each.fixed.is_floating_point()
        each.proven = each.in_place = False
        each.copied = "it is small, or holds whole numbers" if small else UNTRIED
    large = [each for each in inputs if each.copied == UNTRIED]
    driver = import_module("cuda.bindings.driver")
    nodes = list(kernel_nodes(driver, graph)) if large else []
    for each in large:
        each.told_of(nodes)
        each.prove(graph, answer)


def kernel_nodes(driver: ModuleType, graph: torch.cuda.CUDAGraph) -> Iterator[KernelNode]:
    """The kernels of a graph."""
    raw, executable = driver.CUgraph(graph.raw_cuda_graph()), driver.CUgraphExec(graph.raw_cuda_graph_exec())
    _, count = done(driver.cuGraphGetNodes(raw))
    nodes, _ = done(driver.cuGraphGetNodes(raw, count))
    for node in nodes:
        if done(driver.cuGraphNodeGetType(node)) == driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL:
            yield KernelNode(driver, executable, node)
