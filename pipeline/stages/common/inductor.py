"""What Inductor writes: its cache, the graphs that it compiles as text, and the programs that hold its kernels."""

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

import torch
import torch._inductor.metrics
from torch import Tensor, nn
from torch._inductor.cpp_builder import get_cpp_compiler
from torch._inductor.cpu_vec_isa import VecISA
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.runtime.cache_dir_utils import triton_cache_dir

from pipeline.stages.api import Skip, StageError
from pipeline.stages.common.inductor_files import CACHE, KEPT, graphs, programs

# Where one is 1, torch.compile runs what it was given as it is; by the last, after an error.
LEAVING = ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE", "TORCHDYNAMO_SUPPRESS_ERRORS")
PTXAS = Path(torch.__file__).with_name("bin") / "ptxas"  # in torch's wheels for NVIDIA's GPUs
Mode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]


class AsText(CustomGraphPass):
    """Leaves every graph as text in Inductor's cache, as it stands right before kernels are made of it."""

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Write graph_0.txt, graph_1.txt, ... in the order in which they are compiled."""
        cache = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
        module = graph.owning_module
        assert module is not None
        text = module.print_readable(print_output=False, include_stride=True)
        (cache / f"graph_{len(graphs(cache))}.txt").write_text(text, encoding="utf-8")

    def uuid(self) -> str:
        """What Inductor's cache knows this pass by: it changes nothing."""
        return "graphs as text"


def check_possible(device: torch.device) -> None:
    """Raise Skip where Inductor can't work: on a CPU without a C++ compiler."""
    if device.type == "cpu" and not shutil.which(os.environ.get("CXX", "g++")):
        raise Skip(
            "Inductor needs a C++ compiler for the CPU and finds no g++; install g++ or set CXX", "missing library"
        )


def own_cache(caches: Path, cold: bool = True) -> Path:
    """Inductor's and Triton's caches, in the stage's own folder; empty for a cold build."""
    cache = (caches / CACHE).resolve()
    if cold:
        shutil.rmtree(cache, ignore_errors=True)
    cache.mkdir(parents=True, exist_ok=True)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
    os.environ["TRITON_CACHE_DIR"] = str(cache / "triton")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch._dynamo.utils.clear_compilation_metrics()
    torch._inductor.metrics.reset()
    believe_the_processor()
    keep_the_pool_cold()
    return cache


def triton_as_inductor_has_it(device: torch.device) -> None:
    """Name the folder that Triton keeps programs in, and its ptxas, unless TRITON_CACHE_DIR and TRITON_PTXAS_PATH do.

    Inductor names them where it first has a kernel. What was compiled before then would lie in Triton's own folder, by
    Triton's own ptxas, and a later build, which launches kernels before or after, would look for some of it in the
    other, or a deployed net have kernels of another ptxas than was measured. Where there is no place for the folder, as
    for a user whom the system doesn't know, what compiles will say so.
    """
    with suppress(OSError, KeyError):
        os.environ.setdefault("TRITON_CACHE_DIR", triton_cache_dir(device.index or 0))
    if os.access(PTXAS, os.X_OK):
        os.environ.setdefault("TRITON_PTXAS_PATH", str(PTXAS))


def believe_the_processor() -> None:
    """Have Inductor take the vector units that the processor names, unless TORCHINDUCTOR_VEC_ISA_OK says otherwise.

    It would ask by compiling a test program for each into the cold cache, and importing torch to load it: 17 s of
    processor time for the AVX-512 and AVX2 of one machine, which is no part of building a net. Of AVX-512's
    extensions (bf16, VNNI, AMX) it asks all the same, 7 s on another machine: there the compiler's word is enough.
    """
    if torch._inductor.config.cpp.vec_isa_ok is None:
        torch._inductor.config.cpp.vec_isa_ok = True
    if torch._inductor.config.cpp.vec_isa_ok:
        VecISA.check_build = compiles  # type: ignore[method-assign, assignment]


def compiles(units: VecISA, code: str) -> bool:
    """Whether the C++ compiler knows a processor's vector units, by a program that uses them."""
    command = [get_cpp_compiler(), *units._arch_flags.split(), "-x", "c++", "-S", "-o", os.devnull, "-"]
    return subprocess.run(command, input=code.encode(), capture_output=True, check=False).returncode == 0


def keep_the_pool_cold() -> None:
    """Have Inductor start no processes that compile for Triton where no GPU is, unless TORCH_WARM_POOL says otherwise.

    Each imports torch beside a build that has no use for it.
    """
    if not torch.cuda.is_available():
        os.environ.setdefault("TORCH_WARM_POOL", "0")


def count_bytes() -> None:
    """Have Inductor count the bytes that its kernels move, which it does for a log that somebody reads."""
    log = logging.getLogger("torch._inductor.compile_fx.__inductor_metrics")
    log.setLevel(logging.INFO)
    log.propagate = False
    log.addHandler(logging.NullHandler())


def compile_counting_bytes(
    module: nn.Module, *inputs: Tensor, mode: Mode = "default"
) -> tuple[Callable[..., Tensor], int]:
    """The module compiled in a mode of torch.compile, after the call on its inputs, of any shape, that compiled it.

    With it the bytes that a call moves through device memory, by Inductor's own count.
    """
    count_bytes()
    before = torch._inductor.metrics.num_bytes_accessed
    compiled: Callable[..., Tensor] = torch.compile(module, mode=mode, fullgraph=True)
    compiled(*inputs)
    check_compiled()
    return compiled, int(torch._inductor.metrics.num_bytes_accessed - before)


def compilations() -> int:
    """Graphs that Dynamo has compiled so far in this process, or since its counters were emptied."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def check_compiled() -> None:
    """That torch.compile, which was called, has compiled anything: it may leave a net eager without a word.

    Raises:
        StageError: it hasn't.
    """
    if compilations():
        return
    given = [f"{name}={os.environ[name]}" for name in LEAVING if os.environ.get(name) == "1"]
    why = f"{' '.join(given)} is set; unset it" if given else "the net, or its process, keeps Dynamo from it"
    raise StageError(f"torch.compile compiled nothing: {why}", "unsupported")


def keep_graphs() -> None:
    """From now on every graph that is compiled is left as text."""
    torch._inductor.config.post_grad_custom_post_pass = AsText()


def generated(cache: Path, folder: Path) -> list[Path]:
    """Copy the programs and the graphs, without the paths of this machine."""
    kept = folder / KEPT
    kept.mkdir(exist_ok=True)
    copies = []
    for path in [*programs(cache), *graphs(cache)]:
        copies.append(kept / path.name)
        copies[-1].write_text(nameless(path.read_text(encoding="utf-8"), cache), encoding="utf-8")
    return copies


def nameless(text: str, cache: Path) -> str:
    """The text with paths relative to the cache, the interpreter and the working folder, if that is still there."""
    places = [(cache, CACHE), (Path(sys.prefix), "python")]
    with suppress(OSError):
        places.append((Path.cwd(), "."))
    for place, name in places:
        text = text.replace(str(place), name)
    return text
