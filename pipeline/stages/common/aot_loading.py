"""The loader of packages of AOTInductor, which needs torch alone: a file that bundles carry.

Before torch loads one it compares what the package was built for with this machine, for a warning; and to name this
machine's vector units it compiles and runs up to six programs: 99 % of the time of a load, for a small network on a
CPU. Here torch's own word for the units answers, at once.

As a program, `python aot_loading.py PACKAGE DEVICE FORM…`, it loads a package in a process that has done nothing else,
calls it once, and prints the seconds of each step as JSON.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a cold start imports torch by the clock
    from torch import Tensor

BUILT_FOR = "AOTI_CPU_ISA"  # what a package says of the units that it was built for


def load_package(path: Path) -> "Callable[..., Tensor]":
    """Load the network of a package: from its inputs to its answer, such as logits [batch, classes, height, width]."""
    import torch
    from torch._inductor import aoti_load_package, cpu_vec_isa

    package: Any = torch._C._aoti.AOTIModelPackageLoader
    built_for = package.load_metadata_from_package(str(path), "model")
    asked, units = cpu_vec_isa.pick_vec_isa, known_units(str(built_for.get(BUILT_FOR, "")))
    cpu_vec_isa.pick_vec_isa = lambda: units  # type: ignore[assignment, return-value]
    try:
        loaded: Callable[..., Tensor] = aoti_load_package(str(path))
    finally:
        cpu_vec_isa.pick_vec_isa = asked
    return loaded


def known_units(built_for: str) -> str:
    """Return `built_for`, such as "AVX512 AVX512_VNNI", where this machine has their kind; else this machine's."""
    import torch

    here = torch.backends.cpu.get_cpu_capability()
    return built_for if here.startswith("AVX512") or not built_for.startswith("AVX512") else here


def steps(path: Path, device: str, forms: Sequence[str]) -> dict[str, float]:
    """Measure the seconds of each step to the first answer, in a process that should have imported no torch."""
    # Of each input, `forms` hold type and shape, such as "float32:1,3,8,8".
    started = time.perf_counter()
    import torch

    imported = time.perf_counter()
    import torch._inductor.package

    compiler_imported = time.perf_counter()
    kinds = [form.partition(":") for form in forms]
    inputs = [
        torch.zeros([int(length) for length in shape.split(",")], dtype=getattr(torch, dtype), device=device)
        for dtype, _, shape in kinds
    ]
    on_device = time.perf_counter()
    loaded = load_package(path)
    ready = time.perf_counter()
    with torch.inference_mode():
        answer = loaded(*inputs)
    answer.sum().item()  # waits for the device
    answered = time.perf_counter()
    return {
        "import torch": imported - started,
        "import torch._inductor": compiler_imported - imported,
        "open the device": on_device - compiler_imported,
        "load": ready - on_device,
        "first call": answered - ready,
    }


if __name__ == "__main__":
    print(json.dumps(steps(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])), flush=True)  # noqa: T201
