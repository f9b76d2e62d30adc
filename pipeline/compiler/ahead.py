"""Compiles kernels before they are launched: all layers' programs at once, beside other work or without a GPU.

One program takes some 3 s; a layer after the other, most processors would wait for each layer's slowest.
"""

import os
import pickle
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from functools import partial

import torch
import triton
from torch import Tensor, fx, nn
from torch._inductor.async_compile import maybe_warm_pool
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from triton.backends.compiler import GPUTarget

from pipeline.compiler.batch import Batch, batched
from pipeline.compiler.errors import CompileError, typed_line
from pipeline.compiler.graph.exported_net import ExportedNet, export
from pipeline.compiler.graph.lowering import Plan, lower
from pipeline.compiler.inductor import triton_as_inductor_has_it
from pipeline.compiler.network_calls import without_tf32
from pipeline.compiler.passes import FOR_ANY_BACKEND, FOR_THE_KERNELS, rewrite
from pipeline.compiler.tuning.autotune import Tuner, compiling_threads, processors
from pipeline.compiler.tuning.choose import LIBRARY, MeasuredLayer
from pipeline.compiler.tuning.compile_processes import FEWEST_PROCESSORS, CompilingProcesses, target_alone
from pipeline.compiler.tuning.own_norms import launches_of_pass, put_passes
from pipeline.kernels.common.nhwc import interpreted
from pipeline.kernels.common.program import Programs, only_noted

TARGETS = {"sm_90": GPUTarget("cuda", 90, 32)}  # what kernels are compiled for without a GPU


def rewrite_network(network: nn.Module, *example: Tensor) -> ExportedNet:
    """Export a network in eval mode in fp16 and rewrite it for the kernels, on any device; raise UnsupportedError."""
    net = export(network, Batch.numbered(example), torch.float16)
    with without_tf32():
        rewrite(net, FOR_ANY_BACKEND)
        rewrite(net, FOR_THE_KERNELS)
    return net


def build_for(target: str, network: nn.Module, *example: Tensor, every_tile: bool = False) -> list[str]:
    """Compile a network's kernels for a target such as "sm_90", without a GPU, into Triton's cache; return their names.

    With `every_tile` all tiles that a build would measure; CompileError if one fails, or the target isn't known.
    """
    if target not in TARGETS:
        raise CompileError(f"target {target!r} is unknown; choose one of: {', '.join(TARGETS)}")
    if interpreted():
        raise CompileError("TRITON_INTERPRET=1 is set, by which nothing is compiled; unset it")
    net = rewrite_network(network, *example)
    driver = triton.runtime.driver
    before = driver._active  # `reset_active` would ask for a driver, of which there is none without a GPU
    driver.set_active(target_alone(TARGETS[target]))
    try:
        with torch.inference_mode():
            programs = programs_of(net, {}, Batch.numbered(example), Tuner(os.devnull), every_tile=every_tile)
        named = [(program.kernel.fn.__name__, program) for program in programs.values()]
        for name, program in named:
            try:
                program.compile()
            except Exception as error:  # Triton raises many kinds
                raise CompileError(f"{name} doesn't compile: {typed_line(error)}") from error
    finally:
        driver._active = before
    return [name for name, _ in named]


def programs_of(
    net: ExportedNet, scales: Mapping[str, float], inputs: Tensor | Batch, tuner: Tuner, *, every_tile: bool = True
) -> Programs:
    """Return the programs of unknown tiles that a build will measure; without `every_tile` each layer's likeliest."""
    with only_noted() as programs:
        lowered = lower(net, Plan(scales))
        walk = _Noting(lowered, put_passes(lowered), tuner, every_tile=every_tile)
        walk.propagate(*batched(inputs))  # type: ignore[no-untyped-call]
    return programs


@contextmanager
def compilers_started(
    device: torch.device, say: Callable[[str], None], *, inductor: bool = True
) -> Iterator[CompilingProcesses | None]:
    """Start the processes that compile for Inductor and, with enough processors, those that compile kernels."""
    elsewhere = None
    triton_as_inductor_has_it(device)
    if inductor:
        maybe_warm_pool()
    if processors() >= FEWEST_PROCESSORS and not interpreted():
        try:
            elsewhere = CompilingProcesses()
        except (OSError, RuntimeError, AttributeError) as error:
            say(f"kernels are compiled in threads, as no process does it: {typed_line(error)}")
    try:
        yield elsewhere
    finally:
        if elsewhere:
            elsewhere.close()


def _given(
    elsewhere: CompilingProcesses | None, programs: Programs, say: Callable[[str], None]
) -> CompilingProcesses | None:
    """Give programs to the processes, and return these; None where they can't take them."""
    try:
        if elsewhere:
            elsewhere.give(list(programs.values()))
    except (RuntimeError, TypeError, ValueError, AttributeError, pickle.PicklingError) as error:
        say(f"kernels are compiled in threads, as no process does it: {typed_line(error)}")
        return None
    return elsewhere


@contextmanager
def compiled_beside(
    programs: Programs, say: Callable[[str], None], elsewhere: CompilingProcesses | None = None
) -> Iterator[None]:
    """Compile programs beside what happens within, and wait for the last; what fails is told in a line."""
    if not programs:
        yield
        return
    processes = _given(elsewhere, programs, say)
    ended, tasks, left = threading.Event(), list[Future[None]](), dict(enumerate(programs.values()))
    over: list[int] = []  # what the processes left
    pool = compiling_threads()  # which read into the kernels' own caches what processes have compiled

    def take(number: int) -> None:
        program = left.pop(number, None)
        if program is not None and not ended.is_set():
            tasks.append(pool.submit(program.compile))

    def feed() -> None:
        for number in processes.finished() if processes else ():
            take(number)
        over.extend(left)
        for number in list(left):
            take(number)

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        yield
        feeder.join()
        wait(tasks)
    finally:
        ended.set()
        if processes:
            processes.stop()
        feeder.join()
        pool.shutdown(cancel_futures=True)
    if processes and over:
        say(f"the processes that compile ended, and threads compiled {len(over)} kernels")
    failed = [error for task in tasks if (error := task.exception()) is not None]
    if failed:
        say(f"{len(failed)} of {len(tasks)} kernels could not be compiled ahead: {typed_line(failed[0])}")


class _Noting(FakeTensorProp):
    """Walks through a lowered graph by shapes alone, and launches each layer and norm by all tiles, to be noted."""

    def __init__(self, module: fx.GraphModule, passes: Collection[fx.Node], tuner: Tuner, *, every_tile: bool) -> None:
        super().__init__(module, FakeTensorMode(allow_non_fake_inputs=True))
        self.passes, self.tuner, self.every_tile = passes, tuner, every_tile

    def run_node(self, n: fx.Node) -> object:
        layer = n.meta.get("layer")
        if layer is None and n not in self.passes:
            return super().run_node(n)
        (x,), given = self.fetch_args_kwargs_from_env(n)
        with unset_fake_temporarily():
            given = {name: memory_of(value) for name, value in {"x": x, **given}.items()}
            if layer is None:
                launches = launches_of_pass(given, self.tuner)
            else:
                measured = MeasuredLayer(layer, given, [])
                tiles = [] if self.tuner.known(measured.key) else measured.candidates()
                launches = [partial(measured.run, tile) for tile in tiles if tile != LIBRARY]
            for launch in launches if self.every_tile else launches[:1]:
                with suppress(RuntimeError, ValueError, triton.TritonError):
                    launch()
        return None


def memory_of(value: object) -> object:
    """Return uninitialised memory for a tensor that is known by its layout; anything else unchanged."""
    if not isinstance(value, FakeTensor):
        return value
    flat = torch.empty(value.untyped_storage().nbytes() // value.itemsize, dtype=value.dtype, device=value.device)
    return flat.as_strided(value.shape, value.stride(), value.storage_offset())
