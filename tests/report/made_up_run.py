"""A run as the pipeline might leave it, with everything in it that a report must show or survive."""

import csv
import json
import lzma
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType

from pipeline.analysis.summary import RunSummary, summarize
from pipeline.records import codec
from pipeline.records.diagnostics import (
    BatchGrowth,
    Diagnostics,
    FusedKernel,
    Fusion,
    KernelRow,
    LayerTime,
    LayerWork,
    LayoutChange,
    MemoryHolder,
    MemoryTimeline,
    Note,
    Profile,
    TimeSplit,
)
from pipeline.records.goals import Tolerance
from pipeline.records.plan import Plan
from pipeline.records.request import DataSpec, ModelSpec, ReportTargets, RunConfig
from pipeline.records.run_record import (
    Artefact,
    Environment,
    Execution,
    MeasuredPeaks,
    Reference,
    RunRecord,
    RunWarning,
    StageRecord,
    Status,
)
from pipeline.records.samples import Accuracy, Block, Energy, Memory, Pair, Sample, WarmUp
from pipeline.report import html, markdown
from pipeline.report.csv_table import csv_text
from pipeline.stats.intervals import seconds_per_call
from tests.made_up_request import asked, changed, spec

HOSTILE = '<script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m & "quoted" | piped'
TOLERANCE = Tolerance(3e-2, 5e-3, "fp16 keeps 10 bits of mantissa")
BASELINE_SECONDS = 0.08154  # of a batch of 8
# name, ratio to eager, build seconds, peak bytes, what it adds
LADDER = [
    ("eager", 1.0, 0.1, 2_400_000_000, "nothing: the baseline"),
    ("tf32", 3.6, 0.1, 2_400_000_000, "tensor cores for fp32"),
    ("channels_last", 4.6, 0.2, 2_300_000_000, "NHWC, so that no kernel transposes"),
    ("amp", 6.7, 0.4, 1_600_000_000, "autocast to half precision"),
    ("half", 7.1, 0.5, 1_200_000_000, "half-precision weights, batch norm folded"),
    ("torchscript", 7.1, 4.0, 1_250_000_000, "a frozen program without Python"),
    ("cuda_graph", 7.15, 1.0, 1_300_000_000, "one launch for the whole net"),
    ("compile", 10.8, 27.0, 1_100_000_000, "generated kernels that fuse"),
    ("onnxruntime", 10.75, 9.0, 1_500_000_000, "another runtime, with its own fusions"),
]
HIDES_ITS_LAYERS = {"torchscript", "compile", "onnxruntime"}
FLOPS = 385_000_000_000  # of an image
# name, kind, level, share of the FLOPs, million elements read and written, thousand weights, share of the time
LAYERS = [
    ("encoder.0.0", "Conv2d", "encoder 0", 0.02, 0.786432, 16.8, 1.7, 0.06),
    ("encoder.0.1", "BatchNorm2d", "encoder 0", 0.0, 16.8, 16.8, 0.1, 0.05),
    ("encoder.0.2", "ReLU", "encoder 0", 0.0, 16.8, 16.8, 0.0, 0.04),
    ("pool", "MaxPool2d", "pool", 0.0, 16.8, 4.2, 0.0, 0.03),
    ("bottleneck.0", "Conv2d", "bottleneck", 0.30, 4.2, 8.4, 9400.0, 0.24),
    ("bottleneck.1", "ReLU", "bottleneck", 0.0, 8.4, 8.4, 0.0, 0.02),
    ("upsample.0", "ConvTranspose2d", "upsample", 0.05, 8.4, 16.8, 500.0, 0.08),
    ("decoder.0.0", "Conv2d", "decoder 0", 0.62, 33.6, 16.8, 4700.0, 0.40),
    ("head", "Conv2d", "head", 0.01, 16.8, 0.5, 0.1, 0.05),
    ("", "between layers", "between layers", 0.0, 0.0, 0.0, 0.0, 0.03),
]
CHANNELS = {
    "encoder.0.0": (3, 64), "bottleneck.0": (64, 128), "upsample.0": (128, 64), "decoder.0.0": (128, 64),
    "head": (64, 2),
}  # fmt: skip
HIDDEN = Note("layers", "hidden layers", "this runtime doesn't say which layer a kernel is for")
KINDS = ("convolution", "pointwise", "layout change", "normalisation", "copy", "pool", "other")


def recorded(packed: Path = Path(__file__).parents[1] / "recorded" / "classic.json.xz") -> RunRecord:
    """Return a packed record; without a path one of the classic network on an H200."""
    return codec.from_json(RunRecord, json.loads(lzma.decompress(packed.read_bytes())))


def profile(seconds: float, kinds: tuple[str, ...] = KINDS) -> Profile:
    """Kernels of which each class takes half of what the one before it takes."""
    rows = []
    for index, kind in enumerate(kinds):
        for number in range(3):
            part = seconds * 0.5 ** (index + 1) / 3
            rows.append(KernelRow(f"sm90_{kind.replace(' ', '_')}_{number}", kind, 2.0 + number, part))  # type: ignore[arg-type]
    return Profile(10, seconds * 1.02, 0.97, 120.0, rows, "half/trace.json.gz")


def layers() -> list[LayerWork]:
    """What each layer of the net has to do for one image; the FLOPs add up to the net's."""
    made = []
    for name, kind, level, flops, read, written, weights, _ in LAYERS:
        amounts = round(flops * FLOPS), int(1e6 * read), int(1e6 * written), int(1e3 * weights)
        first, last = CHANNELS.get(name, (0, 0))
        made.append(LayerWork(name, kind, level, *amounts, in_channels=first, out_channels=last))
    return made


def diagnostics_of(seconds: float, hides_layers: bool = False, on_gpu: bool = True) -> Diagnostics:
    """Of a stage that takes so long: its layers share the time, unless it hides them."""
    times = [LayerTime(name, share * seconds, 1.0) for name, *_, share in LAYERS]
    gpu = 0.98 * seconds if on_gpu else None
    return Diagnostics(
        layers=[] if hides_layers else times,
        layers_source=None if hides_layers else "profile",
        split=TimeSplit(seconds, gpu, 3e-4, 9e-4, 4e-4, 0.0),
        growth=None if hides_layers else BatchGrowth([1, 4, 8], [0.17 * seconds, 0.52 * seconds, seconds]),
        notes=[HIDDEN] if hides_layers else [],
    )


def explained(name: str, reasons: Diagnostics) -> Diagnostics:
    """With what the profile of some stages shows of their layout, fusion and memory."""
    amounts = [3 * 10**8] * 9
    amounts[3] = 24 * 10**8
    watched = MemoryTimeline(
        [1e-3 * at for at in range(9)], amounts, 124_000_000, 10**9, 11 * 10**8, 3 * 10**8, 600 * 2**20,
        "decoder.0.0", [MemoryHolder(["encoder.0.2"], 256 * 2**20), MemoryHolder(["decoder.0.0"], 64 * 2**20)],
    )  # fmt: skip
    hidden = replace(
        watched, peak_layer=None, holders=[], watched="ends", seconds=[0.0, 1e-3, 2e-3], allocated_bytes=amounts[2:5],
        weights_bytes=None,
    )  # fmt: skip
    changes = [LayoutChange("void cudnn::nchwToNhwcKernel<float>(int)", "decoder.0.0", "trace", 2.0, 2e-3)]
    path = "compile/generated/program.py"
    written = [
        FusedKernel("triton_poi_fused_relu_0", ["convolution (its bias)", "relu"], "vertical", path, True, 2),
        FusedKernel("triton_poi_fused_cat_1", ["cat"], "single", path, False, 1),
    ]
    of = {
        "eager": replace(reasons, fusion=Fusion(96.0, 33 * 10**9, "operators"), timeline=watched),
        "tf32": replace(reasons, layout=changes, fusion=Fusion(138.0, 33 * 10**9, "operators")),
        "half": replace(reasons, timeline=replace(watched, workspace_bytes=0)),
        "compile": replace(
            reasons,
            layout=[LayoutChange("triton_poi_fused_relu_0", "relu", "generated code", 2.0, 4e-4)],
            fusion=Fusion(57.0, 13 * 10**9, "Inductor", "", written, ["compile/generated/graph_0.txt"]),
            timeline=replace(hidden, workspace_bytes=None),
        ),
    }
    return of.get(name, reasons)


def samples(seconds: float, draw: random.Random, device: str) -> tuple[Sample, Sample]:
    taken = [5 * seconds * draw.gauss(1, 0.004) for _ in range(2)]
    return tuple(Sample(5, part, part * 0.999 if device == "cuda" else None, clock_mhz=1980) for part in taken)  # type: ignore[return-value]


def pair(baseline: str, stage: str, times: tuple[float, float], device: str = "cuda", blocks: int = 30) -> Pair:
    """Interleaved samples of two stages that take so many seconds per call."""
    draw = random.Random(f"{baseline} {stage}")
    made = [Block("ABBA", samples(times[0], draw, device), samples(times[1], draw, device)) for _ in range(blocks)]
    return Pair(baseline, stage, made)


DICE = 0.98, 0.94  # of background and tissue
IOU = [part / (2 - part) for part in DICE]


def accuracy(**fields: Any) -> Accuracy:
    right = Accuracy(3.7e-4, 0.02, 2.1, 4e-5, 0.01, 0.0, False, list(DICE), list(IOU), list(DICE), list(IOU), images=24)
    return replace(right, **fields)


def stage(name: str, ratio: float, build: float, peak: int, adds: str, **fields: Any) -> StageRecord:
    each, draw = BASELINE_SECONDS / ratio, random.Random(name)
    device = fields.pop("device", "cuda")
    shown: dict[str, Any] = {"summary": f"{name} as it is run", "adds": adds, "legacy": name == "torchscript"}
    good = StageRecord(
        spec(name, tolerance=TOLERANCE, options={"dtype": "auto"}, **shown),
        status="ok",
        description="fp16, channels_last",
        execution=execution(name),
        details={"opset": 20},
        start_seconds=2.0,
        build_seconds=build,
        first_call_seconds=build / 4,
        warm_up=WarmUp(25, 2.5, True),
        accuracy=accuracy(),
        pairs=[pair("eager", name, (BASELINE_SECONDS, each), device)],
        latencies=[each * draw.gauss(1.02, 0.01) for _ in range(100)],
        host_latencies=[each * draw.gauss(1.2, 0.01) for _ in range(100)],
        memory=Memory(peak, peak + 2**28, peak + 2**29, 600 * 2**20, 124_000_000, 3 * 2**30),
        energy=Energy(3000.0, 5.0, int(5 / each) * 8, 75.0),
        profile=profile(each),
        diagnostics=explained(name, diagnostics_of(each, name in HIDES_ITS_LAYERS, device == "cuda")),
        artefacts=[Artefact(f"{name}/model.onnx", "onnx", 62_000_000, "ab" * 32)],
        log=f"{name}/log.txt",
    )
    return changed(good, **fields)


def unwell() -> list[StageRecord]:
    """One stage of every way to end badly, with strings that a browser must not run."""
    tail = f"Traceback (most recent call last):\n{HOSTILE}"

    def ended(name: str, status: Status, reason: str, adds: str = "", **fields: Any) -> StageRecord:
        without = dict.fromkeys(("profile", "diagnostics", "memory", "energy", "accuracy"))
        lists: dict[str, Any] = {"pairs": [], "latencies": [], "host_latencies": []}
        return stage(name, 1, 1, 1, adds, status=status, reason=reason, **(without | lists | fields))

    black = accuracy(nan_share=1.0, one_class=True, relative_l2=float("nan"), flipped_share=0.31)
    wrong = stage("black", 30.0, 0.1, 10**9, "fp16 that overflowed")
    return [
        ended("crashed", "failed", HOSTILE, adds=HOSTILE, log_tail=tail),
        ended("hung", "timeout", "build took more than 1800 s"),
        ended("absent", "skipped", "needs a GPU", build_seconds=None),
        replace(wrong, status="inaccurate", reason="all logits are NaN", accuracy=black),
    ]


def environment() -> Environment:
    """An H200's."""
    return Environment(
        "cuda", "NVIDIA H200", "570.1", "13.0", "9.19", "9.0", 132, 150_000_000_000, 60_000_000, "a processor", 16,
        "3.12.3", "Linux", {"torch": "2.11.0", "triton": "3.6.0", "onnxruntime-gpu": "1.31.1"}, "abc123", False,
        "basic", [],
    )  # fmt: skip


def on_a_processor(whole: RunRecord, **fields: Any) -> RunRecord:
    return replace(whole, environment=replace(environment(), device="cpu"), **fields)


def settings(**data: Any) -> RunConfig:
    """Batches of 8 images of 512×512, and the price of a GPU's hour; `data` are fields of DataSpec."""
    images = DataSpec(
        **{"name": "samples", "path": None, "labels": None, "size": 512, "batch_size": 8, "batches": 3, **data}
    )
    return asked(
        model=ModelSpec("unet", "", {}, "unet.safetensors"), data=images, plan=Plan(sampling_seconds=30.0),
        report=ReportTargets(gpu_hour_price=3.5), preset="gpu", device="cuda",
    )  # fmt: skip


def with_settings(whole: RunRecord, **parts: dict[str, Any]) -> RunRecord:
    """The run with fields of its request's parts changed, such as data={"size": 256}."""
    changed_parts = {name: replace(getattr(whole.config, name), **fields) for name, fields in parts.items()}
    found = replace(whole, config=replace(whole.config, **changed_parts))
    if (batch := parts.get("data", {}).get("batch_size")) is None:
        return found
    command = whole.command.replace(f"data.batch_size={whole.batch_size}", f"data.batch_size={batch}")
    return replace(found, command=command, stages=[without_growth(stage) for stage in whole.stages])


def without_growth(stage: StageRecord) -> StageRecord:
    """The stage without its times at parts of the batch, which are of another batch where the settings change."""
    found = stage.diagnostics
    return replace(stage, diagnostics=replace(found, growth=None)) if found else stage


def execution(name: str) -> Execution:
    """How the stages of that name run: half precision in NHWC, but for the first ones."""
    if name in ("eager", "tf32"):
        return Execution(
            "fp32" if name == "eager" else "tf32", {}, "NCHW", "PyTorch eager", captured=False, fuses=False
        )
    providers = {
        "compile": "Inductor",
        "onnxruntime": "ONNX Runtime CUDAExecutionProvider",
        "torchscript": "TorchScript",
    }
    own = name in ("fused", "fp8")
    provider = "own kernels" if own else providers.get(name, "PyTorch eager")
    captured = own or name in ("cuda_graph", "onnxruntime")
    fuses = own or name in ("compile", "compile_max", "onnxruntime")
    return Execution("fp16", {}, "NHWC", provider, captured, fuses, own_kernels=22 if own else 0)


def run(**fields: Any) -> RunRecord:
    """A whole ladder on a GPU, with stages that ended badly, but for `fields`; without any always the same object."""
    return replace(standard(), **fields) if fields else standard()


@cache
def standard() -> RunRecord:
    stages = [stage(*rung) for rung in LADDER]
    reference = Reference(
        FLOPS, 31_000_000, 124_000_000, None, 0.0, 1e-7, 2e-6, 3_000_000_000, ["immunohistochemistry"], "a threshold",
        layers(),
    )  # fmt: skip
    stages[4] = replace(stages[4], warnings=[RunWarning("unsteady", "its pace still changed", "close other programs")])
    return RunRecord(
        "2026-11-20T12:00:00+00:00", "python -m pipeline data.batch_size=8", settings(), environment(),
        MeasuredPeaks({"fp32": 51.0, "tf32": 404.0, "fp16": 750.0, "bf16": 781.0}, 4.24e12, 55.5e9, 23.1e9, 2.1),
        reference,
        aa_pairs=[pair("eager", f"control {number}", (BASELINE_SECONDS, BASELINE_SECONDS)) for number in range(5)],
        stages=[*stages, *unwell()], drift=0.001, seconds=900.0, finished=True,
        warnings=[RunWarning("baseline restarted", "its worker ended during hung", "see reference/log.txt")],
    )  # fmt: skip


@cache
def beside_autocast() -> RunRecord:
    """The whole ladder as a GPU measures it today: interleaved with autocast."""
    whole = standard()
    autocast = BASELINE_SECONDS / {name: ratio for name, ratio, *_ in LADDER}["amp"]

    def interleaved(found: StageRecord) -> StageRecord:
        own = [pair("amp", each.stage, (autocast, seconds_per_call(each).value)) for each in found.pairs]
        return replace(found, pairs=own)

    controls = [pair("amp", each.stage, (autocast, autocast)) for each in whole.aa_pairs]
    return replace(whole, baseline="amp", aa_pairs=controls, stages=[*map(interleaved, whole.stages)])


def printed(shown: RenderableType, width: int = 80, terminal: bool = False) -> str:
    console = Console(width=width, file=StringIO(), force_terminal=terminal)
    with console.capture() as caught:
        console.print(shown, crop=False)
    return caught.get()


def csv_rows(found: RunSummary) -> list[dict[str, str]]:
    """What results.csv says of each stage, by its columns."""
    return list(csv.DictReader(StringIO(csv_text(found))))


class Once:
    """A function of a record that is computed once for each record object; pages take seconds to draw."""

    def __init__(self, compute: Callable[[RunRecord], Any]) -> None:
        self.compute = compute
        self.known: dict[int, tuple[RunRecord, Any]] = {}

    def __call__(self, record: RunRecord) -> Any:
        if id(record) not in self.known:
            self.known[id(record)] = (record, self.compute(record))
        return self.known[id(record)][1]


summary: Callable[[RunRecord], RunSummary] = Once(summarize)
page: Callable[[RunRecord], str] = Once(lambda record: html.page(summary(record)))
as_markdown: Callable[[RunRecord], str] = Once(lambda record: markdown.markdown(summary(record)))
