"""2:4 sparsity: weights of which two in four are zero, on tensor cores that skip them."""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from pipeline.devices.accelerators import FP8
from pipeline.lessons.lesson import Lesson
from pipeline.lessons.lesson_records import Row
from pipeline.lessons.rows import Rows
from pipeline.lessons.variant_bench import Bench, skipped
from pipeline.measure.peaks import fp8_matmul
from pipeline.measure.torch_device import has_compute

LEAST = (8, 0)  # compute capability of the first tensor cores that skip zeros
# rows, columns of the weights, and columns of what they are multiplied by: a large square, and a 3×3 convolution of 128
# channels over a batch of 8 images of 256×256 as the matmul that it is.
SHAPES = {"8,192³": (8192, 8192, 8192), "a convolution's": (128, 9 * 128, 8 * 256 * 256)}
FORMATS = {"fp16": torch.float16, "fp8": torch.float8_e4m3fn}
FAR = 1e-2  # relative L2 from the dense product of the same pruned weights; sums in another order differ by 1e-3


def run(bench: Bench) -> list[Row]:
    """Matmuls of weights and values in fp16 and fp8, dense and with two of four weights left."""
    return [row for shape in SHAPES for number in FORMATS for row in compared(bench, shape, number)]


def names_of(number: str, shape: str) -> tuple[str, str]:
    """Dense and sparse, such as "fp8 dense, 8,192³" and "fp8 2:4, 8,192³"."""
    return f"{number} dense, {shape}", f"{number} 2:4, {shape}"


def lacks(bench: Bench, number: str) -> str:
    """What the device can't do of a format; empty where it can."""
    if torch.cuda.get_device_capability(bench.device) < LEAST:
        return "tensor cores that skip zeros came with NVIDIA's compute capability 8.0"
    if FORMATS[number] == torch.float8_e4m3fn and not has_compute(bench.device, FP8):
        return "matrix instructions for fp8 came with NVIDIA's compute capability 8.9"
    return ""


def compared(bench: Bench, shape: str, number: str) -> list[Row]:
    """Both ways of one shape in one format; FLOPs are the dense product's."""
    dense, sparse = names_of(number, shape)
    if reason := lacks(bench, number):
        return [skipped(Row(sparse, dense), reason)]
    rows, inner, columns = SHAPES[shape]
    weights = bench.random(rows, inner, dtype=torch.float16).to(FORMATS[number])
    # cuBLASLt takes fp8's second operand by columns alone, and cuSPARSELt does, too.
    values = bench.random(columns, inner, dtype=torch.float16).to(FORMATS[number]).t()
    flops = 2.0 * rows * inner * columns
    return bench.sampling(
        [
            (Row(dense, flops=flops), dense_matmul(weights, values)),
            (Row(sparse, dense, flops=flops), sparse_matmul(weights, values)),
        ]
    )


def dense_matmul(weights: Tensor, values: Tensor) -> Callable[[], Tensor]:
    """A call that multiplies weights [rows, inner] by values [inner, columns], which lie by columns, into fp16."""
    if weights.dtype == torch.float8_e4m3fn:
        return fp8_matmul(weights, values.t())
    return lambda: torch.matmul(weights, values)


def sparse_matmul(weights: Tensor, values: Tensor) -> Callable[[], Tensor]:
    """A call that multiplies the pruned weights [rows, inner] by values [inner, columns]; its first packs them.

    That one also times the library's algorithms, and the others take the fastest.

    Raises:
        RuntimeError: at the first call, where its answer isn't that of the dense product of the pruned weights.
    """
    into = torch.float16 if weights.dtype == torch.float8_e4m3fn else None  # fp16 has no choice

    @cache
    def packed() -> tuple[Tensor, int]:
        kept = pruned(weights)
        found: Tensor = torch._cslt_compress(kept)
        fastest: int = torch._cslt_sparse_mm_search(found, values, out_dtype=into)
        right = dense_matmul(kept, values)().float()
        off = float((multiplied(found, fastest).float() - right).norm() / right.norm())
        if not off < FAR:
            raise RuntimeError(f"the sparse product is off by {off:.2g}")
        return found, fastest

    def multiplied(found: Tensor, algorithm: int) -> Tensor:
        product: Tensor = torch._cslt_sparse_mm(found, values, out_dtype=into, alg_id=algorithm)
        return product

    return lambda: multiplied(*packed())


def pruned(weights: Tensor) -> Tensor:
    """The two largest of each four neighbours in a row of [rows, inner]; the others are zero."""
    groups = weights.float().reshape(-1, 4)
    kept = groups.abs().topk(2, dim=1).indices
    return torch.zeros_like(groups).scatter_(1, kept, groups.gather(1, kept)).reshape(weights.shape).to(weights.dtype)


def lead(rows: Rows) -> str:
    """Shape by shape, in each format."""
    told = []
    for shape in SHAPES:
        pairs = {number: names_of(number, shape) for number in FORMATS}
        paces = {number: rows.pace(sparse, dense) for number, (dense, sparse) in pairs.items()}
        said = [f"{pace} dense in {number}" for number, pace in paces.items() if pace]
        told += [f"{shape} is {' and '.join(said)}"] if said else []
    return f"With two of four weights gone a matmul of {'; '.join(told)}." if told else ""


def says(rows: Rows) -> list[str]:
    """What the promise of twice the speed comes to."""
    found = {number: rows.times(*names_of(number, "8,192³")) for number in FORMATS}
    reached = [f"{ratio.value:.2f} times in {number}" for number, ratio in found.items() if ratio]
    if not reached:
        return []
    return [
        f"The hardware promises twice the rate; this library reaches {' and '.join(reached)} on a large square.",
        "The weights must first be pruned, and the net trained again, for its masks to stay right.",
    ]


LESSON = Lesson(
    title="What does 2:4 sparsity win?",
    how="fp16 and fp8 weights, dense and with the two largest of every four kept, times dense values; the answer is "
    "checked against the dense product of the pruned weights, and the library's fastest algorithm is taken.",
    unit="TFLOP/s",
    run=run,
    lead=lead,
    says=says,
    gpu_only="2:4 sparsity is a format of NVIDIA's tensor cores",
)
