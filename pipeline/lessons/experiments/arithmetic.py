"""Lessons on arithmetic: precisions, eight bits, sparsity, and sizes and batches that suit the device."""

from collections.abc import Callable, Sequence
from functools import cache, partial

import torch
from torch import Tensor

from pipeline.devices.accelerators import FP8
from pipeline.lessons.bench import Bench, Call, Variant
from pipeline.lessons.lesson_records import Row
from pipeline.lessons.rows import Rows, seconds, shown, value
from pipeline.measure.peaks import fp8_matmul
from pipeline.measure.torch_device import has_compute
from pipeline.report import formatting

# Large enough for every matrix unit. On a GPU with few fp64 units a side of 8192 takes seconds a call; on a CPU without
# instructions for fp16, that takes a hundred times as long as fp32.
PRECISIONS_GPU_SIDE, PRECISIONS_CPU_SIDE = 6144, 384
TYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
NO_FP8 = "matrix instructions for fp8 came with NVIDIA's compute capability 8.9"
ORDER = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8")


def run_precisions(bench: Bench) -> list[Row]:
    """Multiply square matrices of normal random numbers; FLOPs are 2 · side³."""
    side = PRECISIONS_GPU_SIDE if bench.on_gpu else PRECISIONS_CPU_SIDE
    rows = {name: Row(name, against="" if name == "fp32" else "fp32", flops=2.0 * side**3) for name in ORDER}
    matmuls = {name: matmul(bench, dtype, side) for name, dtype in TYPES.items()}
    tf32: Call | str = "TF32 is a format of NVIDIA's tensor cores"
    if bench.on_gpu:
        matmuls["fp32"] = partial(with_precision, "ieee", matmuls["fp32"])
        tf32 = partial(with_precision, "tf32", matmul(bench, torch.float32, side))
    calls = {**matmuls, "tf32": tf32, "fp8": matmul_in_fp8(bench, side)}
    kept = torch.backends.cuda.matmul.fp32_precision
    try:
        return bench.sampling([(rows[name], calls[name]) for name in ORDER])
    finally:
        torch.backends.cuda.matmul.fp32_precision = kept


def matmul(bench: Bench, dtype: torch.dtype, side: int) -> Call:
    """Return a call that multiplies into a buffer of its own."""
    left, right = bench.random(side, side, dtype=dtype), bench.random(side, side, dtype=dtype)
    out = torch.empty_like(left)
    return lambda: torch.matmul(left, right, out=out)


def matmul_in_fp8(bench: Bench, side: int) -> Call | str:
    """Return such a call in fp8, or why the device lacks it."""
    if not (bench.on_gpu and has_compute(bench.device, FP8)):
        return NO_FP8
    return fp8_matmul(*(bench.random(side, side, dtype=torch.float8_e4m3fn) for _ in range(2)))


def with_precision(precision: str, call: Call) -> object:
    """Do it with fp32 matmuls in "ieee" or "tf32", set at each call as samples are interleaved."""
    torch.backends.cuda.matmul.fp32_precision = precision
    return call()


def says_precisions(rows: Rows) -> list[str]:
    """Return the fastest format beside fp32, surprising figures, and why a run's report shows higher rates."""
    rates = {row.name: found.value for row in rows.measured() if (found := value(row, "TFLOP/s"))}
    if not rates:
        return []
    best = max(rates, key=lambda name: rates[name])
    beside = "" if best == "fp32" else f": it is {rows.pace(best, 'fp32')} fp32"
    most = f"{best} does the most arithmetic here, {shown(rates[best], 'TFLOP/s')}{beside}."
    said = [most if "fp32" in rates else ""]
    if rates.get("fp64", 0.0) > rates.get("fp32", float("inf")):
        said.append("fp64 beats fp32 here: this device has matrix units for fp64, and none for fp32 without TF32.")
    return [*said, "These are medians; a run's report shows the most that was reached, which is more."]


EIGHT_BITS_GPU_SIDE, EIGHT_BITS_CPU_SIDE = 6144, 192
NUMBERS, RARE, LARGE = 2**20, 2**10, 50.0  # every `RARE`-th number is `LARGE` times as large
LARGEST_INT8, LARGEST_FP8 = 127.0, 448.0  # of e4m3
INT8, EIGHT = "int8", "fp8"


def run_eight_bits(bench: Bench) -> list[Row]:
    """Multiply square matrices, beside fp16 on a GPU and fp32 on a CPU, and measure the rounding."""
    side, plain = (EIGHT_BITS_GPU_SIDE, "fp16") if bench.on_gpu else (EIGHT_BITS_CPU_SIDE, "fp32")
    even = bench.random(NUMBERS)
    uneven = even.clone()
    uneven[::RARE] *= LARGE
    rows = {plain: Row(plain, flops=2.0 * side**3)}
    for name in (INT8, EIGHT):
        apart, among = (formatting.share(off_eight_bits(rounded(name, x), x)) for x in (even, uneven))
        rows[name] = Row(name, plain, flops=2.0 * side**3, note=f"{apart} off, and {among} among a few large ones")
    left, right = (bench.random(side, side).mul(40).clamp(-LARGEST_INT8, LARGEST_INT8).to(torch.int8) for _ in range(2))
    calls: dict[str, Call | str] = {
        plain: matmul(bench, torch.float16 if bench.on_gpu else torch.float32, side),
        INT8: lambda: torch._int_mm(left, right.t()),  # column-major, as GPUs want it
        EIGHT: matmul_in_fp8(bench, side),
    }
    return bench.sampling([(row, calls[name]) for name, row in rows.items()])


def off_eight_bits(found: Tensor, right: Tensor) -> float:
    """Return the relative L2 of the ordinary numbers of [numbers], all but the rare large ones."""
    ordinary = torch.ones_like(right, dtype=torch.bool)
    ordinary[::RARE] = False
    return float((found - right)[ordinary].norm() / right[ordinary].norm())


def rounded(name: str, x: Tensor) -> Tensor:
    """Return a tensor of any shape after a trip through int8 or e4m3, scaled to the format's largest number."""
    largest = x.abs().max()
    if name == INT8:
        scale = largest / LARGEST_INT8
        return (x / scale).round() * scale
    scale = largest / LARGEST_FP8
    return (x / scale).to(torch.float8_e4m3fn).float() * scale


def says_eight_bits(rows: Rows) -> list[str]:
    """Return the paces, the loss of each format, and what it means for a network."""
    notes = {row.name: row.note for row in rows if row.note}
    if not any(value(row, "time") for row in rows):
        return []
    said = [f"Rounded to {name}, normal numbers are {note}." for name, note in notes.items()]
    why = "Steps of int8 are all alike, and one large number widens them for all; those of fp8 grow with the number."
    return [rows.paces(), *said, why]


LEAST = (8, 0)  # compute capability of the first tensor cores that skip zeros
# rows, columns of the weights, and columns of what they are multiplied by: a large square, and a 3×3 convolution of 128
# channels over a batch of 8 images of 256×256 as the matmul that it is.
SHAPES = {"8,192³": (8192, 8192, 8192), "a convolution's": (128, 9 * 128, 8 * 256 * 256)}
FORMATS = {"fp16": torch.float16, "fp8": torch.float8_e4m3fn}
FAR = 1e-2  # relative L2 from the dense product of the same pruned weights; sums in another order differ by 1e-3


def run_sparsity(bench: Bench) -> list[Row]:
    """Multiply weights and values in fp16 and fp8, dense and with two of four weights left."""
    return [row for shape in SHAPES for number in FORMATS for row in compared(bench, shape, number)]


def names_of(number: str, shape: str) -> tuple[str, str]:
    """Return dense and sparse, such as "fp8 dense, 8,192³" and "fp8 2:4, 8,192³"."""
    return f"{number} dense, {shape}", f"{number} 2:4, {shape}"


def lacks(bench: Bench, number: str) -> str:
    """Return the reason why the device lacks a format; empty where it has it."""
    if torch.cuda.get_device_capability(bench.device) < LEAST:
        return "tensor cores that skip zeros came with NVIDIA's compute capability 8.0"
    if FORMATS[number] == torch.float8_e4m3fn and not has_compute(bench.device, FP8):
        return NO_FP8
    return ""


def compared(bench: Bench, shape: str, number: str) -> list[Row]:
    """Compare both ways for one shape in one format; FLOPs are the dense product's."""
    dense, sparse = names_of(number, shape)
    if reason := lacks(bench, number):
        return bench.sampling([(Row(sparse, dense), reason)])
    rows, inner, columns = SHAPES[shape]
    weights = bench.random(rows, inner, dtype=torch.float16).to(FORMATS[number])
    # cuBLASLt takes fp8's second operand by columns alone, and cuSPARSELt does, too.
    values = bench.random(columns, inner, dtype=torch.float16).to(FORMATS[number]).t()
    flops = 2.0 * rows * inner * columns
    return bench.sampling([
        (Row(dense, flops=flops), dense_matmul(weights, values)),
        (Row(sparse, dense, flops=flops), sparse_matmul(weights, values)),
    ])  # fmt: skip


def dense_matmul(weights: Tensor, values: Tensor) -> Callable[[], Tensor]:
    """Return a call that multiplies weights [rows, inner] by column-major values [inner, columns] into fp16."""
    if weights.dtype == torch.float8_e4m3fn:
        return fp8_matmul(weights, values.t())
    return lambda: torch.matmul(weights, values)


def sparse_matmul(weights: Tensor, values: Tensor) -> Callable[[], Tensor]:
    """Return a call that multiplies the pruned weights [rows, inner] by [inner, columns]; the first call packs them.

    That one also times the library's algorithms, and the others take the fastest.
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
    """Keep the two largest of each four neighbours in a row of [rows, inner]; the others are zero."""
    groups = weights.float().reshape(-1, 4)
    kept = groups.abs().topk(2, dim=1).indices
    return torch.zeros_like(groups).scatter_(1, kept, groups.gather(1, kept)).reshape(weights.shape).to(weights.dtype)


def says_sparsity(rows: Rows) -> list[str]:
    """Compare shape by shape in each format, and with the promised factor of two."""
    told = []
    for shape in SHAPES:
        pairs = {number: names_of(number, shape) for number in FORMATS}
        paces = {number: rows.pace(sparse, dense) for number, (dense, sparse) in pairs.items()}
        said = [f"{pace} dense in {number}" for number, pace in paces.items() if pace]
        told += [f"{shape} is {' and '.join(said)}"] if said else []
    lead = f"With two of four weights gone a matmul of {'; '.join(told)}." if told else ""
    found = {number: rows.times(*names_of(number, "8,192³")) for number in FORMATS}
    reached = [f"{ratio.value:.2f} times in {number}" for number, ratio in found.items() if ratio]
    if not reached:
        return [lead]
    return [
        lead,
        f"The hardware promises twice the rate; this library reaches {' and '.join(reached)} on a large square.",
        "The weights must first be pruned, and the network trained again, for its masks to stay right.",
    ]


GPU_SIDES = (4096, 4088, 4092, 4094, 4095, 4097)
CPU_SIDES = (768, 760, 764, 766, 767, 769)


def run_sizes(bench: Bench) -> list[Row]:
    """Multiply square matrices: fp16 on a GPU, for its tensor cores, and fp32 on a CPU, for its vectors."""
    dtype, sides = (torch.float16, GPU_SIDES) if bench.on_gpu else (torch.float32, CPU_SIDES)
    variants: list[Variant] = []
    for side in sides:
        against, factor = f"{sides[0]:,}" if side != sides[0] else "", side & -side
        row = Row(f"{side:,}", against, flops=2.0 * side**3, note=f"divisible by {factor}" if factor > 1 else "odd")
        variants.append((row, matmul(bench, dtype, side)))
    return bench.sampling(variants)


def says_sizes(rows: Rows) -> list[str]:
    """Return the friendly size beside the worst of its neighbours."""
    rates = {row.name: found.value for row in rows.measured() if (found := value(row, "TFLOP/s"))}
    friendly = next((row.name for row in rows.measured() if not row.against), None)
    if friendly is None or len(rates) < 2:
        return []
    worst = min(rates, key=lambda name: rates[name])
    if worst == friendly:
        return [f"{friendly} is the slowest of its neighbours here: nothing is won by that size."]
    if rows.outcome(friendly, worst) != "slower":
        return [f"This run shows no price for a side other than {friendly}."]
    lost = 1 - rates[worst] / rates[friendly]
    note = {row.name: row.note for row in rows}[worst]
    return [f"A side of {worst} ({note}) in place of {friendly} costs {100 * lost:.0f} % of the rate."]


SAMPLES = 1024
GPU_WIDTH, CPU_WIDTH = 1024, 256
BATCHES = (1, 4, 16, 64, 256, 1024)


def run_batches(bench: Bench) -> list[Row]:
    """Send 1,024 samples through one linear layer; fp16 on a GPU, fp32 on a CPU."""
    dtype, width = (torch.float16, GPU_WIDTH) if bench.on_gpu else (torch.float32, CPU_WIDTH)
    samples, weight = bench.random(SAMPLES, width, dtype=dtype), bench.random(width, width, dtype=dtype)
    out = torch.empty_like(samples)
    variants: list[Variant] = []
    for batch in BATCHES:
        against, flops = name_of_batches(SAMPLES) if batch != SAMPLES else "", 2.0 * SAMPLES * width**2
        row = Row(name_of_batches(batch), against, series="1,024 samples", at=batch, flops=flops)
        variants.append((row, partial(in_batches, samples.split(batch), out.split(batch), weight)))
    return bench.sampling(variants)


def name_of_batches(batch: int) -> str:
    """Return the row's name, such as 64 batches of 16."""
    count = SAMPLES // batch
    return f"{count:,} batch{'' if count == 1 else 'es'} of {batch:,}"


def in_batches(samples: Sequence[Tensor], places: Sequence[Tensor], weight: Tensor) -> None:
    """Multiply batches of samples [batch, width] by `weight` [width, width], each into its place."""
    for part, place in zip(samples, places, strict=True):
        torch.matmul(part, weight, out=place)


def says_batches(rows: Rows) -> list[str]:
    """Return the ends of the range, and the least batch that is within 10 % of the best."""
    pace = rows.pace(name_of_batches(SAMPLES), name_of_batches(1))
    lead = f"{name_of_batches(SAMPLES)} is {pace} {name_of_batches(1)}." if pace else ""
    times = {row.at: seconds(row).value for row in rows.measured() if row.at is not None}
    if not times:
        return [lead]
    best = min(times.values())
    enough = min(at for at, time in times.items() if time <= 1.1 * best)
    return [lead, f"A batch of {enough:,.0f} is enough to come within 10 % of the best, {formatting.seconds(best)}."]
