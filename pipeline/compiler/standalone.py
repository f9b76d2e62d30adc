"""A saved network with its compiled programs; of own kernels alone it is Python text, which is ready within a second.

To read torch.export's archive, torch imports Dynamo, which takes longer than all the rest of a first call.
"""

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from importlib import import_module
from itertools import islice
from math import inf, nan
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast
from warnings import warn

import torch
import triton
from torch import Tensor, fx
from torch._library.custom_ops import OPDEFS
from triton.runtime.cache import FileCacheManager, triton_key

from pipeline.compiler import custom_ops
from pipeline.compiler.cuda_graphs import Captured
from pipeline.compiler.tuning.autotune import compiling_threads, use_torchs_ptxas
from pipeline.kernels.common.capability import is_cuda
from pipeline.kernels.common.program import Program, only_noted

TEXT, WEIGHTS, PROGRAMS, COMPILED = "net.py", "weights.pt", "programs", "inductor.bin"
KEEP = "UNET_KERNELS_KEEP"  # in the environment: a folder that gets what Inductor compiles
CARRIED = (".json", ".cubin", ".so")  # of Triton's files; the others are steps on the way
ARTIFACT = f"{__package__}.artifact"  # imports Dynamo
BY_INDEX = ("index", "gather", "scatter", "embedding")  # may fail on memory without values
MEMORY = ("aten.empty_strided.default", "aten.empty.memory_format")


def write(net: fx.GraphModule, folder: Path) -> bool:
    """Write the network of `artifact.load` as text and weights if this library's kernels are all it launches.

    Otherwise write nothing, and return False.
    """
    graph, weights, names = fx.Graph(), dict[str, Tensor](), dict[Tensor, str]()
    copied: dict[fx.Node, Any] = {node: graph.placeholder(node.name) for node in net.graph.find_nodes(op="placeholder")}
    for node in net.graph.find_nodes(op="get_attr"):
        part = attrgetter(node.target)(net)
        if not isinstance(part, Tensor):
            return False
        name = names.setdefault(part, f"w{len(names)}")
        weights[name] = part.detach()
        copied[node] = graph.get_attr(name)
    for node in net.graph.find_nodes(op="call_module", target="_guards_fn"):  # torch's, of inputs' forms
        copied[node] = None
    graph.output(graph.graph_copy(net.graph, copied))
    if not all(map(_is_ours, graph.nodes)):
        return False
    torch.save(weights, folder / WEIGHTS)
    text = graph.python_code("self").src.strip().replace(f"torch.ops.{custom_ops.NAMESPACE}.", "kernels.")
    (folder / TEXT).write_text(f"{text}\n", encoding="utf-8")
    return True


def _is_ours(node: fx.Node) -> bool:
    """Return whether a node launches nothing but this library's kernels."""
    if node.op != "call_function" or getattr(node.target, "is_view", False):
        return node.op != "call_module"
    return str(node.target).startswith((f"{custom_ops.NAMESPACE}.", *MEMORY, "<built-in function getitem>"))


def load(folder: Path, *example: Tensor) -> Callable[..., Tensor]:
    """Return the call of a saved network for inputs as `example`, of which the values don't matter.

    On a GPU it is a CUDA graph: the next call overwrites the answer. Its kernels are taken from `folder`/programs, or
    compiled at once where that has none for this GPU and Triton.
    """
    alone, on_gpu = (folder / TEXT).is_file(), is_cuda(example[0].device)
    net: Any = read(folder, example[0].device) if alone else import_module(ARTIFACT).load(folder)
    if not on_gpu:
        return cast("Callable[..., Tensor]", net)
    use_torchs_ptxas()
    Carried.take(folder / PROGRAMS)
    with torch.inference_mode():
        if alone or not any(word in str(node.target) for node in net.graph.nodes for word in BY_INDEX):
            compile_at_once(net, *example, carried=folder / PROGRAMS)
        if not alone:
            net = by_inductor(net, folder / COMPILED, *example)
        return Captured(net, *example)


def read(folder: Path, device: torch.device) -> Callable[..., Tensor]:
    """Return the call of a network that `write` wrote, with its weights on a device."""
    weights = torch.load(folder / WEIGHTS, map_location=device, weights_only=True)
    place: dict[str, Any] = {"torch": torch, "device": torch.device, "inf": inf, "nan": nan, "kernels": Kernels()}
    exec((folder / TEXT).read_text(encoding="utf-8"), place)  # noqa: S102 - a saved network is code
    forward = partial(place["forward"], SimpleNamespace(**weights))

    def net(*inputs: Tensor) -> Tensor:
        answer = forward(*inputs)
        return answer if isinstance(answer, Tensor) else answer[0]

    return net


class Kernels:
    """The library's operations by their names, called without torch, which imports Dynamo at the first call of one."""

    def __getattr__(self, name: str) -> SimpleNamespace:
        """Return an operation; `default` is its function, as of `torch.ops`."""
        operation = OPDEFS[f"{custom_ops.NAMESPACE}::{name}"]
        parameters = operation._opoverload._schema.arguments

        def call(*given: object, **named: object) -> Any:
            rest = [named.get(part.name, part.default_value) for part in parameters[len(given) :]]
            return operation._init_fn(*given, *rest)

        return SimpleNamespace(default=call)


def compile_at_once(net: Callable[..., Tensor], *example: Tensor, carried: Path) -> None:
    """Compile all kernels that a call launches, in processes unless they are carried: then they are only read."""
    with only_noted() as programs:
        net(*example)
    if fit(carried):
        triton_key()  # 0.5 s, and it is kept; threads that ask at once would each compute it
        with compiling_threads() as pool:
            [*pool.map(Program.compile, programs.values())]
        return
    from pipeline.compiler.ahead import compiled_beside, compilers_started  # imports Dynamo

    started = compilers_started(example[0].device, warn, inductor=False)
    with started as elsewhere, compiled_beside(programs, warn, elsewhere):
        pass


def fit(carried: Path) -> bool:
    """Return whether carried programs are for this GPU and this Triton."""
    target = triton.runtime.driver.active.get_current_target()
    found = [json.loads(path.read_text(encoding="utf-8")) for path in islice(carried.glob("*/*.json"), 1)]
    return [(each["target"]["arch"], each["triton_version"]) for each in found] == [(target.arch, triton.__version__)]


def by_inductor(net: fx.GraphModule, compiled: Path, *example: Tensor) -> Callable[..., Tensor]:
    """Return the network compiled by Inductor, from what `compiled` holds where that was made for this machine."""
    from pipeline.compiler.inductor import compile_counting_bytes  # imports Dynamo

    if compiled.is_file():
        torch.compiler.load_cache_artifacts(compiled.read_bytes())
    call, _ = compile_counting_bytes(net, *example)
    if os.environ.get(KEEP) and (kept := torch.compiler.save_cache_artifacts()):
        Path(os.environ[KEEP], COMPILED).write_bytes(kept[0])
    return call


class Carried(FileCacheManager):  # type: ignore[misc]  # Triton has no types
    """Triton's cache, which is asked only for what no carried folder has; those are never written to."""

    folders: ClassVar[list[Path]] = []

    def __init__(self, key: str, *given: bool, **named: bool) -> None:
        self.found = next((folder / key for folder in self.folders if (folder / key).is_dir()), None)
        if self.found is None:
            super().__init__(key, *given, **named)

    @classmethod
    def take(cls, folder: Path) -> None:
        """Look for programs in a folder, too, from now on."""
        cls.folders.append(folder)
        triton.knobs.cache.manager_class = cls

    def get_file(self, filename: str) -> str | None:
        """Return the path of a file with this name."""
        if self.found is not None:
            return str(self.found / filename) if (self.found / filename).is_file() else None
        path: str | None = super().get_file(filename)
        return path

    def get_group(self, filename: str) -> dict[str, str] | None:
        """Return the paths of a program's files, by their names; `filename` is that of its properties."""
        if self.found is not None:
            return {path.name: str(path) for path in self.found.iterdir()}
        paths: dict[str, str] | None = super().get_group(filename)
        return paths


def carry_compiled(cache: Path, folder: Path) -> None:
    """Copy what a process has compiled, with its Triton's cache in cache/triton, to where `load` looks for it."""
    for path in (cache / "triton").glob("*/*"):
        if path.suffix in CARRIED and not path.name.startswith(("__grp__", "triton_")):  # Inductor keeps its own
            there = folder / PROGRAMS / path.parent.name
            there.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, there / path.name)
    if (cache / COMPILED).is_file():
        shutil.copyfile(cache / COMPILED, folder / COMPILED)
