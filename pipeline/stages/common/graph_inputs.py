"""Inputs that a captured CUDA graph reads where the caller has them, in place of a copy into memory of its own.

A graph knows its inputs by address. Copying eight images of 512×512 to that address takes 13.5 µs on an H200, where
smp's Unet takes 0.98 ms in all (docs/h200/nets/smp). The kernels that read the input can be told another: the driver
changes the arguments of a kernel of an instantiated graph for the launches that follow
(cuGraphExecKernelNodeSetParams of CUDA's driver API). Which arguments these are, nobody says; so it is proven on the
graph itself, with its own memory spoilt, and an input for which that fails is copied as ever.
"""

import ctypes
from collections.abc import Iterator, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, Protocol, SupportsInt

import torch
from torch import Tensor

from pipeline.records.error_line import typed_line

ALIGNED = 256  # bytes; what a kernel was chosen or compiled for may need an address that divides as the driver's do
LEAST_BYTES = 2**16  # of an input: a copy of less takes the GPU no longer than its launch
NOWHERE = 0
SUCCESS = 0  # the driver's CUDA_SUCCESS
UNTRIED = "nobody asked for more"
WORD = 8  # bytes of an address, which lies in a kernel's arguments at a multiple of it


class Launch(Protocol):
    """What a kernel is launched with: a module's function or a library's kernel, and where its arguments are."""

    func: SupportsInt
    kern: SupportsInt
    kernelParams: SupportsInt  # noqa: N815 - the driver's name


class KernelNode:
    """A kernel of a graph, with a copy of its arguments that may be changed.

    Attributes:
        node: the driver's.
        launch: what it is launched with; its arguments are the copy.
        arguments: the bytes of each.
    """

    def __init__(self, driver: ModuleType, node: object) -> None:
        self.node = node
        self.launch: Launch = done(driver.cuGraphKernelNodeGetParams(node))
        sizes = list(argument_sizes(driver, self.launch)) if int(self.launch.kernelParams) else []
        given = (ctypes.c_void_p * len(sizes)).from_address(int(self.launch.kernelParams)) if sizes else ()
        parts = zip(given, sizes, strict=True)
        self.arguments = [ctypes.create_string_buffer(ctypes.string_at(at, size), size) for at, size in parts]
        self._pointers = (ctypes.c_void_p * len(sizes))(*map(ctypes.addressof, self.arguments))
        if sizes:
            self.launch.kernelParams = ctypes.addressof(self._pointers)

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
    number = 0
    while (found := asked(kernel, number))[0] == SUCCESS:  # it fails behind the last
        yield found[2]
        number += 1


class GraphInput:
    """An input of a captured graph.

    Attributes:
        fixed: the graph's own memory for it, of any shape.
        copied: why a call copies the input there; "" where the graph reads it where it lies.
    """

    def __init__(self, fixed: Tensor) -> None:
        self.fixed = fixed
        self.copied = UNTRIED
        self._words: list[tuple[ctypes.c_uint64, int]] = []
        self._nodes: list[KernelNode] = []
        self._driver = ModuleType("none")
        self._executable: object = None
        self._address = fixed.data_ptr()

    def told_of(self, driver: ModuleType, executable: object, nodes: Sequence[KernelNode]) -> None:
        """Find the kernels that are told the address."""
        begin = self.fixed.data_ptr()
        found = [(node, node.words_within(begin, begin + self.fixed.nbytes)) for node in nodes]
        self._nodes = [node for node, words in found if words]
        self._words = [word for _, words in found for word in words]
        self._driver, self._executable = driver, executable

    def give(self, part: Tensor) -> None:
        """Let the next replay read this input, of any shape: that of the capture's, and its type.

        It must keep its values until the GPU is done with them, as it does for what the same stream is given later.
        """
        if not self.copied and part.data_ptr() % ALIGNED == 0 and _lie_alike(part, self.fixed):
            self.read_at(part.data_ptr())
            return
        self.read_at(self.fixed.data_ptr())
        self.fixed.copy_(part)

    def leave(self, why: str) -> None:
        """Copy it from now on, for a graph that knows the address of the capture again."""
        self.copied, self._nodes, self._address = why, [], self.fixed.data_ptr()

    def read_at(self, address: int) -> None:
        """Tell the kernels the address of the input, for the replays that follow.

        Raises:
            RuntimeError: the driver refuses.
        """
        if address == self._address:
            return
        self._address = NOWHERE  # until all of them are told
        for word, distance in self._words:
            word.value = address + distance
        for node in self._nodes:
            done(self._driver.cuGraphExecKernelNodeSetParams(self._executable, node.node, node.launch))
        self._address = address

    def prove(self, graph: torch.cuda.CUDAGraph, answer: Tensor) -> None:
        """Let a call read the input where it lies if the graph, its own memory spoilt, gives the same bits from there.

        Nor may it have written there. `answer` is what the graph writes, of any shape.
        """
        if not self._nodes:
            self.copied = "no kernel has its address among its arguments"
            return
        values, elsewhere = self.fixed.clone(), self.fixed.clone()
        graph.replay()
        wanted = answer.clone()
        try:
            self.read_at(elsewhere.data_ptr())
            self.fixed.fill_(float("nan"))
            graph.replay()
            right = _same(answer, wanted) and _same(elsewhere, values)
            self.copied = "" if right else "the graph reads or writes it otherwise than by its address"
            self.read_at(self.fixed.data_ptr())
        finally:
            self.fixed.copy_(values)


def _lie_alike(part: Tensor, fixed: Tensor) -> bool:
    """Whether two tensors of one form have the same strides, and memory that holds the values themselves."""
    return part.stride() == fixed.stride() and not part.is_neg()


def _same(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors of one shape hold the same values; what is no number is as good as another such."""
    return bool(((first == second) | (first.isnan() & second.isnan())).all())


def spare_copies(graph: torch.cuda.CUDAGraph, inputs: Sequence[GraphInput], answer: Tensor) -> None:
    """Let calls read inputs where they lie, those for which that is proven.

    Args:
        graph: instantiated, captured with `keep_graph`, and run before.
        inputs: all of the graph; their memory holds values that the net takes.
        answer: the output of the capture, of any shape.
    """
    for each in inputs:
        each.read_at(each.fixed.data_ptr())
        small = each.fixed.nbytes < LEAST_BYTES or not each.fixed.is_floating_point()
        each.copied = "it is small, or holds whole numbers" if small else UNTRIED
    large = [each for each in inputs if each.copied == UNTRIED]
    try:
        driver = import_module("cuda.bindings.driver")
        raw, executable = driver.CUgraph(graph.raw_cuda_graph()), driver.CUgraphExec(graph.raw_cuda_graph_exec())
        nodes = list(kernel_nodes(driver, raw)) if large else []
        for each in large:
            each.told_of(driver, executable, nodes)
            each.prove(graph, answer)
    except (ImportError, AttributeError, RuntimeError) as error:  # no such bindings, torch, or driver
        graph.instantiate()  # as it was captured: some kernels may have been told an address, and others not
        for each in large:
            each.leave(typed_line(error))


def kernel_nodes(driver: ModuleType, graph: object) -> Iterator[KernelNode]:
    """The kernels of a graph."""
    _, count = done(driver.cuGraphGetNodes(graph))
    nodes, _ = done(driver.cuGraphGetNodes(graph, count))
    for node in nodes:
        if done(driver.cuGraphNodeGetType(node)) == driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL:
            yield KernelNode(driver, node)
