"""A rewritten net as files: graph.json, and weights.safetensors. Holds no code, and needs none of the net's own."""

import hashlib
import json
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from pipeline.compiler.graph import Graph, Node, UnsupportedError
from pipeline.compiler.kernel_layer import Backend, Choice
from pipeline.compiler.lowering import Program
from pipeline.compiler.ops import TILES
from pipeline.compiler.quantize import Precision

# 2: activations and their slopes for "relu", output_padding for "extra", compute_dtype for "work", fp8_values for
# "eighths", and a tile by the last part of its module's name. 1: the first.
FORMAT = 2


class ArtefactError(Exception):
    """A folder that holds no rewritten net that this version reads; one line."""


def save(program: Program, folder: Path) -> list[Path]:
    """Write the program; its choices hold for the GPU that they were measured on."""
    graph, precision = program.graph, program.precision
    used = {key for node in graph.nodes for key in node.tensors.values()}
    document = {
        "format": FORMAT,
        "nodes": [asdict(node) for node in graph.nodes],
        "shapes": graph.shapes,
        "input": graph.input,
        "output": graph.output,
        "places": graph.places,
        "precision": {
            "compute_dtype": precision.compute_dtype,
            "fp8_values": sorted(precision.fp8_values),
            "scales": precision.scales,
        },
        "choices": {name: encode(choice) for name, choice in program.choices.items()},
    }
    folder.mkdir(parents=True, exist_ok=True)
    weights = folder / "weights.safetensors"
    save_file({key: graph.tensors[key].cpu().contiguous().clone() for key in sorted(used)}, weights)
    document["weights_sha256"] = hashlib.sha256(weights.read_bytes()).hexdigest()
    (folder / "graph.json").write_text(json.dumps(document, indent=1))
    return [folder / "graph.json", folder / "weights.safetensors"]


def load(folder: Path, device: torch.device) -> Program:
    """The program, ready to run in a process that has never seen the net's class.

    Raises:
        ArtefactError: it isn't one, is of another format, its weights were changed, or it names what torch hasn't.
    """
    try:
        document = json.loads((folder / "graph.json").read_text())
        tensors = load_file(folder / "weights.safetensors")
    except (OSError, ValueError, SafetensorError) as error:
        raise ArtefactError(f"{folder}: no rewritten net ({error})") from None
    if document.get("format") != FORMAT:
        raise ArtefactError(f"{folder}: format {document.get('format')}, this version reads {FORMAT}")
    found = hashlib.sha256((folder / "weights.safetensors").read_bytes()).hexdigest()
    if document["weights_sha256"] != found:
        raise ArtefactError(f"{folder}: weights.safetensors isn't the one that graph.json was written with")
    graph = Graph(
        nodes=[Node(**node) for node in document["nodes"]],
        tensors=tensors,
        shapes=document["shapes"],
        input=document["input"],
        output=document["output"],
        places={part: (wide, first) for part, (wide, first) in document["places"].items()},
    )
    given = document["precision"]
    precision = Precision(given["compute_dtype"], set(given["fp8_values"]), given["scales"])
    choices = {name: decode(choice) for name, choice in document["choices"].items()}
    try:
        return Program(graph, precision, device, choices)
    except UnsupportedError as error:
        raise ArtefactError(f"{folder}: {error}") from None


def encode(choice: Choice) -> Any:
    """A tile as its kernel's module and its fields; the library and the reference as their names."""
    if is_dataclass(choice) and not isinstance(choice, type):
        return {"tile": type(choice).__module__.rpartition(".")[2], "fields": asdict(choice)}
    return str(choice)


def decode(choice: Any) -> Choice:
    """The tile or the backend that `encode` gave.

    Raises:
        ArtefactError: no kernel has such a tile, and no backend such a name.
    """
    try:
        return TILES[choice["tile"]](**choice["fields"]) if isinstance(choice, dict) else Backend(choice)
    except (KeyError, TypeError, ValueError):
        raise ArtefactError(f"{choice}: no tile or backend of this version") from None
