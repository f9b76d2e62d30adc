"""The polyphase kernels at full size, each tile, beside the kernels or the library that they replace: one table.

python -m tests.benchmarks.polyphase_times --out polyphase.json
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

from pipeline.compiler.autotune import build_side_by_side
from pipeline.kernels import conv3x3, upconv2x2
from pipeline.kernels.common.activation import RELU
from pipeline.kernels.common.epilogue import Epilogue, Outputs
from pipeline.kernels.common.kernel_op import Ends, LibraryParameters
from pipeline.kernels.common.library import convolution
from pipeline.kernels.polyphase import Operands, candidates, flops, polyphase, reference
from pipeline.measure.timers import graph_replay_ms

DTYPES = {"fp16": torch.float16, "fp8": torch.float8_e4m3fn}
SUSTAINED_PEAK = {"fp16": 684e12, "fp8": 1279e12}  # operations a second that an H200 sustains at its power cap
LIMIT = {"fp16": 1e-3, "fp8": 2e-2}  # relative L2 error against the fp32 reference after the same rounding


@dataclass(frozen=True)
class Shape:
    """A layer: `size` is a phase's height and width; `replaces` names what it is timed beside."""

    name: str
    replaces: str
    size: int
    inner: int
    skip: int
    outer: int
    border: bool = False
    window_of_3: bool = False
    batch: int = 8


CLASSIC = [(256, 128, 64, 64), (128, 256, 128, 128), (64, 512, 256, 256), (32, 1024, 512, 512)]
NEAREST = [(16, 512, 256, 256), (32, 256, 128, 128), (64, 128, 64, 64), (128, 64, 64, 32), (256, 32, 0, 16)]
STRIDED = [(64, 0, 64, 128), (32, 0, 128, 256), (256, 0, 32, 64), (16, 0, 256, 512)]
WINDOW_OF_3 = [(32, 768, 0, 128), (64, 256, 0, 64), (128, 128, 0, 32)]
SHAPES = [
    *(Shape(f"classic decoder, batch {n}", "pair", *level, border=True, batch=n) for n in (8, 1) for level in CLASSIC),
    *(Shape("smp ResNet-34 decoder", "convolution alone", *level) for level in NEAREST),
    *(Shape("3×3, stride 2", "cudnn", *level) for level in STRIDED),
    *(Shape("transposed 3×3", "cudnn", *level, window_of_3=True) for level in WINDOW_OF_3),
    Shape("transposed 4×4", "cudnn", 128, 128, 0, 64),
]


def values(dtype: torch.dtype, *shape: int, scale: float = 1.0, relu: bool = True) -> Tensor:
    """Normal values, or their positive half, as a layer after a ReLU reads them."""
    drawn = torch.randn(shape, device="cuda", dtype=torch.float16) * scale
    return (drawn.relu() if relu else drawn).to(dtype)


def epilogue_of(outer: int, dtype: torch.dtype) -> Epilogue:
    """Bias and ReLU, and in fp8 a scale."""
    ones = torch.ones(outer, device="cuda")
    return Epilogue(ones if dtype == DTYPES["fp8"] else None, torch.zeros_like(ones), RELU)


def operands_of(shape: Shape, dtype: torch.dtype) -> Operands:
    """Random maps and weights of a shape, and an output of its own."""
    batch, size, outer = shape.batch, shape.size, shape.outer
    spread = (4 * shape.inner + 9 * shape.skip) ** -0.5
    side = 2 * size if shape.inner else size
    small_taps = values(dtype, 16, outer, shape.inner, scale=spread, relu=False)
    full_taps = values(dtype, 9, outer, shape.skip, scale=spread, relu=False)
    return Operands(
        epilogue_of(outer, dtype),
        Outputs(torch.empty(batch, side, side, outer, device="cuda", dtype=dtype)),
        values(dtype, batch, size, size, shape.inner) if shape.inner else None,
        small_taps if shape.inner else None,
        values(dtype, batch, 2 * size, 2 * size, shape.skip) if shape.skip else None,
        full_taps if shape.skip else None,
        torch.zeros(3, 3, outer, device="cuda") if shape.border else None,
        shape.window_of_3,
    )


def fastest(options: Iterable[Any], run: Callable[[Any], None]) -> dict[str, float]:
    """Milliseconds of each option, the fastest first."""
    tried = list(options)
    build_side_by_side([lambda option=option: run(option) for option in tried])  # type: ignore[misc]
    times = {repr(option): graph_replay_ms(lambda option=option: run(option)) for option in tried}  # type: ignore[misc]
    return dict(sorted(times.items(), key=lambda item: item[1]))


def replaced_ms(shape: Shape, dtype: torch.dtype) -> float | None:
    """Milliseconds of what the kernel replaces; None where there is nothing of the kind."""
    batch, size, inner, skip, outer = shape.batch, shape.size, shape.inner, shape.skip, shape.outer
    if shape.replaces == "cudnn":
        return None if dtype == DTYPES["fp8"] else library_ms(shape)
    middle = skip if shape.replaces == "pair" else inner
    wide, taps = values(dtype, batch, 2 * size, 2 * size, middle + skip), values(dtype, 9, outer, middle + skip)
    end = epilogue_of(outer, dtype)
    out = Outputs(torch.empty(batch, 2 * size, 2 * size, outer, device="cuda", dtype=dtype))
    found = fastest(conv3x3.candidates(wide, taps, end, out), lambda tile: conv3x3.conv3x3(wide, taps, end, out, tile))
    total = next(iter(found.values()))
    if shape.replaces == "pair":
        small, up_taps = values(dtype, batch, size, size, inner), values(dtype, 4, middle, inner)
        up_end, up_out = epilogue_of(middle, dtype), Outputs(wide[..., skip:])
        tiles = upconv2x2.candidates(small, up_taps, up_end)
        found = fastest(tiles, lambda tile: upconv2x2.upconv2x2(small, up_taps, up_end, up_out, tile))
        total += next(iter(found.values()))
    return total


def library_ms(shape: Shape) -> float:
    """Milliseconds of cuDNN's strided or transposed convolution in fp16, NHWC."""
    half, last = torch.float16, torch.channels_last
    bias = torch.zeros(shape.outer, device="cuda", dtype=half)
    if not shape.inner:
        side = 2 * shape.size
        x = values(half, shape.batch, shape.skip, side, side).to(memory_format=last)
        weight = values(half, shape.outer, shape.skip, 3, 3).to(memory_format=last)
        parameters = LibraryParameters(weight, bias)
        return graph_replay_ms(lambda: convolution(x, parameters, Ends(RELU), stride=(2, 2), padding=(1, 1)))
    window = 3 if shape.window_of_3 else 4
    x = values(half, shape.batch, shape.inner, shape.size, shape.size).to(memory_format=last)
    weight = values(half, shape.inner, shape.outer, window, window).to(memory_format=last)
    return graph_replay_ms(lambda: torch.nn.functional.conv_transpose2d(x, weight, bias, 2, 1, 4 - window))


def error_of(operands: Operands) -> float:
    """Relative L2 error of what the last tile stored, against the reference rounded the same."""
    found = operands.outputs.out
    assert found is not None
    wanted = torch.empty_like(found)
    reference(operands._replace(outputs=Outputs(wanted)))
    return float((found.float() - wanted.float()).norm() / wanted.float().norm())


def rows() -> Iterator[dict[str, Any]]:
    """One line of the table after the other."""
    for dtype_name, dtype in DTYPES.items():
        for shape in SHAPES:
            operands = operands_of(shape, dtype)
            times = fastest(candidates(operands), lambda tile: polyphase(operands, tile))  # noqa: B023
            error, operations = error_of(operands), flops(operands)
            if error > LIMIT[dtype_name]:
                raise SystemExit(f"{shape} in {dtype_name}: relative error {error:.1e}")
            ms = next(iter(times.values()))
            yield {
                "shape": asdict(shape),
                "dtype": dtype_name,
                "ms": ms,
                "floor_ms": operations / SUSTAINED_PEAK[dtype_name] * 1e3,
                "tflops": operations / ms / 1e9,
                "replaced_ms": replaced_ms(shape, dtype),
                "error": error,
                "tried_ms": times,
            }


def main() -> None:
    """Print the table, and keep it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("polyphase.json"))
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA GPU here")
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    table = []
    for row in rows():
        table.append(row)
        shape, beside = row["shape"], row["replaced_ms"]
        channels = f"{shape['inner']} + {shape['skip']} → {shape['outer']} @ {shape['size']}"
        old = "" if beside is None else f"{beside:.4f} ms {shape['replaces']}"
        found = f"{row['ms']:.4f} ms {row['tflops']:5.0f} TFLOP/s"
        sys.stdout.write(f"{row['dtype']} {shape['name']:26} {channels:24} {found} {old}\n")
    machine = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}
    arguments.out.write_text(json.dumps({"machine": machine, "rows": table}, indent=1))


if __name__ == "__main__":
    main()
