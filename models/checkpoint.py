"""Weights files: safetensors, or tensors in a pickle, of which no code is run."""

import builtins
import os
import pickle
import re
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from types import BuiltinFunctionType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from safetensors.torch import save as in_bytes
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from models.weights_file import PICKLES, READABLE, SAFE, find, is_torchscript, kind_of, parts_of
from pipeline.errors import CheckpointError, few, typed_line

# Keys of training scripts, best first.
NESTS = ["", "state_dict", "model_state_dict", "model", "network_weights", "net"]
INFLATES_TO = 2  # times its size, with a margin for the names of small weights
DEEPEST = 50  # mappings or modules within each other; one can hold itself
MOST_ENTRIES = 10**6  # of all mappings: one that holds another twice, and so on, has 2^50
MOST_NAMED = 6  # sets of weights, or entries, in a message
# Parts of names that wrappers add, also in the middle: DataParallel, torch.compile, FSDP, activation checkpoints.
ADDED = re.compile(r"(?<![^.])(?:module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
# Tensors of training alone: torchvision's second head, buffers of thop and of torch's averaged models.
OF_TRAINING = re.compile(r"aux_classifier\..*|(.*\.)?(total_ops|total_params|n_averaged)")
# Code that makes only numbers and arrays: nnU-Net keeps its losses as numpy's, beside the weights.
NUMBERS: list[Any] = [np.ndarray, np.dtype, *{type(np.dtype(kind)) for kind in "?bhilqBHILQefdgUSMm"}]
MAKERS: list[Any] = [np.float64(0).__reduce__()[0], np.zeros(1).__reduce__()[0]]
HOMES = ("numpy.core.multiarray", "numpy._core.multiarray")  # of numpy 1 and 2
RUNNING = {"subprocess", "shutil", "socket", "importlib", "runpy", "pty", "ctypes", "os", "posix", "nt", "sys"}


class Unread:
    """The inert stand-in of an object whose class is not imported; it keeps the object's state."""

    state: object = None

    def __init__(self, *_: object) -> None:
        """Take what the class would take."""

    def __setstate__(self, state: object) -> None:
        self.state = state


@dataclass
class Held:
    """The content of a weights file."""

    entries: int = 0  # number of entries that was looked at
    tensors: dict[str, Tensor] = field(default_factory=dict)  # by name, with the keys of the mappings around it
    homes: dict[str, str] = field(default_factory=dict)  # keys of the mapping that each tensor lies in
    others: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))  # keys of all else in one


@dataclass
class Loaded:
    """The outcome of loading a network's weights."""

    itself: bool = False  # whether the network's own code loads them
    told: list[str] = field(default_factory=list)  # clauses about the weights taken, and about those left out
    kinds: list[str] = field(default_factory=list)  # the floating types in the file, such as ["float16"]


LOADED: WeakKeyDictionary[nn.Module, Loaded] = WeakKeyDictionary()


def load_into(model: nn.Module, path: str, key: str | None = None) -> None:
    """Load a file's weights, under `key` if it is given, into the network; half precision becomes the network's own.

    The network's own `load_state_dict` renames what earlier versions of its library called otherwise, so names are
    compared behind it. `LOADED` keeps what was found.

    Raises:
        CheckpointError: the file can't be read safely, belongs to another network, or holds unfit values.
    """
    found = LOADED[model] = Loaded()
    wanted, held = model.state_dict(), read(find(path))
    names = without_added(wanted)
    groups = {plain: place_of(wanted[name]) or name for plain, name in names.items()}  # of names that share values
    prefix = prefix_of(groups, list(held.tensors), key, path, found.told)
    within = {name: part for name, part in held.tensors.items() if name.startswith(prefix)}
    homes = {held.homes[name] for name in within if name.removeprefix(prefix) in names} or set(held.homes.values())
    state = {name.removeprefix(prefix): part for name, part in within.items() if held.homes[name] in homes}
    beside = [name for name, home in held.homes.items() if home in homes and not name.startswith(prefix)]
    training = [name for name in state if name not in names and OF_TRAINING.fullmatch(name)]
    for left_out, what in ((beside, f"tensors beside those under {prefix!r}"), (training, "tensors of training")):
        if left_out:
            found.told.append(f"{len(left_out)} {what} left out, first {left_out[0]}")
    if others := [name for home in sorted(homes) for name in held.others[home]]:
        found.told.append(f"left out, as no tensors: {few(others, MOST_NAMED)}")
    given = {names.get(name, name): part for name, part in state.items() if name not in training}
    with_shared(wanted, given)
    if unfit := unfit_values(wanted, given):
        raise CheckpointError(f"{path}: {unfit}")
    found.kinds = sorted({str(part.dtype)[6:] for part in given.values() if part.is_floating_point()})
    if given and all(name.isdigit() for name in given):
        raise CheckpointError(f"{path}: tensors in a list, without names; save model.state_dict()")
    if misfit := misfit_of(model, given):
        raise CheckpointError(f"{path}: weights of another network than {type(model).__name__}: {misfit}")


def misfit_of(model: nn.Module, given: dict[str, Tensor]) -> str:
    """Load the weights by the network's own loader; return why they don't fit, in a clause, or an empty text."""
    try:
        outcome = model.load_state_dict(given)
    except Exception as error:  # noqa: BLE001 - a library's loader may raise any type
        return difference(model.state_dict(), given) or str(error).partition("\n")[0]
    all_taken = outcome is not None and not outcome.missing_keys and not outcome.unexpected_keys
    return "" if all_taken else difference(model.state_dict(), given)


def without_added(names: Iterable[str]) -> dict[str, str]:
    """Return names by what they are without the parts that wrappers add; as they are where two would be the same."""
    original = list(names)
    plain = {ADDED.sub("", name): name for name in original}
    return plain if len(plain) == len(original) else {name: name for name in original}


def place_of(part: Tensor) -> tuple[object, ...]:
    """Return the place of a tensor's values in memory; empty of a tensor without values."""
    if part.layout is not torch.strided or not part.numel() or not (pointer := part.data_ptr()):
        return ()
    return pointer, part.shape, part.stride()


def with_shared(wanted: Mapping[str, Tensor], given: dict[str, Tensor]) -> None:
    """Add the network's names of shared values that a file holds once, as save_model of safetensors stores them."""
    stored = {place_of(wanted[name]): given[name] for name in wanted if name in given}
    for name in wanted:
        if name not in given and (place := place_of(wanted[name])) and place in stored:
            given[name] = stored[place]


def prefix_of(groups: Mapping[str, object], given: list[str], key: str | None, path: str, told: list[str]) -> str:
    """Return the prefix of the network's names in a file: one that gives all of them, or else most.

    Of several that give all, one of a training script's keys is taken; `told` takes a clause about the others.
    """
    found: defaultdict[str, set[object]] = defaultdict(set)
    for name in given:
        for start in (0, *(dot.end() for dot in re.finditer(r"\.", name))):
            if name[start:] in groups and f"{name[:start]}".startswith(f"{key}." if key else ""):
                found[name[:start]].add(groups[name[start:]])
    if key and not found:
        known = sorted({name.partition(".")[0] for name in given})
        raise CheckpointError(
            f"model.checkpoint_key={key}: {path} holds no weights under it; it has {few(known, MOST_NAMED)}"
        )
    most = max(map(len, found.values()), default=0)
    best = sorted((prefix for prefix in found if len(found[prefix]) == most), key=len)
    known = [prefix for prefix in best if all(part in NESTS for part in prefix.split("."))]
    whole = most == len(set(groups.values()))
    keys = [prefix.rstrip(".") for prefix in best]
    if key is None and whole and len(best) > 1 and not known:
        choices = " or ".join(f"model.checkpoint_key={each}" for each in keys[:MOST_NAMED])
        raise CheckpointError(f"{path}: weights under each of {few(keys, MOST_NAMED)}; choose by {choices}")
    chosen = min(known or best or [""], key=lambda prefix: NESTS.index(prefix.partition(".")[0]) if known else 0)
    others = [each for each in keys if each != chosen.rstrip(".")]
    if whole and others:
        told.append(
            f"the weights under {chosen.rstrip('.')!r} are taken, and those under {few(others, MOST_NAMED)} are not; "
            "model.checkpoint_key chooses"
        )
    return chosen


def read(path: Path) -> Held:
    """Read the tensors of a file, or of the files that an index names; raise CheckpointError if it isn't safe."""
    held = Held()
    for part in parts_of(path):
        gather(held, stored(part), "", 0)
    if not held.tensors:
        raise CheckpointError(f"{path}: no state dict in it; save model.state_dict()")
    plain = without_added(held.tensors)
    held.homes = {name: held.homes[full] for name, full in plain.items()}
    held.tensors = {name: held.tensors[full] for name, full in plain.items()}
    return held


def gather(held: Held, value: object, before: str, depth: int) -> bool:
    """Put the tensors of nested mappings, lists and networks into `held`, under names that begin with `before`.

    Arrays are weights where no tensor is beside them. Return whether there was a tensor.
    """
    home, entries, known = before.removesuffix("."), entries_of(value), len(held.tensors)
    of_arrays = not any(isinstance(part, Tensor) for part in entries.values())
    for key, entry in entries.items():
        name = f"{before}{key}"
        is_weight = of_arrays and isinstance(entry, np.ndarray) and entry.dtype.kind in "fiub"
        part = torch.from_numpy(entry) if is_weight else entry
        if isinstance(part, Tensor):
            held.tensors[name], held.homes[name] = part, home
        elif part is not None:
            held.entries += 1
            ended = depth > DEEPEST or held.entries > MOST_ENTRIES
            if ended or not gather(held, part, f"{name}.", depth + 1):
                held.others[home].append(name)
    return len(held.tensors) > known


def entries_of(value: object) -> Mapping[Any, Any]:
    """Return the entries of a mapping, a list, or a network whose class was not imported; else none."""
    if isinstance(value, Unread) and isinstance(value.state, Mapping) and "_modules" in value.state:
        kept = value.state.get("_non_persistent_buffers_set") or ()
        buffers = {name: part for name, part in value.state.get("_buffers", {}).items() if name not in kept}
        return {**value.state.get("_parameters", {}), **buffers, **value.state["_modules"]}
    return value if isinstance(value, Mapping) else dict(enumerate(value)) if isinstance(value, list | tuple) else {}


def stored(path: Path) -> object:
    """Return the content of one file; objects other than tensors, numbers and containers are `Unread`."""
    try:
        if path.suffix.lower() == SAFE:
            tensors = load_file(path)  # the notes of save_model say which names share values
            return {name: tensors[kept] for name, kept in notes(path).items() if kept in tensors} | tensors
        if path.suffix.lower() in PICKLES:
            check_archive(path)
            known = [*NUMBERS, *((maker, f"{home}.{maker.__name__}") for maker in MAKERS for home in HOMES)]
            known.append((lambda *_: {}, "collections.defaultdict"))
            with torch.serialization.safe_globals(known):
                unread = torch.serialization.get_unsafe_globals_in_checkpoint(path) if zipfile.is_zipfile(path) else []
            check_harmless(path, unread)
            with torch.serialization.safe_globals([*known, *((Unread, name) for name in unread)]):
                return torch.load(path, map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    except Exception as error:  # noqa: BLE001 - the unpickler raises any type on bytes that are no pickle
        why = f"no file of weights that can be read ({typed_line(error)})"
        if isinstance(error, pickle.UnpicklingError):
            why = "no pickle, or one that holds more than tensors and could run code; save model.state_dict()"
        raise CheckpointError(f"{path}: {kind_of(path) or why}") from None
    raise CheckpointError(f"{path}: {path.suffix or 'no suffix'}: {READABLE}")


def check_harmless(path: Path, names: Iterable[str]) -> None:
    """Raise CheckpointError if a pickle names a function that runs code, which its sender meant to run."""
    for name in names:
        module, _, last = name.rpartition(".")
        calls = module == "builtins" and last != "getattr" and isinstance(vars(builtins).get(last), BuiltinFunctionType)
        if calls or name.partition(".")[0] in RUNNING:
            raise CheckpointError(f"{path}: a pickle that names {name} and could run code; do not trust its source")


def check_archive(path: Path) -> None:
    """Raise CheckpointError unless an archive is as torch.save writes it: not compressed, and no program."""
    if not zipfile.is_zipfile(path):
        return
    packed = path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        whole = sum(member.file_size for member in members)
        if whole > INFLATES_TO * packed:
            raise CheckpointError(
                f"{path}: {packed:,} bytes that would inflate to {whole:,}; torch.save packs nothing: save it again"
            )
        summed = any(member.CRC for member in members)  # which torch may be told to leave out
        damaged = archive.testzip() if summed else None  # torch compares none
        if damaged:
            raise CheckpointError(f"{path}: damaged: the checksum of {damaged} is wrong; copy or download it again")
    if is_torchscript(path):
        remedy = f"model=file model.file={path} runs it, or save model.state_dict()"
        raise CheckpointError(f"{path}: a TorchScript archive, which holds code; {remedy}")


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
        sides = [(given[each].shape, wanted[each].shape) for each in shapes]
        alike = all(have and need and have[1:] == need[1:] for have, need in sides)  # but for the outputs
        if len(parts) == 1 and alike and len({have[0] for have, _ in sides}) == 1:
            classes = f"model.options.classes={given[name].shape[0]}, or your network's own argument, makes them fit"
            parts.append(f"these are outputs, as of other classes: {classes}")
    return "; ".join(parts)


def unfit_values(wanted: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> str:
    """Return why the values of `given` can't replace those of `wanted`, of the same shapes, in a clause; or empty."""
    for name, part in given.items():
        if kind := without_plain_values(part):
            return f"{name} has {kind}; save model.state_dict() of the network in fp32, fp16 or bf16"
        own = wanted.get(name, part)
        if own.is_floating_point() != part.is_floating_point() and not counts(own, part):
            return f"{name} is {part.dtype}, the network's is {own.dtype}; a conversion would change its values"
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


def save(model: nn.Module, path: Path, notes: Mapping[str, str]) -> None:
    """Write the weights in fp16, integers unchanged, with `notes` in the header; a failed write keeps the old file."""
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
    """Return the notes in a file's header; raise SafetensorError if it has no header."""
    with safe_open(path, "pt") as file:
        return dict(file.metadata() or {})


def digest(path: str) -> str:
    """Return the SHA-256 of the files: records keep it, as a flipped bit in weights loads without an error."""
    summed = sha256()
    for part in parts_of(find(path)):
        summed.update(part.read_bytes())
    return summed.hexdigest()


def digest_of(model: nn.Module) -> str:
    """Return the SHA-256 of a network's weights and buffers, of weights that the network's own code loads."""
    summed = sha256()
    for name, part in model.state_dict().items():
        summed.update(name.encode())
        summed.update(part.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return summed.hexdigest()
