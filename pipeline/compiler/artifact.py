"""A rewritten net as files: net.pt2, torch.export's own format, and about.json; it needs none of the net's code."""

import hashlib
import json
import warnings
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor, fx, nn

from pipeline.compiler import custom_ops
from pipeline.records.atomic_json import write_json

FORMAT = 3  # 3: an exported program with the kernels' operations. 2 and 1: a graph and its weights, of a format of ours
NET, ABOUT = "net.pt2", "about.json"


class ArtefactError(Exception):
    """A folder that holds no rewritten net that this version reads; one line."""


def save(lowered: fx.GraphModule, batch: Tensor, folder: Path) -> list[Path]:
    """Write a lowered net; its tiles hold for the GPU that they were measured on.

    Args:
        lowered: from `lowering.lower`.
        batch: one input [batch, channels, height, width]: the net is written for batches of its shape.
        folder: made if need be.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with torch.inference_mode(False), torch.no_grad():
        program = torch.export.export(lowered, (batch.clone(),))
    with warnings.catch_warnings():
        # torch 2.11 to 2.12 warn of weights that aren't contiguous; those in channels_last are whole all the same
        warnings.filterwarnings("ignore", message="No complete tensor found", category=UserWarning)
        torch.export.save(program, folder / NET)
    about = {
        "format": FORMAT,
        "torch": torch.__version__,
        "batch": list(batch.shape),
        "operations": sorted(custom_ops.OPERATIONS),
        "net_sha256": hashlib.sha256((folder / NET).read_bytes()).hexdigest(),
    }
    write_json(about, folder / ABOUT)
    return [folder / NET, folder / ABOUT]


def load(folder: Path) -> nn.Module:
    """The net, in a process that has never seen its class; run it as it is or through torch.compile.

    Its calls take a batch [batch, channels, height, width] in fp32 of the shape in about.json and give fp32 logits.

    Raises:
        ArtefactError: it isn't one, is of another format, or was changed.
    """
    try:
        about = dict(json.loads((folder / ABOUT).read_text()))
        found = hashlib.sha256((folder / NET).read_bytes()).hexdigest()
    except (OSError, ValueError, TypeError) as error:
        raise ArtefactError(f"{folder}: no rewritten net ({error})") from None
    if about.get("format") != FORMAT:
        raise ArtefactError(f"{folder}: format {about.get('format')}, this version reads {FORMAT}")
    if about.get("net_sha256") != found:
        raise ArtefactError(f"{folder}: {NET} isn't the one that {ABOUT} was written with")
    import_module("torch._inductor.inductor_prims")  # registers an operation that a lowered graph may call
    with warnings.catch_warnings():
        # torch's own, of the bytes that it reads: nobody writes to the weights
        warnings.filterwarnings("ignore", message="The given buffer is not writable", category=UserWarning)
        return torch.export.load(folder / NET).module()
