"""What the record says of a file that a stage leaves."""

from hashlib import sha256
from pathlib import Path

from pipeline.records.run_record import Artefact


def describe(path: Path, run_folder: Path) -> Artefact:
    """A file's entry in the record."""
    kinds = {".onnx": "onnx", ".pt": "torchscript", ".py": "generated code", ".cpp": "generated code"}
    digest = sha256(path.read_bytes()).hexdigest()
    return Artefact(
        path=str(path.relative_to(run_folder)),
        kind=kinds.get(path.suffix, path.suffix.lstrip(".")),
        size_bytes=path.stat().st_size,
        sha256=digest,
    )
