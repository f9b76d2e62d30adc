"""The artefact of a bundle in each form: as the run kept it, or built again."""

import inspect
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from zipfile import ZipFile

import onnx
import torch
from torch import nn

from pipeline.compiler import artifact, standalone
from pipeline.compiler.artifact import ABOUT, LIBRARIES, NET
from pipeline.compiler.batch import Batch
from pipeline.errors import first_line
from pipeline.export.contract import Dynamic
from pipeline.export.files import carry
from pipeline.export.recorded_stage import RecordedStage
from pipeline.export.request import Ends, ExportError
from pipeline.records.request import ExportKind
from pipeline.stages import onnxruntime, torchscript
from pipeline.stages.aot_inductor import build_package, package_compiler
from pipeline.stages.channels_last import InChannelsLast
from pipeline.stages.common.network_forms import half_net
from pipeline.stages.common.onnx_models import export

AXES: dict[Dynamic, tuple[int, ...]] = {"batch": (0,), "size": (2, 3)}  # of [batch, channels, height, width]
MOVABLE = "choose --stage onnxruntime, torchscript, half, compile, or another stage whose graph is exported again"
PACKAGE, PROGRAM, GRAPH = "package.pt2", "net.pt2", "net"


@dataclass
class Made:
    """The artefact of a bundle."""

    kind: ExportKind  # its form
    path: str  # within the bundle
    loader: dict[str, str] = field(default_factory=dict)  # options of the loader
    notes: list[str] = field(default_factory=list)  # differences from the measured stage


def make(recorded: RecordedStage, dynamic: Sequence[Dynamic], folder: Path) -> Made:
    """Write the artefact of a stage; raises ExportError, Skip, StageError."""
    kind = recorded.kind
    if dynamic and not may_export_again(recorded):
        name = recorded.stage.name
        raise ExportError(f"--dynamic: {name} leaves a network of one shape; --stage onnxruntime takes other lengths")
    if dynamic and recorded.ends.flags:
        raise ExportError(f"--dynamic: not together with {' and '.join(recorded.ends.flags)}; leave one out")
    if kind == "onnx":
        made = as_onnx(recorded, dynamic, folder)
    else:
        made = MAKERS[kind](recorded, folder)
        fast = recorded.workload.device.type == "cuda" and recorded.stage.precision != "fp32"
        searched = fast and recorded.stage.spec.options.get("cudnn_benchmark", True)
        made.loader |= {"tf32": str(int(fast)), "cudnn_benchmark": str(int(searched))}
    if recorded.added.flags:
        moved = {Ends.UINT8_IN: "the normalisation", Ends.CLASSES_OUT: "the choice of classes"}
        named = " and ".join(moved[end] for end in recorded.added)
        verb = "are" if named.count(" and ") else "is"
        made.notes.append(f"{named} {verb} inside the graph; the milliseconds are those of the network alone")
    return made


def as_onnx(recorded: RecordedStage, dynamic: Sequence[Dynamic], folder: Path) -> Made:
    """Write the model that the run kept, or one of the same precision with dynamic axes."""
    made = Made("onnx", "model.onnx", session_options(recorded, bool(dynamic)))
    if recorded.ends.flags:
        if not may_export_again(recorded):
            raise ExportError(f"{recorded.ends.flags[0]}: {recorded.stage.name} keeps its model as it is; {MOVABLE}")
        model, path, inputs = recorded.workload.model, folder / made.path, recorded.inputs
        export(model, recorded.dtype, recorded.given[0], path, around=recorded.with_ends, inputs=inputs)
        return made
    if not dynamic:
        copy_all(recorded, made.path, folder)
        return made
    axes, batch = [axis for name in dynamic for axis in AXES[name]], recorded.batch
    if "batch" in dynamic and len(batch) == 1:
        batch = torch.cat([batch, batch])  # torch.export makes an axis of length 1 a constant
    export(recorded.workload.model, recorded.dtype, batch, folder / made.path, axes)
    (given,) = onnx.load(str(folder / made.path), load_external_data=False).graph.input
    fixed = [axis for axis in axes if not given.type.tensor_type.shape.dim[axis].dim_param]
    if fixed:
        names = [name for name in dynamic if set(AXES[name]) & set(fixed)]
        raise ExportError(f"--dynamic {names[0]}: the network's graph is for this length alone")
    made.notes.append(f"exported again with a dynamic {' and '.join(dynamic)}; the speed is that of the fixed shape")
    return made


def may_export_again(recorded: RecordedStage) -> bool:
    """Return whether the stage's ONNX model follows from the network alone, without scales chosen on images."""
    return recorded.kind == "onnx" and recorded.stage.calibration is None


def session_options(recorded: RecordedStage, dynamic: bool) -> dict[str, str]:
    """Return the CUDA provider's options as the stage set them; none on a CPU. A CUDA graph has one shape."""
    if recorded.workload.device.type != "cuda":
        return {}
    defaults = {name: part.default for name, part in inspect.signature(onnxruntime.build).parameters.items()}
    asked = defaults | recorded.stage.spec.options
    switches = onnxruntime.cuda_switches(asked["nhwc"], asked["tf32"], asked["cuda_graph"], asked["fuse_conv_bias"])
    switches["enable_cuda_graph"] &= not dynamic
    return {name: str(int(on)) for name, on in switches.items()} | {"cudnn_conv_algo_search": asked["algo_search"]}


def copy_all(recorded: RecordedStage, name: str, folder: Path) -> None:
    """Copy the stage's files whose names begin with `name`; build them again if the run doesn't have them."""
    names = [Path(part.path).name for part in recorded.stage.artefacts]
    kept = {part: recorded.kept(part) for part in names if part.startswith(name)}
    files = [path for path in kept.values() if path]
    if len(files) < len(kept) or name not in kept:
        files = [path for path in recorded.built_again() if path.name.startswith(name)]
    if name not in [path.name for path in files]:
        raise ExportError(f"--stage {recorded.stage.name}: it leaves no {name}")
    for path in files:
        shutil.copyfile(path, folder / path.name)


def as_torchscript(recorded: RecordedStage, folder: Path) -> Made:
    """Write the frozen program of the run, or a new one with ends in it."""
    how = recorded.stage.execution
    loader = {"optimised": str(int(how is None or not how.instead))}
    if recorded.ends.flags:
        net = recorded.with_ends(half_net(recorded.workload, recorded.dtype))
        with torchscript.deprecations_filtered(), torch.inference_mode():
            torch.jit.save(torch.jit.freeze(torchscript.traced(net, *recorded.given)), folder / "model.pt")
    else:
        copy_all(recorded, "model.pt", folder)
    return Made("torchscript", "model.pt", loader)


def as_program(recorded: RecordedStage, folder: Path) -> Made:
    """Write a program of torch.export with its weights, in an archive without a pickle; raises ExportError."""
    try:
        archive = artifact.archive_of(recorded.with_ends(eager_form(recorded)), *recorded.given)
        content = artifact.checked_archive(archive)
    except artifact.ArchiveError as error:
        raise ExportError(f"this network can't be saved without its source: {error}") from None
    except Exception as error:  # torch.export raises any type, the network's own, too
        raise ExportError(f"torch.export can't take the network: {first_line(error)}") from error
    (folder / PROGRAM).write_bytes(content.getvalue())
    check_alone(folder / PROGRAM, recorded.stage.name)
    return Made("exported", PROGRAM)


def check_alone(path: Path, stage: str) -> None:
    """Raise if a saved network calls an operation of another library: a bundle's process has torch alone."""
    with ZipFile(path) as archive:
        text = b"".join(archive.read(name) for name in archive.namelist() if name.endswith(".json"))
    if library := next((name for name in LIBRARIES if name.encode() in text), None):
        raise ExportError(f"--stage {stage}: the network calls {library} of {LIBRARIES[library]}; no bundle carries it")


def eager_form(recorded: RecordedStage) -> nn.Module:
    """Return the network as the eager stages run it."""
    target, model = recorded.stage.spec.target.rpartition(".")[2], recorded.workload.model
    if target == "half":
        return half_net(recorded.workload, recorded.dtype, recorded.stage.spec.options.get("keep_fp32"))
    return InChannelsLast(model).eval() if target == "channels_last" else model


def as_package(recorded: RecordedStage, folder: Path) -> Made:
    """Write a package of AOTInductor: the run's own, or the half network compiled ahead of time; raises ExportError."""
    stage, on_gpu = recorded.stage, recorded.workload.device.type == "cuda"
    left_by_run = any(Path(artefact.path).name == PACKAGE for artefact in stage.artefacts)
    if left_by_run and not recorded.ends.flags:
        copy_all(recorded, PACKAGE, folder)
        return Made("aot_inductor", PACKAGE)
    tuned = str(stage.spec.options.get("mode", "")).startswith("max-autotune")
    torch.backends.cudnn.benchmark = on_gpu
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = on_gpu
    try:
        net = recorded.with_ends(half_net(recorded.workload, recorded.dtype))
        build_package(net, [*recorded.given], folder / PACKAGE, not on_gpu, tuned)
    except Exception as error:  # torch.export and Inductor raise any type, the network's own, too
        raise ExportError(f"no package of this network: {first_line(error)}") from error
    same = "this is the same network, compiled ahead of time by AOTInductor"
    notes = [f"{stage.name} exists in its process alone: {same}"]
    used, *passed_over = package_compiler().values()
    if passed_over:
        notes.append(f"linked by {used}, as {passed_over[0]} would put a C++ library of its own into it")
    return Made("aot_inductor", PACKAGE, notes=notes)


def as_own_kernels(recorded: RecordedStage, folder: Path) -> Made:
    """Write the rewritten graph, its tiles and its kernels' sources, or a package if the stage chose Inductor."""
    if not any(Path(part.path).name == NET for part in recorded.stage.artefacts):
        return as_package(recorded, folder)
    (folder / GRAPH).mkdir()
    for name in (NET, ABOUT):
        if (path := recorded.kept(name)) is None:
            raise ExportError(f"{recorded.folder}: {name} is gone; measure again: {recorded.run.command}")
        shutil.copyfile(path, folder / GRAPH / name)
    try:
        net = artifact.load(folder / GRAPH)
    except artifact.ArtefactError as error:
        raise ExportError(f"{recorded.folder}: {error}; measure again: {recorded.run.command}") from None
    if recorded.added.flags:
        artifact.save(recorded.with_ends(net, recorded.added), Batch.numbered(recorded.given), folder / GRAPH)
    check_alone(folder / GRAPH / NET, recorded.stage.name)
    if not recorded.added.flags and standalone.write(net, folder / GRAPH):
        (folder / GRAPH / NET).unlink()
        (folder / GRAPH / ABOUT).unlink()
    count = carry(folder)
    return Made("own_kernels", GRAPH, notes=[f"carries the {count} files of its kernels; needs torch and triton alone"])


MAKERS: dict[ExportKind, Callable[[RecordedStage, Path], Made]] = {
    "torchscript": as_torchscript,
    "exported": as_program,
    "aot_inductor": as_package,
    "own_kernels": as_own_kernels,
}
