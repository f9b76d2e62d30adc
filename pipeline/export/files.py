"""The files of a bundle beside its artefact: loader, golden answers, requirements, README, digests, kernels."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

import pipeline.compiler
import pipeline.kernels
from models.tensor_files import DOT
from pipeline.compiler import input_forms
from pipeline.devices.host import installed
from pipeline.export import carried
from pipeline.export.bundle import write_sums
from pipeline.export.contract import FILE, LOADER, PACKAGES, Contract
from pipeline.records import codec
from pipeline.records.disk import write_json, write_text
from pipeline.records.request import ExportKind
from pipeline.stages.common import aot_loading

GOLDEN = "golden.safetensors"  # the first batch before and after normalisation, and the answers to it
SUPPORT, CHECK, SHAPE = "support.py", "golden_check.py", "image_shape.py"
LOADING, FORMS = "aot_loading.py", "input_forms.py"
CARRIED = Path(carried.__file__).parent
README = """# {stage}, exported by unet-ladder

`load.py` loads `{artefact}` ({kind}) with the packages of requirements.txt alone:

    import load  # from within this folder
    net = load.load()
    {use}

An input batch is {shape}; {dynamic}. {speed}
`python -I load.py --check` compares the network with golden.safetensors, and `sha256sum -c SHA256SUMS` the files.
With unet-ladder installed, `python -m pipeline.verify .` compares the machine and the speed as well{windows}.
{notes}"""

WINDOWS = """,
and `python -m pipeline.predict . {files}/ --out {answers}/` cuts {files} of other sizes into windows"""


def write_loader(kind: ExportKind, folder: Path) -> None:
    """Copy load.py for this form, its files and check; write the packages that it imports, without such as +cu130."""
    lines = [f"{name}=={version.partition('+')[0]}" for name, version in installed(PACKAGES[kind]).items()]
    write_text("".join(f"{line}\n" for line in lines), folder / "requirements.txt")
    library = "onnx" if kind == "onnx" else "torch"
    shutil.copyfile(CARRIED / f"support_{library}.py", folder / SUPPORT)
    for name in (LOADER, CHECK, SHAPE):
        shutil.copyfile(CARRIED / name, folder / name)
    if kind == "aot_inductor":
        shutil.copyfile(aot_loading.__file__, folder / LOADING)
        shutil.copyfile(input_forms.__file__, folder / FORMS)


def write_golden(tensors: Mapping[str, Tensor], images: np.ndarray | None, folder: Path) -> None:
    """Write a batch and its answers.

    Args:
        tensors: "batch", the artefact's input; "reference", the fp32 network's logits [batch, classes, height, width];
            and, once known, "logits", the artefact's own answer.
        images: the batch before normalisation, [batch, height, width, channels]; None for tensors.
        folder: of the bundle.
    """
    parts = {name: part.detach().cpu().contiguous() for name, part in tensors.items()}
    if images is not None:
        parts["images"] = torch.from_numpy(np.array(images, order="C"))
    (folder / GOLDEN).write_bytes(save(parts))  # save_file makes a file that only its user may read


def write_readme(contract: Contract, folder: Path) -> None:
    """Write a README of ten lines."""
    took, rule = contract.measured, contract.input
    known = took.ms_per_call is not None
    speed = f"On {took.device_name} the run took {took.ms_per_call:.4g} ms per batch." if known else "It was not timed."
    text = README.format(
        use=how_to_use(contract),
        windows=windows_of(contract),
        stage=contract.stage,
        artefact=contract.artefact,
        kind=contract.kind.replace("_", " "),
        shape=" × ".join(map(str, rule.shape)),
        dynamic=f"its {' and '.join(rule.dynamic)} may vary" if rule.dynamic else "its shape is fixed",
        speed=speed,
        notes="".join(f"Note: {note}.\n" for note in contract.notes),
    )
    write_text(text, folder / "README.md")


def windows_of(contract: Contract) -> str:
    """Return what `predict` does with the bundle, in a clause; empty if it doesn't write its answers."""
    answers = "masks" if contract.makes_masks else "answers"
    return WINDOWS.format(files=contract.words.samples, answers=answers) if contract.is_predicted else ""


def how_to_use(contract: Contract) -> str:
    """Return the line that calls the network."""
    names = [contract.input.name, *(rule.name for rule in contract.others)]
    if contract.makes_masks:
        batch, channels, *sides = contract.batch_shape
        shape = ", ".join(map(str, (batch, *sides, channels)))
        return f"masks = load.masks(net, images)  # [{shape}], channels last, as files hold them; load.py normalises"
    if len(names) == 1 and contract.takes_images:
        return 'answer = net(load.SUPPORT["prepare"](load.SUPPORT["fitting"](images)))  # channels last, as in files'
    words = [name.replace(DOT, "_") for name in names]
    return f"answer = net({', '.join(words)})  # as contract.json describes each"


def write_contract(contract: Contract, folder: Path) -> None:
    """Write the contract, the README and the digests."""
    write_json(codec.to_json(contract), folder / FILE)
    write_readme(contract, folder)
    write_sums(folder)


NAME = "unet_kernels"  # of the package in a bundle, as in the library's own wheel
NOTE = "# Copied from unet-ladder; Apache License 2.0.\n"


def carry(folder: Path) -> int:
    """Copy the library into folder/unet_kernels, its modules renamed to lie there; return the number of files."""
    target = folder / NAME
    for package, place in ((pipeline.compiler, target), (pipeline.kernels, target / "kernels")):
        home = Path(package.__path__[0])
        for path in home.rglob("*.py"):
            copy = place / path.relative_to(home)
            copy.parent.mkdir(parents=True, exist_ok=True)
            text = path.read_text(encoding="utf-8").replace(pipeline.kernels.__name__, f"{NAME}.kernels")
            copy.write_text(NOTE + text.replace(pipeline.compiler.__name__, NAME), encoding="utf-8")
    return sum(1 for _ in target.rglob("*.py"))
