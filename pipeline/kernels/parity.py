"""Every kernel against its reference at full size, with fresh random inputs, and beside the library: one table.

python -m pipeline.kernels.parity --batch 8 --size 512 --out kernels.json
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import triton
from torch import Tensor

from pipeline.kernels import conv3x3, conv3x3_first, upconv2x2
from pipeline.kernels.capability import supported
from pipeline.kernels.tuning import Tuner, on_device

DTYPES = {"fp16": torch.float16, "fp8": torch.float8_e4m3fn}
# Relative L2 error allowed against the fp32 reference after the same rounding: what is left is the order of the sums,
# and for fp8 wgmma's own sums, which keep 13 bits or so.
LIMIT = {"fp16": 1e-3, "fp8": 2e-2}


@dataclass(frozen=True)
class Layer:
    """A layer of the net: `size` is the input's height and width, `folds` what its epilogue does besides."""

    kind: str
    size: int
    inner: int
    outer: int
    folds: str = ""

    def flop(self, batch: int) -> float:
        """Operations, 2 for a multiply-add."""
        return 2.0 * batch * self.size**2 * self.inner * self.outer * (4 if self.kind == "upconv2x2" else 9)


@dataclass(frozen=True)
class Row:
    """One line of the table: milliseconds, TFLOP/s, share of the ceiling, relative L2 error, the library's ms."""

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
    yield Layer("conv3x3_first", size, 3, base)
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


def ends(layer: Layer, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """A bias, and for fp8 a scale for each channel that keeps the sums near 1."""
    beta = torch.randn(layer.outer, device="cuda")
    return beta, torch.rand(layer.outer, device="cuda") / layer.inner**0.5 if dtype == DTYPES["fp8"] else None


def error(results: list[Tensor], expected: list[Tensor]) -> float:
    """The largest relative L2 error; NaN where anything was left unwritten."""
    pairs = zip(results, expected, strict=True)
    return max(float((a.double() - b.double()).norm() / b.double().norm()) for a, b in pairs)


@dataclass(frozen=True)
class Case:
    """A layer set up: how to launch it with a tile, the tiles to try, what it writes, and what that must be."""

    run: Callable[[Any], None]
    tiles: Iterable[Any]
    results: list[Tensor]
    expected: list[Tensor]
    library: Callable[[], Any] | None = None


def first_case(layer: Layer, batch: int, dtype: torch.dtype) -> Case:
    """The first convolution, on images in [0, 1)."""
    image = torch.rand(batch, layer.inner, layer.size, layer.size, device="cuda")
    weight = conv3x3_first.pack(torch.randn(layer.outer, layer.inner, 3, 3, device="cuda"))
    beta, alpha = ends(layer, dtype)
    out, expected = (poisoned(batch, layer.size, layer.size, layer.outer, dtype=dtype) for _ in range(2))
    conv3x3_first.reference(image, weight, beta, expected, alpha=alpha)

    def run(tile: conv3x3_first.Tile) -> None:
        conv3x3_first.conv3x3_first(image, weight, beta, out, alpha=alpha, tile=tile)

    return Case(run, conv3x3_first.candidates(layer.outer), [out], [expected])


def upconv_case(layer: Layer, batch: int, dtype: torch.dtype) -> Case:
    """The transposed convolution, into one half of a concatenation's buffer."""
    x = random(batch, layer.size, layer.size, layer.inner, dtype=torch.float16).relu().to(dtype)
    weight = random(4, layer.outer, layer.inner, dtype=dtype, scale=0.05)
    beta, alpha = ends(layer, dtype)
    wide = [poisoned(batch, 2 * layer.size, 2 * layer.size, 2 * layer.outer, dtype=dtype) for _ in range(2)]
    out, expected = (buffer[..., layer.outer :] for buffer in wide)
    upconv2x2.reference(x, weight, beta, expected, alpha=alpha)

    def run(tile: upconv2x2.Tile) -> None:
        upconv2x2.upconv2x2(x, weight, beta, out, alpha=alpha, tile=tile)

    return Case(run, upconv2x2.candidates(x, layer.outer), [out], [expected])


def conv_case(layer: Layer, batch: int, dtype: torch.dtype) -> Case:
    """A 3×3 convolution, on values half of which are zero, as they are after ReLU."""
    size, outer = layer.size, layer.outer
    x = random(batch, size, size, layer.inner, dtype=torch.float16).relu().to(dtype)
    weight = random(9, outer, layer.inner, dtype=dtype, scale=0.05)
    beta, alpha = ends(layer, dtype)
    mix, bias = torch.randn(2, outer, device="cuda"), torch.randn(2, device="cuda")

    def outputs() -> tuple[Tensor | None, Tensor | None, conv3x3.Head | None]:
        if layer.folds == "head":
            return None, None, conv3x3.Head(mix, bias, poisoned(batch, 2, size, size, dtype=torch.float32))
        pooled = poisoned(batch, size // 2, size // 2, outer, dtype=dtype) if layer.folds == "pool" else None
        return poisoned(batch, size, size, outer, dtype=dtype), pooled, None

    written, wanted = outputs(), outputs()
    conv3x3.reference(x, weight, beta, wanted[0], alpha=alpha, pooled=wanted[1], head=wanted[2])

    def run(tile: conv3x3.Tile) -> None:
        conv3x3.conv3x3(x, weight, beta, written[0], alpha=alpha, pooled=written[1], head=written[2], tile=tile)

    tiles = conv3x3.candidates(x, outer, head=layer.folds == "head")
    library = cudnn(x, weight, beta) if dtype == torch.float16 else None
    return Case(run, tiles, tensors(written), tensors(wanted), library)


def tensors(written: tuple[Tensor | None, Tensor | None, conv3x3.Head | None]) -> list[Tensor]:
    """Those of the output, the pooled output and the logits that there are."""
    out, pooled, head = written
    return [tensor for tensor in (out, pooled, None if head is None else head.logits) if tensor is not None]


def cudnn(x: Tensor, weight: Tensor, beta: Tensor) -> Callable[[], Tensor]:
    """The library's convolution with bias and ReLU; pool and head would be kernels of their own."""
    taps = weight.reshape(3, 3, *weight.shape[1:]).permute(2, 3, 0, 1).contiguous(memory_format=torch.channels_last)
    image, bias = x.permute(0, 3, 1, 2), beta.half()
    return lambda: torch.cudnn_convolution_relu(image, taps, bias, (1, 1), (1, 1), (1, 1), 1)


CASES = {"conv3x3": conv_case, "conv3x3_first": first_case, "upconv2x2": upconv_case}


def ceiling(dtype: torch.dtype, side: int = 8192) -> float:
    """TFLOP/s of the library's matrix product of this dtype on random values: what a share is a share of."""
    a, b = random(side, side, dtype=dtype), random(side, side, dtype=dtype)
    if dtype == torch.float16:
        return 2.0 * side**3 / on_device(lambda: torch.mm(a, b.t())) / 1e9
    one = torch.ones((), device="cuda")
    half = torch.float16
    took = on_device(lambda: torch._scaled_mm(a, b.t(), one, one, out_dtype=half, use_fast_accum=True))
    return 2.0 * side**3 / took / 1e9


def measure(layer: Layer, batch: int, name: str, top: float, tuner: Tuner) -> Row:
    """Tune one layer, run it once more on poisoned outputs, compare, and time it and the library."""
    dtype = DTYPES[name]
    case = CASES[layer.kind](layer, batch, dtype)
    start = time.perf_counter()
    tile = tuner.best(f"{layer} {name} {batch}", case.tiles, case.run)
    tuned = time.perf_counter() - start
    for result in case.results:
        result.copy_(poisoned(*result.shape, dtype=result.dtype))
    case.run(tile)
    wrong = error(case.results, case.expected)
    took = on_device(lambda: case.run(tile))
    library = None if case.library is None else on_device(case.library)
    rate = layer.flop(batch) / took / 1e9
    return Row(
        layer, name, f"{type(tile).__module__.rpartition('.')[2]} {tile}", took, rate, rate / top, wrong, library, tuned
    )


def table(rows: list[Row]) -> str:
    """The rows as Markdown."""
    lines = [
        "| layer | dtype | ms | TFLOP/s | share of ceiling | relative error | library ms | tile |",
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
            top, tuner = ceiling(DTYPES[name]), Tuner(Path(folder))
            for batch in asked.batch:
                found = [measure(layer, batch, name, top, tuner) for layer in unet(asked.size, asked.base)]
                total, tuned = sum(row.ms for row in found), sum(row.tuned_s for row in found)
                text += [f"{name}, batch {batch}, ceiling {top:.0f} TFLOP/s, tuned in {tuned:.0f} s", "", table(found)]
                text += ["", f"all layers: {total:.4f} ms", ""]
                rows += found
    sys.stdout.write("\n".join(text) + "\n")
    if asked.out:
        asked.out.write_text(json.dumps([asdict(row) for row in rows], indent=1))
        asked.out.with_suffix(".md").write_text("\n".join(text) + "\n")
    return int(any(not row.error <= LIMIT[row.dtype] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
