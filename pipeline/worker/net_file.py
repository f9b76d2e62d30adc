"""Networks in a file, which need none of their code: of torch.export (.pt2), TorchScript and ONNX."""

import importlib
import re
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor, fx, nn
from torch._export.converter import TS2EPConverter

from pipeline.compiler.artifact import ArchiveError, checked_archive
from pipeline.compiler.graph.exported_net import without_checks
from pipeline.compiler.graph.fx_graph import is_call
from pipeline.config.model_request import EXPORTED, ONNX
from pipeline.errors import ModelError, typed_line
from pipeline.worker.reference import answered

GIB = 2**30
MOST_CHANNELS = 16  # of images that a TorchScript network is tried with
READ_OPSET = 17  # the newest of ONNX in which onnx2torch 1.5 knows resizing
UNKNOWN = re.compile(r"NotImplementedError: Converter is not .*operation_type='(\w+)'.*")  # onnx2torch 1.5
HOW = "torch.export.save(torch.export.export(net.eval(), (batch,)).run_decompositions({}), FILE) writes one"


def net_of_file(path: str, memory: int, example: Callable[[], tuple[Tensor, ...]] | None = None) -> nn.Module:
    """Return the network of a file, in fp32, without its graph's checks of inputs; ModelError if it can't be used."""
    # A .pt2 is read without its pickles (`artifact.checked_archive`).
    try:
        size = Path(path).stat().st_size
    except OSError as error:
        raise ModelError(f"model.file={path}: it can't be read ({error.strerror})") from None
    if size > memory:
        raise ModelError(f"model.file={path}: it takes {size / GIB:.4g} GiB, and this machine has {memory / GIB:.4g}")
    module = loaded(path) if Path(path).suffix == EXPORTED or example is None else converted(path, example())
    if not isinstance(module, fx.GraphModule):
        raise ModelError(f"model.file={path}: torch gives a {type(module).__name__}, no graph; {HOW}")
    without_checks(module)
    follow_the_weights(module)
    check_fp32(path, module)
    net = fx.GraphModule(module, module.graph, Path(path).stem)  # a plain module can be set to eval mode and copied
    for part in (*net.parameters(), *net.buffers()):
        part.requires_grad_(False)
    return net.eval()


def check_fp32(path: str, module: nn.Module) -> None:
    """Raise ModelError if weights are in another floating type."""
    floats = {part.dtype for part in (*module.parameters(), *module.buffers()) if part.is_floating_point()}
    if other := floats - {torch.float32}:
        raise ModelError(
            f"model.file={path}: weights in {min(map(str, other))}; export the network in fp32, as it was trained"
        )


def follow_the_weights(module: fx.GraphModule) -> None:
    """Make casts of floating values to fp32 follow the weights: a graph has fp32 where the code has `x.to(y.dtype)`."""
    # Casts from whole numbers, such as a time step, stay fp32.
    weight = next((name for name, part in module.named_parameters() if part.is_floating_point()), None)
    for node in [node for node in module.graph.nodes if is_call(node, "aten.to.dtype")]:
        before = node.all_input_nodes[0].meta.get("val")
        if weight is None or node.args[1] is not torch.float32 or not isinstance(before, Tensor):
            continue
        if before.is_floating_point():
            with module.graph.inserting_before(node):
                like = module.graph.get_attr(weight)
                cast = module.graph.call_function(torch.ops.aten.type_as.default, (node.args[0], like))
            cast.meta = dict(node.meta)
            node.replace_all_uses_with(cast)
            module.graph.erase_node(node)
    module.recompile()


def converted(path: str, example: tuple[Tensor, ...]) -> nn.Module:
    """Return the graph of a TorchScript or ONNX file, for the shapes of an example."""
    kind, source = "ONNX" if Path(path).suffix == ONNX else "TorchScript", None
    try:
        with warnings.catch_warnings(action="ignore"):  # of counters that a graph doesn't use
            if kind == "ONNX":
                source = net_of_onnx(path, example)
                check_fp32(path, source)
                scripted = torch.jit.trace(source, example, check_trace=False)  # its sizes are tensors, constants here
            else:
                source = scripted = torch.jit.load(path, map_location="cpu").eval()
            net = TS2EPConverter(scripted, example, {}).convert().module()
            module: nn.Module = torch.export.export(net, example).run_decompositions({}).module()
        for name, _ in source.named_parameters():  # which the converter makes buffers
            owner, _, own = name.rpartition(".")
            part = module.get_submodule(owner)
            if (buffer := part._buffers.pop(own, None)) is not None:
                part.register_parameter(own, nn.Parameter(buffer, requires_grad=False))
    except ImportError as error:
        raise ModelError(
            f"model.file={path}: {error}, which reads ONNX; install it: python -m pip install onnx2torch"
        ) from None
    except ModelError:
        raise
    except Exception as error:  # noqa: BLE001 - of a graph that can't be converted, each converter raises its own
        shapes = ", ".join(str(list(part.shape)) for part in example)
        if source is not None and (channels := taken_channels(source, example)):
            raise ModelError(f"model.file={path}: it takes data.channels={channels}, not inputs {shapes}") from None
        why = UNKNOWN.sub(r"onnx2torch has no form of \1", typed_line(error))
        raise ModelError(
            f"model.file={path}: this {kind} file can't be turned into a graph for inputs {shapes} "
            f"({why}); export the network that it was made of: {HOW}"
        ) from None
    return module


def net_of_onnx(path: str, example: tuple[Tensor, ...]) -> nn.Module:
    """Return the network of an ONNX file by onnx2torch, which wants an older opset and weights beside their layers."""
    convert = importlib.import_module("onnx2torch").convert
    import onnx
    from onnxscript import optimizer

    try:
        model = onnx.load(path)
    except Exception as error:  # noqa: BLE001 - of a file that is torn protobuf raises its own
        raise ModelError(f"model.file={path}: can't be read as ONNX ({typed_line(error)})") from None
    opsets = [each.version for each in model.opset_import if not each.domain]
    if not opsets:
        raise ModelError(f"model.file={path}: holds no network of ONNX's own operations")
    model = optimizer.optimize(model)
    if max(opsets) > READ_OPSET:
        with suppress(RuntimeError):  # an operation has no older form; the converter names those that it lacks
            model = onnx.version_converter.convert_version(model, READ_OPSET)
    net: nn.Module = convert(model).eval()
    for declared, part in zip(model.graph.input, example, strict=False):
        sides = zip(declared.type.tensor_type.shape.dim, part.shape, strict=False)
        wanted = [side.dim_value or given for side, given in sides]
        if wanted != list(part.shape) and not answered(net, example):
            raise ModelError(
                f"model.file={path}: it takes inputs {wanted}, not {list(part.shape)}: set data.batch_size, "
                "data.channels and data.size to them"
            )
    return net


def taken_channels(source: nn.Module, example: tuple[Tensor, ...]) -> int:
    """Return the number of channels that a network of images takes if it isn't the example's, else 0."""
    for channels in range(1, MOST_CHANNELS + 1 if len(example) == 1 else 1):
        with suppress(Exception), torch.no_grad():
            source(example[0].new_zeros(len(example[0]), channels, *example[0].shape[2:]))
            return 0 if channels == example[0].shape[1] else channels
    return 0


def loaded(path: str) -> nn.Module:
    """Return the module that torch loads from a checked .pt2 file."""
    try:
        archive = checked_archive(Path(path).read_bytes())
    except ArchiveError as error:
        raise ModelError(f"model.file={path}: {error}; {HOW}") from None
    with warnings.catch_warnings():
        # torch warns of bytes that can't be written to; the weights aren't written to
        warnings.filterwarnings("ignore", message="The given buffer is not writable", category=UserWarning)
        try:
            program = torch.export.load(archive)
            module = program.module()
        except Exception as error:  # noqa: BLE001 - of a graph that doesn't fit together torch raises whatever comes up
            raise ModelError(f"model.file={path}: torch doesn't load it ({typed_line(error)}); {HOW}") from None
    if program.range_constraints:
        raise ModelError(f"model.file={path}: its shapes are dynamic: export it without dynamic_shapes; {HOW}")
    return module
