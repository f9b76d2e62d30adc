"""Loads a package of AOTInductor, with nothing but torch: a file that bundles carry.

Before torch loads one it compares what the package was built for with this machine, for a warning; and to name this
machine's vector units it compiles and runs up to six programs: 99 % of the time of a load, for a small net on a CPU.
Here torch's own word for the units answers, at once.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._inductor import aoti_load_package, cpu_vec_isa

BUILT_FOR = "AOTI_CPU_ISA"  # what a package says of the units that it was built for


def load_package(path: Path) -> Callable[..., Tensor]:
    """The net of a package: from its inputs to its answer, such as logits [batch, classes, height, width].

    Torch logs a warning where the package was built for another machine, or for vector units that this one hasn't.
    """
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
    """The units that a package was built for, where this machine has their kind; else what this machine has.

    Args:
        built_for: such as "AVX512 AVX512_VNNI".
    """
    here = torch.backends.cpu.get_cpu_capability()
    return built_for if here.startswith("AVX512") or not built_for.startswith("AVX512") else here
