"""Time every kernel of the classic network at full size beside the library, on random inputs, and check each once more.

python -m tests.benchmarks.kernel_times --batch 8 --size 512 --out kernels.json
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import triton
from torch import Tensor

from pipeline.compiler.agreement import distance
from pipeline.compiler.cuda_graphs import graph_replay_ms
from pipeline.compiler.ops import BY_NAME
from pipeline.compiler.tuning.autotune import Tuner
from pipeline.kernels.common.activation import NONE, RELU
from pipeline.kernels.common.capability import supported
from pipeline.kernels.common.epilogue import Epilogue, Head, Outputs
from pipeline.kernels.common.kernel_op import Ends, KernelOp, LibraryParameters, convolution
from pipeline.measure.environment import git_state
from pipeline.records.disk import code_digest, write_json
from tests.kernels.examples import weight_shape

DTYPES = {"fp16": torch.float16, "fp8": torch.float8_e4m3fn}
# Relative L2 error allowed against the fp32 reference after the same rounding: what is left is the order of the sums,
# and for fp8 wgmma's own sums, which keep 13 bits or so.
LIMIT = {"fp16": 1e-3, "fp8": 2e-2}
CLASSES, ROUNDS = 2, 5


@dataclass(frozen=True)
class Layer:
    """A layer of the network: `size` is the input's height and width, `folds` what its epilogue does besides."""

    kind: str
    size: int
    inner: int
    outer: int
    folds: str = ""


def unet(size: int, base: int = 64, depth: int = 4) -> Iterator[Layer]:
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


def poisoned(*shape: int, dtype: torch.dtype) -> Tensor:
    """Return a tensor of NaN, which shows what a kernel doesn't write."""
    return torch.full(shape, float("nan"), device="cuda").to(dtype)


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
        self.op.launch(self.x, self.packed, self.epilogue, self.outputs, tile)

    def error(self, tile: Any) -> float:
        """Run the kernel on poisoned outputs and return the largest relative L2 error; NaN if it leaves a value."""
        wanted = Outputs(**{name: torch.empty_like(part) for name, part in self.outputs.given.items()})
        self.op.reference(self.x, self.packed, self.epilogue, wanted)
        for part in self.outputs.given.values():
            part.copy_(poisoned(*part.shape, dtype=part.dtype))
        self.run(tile)
        pairs = [(part.float(), wanted.given[name].float()) for name, part in self.outputs.given.items()]
        return float(torch.tensor([distance(*pair) for pair in pairs]).max())

    def library(self) -> Callable[[], Tensor]:
        """Return a call of the library's convolution with bias and activation, without pool and head."""
        weight = self.whole.half().contiguous(memory_format=torch.channels_last)
        parameters = LibraryParameters(weight, torch.zeros(len(weight), device="cuda", dtype=torch.float16))
        x, ends = self.x.permute(0, 3, 1, 2), Ends(self.epilogue.activation)
        return partial(convolution, x, parameters, ends)


def case_of(layer: Layer, batch: int, dtype: torch.dtype) -> Case:
    """Set up a layer on images in [0, 1), or on values half of which are zero, as they are after ReLU."""
    op, size, inner, outer = BY_NAME[layer.kind], layer.size, layer.inner, layer.outer
    assert op.pack is not None
    if op.reads_image:
        x = torch.rand(batch, inner, size, size, device="cuda")
    else:
        x = torch.randn(batch, size, size, inner, device="cuda").relu().to(dtype)
    whole = torch.randn(weight_shape(op, inner, outer), device="cuda") * (1.0 if op.reads_image else 0.05)
    packed = op.pack(whole)
    scale = torch.rand(outer, device="cuda") / inner**0.5 if dtype == DTYPES["fp8"] else None
    head = Head(torch.randn(CLASSES, outer, device="cuda"), torch.randn(CLASSES, device="cuda"))
    epilogue = Epilogue(
        scale, torch.randn(outer, device="cuda"), NONE if op.growth > 1 else RELU, layer.folds == "pool",
        head if layer.folds == "head" else None,
    )  # fmt: skip
    packed = packed if op.reads_image else packed.to(dtype)
    return Case(op, x, whole, packed, epilogue, outputs_of(op, layer, batch, dtype))


def outputs_of(op: KernelOp, layer: Layer, batch: int, dtype: torch.dtype) -> Outputs:
    """Return where a layer stores: an upsampled map into one half of a concatenation; beside a head nothing else."""
    side, outer = int(layer.size * op.growth), layer.outer
    if layer.folds == "head":
        return Outputs(logits=poisoned(batch, CLASSES, side, side, dtype=torch.float32))
    pooled = poisoned(batch, side // 2, side // 2, outer, dtype=dtype) if layer.folds == "pool" else None
    if op.growth > 1:
        return Outputs(poisoned(batch, side, side, 2 * outer, dtype=dtype)[..., outer:])
    return Outputs(poisoned(batch, side, side, outer, dtype=dtype), pooled)


def measure(layer: Layer, batch: int, name: str, tuner: Tuner) -> dict[str, Any]:
    """Tune one layer, check its answer, and time it and the library."""
    case = case_of(layer, batch, DTYPES[name])
    tiles = case.op.candidates(case.x, case.packed, case.epilogue, case.outputs)
    tile = tuner.best(f"{layer} {name} {batch}", tiles, case.run)
    error = case.error(tile)
    calls: list[Callable[[], object]] = [partial(case.run, tile)]
    calls += [case.library()] * (name == "fp16" and layer.kind == "conv3x3")
    rounds, *library = zip(*[[graph_replay_ms(call) for call in calls] for _ in range(ROUNDS)], strict=True)
    row = {"layer": asdict(layer), "dtype": name, "batch": batch, "tile": f"{tile.kernel} {tile}", "rounds_ms": rounds}
    flops = case.op.flops((batch, layer.inner, layer.size, layer.size), layer.outer)
    return row | {"flops": flops, "relative_l2": error, "library_rounds_ms": library[0] if library else None}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batch", type=int, nargs="+", default=[8], help="images a batch")
    parser.add_argument("--size", type=int, default=512, help="height and width, a multiple of 16")
    parser.add_argument("--out", type=Path, required=True, help="a JSON file for the figures")
    asked = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    if not torch.cuda.is_available():
        parser.error("no CUDA GPU here: the kernels' parity in the interpreter is in tests/kernels")
    rows: list[dict[str, Any]] = []
    record = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}
    record |= {"commit": git_state(Path(__file__).parent)[0], "code_sha256": code_digest()}
    sys.stdout.write(f"{record}\n")
    with TemporaryDirectory() as folder:
        for name, dtype in DTYPES.items():
            if reason := supported(torch.cuda.get_device_capability(), dtype):
                sys.stdout.write(f"{name}: {reason}\n")
                continue
            tuner = Tuner(Path(folder))
            for batch in asked.batch:
                for layer in unet(asked.size):
                    rows.append(measure(layer, batch, name, tuner))
                    sys.stdout.write(f"{json.dumps(rows[-1], ensure_ascii=False)}\n")
    write_json(record | {"rows": rows}, asked.out)
    return int(any(not row["relative_l2"] <= LIMIT[row["dtype"]] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
