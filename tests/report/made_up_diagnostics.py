"""What a made-up stage's profile shows: its kernels, its layers' times, and what explains some of the stages."""

from dataclasses import replace

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
