"""2:4 sparsity: weights of which two in four are zero, on tensor cores that skip them."""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from pipeline.lessons.lesson import Lesson
from pipeline.lessons.lesson_records import Row
from pipeline.lessons.rows import Rows
from pipeline.lessons.variant_bench import Bench, skipped

LEAST = (8, 0)  # compute capability of the first tensor cores that skip zeros
# rows, columns of the weights, and columns of what they are multiplied by: a large square, and a 3×3 convolution of 128
# channels over a batch of 8 images of 256×256 as the matmul that it is.
SHAPES = {"8,192³": (8192, 8192, 8192), "a convolution's": (128, 9 * 128, 8 * 256 * 256)}
DENSE, SPARSE = "dense", "2:4"
FAR = 1e-2  # relative L2 from the dense product of the same pruned weights; fp16 sums in another order differ by 1e-3


def run(bench: Bench) -> list[Row]:
    """fp16 matmuls of weights and values, dense and with two of four weights left."""
    if torch.cuda.get_device_capability(bench.device) < LEAST:
        reason = "tensor cores that skip zeros came with NVIDIA's compute capability 8.0"
        return [skipped(Row(name_of(SPARSE, shape), name_of(DENSE, shape)), reason) for shape in SHAPES]
    return [row for shape in SHAPES for row in compared(bench, shape)]


def name_of(kind: str, shape: str) -> str:
    """Such as "2:4, 8,192³"."""
    return f"{kind}, {shape}"


def compared(bench: Bench, shape: str) -> list[Row]:
    """Both ways of one shape; FLOPs are the dense product's."""
    rows, inner, columns = SHAPES[shape]
    weights = bench.random(rows, inner, dtype=torch.float16) / inner**0.5
    values = bench.random(inner, columns, dtype=torch.float16)
    flops = 2.0 * rows * inner * columns
    dense, sparse = name_of(DENSE, shape), name_of(SPARSE, shape)
    return bench.sampling(
        [
            (Row(dense, flops=flops), lambda: torch.matmul(weights, values)),
            (Row(sparse, dense, flops=flops), sparse_matmul(weights, values)),
        ]
    )


def sparse_matmul(weights: Tensor, values: Tensor) -> Callable[[], Tensor]:
    """A call that multiplies the pruned weights [rows, inner] by values [inner, columns]; its first packs them.

    Raises:
        RuntimeError: at the first call, where its answer isn't that of the dense product of the pruned weights.
    """

    @cache
    def packed() -> Tensor:
        kept = pruned(weights)
        found: Tensor = torch.sparse.to_sparse_semi_structured(kept)
        right = torch.matmul(kept, values)
        off = float((torch.matmul(found, values) - right).float().norm() / right.float().norm())
        if not off < FAR:
            raise RuntimeError(f"the sparse product is off by {off:.2g}")
        return found

    return lambda: torch.matmul(packed(), values)


def pruned(weights: Tensor) -> Tensor:
    """The two largest of each four neighbours in a row of [rows, inner]; the others are zero."""
    groups = weights.reshape(-1, 4)
    kept = groups.abs().topk(2, dim=1).indices
    return torch.zeros_like(groups).scatter_(1, kept, groups.gather(1, kept)).reshape(weights.shape)


def lead(rows: Rows) -> str:
    """Each shape."""
    pairs = {shape: (name_of(SPARSE, shape), name_of(DENSE, shape)) for shape in SHAPES}
    told = [f"{pace} dense on {shape}" for shape, pair in pairs.items() if (pace := rows.pace(*pair))]
    return f"With two of four weights gone a matmul is {' and '.join(told)}." if told else ""


def says(rows: Rows) -> list[str]:
    """What the promise of twice the speed comes to."""
    ceiling = rows.times(name_of(DENSE, "8,192³"), name_of(SPARSE, "8,192³"))
    if ceiling is None:
        return []
    reached = f"The hardware promises twice the rate; this library reaches {ceiling.value:.2f} times on a large square."
    return [reached, "The weights must first be pruned, and the net trained again, for its masks to stay right."]


LESSON = Lesson(
    name="sparsity",
    title="What does 2:4 sparsity win?",
    how="fp16 weights, dense and with the two largest of every four kept, times dense values; the answer is checked "
    "against the dense product of the pruned weights.",
    unit="TFLOP/s",
    run=run,
    lead=lead,
    says=says,
    gpu_only="2:4 sparsity is a format of NVIDIA's tensor cores",
)
