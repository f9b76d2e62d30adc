"""A rewritten network as files: net.pt2, torch.export's own format, and about.json; it needs none of its code.

An archive is code: load those that you trust. Checked is that it is whole, no larger than it seems, without a pickle.
"""

import hashlib
import io
import json
import logging
import re
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path

import torch
import torch._inductor.inductor_prims  # registers prims::inductor_force_stride_order
from torch import Tensor, fx, nn

from pipeline.compiler import custom_ops
from pipeline.compiler.batch import Batch, batched
from pipeline.compiler.errors import shortened, typed_line
from pipeline.compiler.graph.fx_graph import as_word
from pipeline.compiler.network_calls import exported_program
from pipeline.compiler.tuning.autotune import write_json

FORMAT = 7  # an exported program with the kernels' operations
NET, ABOUT = "net.pt2", "about.json"
FULL = "float32"  # the first input's type, of files that name none
PLAIN = re.compile(r"[A-Za-z0-9_.+-]*")  # a name that torch reads again
INPUTS = "data/sample_inputs/model.pt"  # a pickle in an archive, which is not needed
CONFIGS = ("data/weights/model_weights_config.json", "data/constants/model_constants_config.json")
# Operations of other libraries, and the module that registers each.
LIBRARIES = {"torch.ops.torchvision.deform_conv2d.default": "torchvision.ops"}


class ArchiveError(ValueError):
    """An archive that isn't whole, or holds a pickle; one line."""


class ArtefactError(Exception):
    """A folder that holds no rewritten network that this version reads; one line."""


def save(lowered: nn.Module, inputs: Tensor | Batch, folder: Path) -> list[Path]:
    """Write a lowered network for inputs of these shapes; its tiles hold for the GPU that they were measured on."""
    folder.mkdir(parents=True, exist_ok=True)
    first, *others = batched(inputs)
    content = archive_of(lowered, first, *others)
    (folder / NET).write_bytes(content)
    about = {
        "format": FORMAT, "torch": torch.__version__, "batch": list(first.shape),
        "dtype": str(first.dtype).removeprefix("torch."), "others": [_described(part) for part in others],
        "operations": sorted(custom_ops.RUNS), "net_sha256": hashlib.sha256(content).hexdigest(),
    }  # fmt: skip
    write_json(about, folder / ABOUT)
    return [folder / NET, folder / ABOUT]


def _described(part: Tensor) -> dict[str, object]:
    return {"shape": list(part.shape), "dtype": str(part.dtype).removeprefix("torch.")}


def archive_of(net: nn.Module, *inputs: Tensor) -> bytes:
    """Return a network as torch.export writes it; what writes into its operand becomes one that doesn't."""
    with torch.inference_mode(False), torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`isinstance\\(treespec, LeafSpec\\)`")  # torch's, of its own code
        program = exported_program(net, inputs)
        if any(_writes(node) for node in program.graph.nodes):
            program = program.run_decompositions({})
    _name_by_words(program)
    with warnings.catch_warnings():
        # torch 2.11 to 2.12 warn of weights that aren't contiguous; those in channels_last are whole all the same
        warnings.filterwarnings("ignore", message="No complete tensor found", category=UserWarning)
        torch.export.save(program, written := io.BytesIO())
    return written.getvalue()


def _name_by_words(program: torch.export.ExportedProgram) -> None:
    """Rename modules and weights that are called what torch doesn't read again, such as "slice(1, 4, None)"."""
    for entry in program.module_call_graph:
        if not PLAIN.fullmatch(entry.fqn):
            entry.fqn = as_word(entry.fqn)
    for number, spec in enumerate(program.graph_signature.input_specs):
        old = spec.target
        if old is None or PLAIN.fullmatch(old):
            continue
        spec.target = f"weight_{number}_{as_word(old)}"
        for held in (program.state_dict, program.constants):
            if old in held:
                held[spec.target] = held.pop(old)


def _writes(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    ours = str(node.target).startswith((f"{custom_ops.NAMESPACE}.", "aten.copy_."))  # into buffers of concatenations
    return schema is not None and schema.is_mutable and not ours


def load(folder: Path) -> fx.GraphModule:
    """Return the network for inputs as about.json says; ArtefactError if it isn't one, changed, or another format."""
    try:
        about = dict(json.loads((folder / ABOUT).read_text()))
        content = (folder / NET).read_bytes()
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise ArtefactError(f"{folder}: no rewritten network ({error})") from None
    if about.get("format") != FORMAT:
        raise ArtefactError(f"{folder}: format {about.get('format')}, this version reads {FORMAT}")
    if about.get("net_sha256") != hashlib.sha256(content).hexdigest():
        raise ArtefactError(f"{folder}: {NET} isn't the one that {ABOUT} was written with")
    try:
        archive = checked_archive(content)
    except ArchiveError as error:
        raise ArtefactError(f"{folder}: {NET} is refused: {error}") from None
    with warnings.catch_warnings(), _quiet():
        # torch's own, of the bytes that it reads: nothing writes to the weights
        warnings.filterwarnings("ignore", message="The given buffer is not writable", category=UserWarning)
        try:
            net = torch.export.load(archive).module()
        except Exception as error:  # noqa: BLE001 - of a graph that doesn't fit together torch raises whatever comes up
            raise ArtefactError(f"{folder}: {NET} isn't a network that torch loads ({typed_line(error)})") from None
    known = list(map(_described, example_of(folder)))
    net.register_forward_pre_hook(partial(_check_inputs, known), prepend=True)
    return net


def example_of(folder: Path) -> Batch:
    """Return inputs of zeros as a saved network takes them, on the CPU; raise ArtefactError where it doesn't say."""
    try:
        about = json.loads((folder / ABOUT).read_text())
        parts = [torch.zeros(about["batch"], dtype=getattr(torch, about.get("dtype", FULL)))]
        parts += [torch.zeros(part["shape"], dtype=getattr(torch, part["dtype"])) for part in about.get("others", [])]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ArtefactError(f"{folder}: {ABOUT} doesn't say what the network takes ({typed_line(error)})") from None
    return Batch.numbered(parts)


def _check_inputs(known: list[dict[str, object]], _: nn.Module, given: tuple[Tensor, ...]) -> None:
    """Raise ValueError where an input's shape or type isn't as `known`, or its gradients are wanted."""
    for number, (part, saved) in enumerate(zip(map(_described, given), known, strict=False)):
        if part != saved:
            text, wanted = (f"{each['shape']} {each['dtype']}" for each in (part, saved))
            raise ValueError(f"input {number} is {text}, and this network was saved for {wanted}")
    if torch.is_grad_enabled() and any(part.requires_grad for part in given):
        raise ValueError("this network's kernels give no gradients: call it in torch.no_grad(), or detach its inputs")


def checked_archive(content: bytes) -> io.BytesIO:
    """Return an archive of torch.export without its pickled example; ArchiveError if it's torn, inflates or pickles."""
    rewritten = io.BytesIO()
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive, zipfile.ZipFile(rewritten, "w") as kept:
            entries = archive.infolist()
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
                raise ArchiveError("a member is compressed; torch writes them as they are")
            if sum(entry.file_size for entry in entries) > len(content):
                raise ArchiveError(f"members of more than the file's {len(content)} bytes")
            for entry in entries:
                kept.writestr(entry.filename, _checked_member(entry.filename, archive.read(entry)))
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, RuntimeError) as error:
        raise ArchiveError(f"no whole archive ({shortened(' '.join(str(error).split()))})") from None
    rewritten.seek(0)
    return rewritten


def _checked_member(name: str, data: bytes) -> bytes:
    if name.endswith(INPUTS):
        return b""
    if name.endswith(CONFIGS) and b'"use_pickle": true' in data:
        raise ArchiveError(f"{name} names a pickled weight, which could run code")
    for operation, module in LIBRARIES.items():
        if name.endswith(".json") and operation.encode() in data:
            with suppress(ImportError):
                import_module(module)
    return data


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's log, which has a traceback of what it couldn't read before it raises."""
    log = logging.getLogger("torch.export")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before
