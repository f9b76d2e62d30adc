"""Compare the kernels as several releases of Triton compile them, on a Hopper GPU that has one of them.

Without a GPU, once for each release, which is found before the installed one:

    PYTHONPATH=FOLDER:. python -m tests.benchmarks.triton_releases build outputs/triton-3.9.zip

On the GPU, by the installed release, whose arguments and descriptors the others' programs are launched with:

    python -m tests.benchmarks.triton_releases run outputs/triton-*.zip
"""

import argparse
import json
import re
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from pipeline.compiler.tuning.compile_processes import CompilingProcesses, target_alone
from pipeline.kernels.common.program import only_noted
from tests.kernels.examples import Example, Layer
from tests.kernels.kinds import Kind, made_of, of_two_slices

REPEATS, ROUNDS = 20, 11  # launches in a graph, and replays of each release's graph, in turns
# A layer each: its kernel, the types that are read and stored, what is stored and added, height and width, the channels
# in and out, and which of the candidates is taken, the likeliest first.
LAYERS = """
conv3x3 {0} {0} result 512 64 64 0
conv3x3 {0} {0} result 128 256 256 -2
conv3x3 {0} {0} result,pooled 256 128 128 0
conv3x3 {0} {0} result 256 128 128 1
conv3x3 {0} {0} result,statistics,slopes,{0}-residual 256 128 128 0
conv3x3 {0} fp32 logits 512 64 64 0
conv3x3 {0} {0} result 512 16 16 0
conv3x3 {0} {0} result,statistics 512 32 32 0
conv3x3x3 {0} {0} result,statistics 128 64 64 0
conv3x3x3-stacked {0} {0} result 128 32 32 0
upconv2x2 {0} {0} result 256 128 64 0
upconv2x2x2 {0} {0} result 128 64 32 0
upsampled_conv3x3 {0} {0} result,second,border 256 64 64 0
upsampled_conv3x3 {0} {0} result,statistics 256 64 64 -1
conv3x3_strided {0} {0} result 256 128 128 0
conv3x3x3_strided {0} {0} result,statistics 128 64 64 0
conv_first fp32 {0} result 512 3 64 0
"""
IN_FP16 = """
conv_first_strided fp32 fp16 result 512 3 64 0
conv_first_volumes fp32 fp16 result,statistics 128 1 32 0
conv_head fp16 fp32 logits 512 16 3 0
"""
CASES = (LAYERS.format("fp16") + IN_FP16 + LAYERS.format("fp8")).split("\n")


@cache
def example_of(case: str) -> Example:
    """Return the kernel of a line of `CASES`, set up with random values; a stacked one makes two slices at a time."""
    name, read, stored, parts, *numbers = case.split()
    size, inner, outer, _ = map(int, numbers)
    kind = Kind(name.partition("-")[0], read, stored, frozenset(parts.split(",")))
    made = made_of(kind, Layer(1, (size, size), inner, outer))
    return of_two_slices(made) if name.endswith("-stacked") else made


@contextmanager
def noting_launches(*, warmup: bool) -> Iterator[list[Any]]:
    """Collect the compiled kernel of each launch; with `warmup` nothing is launched."""
    launches: list[Any] = []

    def at(kernel: JITFunction, grid: Any) -> Any:
        return lambda *args, **options: launches.append(kernel.run(*args, grid=grid, warmup=warmup, **options))

    with patch.object(JITFunction, "__getitem__", at):
        yield launches


def interface(built: Any) -> dict[str, Any]:
    """Return all that a launcher must know of a program beside its size: two of a layer must agree in it."""
    entry = re.search(r"\.entry[^)]*\)", built.asm["ptx"])
    assert entry is not None
    known = built.metadata
    maps = [{key: part[key] for key in sorted(part) if key != "is_im2col"} for part in known.tensordesc_meta or []]
    return {
        "parameters": re.sub(r"\s+", " ", entry.group()),
        "descriptors": maps,
        "dependent": known.launch_pdl,
        "others": [known.num_ctas, known.global_scratch_size, known.profile_scratch_size],
    }


def build(archive: Path) -> int:
    """Add the programs of this release to an archive; return 1 if one is not built."""
    triton.runtime.driver.set_active(target_alone(GPUTarget("cuda", 90, 32)))
    failed = 0
    with zipfile.ZipFile(archive, "a", zipfile.ZIP_LZMA) as kept:
        for case in filter(None, CASES):
            made = example_of(case)
            tile = made.candidates()[int(case.split()[-1])]
            form = [type(tile).__module__, type(tile).__name__, asdict(tile)]
            known = {"case": case, "tile": form, "release": triton.__version__}
            try:
                with noting_launches(warmup=True) as launches:
                    made.run(tile)
            except Exception as error:  # noqa: BLE001 - whatever a compiler raises
                failed += 1
                sys.stdout.write(f"{triton.__version__} {case}: not built: {str(error).splitlines()[-1:]}\n")
                continue
            known["programs"] = [add_program(kept, built) for built in launches]
            kept.writestr(f"{len(kept.namelist())}.json", json.dumps(known))
            sys.stdout.write(f"{triton.__version__} {case}: {tile.kernel}, {len(launches)} program(s)\n")
    return int(failed > 0)


def add_program(kept: zipfile.ZipFile, built: Any) -> dict[str, Any]:
    """Store a program's machine code, and return how it is launched."""
    name = f"{len(kept.namelist())}.cubin"
    kept.writestr(name, built.asm["cubin"])
    packed = [built.metadata.num_warps, built.metadata.num_ctas, built.metadata.shared]
    return {"code": name, "name": built.metadata.name, "packed": packed, "interface": interface(built)}


def read(archives: list[Path]) -> list[tuple[str, Any, list[dict[str, Any]]]]:
    """Return each case and tile with what is known of its releases."""
    found: dict[str, list[dict[str, Any]]] = {}
    for archive in archives:
        with zipfile.ZipFile(archive) as kept:
            for name in filter(lambda name: name.endswith(".json"), kept.namelist()):
                known = json.loads(kept.read(name))
                for program in known["programs"]:
                    program["binary"] = kept.read(program["code"])
                found.setdefault(json.dumps([known["case"], known["tile"]]), []).append(known)
    each = [(*json.loads(key), releases) for key, releases in found.items()]
    return [(case, getattr(import_module(form[0]), form[1])(**form[2]), releases) for case, form, releases in each]


class Launcher:
    """A layer's kernels by the installed release, whose machine code is exchanged for another's."""

    def __init__(self, made: Example, tile: Any) -> None:
        self.made, self.run = made, partial(made.run, tile)
        with noting_launches(warmup=False) as self.launches:
            self.run()
        self.handles = {"here": [(built.function, built.packed_metadata) for built in self.launches]}

    def load(self, known: dict[str, Any]) -> str:
        """Load a release's programs; return how they differ in what the launcher knows, "" if in nothing."""
        utils, device, handles = triton.runtime.driver.active.utils, torch.cuda.current_device(), []
        for built, program in zip(self.launches, known["programs"], strict=True):
            here = json.loads(json.dumps(interface(built)))
            if here != program["interface"]:
                return next(f"other {key}" for key, value in here.items() if program["interface"][key] != value)
            loaded = utils.load_binary(program["name"], program["binary"], program["packed"][2], device)
            handles.append((loaded[1], tuple(program["packed"])))
        self.handles[known["release"]] = handles
        return ""

    def use(self, release: str) -> None:
        """Have the next launches run a release's programs."""
        for built, (function, packed) in zip(self.launches, self.handles[release], strict=True):
            built.function, built.packed_metadata = function, packed

    def answer(self, release: str) -> tuple[list[Tensor], str]:
        """Return what a release stores over NaN, and " WRONG" where the reference stores something else."""
        self.use(release)
        self.made.poison()
        self.run()
        said = " WRONG"
        with suppress(AssertionError):
            self.made.check()
            said = ""
        return [part.float().nan_to_num() for part in self.made.outputs.given.values()], said

    def recorded(self, release: str) -> torch.cuda.CUDAGraph:
        """Return a graph of many launches of a release's programs."""
        self.use(release)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(REPEATS):
                self.run()
        return graph

    def microseconds(self) -> dict[str, float]:
        """Return the median time of a launch by each release, their graphs replayed in turns."""
        graphs = {release: self.recorded(release) for release in self.handles}
        took: dict[str, list[float]] = {release: [] for release in graphs}
        for release, graph in [*graphs.items()] * ROUNDS:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            took[release].append(start.elapsed_time(end) * 1000 / REPEATS)
        return {release: median(each) for release, each in took.items()}


def compare(case: str, tile: Any, releases: list[dict[str, Any]]) -> bool:
    """Print a line for a layer and a tile; return whether all releases ran and agree with the reference."""
    sys.stdout.write(f"{tile.kernel:16} {case:72} ")
    sys.stdout.flush()  # a fault or a standstill shows where it happened
    launcher = Launcher(example_of(case), tile)
    refused = {known["release"]: launcher.load(known) for known in releases}
    answers = {release: launcher.answer(release) for release in launcher.handles}
    times = launcher.microseconds()
    launcher.use("here")  # other cases may share the programs
    wanted, wrong = answers.pop("here")
    columns = [f"{times['here']:8.1f} µs{wrong}"]
    for release, (found, said) in answers.items():
        far = max(float((one - other).abs().max()) for one, other in zip(found, wanted, strict=True))
        columns.append(f"{release} {times[release] / times['here']:.3f} ({far:.1e}){said}")
    columns += [f"{release} {reason}" for release, reason in refused.items() if reason]
    sys.stdout.write(" | ".join(columns) + "\n")
    return not any([wrong, *refused.values(), *(said for _, said in answers.values())])


def run(archives: list[Path]) -> int:
    """Compare all that archives hold; return 1 if a release did not run or a kernel is wrong."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    found = read(archives)
    here = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Triton {triton.__version__}"
    sys.stdout.write(f"{here}; for each release the ratio of times, and the largest difference in parentheses\n")
    with only_noted() as noted:
        for case, tile, _ in found:
            example_of(case).run(tile)
    elsewhere = CompilingProcesses()
    elsewhere.give(list(noted.values()))
    list(elsewhere.finished())
    right = [compare(*each) for each in found]
    return int(not all(right))


def main() -> int:
    """Build into an archive or run one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("action", choices=("build", "run"))
    parser.add_argument("archives", type=Path, nargs="+", help="zip files; one to build")
    asked = parser.parse_args()
    return run(asked.archives) if asked.action == "run" else build(asked.archives[0])


if __name__ == "__main__":
    sys.exit(main())
