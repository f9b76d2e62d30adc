"""The files that Inductor writes: its cache, its graphs, and its programs; it is imported where a stage compiles."""

import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.compiler.errors import CompileError
from pipeline.stages.api import Skip, StageError

KEPT = "generated"  # the folder of the stage that the files go to
CACHE = "inductor"  # the folder of the stage's caches that is Inductor's


def programs(cache: Path) -> list[Path]:
    """Return the programs that define and call the kernels."""
    files = (path for path in cache.rglob("*.py") if path.is_file())
    return sorted(path for path in files if b"async_compile" in path.read_bytes())


def graphs(cache: Path) -> list[Path]:
    """Return the graphs as text."""
    return sorted(cache.glob("graph_*.txt"))


def check_possible(device: torch.device) -> None:
    """Raise Skip where Inductor can't work: on a CPU without a C++ compiler."""
    if device.type == "cpu" and not shutil.which(os.environ.get("CXX", "g++")):
        raise Skip("Inductor needs a C++ compiler for CPUs and finds no g++; install g++ or set CXX", "missing library")


def own_cache(caches: Path, cold: bool = True) -> Path:
    """Put Inductor's and Triton's caches into the stage's own folder; empty for a cold build."""
    import torch._inductor.metrics

    cache = (caches / CACHE).absolute()  # by the link that the run has made where the path has spaces
    if cold:
        shutil.rmtree(cache, ignore_errors=True)
    cache.mkdir(parents=True, exist_ok=True)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
    os.environ["TRITON_CACHE_DIR"] = str(cache / "triton")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch._dynamo.utils.clear_compilation_metrics()
    torch._inductor.metrics.reset()
    if not torch.cuda.is_available():  # else Inductor starts processes that import torch, to compile for Triton
        os.environ.setdefault("TORCH_WARM_POOL", "0")
    return cache


def compiled(net: nn.Module, batch: Tensor, **options: Any) -> Callable[[Tensor], Tensor]:
    """Compile a network by a call on a batch [batch, channels, height, width]; options as of torch.compile."""
    run: Callable[[Tensor], Tensor] = torch.compile(net, **options)
    with torch.inference_mode():
        run(batch)
    check_compiled()
    return run


def bytes_in(cache: Path) -> int:
    """Return the bytes of all files in a folder."""
    return sum(path.stat().st_size for path in cache.rglob("*") if path.is_file())


def check_compiled() -> None:
    """Check that torch.compile has compiled anything, as `pipeline.compiler.inductor.check_compiled` does."""
    from pipeline.compiler import inductor

    try:
        inductor.check_compiled()
    except CompileError as error:
        raise StageError(str(error), "unsupported") from None


def keep_graphs() -> None:
    """Leave every graph that is compiled from now on as text."""
    from torch._inductor.custom_graph_pass import CustomGraphPass

    class AsText(CustomGraphPass):
        """A pass that writes every graph as text into Inductor's cache, right before kernels are made of it."""

        def __call__(self, graph: torch.fx.Graph) -> None:
            """Write graph_0.txt, graph_1.txt, ... in the order in which they are compiled."""
            cache = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
            module = graph.owning_module
            assert module is not None
            text = module.print_readable(print_output=False, include_stride=True)
            (cache / f"graph_{len(graphs(cache))}.txt").write_text(text, encoding="utf-8")

        def uuid(self) -> str:
            """Return the name of this pass in Inductor's cache: it changes nothing."""
            return "graphs as text"

    torch._inductor.config.post_grad_custom_post_pass = AsText()


def generated(cache: Path, folder: Path) -> list[Path]:
    """Copy the programs and the graphs, with paths relative to the cache, the interpreter and the working folder."""
    kept, copies, places = folder / KEPT, [], {str(cache): CACHE, sys.prefix: "python"}
    kept.mkdir(exist_ok=True)
    with suppress(OSError):
        places[str(Path.cwd())] = "."
    for path in [*programs(cache), *graphs(cache)]:
        text = path.read_text(encoding="utf-8")
        for place, name in places.items():
            text = text.replace(place, name)
        copies.append(kept / path.name)
        copies[-1].write_text(text, encoding="utf-8")
    return copies
