"""AOTInductor: the network in half precision compiled ahead of time into a package, and run from that package."""

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
import torch._inductor.metrics
from torch import Tensor, nn
from torch._inductor import aoti_compile_and_package
from torch._inductor.cpp_builder import get_cpp_compiler

from pipeline.compiler.batch import IN_WORDS, Batch
from pipeline.compiler.half import SHORT
from pipeline.compiler.inductor import count_bytes
from pipeline.compiler.input_forms import for_these_alone, form_of
from pipeline.compiler.network_calls import allow_tf32, exported_program
from pipeline.records.run_record import CompileFacts, Execution
from pipeline.stages.api import Runner, StageError, Workload
from pipeline.stages.common import aot_loading
from pipeline.stages.common.aot_loading import load_package
from pipeline.stages.common.inductor import bytes_in, check_possible, own_cache
from pipeline.stages.common.network_forms import Dtype, fault, half_dtype, half_net, taken_by, why_fp32

PACKAGE = "package.pt2"
SAID = "package.txt"  # its description, beside the package
LIMIT_SECONDS = 300  # of a cold start
NAMES = ("g++", "c++", "clang++")
# A package uses locales: with a libstdc++ of its own beside torch's it calls through the other's tables, and dies.
LIBRARIES = (b"libstdc++.so", b"libc++.so")  # GNU's and LLVM's, as a file that needs one names it
PROBE_SECONDS = 60.0  # a second or two, unless the disk is far away
PROBE = '#include <iostream>\nextern "C" void probe() { std::cout << 1; }\n'


def build(
    workload: Workload, *, dtype: Dtype | Literal["fp32"] = "auto", freezing: bool | None = None,
    max_autotune: bool = False, measure_cold_start: bool = True,
) -> Runner:  # fmt: skip
    """Export, compile into a package, load it."""
    check_possible(device := workload.device)
    precision = torch.float32 if dtype == "fp32" else half_dtype(dtype, device)
    allow_tf32(device.type == "cuda")
    layout = workload.layout_choice.take()
    cache, path = own_cache(workload.caches, cold := workload.earlier is None), workload.caches / PACKAGE
    said, details, moved = path.with_name(SAID), dict[str, object](why_fp32(precision)), None
    if cold or not path.exists():
        count_bytes()
        torch.backends.cudnn.benchmark = True
        workload.progress("compiling ahead of time")
        model, frozen = half_net(workload, precision), device.type != "cuda" if freezing is None else freezing
        is_frozen = build_package(model, [*workload.inputs[0]], path, frozen, max_autotune)
        way = "freezing, " * is_frozen + "without freezing, which fails or is wrong, " * (frozen and not is_frozen)
        way += "max-autotune, " * max_autotune
        text = (
            f"AOTInductor, {way}{SHORT[precision]} weights, {IN_WORDS[layout]}, run from its package{model.and_casts}"
        )
        said.write_text(text, encoding="utf-8")  # for a build from caches, which makes no such network
        details |= package_compiler()
        moved = int(torch._inductor.metrics.num_bytes_accessed)
    if cold and measure_cold_start:
        details |= cold_start(path, device.type, [*workload.inputs[0]])
    computes = "tf32" if dtype == "fp32" and device.type == "cuda" else SHORT[precision]
    return Runner(
        for_these_alone(load_package(path), [form_of(part) for part in workload.inputs[0]]),
        description=said.read_text(encoding="utf-8"),
        execution=Execution(computes, {}, layout, "AOTInductor", captured=False, fuses=True),
        details=details | {"package_bytes": path.stat().st_size},
        compile_facts=lambda: CompileFacts(
            generated_kernels=int(torch._inductor.metrics.generated_kernel_count), cache_bytes=bytes_in(cache)
        ),
        save=lambda folder: [Path(shutil.copyfile(path, folder / PACKAGE))],
        traffic=lambda *_: None if moved is None else (moved, "Inductor"),
    )


def build_package(model: nn.Module, inputs: Sequence[Tensor], path: Path, freezing: bool, max_autotune: bool) -> bool:
    """Compile a network for inputs of these shapes into a package (.pt2); return whether it is frozen."""
    # `freezing` folds what depends on weights alone, and packs them as oneDNN likes them. Where that fails, as with two
    # volumes and instance norms, or makes it wrong, as scaled sums (torch 2.12), the package is built again without.
    path.parent.mkdir(parents=True, exist_ok=True)
    given = Batch(tuple(part.contiguous() for part in inputs), tuple(map(str, range(len(inputs)))))
    # One program a package: to compile its headers beforehand would cost a minute and save nothing.
    configs: dict[str, object] = {
        "freezing": freezing,
        "max_autotune": max_autotune,
        "cpp_cache_precompile_headers": False,
        "cpp.cxx": (package_compiler()["cpp_compiler"],),
    }
    try:
        with taken_by("AOTInductor"), torch.inference_mode(False), torch.no_grad():
            aoti_compile_and_package(exported_program(model, given), package_path=str(path), inductor_configs=configs)
        wrong = fault(load_package(path), model, given)
    except StageError as error:
        if not freezing:
            raise
        wrong = str(error)
    if wrong and freezing:
        return build_package(model, inputs, path, False, max_autotune)
    if wrong:
        raise StageError(f"AOTInductor's package {wrong}", "wrong answer")
    return freezing


def cold_start(path: Path, device: str, inputs: Sequence[Tensor]) -> dict[str, object]:
    """Return, for the record, the seconds of a fresh process to its first answer, and what it died of after that."""
    words = [f"{part.dtype}:{','.join(map(str, part.shape))}".removeprefix("torch.") for part in inputs]
    command = [sys.executable, "-P", "-X", "faulthandler", aot_loading.__file__, str(path), device, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    sys.stderr.write(done.stderr)  # into the stage's log
    answer = done.stdout.strip().splitlines()[-1:]
    if not answer:
        raise RuntimeError(f"the package does not load in a fresh process: {cause_of_death(done)}")
    died = {"cold_start_died": cause_of_death(done)} if done.returncode else {}
    return {"cold_start_seconds": json.loads(answer[0])} | died


def cause_of_death(done: subprocess.CompletedProcess[str]) -> str:
    """Return the signal that ended a process and where Python was; else its last line, or its exit code."""
    if done.returncode >= 0:
        return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    where = re.search(r'Current thread .*\n  File "[^"]*?([^/"]+)", line (\d+) in (\S+)', done.stderr)
    said = f" in {where[3]} ({where[1]}:{where[2]})" if where else ""
    return f"killed by {signal.Signals(-done.returncode).name}{said}"


def shares_library(compiler: str) -> bool | None:
    """Return whether a library by this compiler leaves the C++ library shared; None if it makes none."""
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder, "probe.cpp"), Path(folder, "probe.so")
        source.write_text(PROBE, encoding="utf-8")
        command = [compiler, "-shared", "-fPIC", str(source), "-o", str(made)]
        try:
            done = subprocess.run(command, capture_output=True, check=False, timeout=PROBE_SECONDS)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return any(name in made.read_bytes() for name in LIBRARIES) if done.returncode == 0 else None


@functools.cache
def package_compiler() -> dict[str, str]:
    """Return, for the record, Inductor's compiler, or another of the path if that links the C++ library statically."""
    chosen = get_cpp_compiler()
    if not sys.platform.startswith("linux") or shares_library(chosen) is not False:  # None: in Inductor's own words
        return {"cpp_compiler": chosen}
    found = [shutil.which(name, path=folder) for name in NAMES for folder in os.get_exec_path()]
    other = next((path for path in found if path is not None and shares_library(path)), None)
    if other is None:
        raise RuntimeError(
            f"{chosen} links the C++ library into a package, which then crashes beside torch's; "
            "set CXX to a compiler that links it dynamically"
        )
    return {"cpp_compiler": other, "cpp_compiler_passed_over": chosen}
