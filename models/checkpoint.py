"""Weights files: safetensors, or a state dict of tensors alone. Code in a pickle is never run."""

import os
import pickle
import re
import zipfile
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import torch
from safetensors.torch import load_file
from safetensors.torch import save as in_bytes
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from pipeline.command_line import tell
from pipeline.errors import CheckpointError
from pipeline.inputs.weights_file import PICKLES, READABLE, SAFE, find, header, kind_of

NESTS = (
    "state_dict",
    "model_state_dict",
    "model",
    "network_weights",
)  # keys under which training scripts keep the weights
INFLATES_TO = 2  # times its size, with a margin for the names of small weights
DEEPEST = 10  # keys within each other; a mapping can hold itself
# Prefixes of names: the first two by DataParallel and torch.compile, the others an attribute's name in Lightning.
WRAPPERS = r"(module\.|_orig_mod\.|model\.|net\.)*"
TRAINING_HEAD = "aux_classifier."  # torchvision's name
# Code that makes only numbers: nnU-Net keeps its losses as numpy's, beside the weights.
NUMBERS = [np.dtype, np.dtypes.Float64DType, np.dtypes.Float32DType, np.dtypes.Int64DType]
SCALAR: Any = np.float64(0).__reduce__()[0]  # numpy's function that unpickles a number
SCALAR_NAMES = ("numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar")  # of numpy 1 and 2


def load_into(model: nn.Module, path: str) -> None:
    """Load a file's weights into the network; half precision becomes the network's own.

    Raises:
        CheckpointError: the file can't be read safely, belongs to another network, or holds unfit values.
    """
    state, told = without_prefixes(model.state_dict(), read(find(path), tell))
    state, left_out = without_training_head(model.state_dict(), state)
    for said in (told, left_out):
        if said:
            tell(f"{path}: {said}")
    if misfit := difference(model.state_dict(), state):
        copies = [prefix for prefix in whole_nets(model.state_dict(), state) if prefix]
        under = f"; it holds them under {' and '.join(copies)}: save those of one" if copies else ""
        raise CheckpointError(f"{path}: weights of another network than {type(model).__name__}: {misfit}{under}")
    if unfit := unfit_values(model.state_dict(), state):
        raise CheckpointError(f"{path}: {unfit}")
    model.load_state_dict(state)


def without_prefixes(wanted: Mapping[str, Tensor], given: dict[str, Tensor]) -> tuple[dict[str, Tensor], str]:
    """Return the tensors under the network's names, and a clause about what was renamed or left out.

    Tensors beside the network's, such as the weights of a loss, are left out.

    Args:
        wanted: the network's tensors, of any shapes.
        given: the checkpoint's.
    """
    taken = prefix_of(wanted, given)
    state = {name.removeprefix(taken): tensor for name, tensor in given.items() if name.startswith(taken)}
    left_out = [name for name in given if not name.startswith(taken)]
    beside = f", {len(left_out)} tensors beside them left out, first {left_out[0]}" if left_out else ""
    return state, f"its weights are those under {taken!r}{beside}" if taken else ""


def prefix_of(wanted: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> str:
    """Return the prefix of the network's names in a checkpoint: one that gives all of them, or else most.

    Of several whole networks, the one under a wrapper's prefix is taken; without one, the prefix is empty.
    """
    whole = whole_nets(wanted, given)
    known = [prefix for prefix in whole if re.fullmatch(WRAPPERS, prefix)]
    if whole:
        return min(known, key=len) if known else whole[0] * (len(whole) == 1)
    tried = {"", *(name[: dot.end()] for name in given for dot in re.finditer(r"\.", name))}
    return max(sorted(tried, key=len), key=lambda prefix: sum(prefix + name in given for name in wanted))


def whole_nets(wanted: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> list[str]:
    """Return the prefixes under which a checkpoint has all of the network's tensors; "" for none."""
    first = next(iter(wanted), "")
    before = [name.removesuffix(first) for name in given if name.endswith(first)]
    return [each for each in before if each[-1:] in {"", "."} and all(each + name in given for name in wanted)]


def without_training_head(wanted: Mapping[str, Tensor], given: dict[str, Tensor]) -> tuple[dict[str, Tensor], str]:
    """Return the tensors without those of an auxiliary head for training, and a clause about what was left out.

    Args:
        wanted: the network's tensors, of any shapes; a head in it stays.
        given: the checkpoint's, under the network's names.
    """
    head = [name for name in given if name.startswith(TRAINING_HEAD)]
    if not head or any(name.startswith(TRAINING_HEAD) for name in wanted):
        return given, ""
    kept = {name: tensor for name, tensor in given.items() if name not in head}
    return kept, f"{len(head)} tensors of an auxiliary head for training left out, first {head[0]}"


def read(path: Path, say: Callable[[str], None] = lambda _: None) -> dict[str, Tensor]:
    """Read the tensors of a file by name.

    Args:
        path: the file.
        say: is told, in a line, about other weights in the file that are not used.

    Raises:
        CheckpointError: it is damaged, no such file format, or a pickle that holds more than tensors.
    """
    try:
        if path.suffix.lower() == SAFE:
            return load_file(path)
        if path.suffix.lower() in PICKLES:
            check_archive(path)
            with torch.serialization.safe_globals([*NUMBERS, SCALAR, *((SCALAR, name) for name in SCALAR_NAMES)]):
                return _tensors(path, torch.load(path, map_location="cpu", weights_only=True), say)
    except pickle.UnpicklingError:
        why = "no pickle, or one that holds more than tensors and could run code; save model.state_dict()"
        raise CheckpointError(f"{path}: {kind_of(path) or why + _recipe(path)}") from None
    except CheckpointError:
        raise
    except Exception as error:  # noqa: BLE001 - the unpickler raises any type on bytes that are no pickle
        first = (str(error).splitlines() or ["no text"])[0]
        why = f"no file of weights that can be read ({type(error).__name__}: {first})"
        raise CheckpointError(f"{path}: {kind_of(path) or why}") from None
    raise CheckpointError(f"{path}: {path.suffix or 'no suffix'}: {READABLE}")


def check_archive(path: Path) -> None:
    """Raise unless an archive is as torch.save writes it: not compressed, and no program.

    Raises:
        CheckpointError: it would inflate, or holds TorchScript, which is code.
    """
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    whole, packed = sum(member.file_size for member in members), path.stat().st_size
    if whole > INFLATES_TO * packed:
        raise CheckpointError(
            f"{path}: {packed:,} bytes that would inflate to {whole:,}; torch.save packs nothing: save it again"
        )
    if any(name.endswith("/constants.pkl") for name in archive.namelist()):
        raise CheckpointError(f"{path}: a TorchScript archive, which holds code; save model.state_dict()")


def _recipe(path: Path) -> str:
    """Return how to extract the weights from a pickle of Lightning or of a training script, in a clause."""
    if not zipfile.is_zipfile(path):
        return ""
    code = (
        f"import torch; kept = torch.load({str(path)!r}, weights_only=False); "
        "torch.save(kept['state_dict'] if isinstance(kept, dict) else kept.state_dict(), 'weights.pt')"
    )
    return f'; of a file that you trust, as this runs what it holds: python -c "{code}"'


def _tensors(path: Path, value: object, say: Callable[[str], None]) -> dict[str, Tensor]:
    """Return the state dict in an unpickled value, which may be nested under one of NESTS or under its only key."""
    for _ in range(DEEPEST):
        if not isinstance(value, Mapping):
            break
        states = [name for name, part in value.items() if _is_state(part)]
        nests = [name for name in NESTS if isinstance(value.get(name), Mapping)] or states[:1] * (len(states) == 1)
        if not nests and states:
            names = ", ".join(map(str, states))
            raise CheckpointError(f"{path}: weights under each of {names}; save the one that is meant")
        if not nests:
            break
        if others := [str(name) for name in states if name != nests[0]]:
            say(f"{path}: the weights under {nests[0]!r} are taken, and those under {', '.join(others)} are not")
        value = value[nests[0]]
    if not _is_state(value):
        raise CheckpointError(f"{path}: no state dict in it; save model.state_dict()")
    return {str(name): part for name, part in value.items()}


def _is_state(value: object) -> TypeGuard[Mapping[object, Tensor]]:
    """Return whether a value maps names to tensors."""
    return isinstance(value, Mapping) and bool(value) and all(isinstance(part, Tensor) for part in value.values())


def difference(wanted: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> str:
    """Return why the tensors `given` don't fit `wanted`, both of any shapes, in a clause; empty if they fit."""
    missing = [name for name in wanted if name not in given]
    strange = [name for name in given if name not in wanted]
    shapes = [name for name in wanted if name in given and wanted[name].shape != given[name].shape]
    parts = []
    if missing:
        parts.append(f"{len(missing)} of {len(wanted)} missing, first {missing[0]}")
    if strange:
        parts.append(f"{len(strange)} unknown, first {strange[0]}")
    if shapes:
        name = shapes[0]
        sizes = f"{list(given[name].shape)} where the network has {list(wanted[name].shape)}"
        parts.append(f"{len(shapes)} of another shape, first {name}: {sizes}")
    return "; ".join(parts)


def unfit_values(wanted: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> str:
    """Return why the values of `given` can't replace those of `wanted`, of the same shapes, in a clause; or empty."""
    for name, part in given.items():
        if kind := without_plain_values(part):
            return f"{name} has {kind}; save model.state_dict() of the network in fp32, fp16 or bf16"
        if wanted[name].is_floating_point() != part.is_floating_point() and not counts(wanted[name], part):
            return (
                f"{name} is {part.dtype}, the network's is {wanted[name].dtype}; a conversion would change its values"
            )
        if part.is_floating_point() and not bool(part.float().isfinite().all()):
            return f"{name} holds NaN or infinite values"
    return ""


def counts(wanted: Tensor, part: Tensor) -> bool:
    """Return whether floats of any shape are whole numbers, as `.half()` makes of counters."""
    return part.is_floating_point() and not wanted.dtype.is_complex and bool((part.float() % 1 == 0).all())


def without_plain_values(part: Tensor) -> str:
    """Return what a tensor of any shape has instead of plain values, in a clause; empty if it has plain values."""
    if part.is_meta or is_lazy(part):
        return "no values"
    return "a sparse or quantized layout" if part.layout != torch.strided or part.is_quantized else ""


def stored_as(path: str) -> list[str]:
    """Return the floating types of a file's weights, such as ["float16"].

    Raises:
        CheckpointError: as `read`.
    """
    kinds = {str(part.dtype).removeprefix("torch.") for part in read(find(path)).values() if part.is_floating_point()}
    return sorted(kinds)


def save(model: nn.Module, path: Path, notes: Mapping[str, str]) -> None:
    """Write the weights in fp16, integers unchanged, with `notes` in the header.

    Raises:
        OSError: they can't be written; an earlier file stays.
    """
    state = {name: part.half() if part.is_floating_point() else part for name, part in model.state_dict().items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    held = {name: part.cpu().contiguous() for name, part in state.items()}
    place = path.resolve()  # the target of a link
    scratch = place.with_name(f"{place.name}.{os.getpid()}.part")
    try:
        scratch.write_bytes(in_bytes(held, metadata=dict(notes)))  # save_file makes a file that only its user may read
        scratch.replace(place)
    finally:
        scratch.unlink(missing_ok=True)


def notes(path: Path) -> dict[str, str]:
    """Return the notes in a file's header.

    Raises:
        ValueError: it has no header.
    """
    return dict(header(path)[0].get("__metadata__", {}))


def digest(path: str) -> str:
    """Return the SHA-256 of the file: records keep it, as a flipped bit in weights loads without an error."""
    return sha256(find(path).read_bytes()).hexdigest()
