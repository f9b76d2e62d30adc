"""CUDA's driver as far as a graph's arguments go: kernels are functions of the CPU that get the bytes of theirs."""

import ctypes
import struct
from collections.abc import Callable, Sequence
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from pipeline.stages.common.graph_inputs import ALIGNED

Kernel = Callable[[Sequence[bytes]], None]
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


class Status(IntEnum):
    """The driver's answers."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_NOT_SUPPORTED = 801


class StubGraph:
    """A captured graph: kernels with their arguments, as captured and as the instantiated graph has them."""

    def __init__(self) -> None:
        self.kernels: list[tuple[Kernel, list[bytes]]] = []
        self.told: list[list[bytes]] = []
        self.keep: list[Any] = []

    def launch(self, kernel: Kernel, *arguments: bytes) -> None:
        """What a capture records."""
        self.kernels.append((kernel, list(arguments)))

    def instantiate(self) -> None:
        self.told = [list(arguments) for _, arguments in self.kernels]

    def replay(self) -> None:
        for (kernel, _), arguments in zip(self.kernels, self.told, strict=True):
            kernel(arguments)

    def raw_cuda_graph(self) -> "StubGraph":
        return self

    def raw_cuda_graph_exec(self) -> "StubGraph":
        return self


class StubDriver:
    """Answers as `cuda.bindings.driver` does.

    Args:
        refuses: how many of the calls that tell a kernel its arguments succeed before one fails; None for all.
        libraries: whether a kernel is known as a library's, and not as a module's function.
    """

    CUgraphNodeType = SimpleNamespace(CU_GRAPH_NODE_TYPE_KERNEL="kernel")

    def __init__(self, refuses: int | None = None, *, libraries: bool = False) -> None:
        self.refuses, self.libraries, self.calls = refuses, libraries, 0

    CUgraph = CUgraphExec = staticmethod(lambda graph: graph)

    def cuGraphGetNodes(self, graph: StubGraph, count: int = 0) -> tuple[Any, ...]:  # noqa: N802 - the driver's name
        nodes = [(graph, number) for number in range(len(graph.kernels))]
        return Status.CUDA_SUCCESS, nodes[:count], len(nodes)

    def cuGraphNodeGetType(self, _: Any) -> tuple[Any, ...]:  # noqa: N802
        return Status.CUDA_SUCCESS, "kernel"

    def cuGraphKernelNodeGetParams(self, node: tuple[StubGraph, int]) -> tuple[Any, ...]:  # noqa: N802
        graph, number = node
        buffers = [ctypes.create_string_buffer(part, len(part)) for part in graph.kernels[number][1]]
        pointers = (ctypes.c_void_p * len(buffers))(*map(ctypes.addressof, buffers))
        graph.keep += [buffers, pointers]
        func, kern = (0, number + 1) if self.libraries else (number + 1, 0)
        self.sizes = {**getattr(self, "sizes", {}), number + 1: [len(part) for part in buffers]}
        launch = SimpleNamespace(func=func, kern=kern, kernelParams=ctypes.addressof(pointers) if buffers else 0)
        return Status.CUDA_SUCCESS, launch

    def _size(self, kernel: int, number: int) -> tuple[Any, ...]:
        sizes = self.sizes[kernel]
        if number >= len(sizes):
            return Status.CUDA_ERROR_INVALID_VALUE, 0, 0
        return Status.CUDA_SUCCESS, sum(sizes[:number]), sizes[number]

    def cuFuncGetParamInfo(self, function: int, number: int) -> tuple[Any, ...]:  # noqa: N802
        assert not self.libraries
        return self._size(function, number)

    def cuKernelGetParamInfo(self, kernel: int, number: int) -> tuple[Any, ...]:  # noqa: N802
        assert self.libraries
        return self._size(kernel, number)

    def cuGraphExecKernelNodeSetParams(  # noqa: N802
        self, executable: StubGraph, node: tuple[StubGraph, int], launch: Any
    ) -> tuple[Any, ...]:
        if self.calls == self.refuses:
            return (Status.CUDA_ERROR_INVALID_VALUE,)
        self.calls += 1
        sizes = self.sizes[node[1] + 1]
        pointers = (ctypes.c_void_p * len(sizes)).from_address(launch.kernelParams)
        executable.told[node[1]] = [ctypes.string_at(at or 0, size) for at, size in zip(pointers, sizes, strict=True)]
        return (Status.CUDA_SUCCESS,)
