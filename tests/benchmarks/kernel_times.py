"""Every kernel at full size, with fresh random inputs, timed beside the library and checked once more: one table.

python -m tests.benchmarks.kernel_times --batch 8 --size 512 --out kernels.json
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import triton
from torch import Tensor

from pipeline.compiler.cuda_graphs import graph_replay_ms
from pipeline.compiler.ops import BY_NAME
from pipeline.compiler.tuning.autotune import Tuner
from pipeline.kernels.common.activation import NONE, RELU
from pipeline.kernels.common.capability import supported
from pipeline.kernels.common.epilogue import Epilogue, Head, Outputs
from pipeline.kernels.common.kernel_op import Ends, KernelOp, LibraryParameters
from pipeline.kernels.common.library import convolution
from pipeline.measure.peaks import fp8_matmul

DTYPES = {"fp16": torch.float16, "fp8": torch.float8_e4m3fn}
# Relative L2 error allowed against the fp32 reference after the same rounding: what is left is the order of the sums,
# and for fp8 wgmma's own sums, which keep 13 bits or so.
LIMIT = {"fp16": 1e-3, "fp8": 2e-2}
CLASSES = 2


@dataclass(frozen=True)
class Layer:
    """A layer of the net: `size` is the input's height and width, `folds` what its epilogue does besides."""

    kind: str
    size: int
    inner: int
    outer: int
    folds: str = ""

    def flops(self, batch: int) -> float:
        """Operations, 2 for a multiply-add."""
        return BY_NAME[self.kind].flops((batch, self.inner, self.size, self.size), self.outer)


@dataclass(frozen=True)
class Row:
    """One line of the table: milliseconds, TFLOP/s, share of the measured peak, relative L2 error, the library's ms."""

    layer: Layer
    dtype: str
    tile: str
    ms: float
    tflops: float
    share: float
    error: float
    library_ms: float | None
    tuned_s: float


def unet(size: int, base: int, depth: int = 4) -> Iterator[Layer]:
    """The layers of the classic net, in order."""
    widths = [base << level for level in range(depth + 1)]
    yield Layer("conv_first", size, 3, base)
    for level, width in enumerate(widths):
        if level:
            yield Layer("conv3x3", size >> level, width // 2, width)
        yield Layer("conv3x3", size >> level, width, width, "" if level == depth else "pool")
    for level in reversed(range(depth)):
        width = widths[level]
        yield Layer("upconv2x2", size >> (level + 1), 2 * width, width)
        yield Layer("conv3x3", size >> level, 2 * width, width)
        yield Layer("conv3x3", size >> level, width, width, "" if level else "head")


def random(*shape: int, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    """Normal values, on the GPU."""
    return (torch.randn(shape, device="cuda", dtype=torch.float16) * scale).to(dtype)


def poisoned(*shape: int, dtype: torch.dtype) -> Tensor:
    """A tensor of NaN: what a kernel doesn't write is seen."""
    return torch.full(shape, float("nan"), device="cuda").to(dtype)


def error(results: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The largest relative L2 error; NaN where anything was left unwritten."""
    pairs = [(part.double(), expected[name].double()) for name, part in results.items()]
    return max(float((found - wanted).norm() / wanted.norm()) for found, wanted in pairs)


@dataclass(frozen=True)
class Case:
    """A layer set up: the kernel, what it reads, its weight in torch's shape and packed, and where it stores."""

    op: KernelOp
    x: Tensor
    whole: Tensor
    packed: Tensor
    epilogue: Epilogue
    outputs: Outputs

    def run(self, tile: Any) -> None:
        """Queue the kernel."""
        self.op.launch(self.x, self.packed, self.epilogue, self.outputs, tile)

    def expected(self) -> dict[str, Tensor]:
        """What the reference stores."""
        wanted = Outputs(**{name: torch.empty_like(part) for name, part in self.outputs.given.items()})
        self.op.reference(self.x, self.packed, self.epilogue, wanted)
        return wanted.given

    def library_ms(self) -> float:
        """Milliseconds of the library's convolution with bias and activation; pool and head would be kernels more."""
        weight = self.whole.half().contiguous(memory_format=torch.channels_last)
        parameters = LibraryParameters(weight, torch.zeros(len(weight), device="cuda", dtype=torch.float16))
        x, ends = self.x.permute(0, 3, 1, 2), Ends(self.epilogue.activation)
        return graph_replay_ms(partial(convolution, x, parameters, ends, padding=(1, 1)))


def case_of(layer: Layer, batch: int, dtype: torch.dtype) -> Case:
    """A layer on images in [0, 1), or on values half of which are zero, as they are after ReLU."""
    op, size, inner, outer = BY_NAME[layer.kind], layer.size, layer.inner, layer.outer
    if op.pack is None or op.weight_shape is None:
        raise ValueError(f"{op.name} has no weights: no layer of the net runs by it")
    image = torch.rand(batch, inner, size, size, device="cuda") if op.reads_image else None
    x = random(batch, size, size, inner, dtype=torch.float16).relu().to(dtype) if image is None else image
    whole = torch.randn(op.weight_shape(inner, outer), device="cuda") * (1.0 if op.reads_image else 0.05)
    packed = op.pack(whole)
    bias = torch.randn(outer, device="cuda")
    scale = torch.rand(outer, device="cuda") / inner**0.5 if dtype == DTYPES["fp8"] else None
    head = Head(torch.randn(CLASSES, outer, device="cuda"), torch.randn(CLASSES, device="cuda"))
    activation = NONE if op.growth > 1 else RELU
    epilogue = Epilogue(scale, bias, activation, layer.folds == "pool", head if layer.folds == "head" else None)
    packed = packed if op.reads_image else packed.to(dtype)
    return Case(op, x, whole, packed, epilogue, outputs_of(op, layer, batch, dtype))


def outputs_of(op: KernelOp, layer: Layer, batch: int, dtype: torch.dtype) -> Outputs:
    """Where a layer stores: an upsampled map into one half of a concatenation's buffer; beside a head nothing."""
    side, outer = int(layer.size * op.growth), layer.outer
    if layer.folds == "head":
        return Outputs(logits=poisoned(batch, CLASSES, side, side, dtype=torch.float32))
    pooled = poisoned(batch, side // 2, side // 2, outer, dtype=dtype) if layer.folds == "pool" else None
    if op.growth > 1:
        return Outputs(poisoned(batch, side, side, 2 * outer, dtype=dtype)[..., outer:])
    return Outputs(poisoned(batch, side, side, outer, dtype=dtype), pooled)


def measured_peak(dtype: torch.dtype, side: int = 8192) -> float:
    """TFLOP/s of the library's matrix product of this dtype on random values: what a share is a share of."""
    left, right = random(side, side, dtype=dtype), random(side, side, dtype=dtype)
    product = partial(torch.mm, left, right.t()) if dtype == torch.float16 else fp8_matmul(left, right)
    return 2.0 * side**3 / graph_replay_ms(product) / 1e9


def measure(layer: Layer, batch: int, name: str, top: float, tuner: Tuner) -> Row:
    """Tune one layer, run it once more on poisoned outputs, compare, and time it and the library."""
    case = case_of(layer, batch, DTYPES[name])
    start = time.perf_counter()
    tiles = case.op.candidates(case.x, case.packed, case.epilogue, case.outputs)
    tile = tuner.best(f"{layer} {name} {batch}", tiles, case.run)
    tuned = time.perf_counter() - start
    for result in case.outputs.given.values():
        result.copy_(poisoned(*result.shape, dtype=result.dtype))
    case.run(tile)
    wrong = error(case.outputs.given, case.expected())
    took = graph_replay_ms(partial(case.run, tile))
    library = case.library_ms() if name == "fp16" and layer.kind == "conv3x3" else None
    rate = layer.flops(batch) / took / 1e9
    kernel = type(tile).__module__.rpartition(".")[2]
    return Row(layer, name, f"{kernel} {tile}", took, rate, rate / top, wrong, library, tuned)


def table(rows: list[Row]) -> str:
    """The rows as Markdown."""
    lines = [
        "| layer | dtype | ms | TFLOP/s | share of peak | relative error | library ms | tile |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        layer = row.layer
        name = f"{layer.kind} {layer.inner} → {layer.outer} @ {layer.size} {layer.folds}".strip()
        library = "–" if row.library_ms is None else f"{row.library_ms:.4f}"
        lines.append(
            f"| {name} | {row.dtype} | {row.ms:.4f} | {row.tflops:.0f} | {100 * row.share:.0f} % | {row.error:.1e} "
            f"| {library} | {row.tile} |"
        )
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[8], help="images a batch")
    parser.add_argument("--size", type=int, default=512, help="height and width, a multiple of 16")
    parser.add_argument("--base", type=int, default=64, help="channels of the first level")
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--out", type=Path, help="a JSON file for the figures, beside which a Markdown file is put")
    return parser.parse_args()


def main() -> int:
    """Print the table; 1 where a kernel's answer is wrong, 2 where this machine can't run them."""
    asked = arguments()
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    if not torch.cuda.is_available():
        sys.stderr.write("no CUDA GPU here: the kernels' parity in the interpreter is in tests/kernels\n")
        return 2
    rows: list[Row] = []
    text = [f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Triton {triton.__version__}", ""]
    with TemporaryDirectory() as folder:
        for name in asked.dtype:
            reason = supported(torch.cuda.get_device_capability(), DTYPES[name])
            if reason:
                text.append(f"{name}: {reason}")
                continue
            top, tuner = measured_peak(DTYPES[name]), Tuner(Path(folder))
            for batch in asked.batch:
                found = [measure(layer, batch, name, top, tuner) for layer in unet(asked.size, asked.base)]
                total, tuned = sum(row.ms for row in found), sum(row.tuned_s for row in found)
                text += [f"{name}, batch {batch}, peak {top:.0f} TFLOP/s, tuned in {tuned:.0f} s", "", table(found)]
                text += ["", f"all layers: {total:.4f} ms", ""]
                rows += found
    sys.stdout.write("\n".join(text) + "\n")
    if asked.out:
        asked.out.write_text(json.dumps([asdict(row) for row in rows], indent=1))
        asked.out.with_suffix(".md").write_text("\n".join(text) + "\n")
    return int(any(not row.error <= LIMIT[row.dtype] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
