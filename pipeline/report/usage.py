"""How to use a stage: the lines that load what the run left, or that make the same in plain PyTorch."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Literal

from pipeline.analysis.recommendations.command import retyped
from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary
from pipeline.records.run_record import Artefact, RunRecord, StageRecord
from pipeline.report.formatting import clean

DTYPES = {"fp16": "torch.float16", "bf16": "torch.bfloat16"}
REWRITTEN, WEIGHTS = "net.pt2", "a net in eval mode on the device"
# Why lines for one's own net wouldn't do.
CASTS = "The net makes fp32 values that its half weights don't take. An export casts them; RUN is this report's folder."
KEPT = "Modules stay in fp32 where half precision ends. An export has them so; RUN is this report's folder."
OF_TENSORS, OF_VOLUMES = "tensors", "volume"  # data that a net takes as it is, and that has a depth
SAFE = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*")  # a path within the run's folder
CHANNELS_LAST = "memory_format=torch.channels_last"


@dataclass(frozen=True)
class Usage:
    """What a reader copies.

    Attributes:
        lead: what the lines begin with: a file of the run, or one's own net.
        path: of that file within the run's folder; empty where there is none.
        code: the lines.
        language: of the lines.
    """

    lead: str
    path: str
    code: str
    language: Literal["python", "sh"] = "python"


def usage(summary: RunSummary, stage: StageSummary) -> Usage:
    """The lines for one stage, and the command that exports it, where it has a form outside this project."""
    record = stage.stage
    command = f"python -m pipeline.export RUN --stage {clean(stage.name)} --to DIR"
    if record.spec.exports and (why := _beyond_lines(record)):
        return Usage(why, "", command, "sh")
    found = _in_words(_lines(summary, stage), summary)
    if record.net_layout == "NCHW":
        found = replace(found, code=as_it_lies(found.code))
    if not record.spec.exports:
        return found
    return replace(found, code=f"{found.code}\n# {command}  packs what runs without this project")


def _beyond_lines(record: StageRecord) -> str:
    """Why no lines for one's own net do what the stage did; empty where they do, or it leaves a file."""
    if record.execution and record.execution.casts_own_values:
        return CASTS
    keeps = record.spec.target.endswith(".half") and isinstance(record.spec.options.get("keep_fp32"), list)
    return KEPT if keeps else ""


def one_channel(run: RunRecord) -> bool:
    """Whether the net's last layer gives a single channel, of which class 1 is what lies above 0."""
    last = [layer.out_channels for layer in run.reference.layers if layer.out_channels] if run.reference else []
    return last[-1:] == [1]


def as_it_lies(code: str) -> str:
    """The lines for a net that doesn't take channels_last, and runs as its weights and images lie."""
    layout = rf"{CHANNELS_LAST}(_3d)?"
    code = re.sub(rf"^net = net\.to\({layout}\)\n", "", code, flags=re.MULTILINE)
    return re.sub(rf"\.to\({layout}\)|, {layout}", "", code)


def _in_words(found: Usage, summary: RunSummary) -> Usage:
    """The lines for what the net answers with, and for all of its inputs, which else are images and masks."""
    config = summary.run.config
    code = found.code
    if one_channel(summary.run):
        code = code.replace(".argmax(1)", "[:, 0] > 0" if config.task.has_masks else "")
    if not config.task.has_masks:
        code = code.replace("masks = ", "answer = ").replace(".argmax(1)", "")
        code = code.replace("logits = ", "answer = ").replace("the answer is in logits", "it is in answer")
    lead = found.lead
    if config.data.name == OF_VOLUMES:
        code = code.replace(CHANNELS_LAST, f"{CHANNELS_LAST}_3d").replace("channels, ", "channels, depth, ")
    if config.data.name == OF_TENSORS:
        inputs = ", ".join(config.data.inputs) or "one tensor for each input, in the order of its forward"
        code, lead = (
            f"{code}\n# batch stands for the net's inputs: {inputs}",
            lead.replace(f"{summary.run.words.samples} as it", "inputs as it"),
        )
    return replace(found, code=code, lead=lead)


def _lines(summary: RunSummary, stage: StageSummary) -> Usage:
    """By what the stage left, or as it was made, or the command that builds it again."""
    record = stage.stage
    files = [file for file in record.artefacts if SAFE.fullmatch(file.path)]
    for suffix, lines in LOADED.items():
        found = next((file for file in files if file.path.endswith(suffix)), None)
        if found:
            return Usage("RUN is the folder of this report.", found.path, lines(record, found, summary))
    if made := MADE.get(record.name):
        return Usage(
            f"net is {WEIGHTS}, batch holds {summary.run.words.samples} as it takes them.", "", made(record, summary)
        )
    command = retyped(summary.run.command, f"stage={clean(record.name)}")
    return Usage("The run left no file that this version loads. This builds it again:", "", command, "sh")


def _rewritten(_: StageRecord, file: Artefact, summary: RunSummary) -> str:
    size, batch = summary.run.config.data.size or "height", summary.run.config.data.batch_size
    side = f"{size}, {size}" if isinstance(size, int) else "height, width"
    return "\n".join(
        [
            "from pathlib import Path",
            "import torch",
            "from pipeline.compiler.artifact import load",
            f'net = torch.compile(load(Path("RUN/{PurePosixPath(file.path).parent}")), mode="reduce-overhead")',
            f"masks = net(batch).argmax(1)  # batch: [{batch}, channels, {side}], fp32, on the GPU",
        ]
    )


def _onnx(record: StageRecord, file: Artefact, summary: RunSummary) -> str:
    provider = "CUDAExecutionProvider" if summary.on_gpu else "CPUExecutionProvider"
    kind = "float16" if record.precision == "fp16" else "float32"
    return "\n".join(
        [
            "import onnxruntime",
            f'session = onnxruntime.InferenceSession("RUN/{file.path}", providers=["{provider}"])',
            f"masks = session.run(None, {{session.get_inputs()[0].name: batch}})[0].argmax(1)  # batch: numpy, {kind}",
        ]
    )


def _torchscript(record: StageRecord, file: Artefact, _: RunSummary) -> str:
    loaded = f'torch.jit.load("RUN/{file.path}")'
    optimised = record.execution is None or not record.execution.instead
    net = f"torch.jit.optimize_for_inference({loaded})" if optimised else loaded
    return "\n".join(["import torch", f"net = {net}", *_called("batch")])


def _package(_: StageRecord, file: Artefact, summary: RunSummary) -> str:
    size, batch = summary.run.config.data.size or "height, width", summary.run.config.data.batch_size
    side = f"{size}, {size}" if isinstance(size, int) else size
    lines = ["import torch", f'net = torch._inductor.aoti_load_package("RUN/{file.path}")']
    return "\n".join(
        [
            *lines,
            *_called("batch"),
            f"# batch: [{batch}, channels, {side}], fp32, contiguous, on the run's device; torch checks none of it",
        ]
    )


def _openvino(_: StageRecord, file: Artefact, __: RunSummary) -> str:
    lines = ["import openvino", f'net = openvino.compile_model("RUN/{file.path}", "CPU")']
    return "\n".join([*lines, "masks = net(batch)[0].argmax(1)  # batch: numpy, float32"])


def _called(batch: str) -> list[str]:
    return ["with torch.inference_mode():", f"    masks = net({batch}).argmax(1)"]


def _eager(_: StageRecord, __: RunSummary) -> str:
    return "\n".join(["import torch", "torch.backends.cudnn.allow_tf32 = False", *_called("batch")])


def _tf32(_: StageRecord, __: RunSummary) -> str:
    lines = ["import torch", "torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True"]
    return "\n".join([*lines, *_called("batch")])


def _channels_last(_: StageRecord, __: RunSummary) -> str:
    lines = ["import torch", f"net = net.to({CHANNELS_LAST})"]
    return "\n".join([*lines, *_called(f"batch.to({CHANNELS_LAST})")])


def _autocast(record: StageRecord, summary: RunSummary) -> str:
    device = "cuda" if summary.on_gpu else "cpu"
    return "\n".join(
        [
            "import torch",
            "torch.backends.cudnn.benchmark = True",
            f"net = net.to({CHANNELS_LAST})",
            f'with torch.inference_mode(), torch.autocast("{device}", {_dtype(record)}):',
            f"    masks = net(batch.to({CHANNELS_LAST})).argmax(1)",
        ]
    )


def _half(record: StageRecord, _: RunSummary, between: str = "") -> str:
    kind = _dtype(record)
    lines = [
        "import torch",
        "torch.backends.cudnn.benchmark = True",
        f"net = net.to({kind}, {CHANNELS_LAST})",
        *([between] if between else []),
        *_called(f"batch.to({kind}, {CHANNELS_LAST})"),
    ]
    return "\n".join(lines)


def _compiled(record: StageRecord, summary: RunSummary) -> str:
    mode = clean(record.spec.options.get("mode", "default"))
    asked = mode if re.fullmatch(r"[a-z-]+", mode) else "default"
    return _half(record, summary, f'net = torch.compile(net, mode="{asked}")')


def _captured(record: StageRecord, summary: RunSummary) -> str:
    kind = _dtype(record)
    return "\n".join(
        [
            "import torch",
            f"net, batch = net.to({kind}, {CHANNELS_LAST}), batch.to({kind}, {CHANNELS_LAST})",
            "graph = torch.cuda.CUDAGraph()  # after a few calls of net(batch) on a side stream",
            "with torch.inference_mode(), torch.cuda.graph(graph):",
            "    logits = net(batch)",
            f"graph.replay()  # copy new {summary.run.words.samples} into batch first; the answer is in logits",
        ]
    )


def _dtype(record: StageRecord) -> str:
    return DTYPES.get(str(record.precision), "torch.float32")


LOADED: dict[str, Callable[[StageRecord, Artefact, RunSummary], str]] = {
    REWRITTEN: _rewritten,
    ".onnx": _onnx,
    "model.pt": _torchscript,
    "package.pt2": _package,
    "openvino.xml": _openvino,
}
MADE: dict[str, Callable[[StageRecord, RunSummary], str]] = {
    "eager": _eager,
    "tf32": _tf32,
    "channels_last": _channels_last,
    "amp": _autocast,
    "half": _half,
    "compile": _compiled,
    "compile_max": _compiled,
    "cuda_graph": _captured,
}
