"""Compiles what choosing tiles will launch before it does: all layers' programs at once, beside other work.

One program takes some 3 s; a layer after the other, most processors would wait for each layer's slowest.
"""

import pickle
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from functools import partial

import torch
import triton
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from pipeline.compiler.autotune import Tuner, compiling_threads
from pipeline.compiler.batch import Batch, batched
from pipeline.compiler.choose import LIBRARY, MeasuredLayer
from pipeline.compiler.compile_processes import CompilingProcesses, worth_processes
from pipeline.compiler.errors import typed_line
from pipeline.compiler.exported_net import ExportedNet
from pipeline.compiler.lowering import Plan, lower
from pipeline.compiler.own_norms import launches_of_pass, put_passes
from pipeline.kernels.common.program import Program, Programs, only_noted


def programs_of(net: ExportedNet, scales: Mapping[str, float], inputs: Tensor | Batch, tuner: Tuner) -> Programs:
    """The programs of every tile that `choose` will measure, and of the norms' passes of `put_own_norms`.

    Args:
        net: with its layers.
        scales: of the values in fp8, by their nodes' names; what they are doesn't matter.
        inputs: a batch [batch, channels, height, width] as the user gives it, or all inputs of a net of several.
        tuner: what it knows is compiled already.
    """
    with only_noted() as programs:
        lowered = lower(net, Plan(scales))
        walk = _Noting(lowered, put_passes(lowered), tuner)
        walk.propagate(*batched(inputs))  # type: ignore[no-untyped-call]
    return programs


@contextmanager
def compiled_beside(programs: Programs, say: Callable[[str], None]) -> Iterator[None]:
    """Compile programs beside what happens within, in processes where they gain time, and wait for the last.

    What fails is told in a line, and will fail again when it is measured.
    """
    if not programs:
        yield
        return
    ahead = _Ahead(list(programs.values()), say)
    try:
        ahead.begin()
        yield
        ahead.finish()
    finally:
        ahead.end()
    failed = [error for task in ahead.tasks if (error := task.exception()) is not None]
    if failed:
        say(f"{len(failed)} of {len(ahead.tasks)} kernels could not be compiled ahead: {typed_line(failed[0])}")


class _Ahead:
    """Programs on their way into the kernels' own caches, by threads, which read what processes have compiled."""

    def __init__(self, programs: list[Program], say: Callable[[str], None]) -> None:
        self.programs, self.say = programs, say
        self.pool = compiling_threads()
        self.elsewhere: CompilingProcesses | None = None
        self.feeder = threading.Thread(target=self._feed)
        self.tasks: list[Future[None]] = []
        self.ended, self.left_over = False, 0

    def begin(self) -> None:
        """Compile from now on."""
        if worth_processes(self.programs):
            try:
                self.elsewhere = CompilingProcesses(self.programs)
            except (OSError, RuntimeError, TypeError, ValueError, AttributeError, pickle.PicklingError) as error:
                self.say(f"kernels are compiled in threads, as no process does it: {typed_line(error)}")
        self.feeder.start()

    def _feed(self) -> None:
        left = dict(enumerate(self.programs))
        for number in self.elsewhere.finished() if self.elsewhere else ():
            if number in left:
                self._take(left.pop(number))
        self.left_over = len(left) if self.elsewhere else 0
        for program in left.values():
            self._take(program)

    def _take(self, program: Program) -> None:
        if not self.ended:
            self.tasks.append(self.pool.submit(program.compile))

    def finish(self) -> None:
        """Wait until all are compiled; say what the processes left to threads."""
        self.feeder.join()
        wait(self.tasks)
        if self.left_over:
            self.say(f"the processes that compile ended, and threads compiled {self.left_over} kernels")

    def end(self) -> None:
        """Leave what isn't compiled yet."""
        self.ended = True
        if self.elsewhere:
            self.elsewhere.stop()
        if self.feeder.ident is not None:  # it was started
            self.feeder.join()
        self.pool.shutdown(cancel_futures=True)


class _Noting(FakeTensorProp):
    """Walks through a lowered graph by shapes alone, and launches each layer and norm by all tiles, to be noted."""

    def __init__(self, module: fx.GraphModule, passes: Collection[fx.Node], tuner: Tuner) -> None:
        super().__init__(module, FakeTensorMode(allow_non_fake_inputs=True))
        self.passes, self.tuner = passes, tuner

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
                inputs = [given[name] for name in ("x", "second") if given[name] is not None]
                launches = self._launches(MeasuredLayer(layer, inputs, given, []))
            for launch in launches:
                with suppress(RuntimeError, ValueError, triton.TritonError):
                    launch()
        return None

    def _launches(self, measured: MeasuredLayer) -> list[Callable[[], None]]:
        tiles = [] if self.tuner.known(measured.key) else measured.candidates()
        return [partial(measured.run, tile) for tile in tiles if tile != LIBRARY]


def memory_of(value: object) -> object:
    """Memory, of no particular values, for a tensor that is known by its layout; anything else as it is."""
    if not isinstance(value, FakeTensor):
        return value
    elements = value.untyped_storage().nbytes() // value.itemsize
    flat = torch.empty(elements, dtype=value.dtype, device=value.device)
    return flat.as_strided(value.shape, value.stride(), value.storage_offset())
