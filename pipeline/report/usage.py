"""Lines for using a stage: they load what the run left, or make the same in plain PyTorch."""

import re
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Literal

from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary, retyped
from pipeline.config.data_request import TENSORS, VOLUME
from pipeline.records.run_record import StageRecord
from pipeline.report.formatting import clean, templates

DTYPES = {"fp16": "torch.float16", "bf16": "torch.bfloat16"}
WEIGHTS = "your network in eval mode on the device"
# Why lines for one's own network wouldn't do.
CASTS = "The network makes fp32 values that half weights refuse. An export casts them; RUN is this report's folder."
KEPT = "Modules stay in fp32 where half precision ends. An export has them so; RUN is this report's folder."
SAFE = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*")  # a path within the run's folder
ENDINGS = ("net.pt2", ".onnx", "model.pt", "package.pt2", "openvino.xml")  # of the files that the template loads
# Stages of which the template makes the same of one's own network.
MADE = {"eager", "tf32", "channels_last", "amp", "half", "compile", "compile_graph", "compile_max", "cuda_graph"}


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
    if not record.spec.exports:
        return _lines(summary, record)
    if record.execution and record.execution.casts_own_values:
        return Usage(CASTS, "", command, "sh")
    if record.spec.target.endswith(".half") and isinstance(record.spec.options.get("keep_fp32"), list):
        return Usage(KEPT, "", command, "sh")
    found = _lines(summary, record)
    upgraded = "# python -m pipeline.verify DIR  after each upgrade of torch or the driver"
    return replace(found, code=f"{found.code}\n# {command}  packs what runs without this project\n{upgraded}")


def _lines(summary: RunSummary, record: StageRecord) -> Usage:
    """Return the lines by what the stage left, or as it was made, or the command that builds it again."""
    paths = [file.path for file in record.artefacts if SAFE.fullmatch(file.path)]
    for ending in ENDINGS:
        path = next((path for path in paths if path.endswith(ending)), None)
        if path:
            return Usage("RUN is the folder of this report.", path, _filled(summary, record, ending, path))
    if record.name in MADE:
        what = "inputs" if summary.run.config.data.name == TENSORS else f"normalised {summary.run.words.samples}"
        lead = f"net is {WEIGHTS}; batch holds its {what}."
        return Usage(lead, "", _filled(summary, record, record.name))
    command = retyped(summary.run.command, f"stage={clean(record.name)}")
    return Usage("The run left no file that this version loads. This builds it again:", "", command, "sh")


def _filled(summary: RunSummary, record: StageRecord, made: str, path: str = "") -> str:
    """Return the template's lines with the figures of the run."""
    config, mode = summary.run.config, clean(record.spec.options.get("mode", "default"))
    data, contract, is_volume = config.data, config.data.contract, config.data.name == VOLUME
    named = ", ".join(data.inputs) or "one tensor for each input, in the order of its forward"
    reference = summary.run.reference
    last = [layer.out_channels for layer in reference.layers if layer.out_channels] if reference else []
    filled = templates(of_pages=False).get_template("usage.j2").render(
        made=made, path=path, folder=PurePosixPath(path).parent,
        channels=contract.channels,
        batch=data.batch_size, side=", ".join(map(str, data.sides)) or f"{'depth, ' * is_volume}height, width",
        layout="" if record.net_layout == "NCHW" else f"memory_format=torch.channels_last{'_3d' * is_volume}",
        has_masks=config.task.has_masks, one_channel=last[-1:] == [1],
        inputs=named if data.name == TENSORS else "", samples=summary.run.words.samples, on_gpu=summary.on_gpu,
        precision=record.precision, dtype=DTYPES.get(str(record.precision), "torch.float32"),
        optimised=record.execution is None or not record.execution.instead,
        mode=mode if re.fullmatch(r"[a-z-]+", mode) else "default",
    )  # fmt: skip
    return filled.strip()
