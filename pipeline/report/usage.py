"""Lines for using a stage: they load what the run left, or make the same in plain PyTorch."""

import re
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Literal

from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary, retyped
from pipeline.config.data_request import TENSORS, VOLUME
from pipeline.records.run_record import RunRecord, StageRecord
from pipeline.report.formatting import clean

DTYPES = {"fp16": "torch.float16", "bf16": "torch.bfloat16"}
WEIGHTS = "a network in eval mode on the device"
# Why lines for one's own network wouldn't do.
CASTS = "The network makes fp32 values that half weights refuse. An export casts them; RUN is this report's folder."
KEPT = "Modules stay in fp32 where half precision ends. An export has them so; RUN is this report's folder."
SAFE = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*")  # a path within the run's folder
CHANNELS_LAST = "memory_format=torch.channels_last"
CALLED = """\
with torch.inference_mode():
    masks = net(batch).argmax(1)"""

# By the end of a file's name, the lines that load it; fields are those of `_fields`.
LOADED = {
    "net.pt2": """\
from pathlib import Path
import torch
from pipeline.compiler.artifact import load
net = torch.compile(load(Path("RUN/{folder}")), mode="reduce-overhead")
masks = net(batch).argmax(1)  # batch: [{batch}, channels, {side}], fp32, on the GPU""",
    ".onnx": """\
import os
os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # before the import; official builds report to Microsoft
import onnxruntime
session = onnxruntime.InferenceSession("RUN/{path}", providers=["{provider}"])
masks = session.run(None, {{session.get_inputs()[0].name: batch}})[0].argmax(1)  # batch: numpy, {kind}""",
    "model.pt": f"""\
import torch
net = {{loaded}}
{CALLED}""",
    "package.pt2": f"""\
import torch
net = torch._inductor.aoti_load_package("RUN/{{path}}")
{CALLED}
# batch: [{{batch}}, channels, {{side}}], fp32, contiguous, on the run's device; torch checks none of it""",
    "openvino.xml": """\
import openvino
net = openvino.compile_model("RUN/{path}", "CPU")
masks = net(batch)[0].argmax(1)  # batch: numpy, float32""",
}
HALF = f"""\
import torch
torch.backends.cudnn.benchmark = True
net = net.to({{dtype}}, {CHANNELS_LAST})
with torch.inference_mode():
    masks = net(batch.to({{dtype}}, {CHANNELS_LAST})).argmax(1)"""
COMPILED = HALF.replace("\nwith", '\nnet = torch.compile(net, mode="{mode}")\nwith')
# By the stage's name, the lines that make the same of a network of one's own.
MADE = {
    "eager": f"""\
import torch
torch.backends.cudnn.allow_tf32 = False
{CALLED}""",
    "tf32": f"""\
import torch
torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
{CALLED}""",
    "channels_last": f"""\
import torch
net = net.to({CHANNELS_LAST})
with torch.inference_mode():
    masks = net(batch.to({CHANNELS_LAST})).argmax(1)""",
    "amp": f"""\
import torch
torch.backends.cudnn.benchmark = True
net = net.to({CHANNELS_LAST})
with torch.inference_mode(), torch.autocast("{{device}}", {{dtype}}):
    masks = net(batch.to({CHANNELS_LAST})).argmax(1)""",
    "half": HALF,
    "compile": COMPILED,
    "compile_graph": COMPILED,
    "compile_max": COMPILED,
    "cuda_graph": f"""\
import torch
net, batch = net.to({{dtype}}, {CHANNELS_LAST}), batch.to({{dtype}}, {CHANNELS_LAST})
graph = torch.cuda.CUDAGraph()  # after a few calls of net(batch) on a side stream
with torch.inference_mode(), torch.cuda.graph(graph):
    logits = net(batch)
graph.replay()  # copy new {{samples}} into batch first; the answer is in logits""",
}


@dataclass(frozen=True)
class Usage:
    """Lines of code for the reader to copy."""

    lead: str  # what the lines begin with: a file of the run, or one's own network
    path: str  # of that file within the run's folder; empty where there is none
    code: str  # the lines
    language: Literal["python", "sh"] = "python"  # of the lines


def usage(summary: RunSummary, stage: StageSummary) -> Usage:
    """Return the lines for one stage, and the command that exports it, where it has a form outside this project."""
    record = stage.stage
    command = f"python -m pipeline.export RUN --stage {clean(stage.name)} --to DIR"
    if record.spec.exports and (why := _beyond_lines(record)):
        return Usage(why, "", command, "sh")
    found = _in_words(_lines(summary, record), summary)
    if record.net_layout == "NCHW":
        found = replace(found, code=as_it_lies(found.code))
    if not record.spec.exports:
        return found
    return replace(found, code=f"{found.code}\n# {command}  packs what runs without this project")


def _beyond_lines(record: StageRecord) -> str:
    """Return why no lines for one's own network do what the stage did; empty where they do, or it leaves a file."""
    if record.execution and record.execution.casts_own_values:
        return CASTS
    keeps = record.spec.target.endswith(".half") and isinstance(record.spec.options.get("keep_fp32"), list)
    return KEPT if keeps else ""


def one_channel(run: RunRecord) -> bool:
    """Return whether the network's last layer gives a single channel, of which class 1 is what lies above 0."""
    last = [layer.out_channels for layer in run.reference.layers if layer.out_channels] if run.reference else []
    return last[-1:] == [1]


def as_it_lies(code: str) -> str:
    """Return the lines for a network that doesn't take channels_last: its weights and images keep their layout."""
    layout = rf"{CHANNELS_LAST}(_3d)?"
    code = re.sub(rf"^net = net\.to\({layout}\)\n", "", code, flags=re.MULTILINE)
    return re.sub(rf"\.to\({layout}\)|, {layout}", "", code)


def _in_words(found: Usage, summary: RunSummary) -> Usage:
    """Return the lines for the task's answers, and for all inputs of the network, which else are images and masks."""
    config, code, lead = summary.run.config, found.code, found.lead
    if one_channel(summary.run):
        code = code.replace(".argmax(1)", "[:, 0] > 0" if config.task.has_masks else "")
    if not config.task.has_masks:
        code = code.replace("masks = ", "answer = ").replace(".argmax(1)", "")
        code = code.replace("logits = ", "answer = ").replace("the answer is in logits", "it is in answer")
    if config.data.name == VOLUME:
        code = code.replace(CHANNELS_LAST, f"{CHANNELS_LAST}_3d").replace("channels, ", "channels, depth, ")
    if config.data.name == TENSORS:
        inputs = ", ".join(config.data.inputs) or "one tensor for each input, in the order of its forward"
        code = f"{code}\n# batch stands for the network's inputs: {inputs}"
        lead = lead.replace(f"{summary.run.words.samples} as it", "inputs as it")
    return replace(found, code=code, lead=lead)


def _lines(summary: RunSummary, record: StageRecord) -> Usage:
    """Return the lines by what the stage left, or as it was made, or the command that builds it again."""
    paths = [file.path for file in record.artefacts if SAFE.fullmatch(file.path)]
    for ending, lines in LOADED.items():
        path = next((path for path in paths if path.endswith(ending)), None)
        if path:
            return Usage("RUN is the folder of this report.", path, lines.format(**_fields(summary, record, path)))
    if record.name in MADE:
        lead = f"net is {WEIGHTS}, batch holds {summary.run.words.samples} as it takes them."
        return Usage(lead, "", MADE[record.name].format(**_fields(summary, record)))
    command = retyped(summary.run.command, f"stage={clean(record.name)}")
    return Usage("The run left no file that this version loads. This builds it again:", "", command, "sh")


def _fields(summary: RunSummary, record: StageRecord, path: str = "") -> dict[str, object]:
    """Return the figures of the run that its lines need."""
    sides = summary.run.config.data.sides[-2:]
    optimised = record.execution is None or not record.execution.instead
    loaded = f'torch.jit.load("RUN/{path}")'
    mode = clean(record.spec.options.get("mode", "default"))
    return {
        "path": path,
        "folder": PurePosixPath(path).parent,
        "batch": summary.run.config.data.batch_size,
        "side": ", ".join(map(str, sides)) or "height, width",
        "samples": summary.run.words.samples,
        "device": "cuda" if summary.on_gpu else "cpu",
        "dtype": DTYPES.get(str(record.precision), "torch.float32"),
        "kind": "float16" if record.precision == "fp16" else "float32",
        "provider": "CUDAExecutionProvider" if summary.on_gpu else "CPUExecutionProvider",
        "loaded": f"torch.jit.optimize_for_inference({loaded})" if optimised else loaded,
        "mode": mode if re.fullmatch(r"[a-z-]+", mode) else "default",
    }
