"""One matmul in every precision."""

import torch

from pipeline.devices.accelerators import FP8
from pipeline.lessons.lesson import Lesson
from pipeline.lessons.lesson_records import Row
from pipeline.lessons.rows import Rows, shown, value
from pipeline.lessons.variant_bench import Bench, Call, skipped
from pipeline.measure.peaks import fp8_matmul
from pipeline.measure.torch_device import has_compute

# Large enough for every matrix unit. On a GPU with few fp64 units a side of 8192 takes seconds a call; on a CPU without
# instructions for fp16, that takes a hundred times as long as fp32.
GPU_SIDE, CPU_SIDE = 6144, 384
TYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
ORDER = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8")


def run(bench: Bench) -> list[Row]:
    """Square matrices of normal random numbers; FLOPs are 2 · side³."""
    side = GPU_SIDE if bench.on_gpu else CPU_SIDE
    rows = {name: Row(name, against="" if name == "fp32" else "fp32", flops=2.0 * side**3) for name in ORDER}
    calls = {name: matmul(bench, dtype, side) for name, dtype in TYPES.items()}
    reasons = {}
    if bench.on_gpu:
        calls["fp32"] = with_precision("ieee", calls["fp32"])
        calls["tf32"] = with_precision("tf32", matmul(bench, torch.float32, side))
    else:
        reasons["tf32"] = "TF32 is a format of NVIDIA's tensor cores"
    if bench.on_gpu and has_compute(bench.device, FP8):
        calls["fp8"] = fp8_matmul(*(bench.random(side, side, dtype=torch.float8_e4m3fn) for _ in range(2)))
    else:
        reasons["fp8"] = "matrix instructions for fp8 came with NVIDIA's compute capability 8.9"
    kept = torch.backends.cuda.matmul.fp32_precision
    try:
        timed = bench.sampling([(rows[name], calls[name]) for name in ORDER if name in calls])
    finally:
        torch.backends.cuda.matmul.fp32_precision = kept
    by_name = {row.name: row for row in timed}
    return [by_name.get(name) or skipped(rows[name], reasons[name]) for name in ORDER]


def matmul(bench: Bench, dtype: torch.dtype, side: int) -> Call:
    """A matmul into a buffer of its own."""
    left, right = bench.random(side, side, dtype=dtype), bench.random(side, side, dtype=dtype)
    out = torch.empty_like(left)
    return lambda: torch.matmul(left, right, out=out)


def with_precision(precision: str, call: Call) -> Call:
    """The same with fp32 matmuls in "ieee" or "tf32"; set at each call, as the variants' samples are interleaved."""

    def chosen() -> object:
        torch.backends.cuda.matmul.fp32_precision = precision
        return call()

    return chosen


def lead(rows: Rows) -> str:
    """The fastest format beside fp32."""
    rates = rates_of(rows)
    if "fp32" not in rates:
        return ""
    best = max(rates, key=lambda name: rates[name])
    if best == "fp32":
        return f"fp32 does the most arithmetic here, {shown(rates[best], 'TFLOP/s')}."
    return (
        f"{best} does the most arithmetic here, {shown(rates[best], 'TFLOP/s')}: it is {rows.pace(best, 'fp32')} fp32."
    )


def rates_of(rows: Rows) -> dict[str, float]:
    """10^12 FLOP/s by format."""
    return {row.name: found.value for row in rows.measured() if (found := value(row, "TFLOP/s"))}


def says(rows: Rows) -> list[str]:
    """What surprises, and why a run's report shows higher rates."""
    rates = rates_of(rows)
    found = []
    if rates.get("fp64", 0.0) > rates.get("fp32", float("inf")):
        found.append("fp64 beats fp32 here: this device has matrix units for fp64, and none for fp32 without TF32.")
    if rates:
        found.append("These are medians; a run's report shows the most that was reached, which is more.")
    return found


LESSON = Lesson(
    title="How fast is a matmul in each precision?",
    how="The same large square matmul of random numbers in each format; fp32 is IEEE arithmetic, without TF32.",
    unit="TFLOP/s",
    run=run,
    lead=lead,
    says=says,
)
