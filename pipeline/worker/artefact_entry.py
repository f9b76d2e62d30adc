"""What the record says of a file that a stage leaves."""

from pathlib import Path

from pipeline.records.content_digest import file_digest
from pipeline.records.run_record import Artefact
from pipeline.worker.contract import checked_paths


def entries(saved: object, run_folder: Path) -> list[Artefact]:
    """The entries of what a Runner's `save` returned; errors as of `contract.checked_paths`."""
    return [describe(path, run_folder) for path in checked_paths(saved, run_folder)]


def describe(path: Path, run_folder: Path) -> Artefact:
    """A file's entry in the record."""
    kinds = {".onnx": "onnx", ".pt": "torchscript", ".py": "generated code", ".cpp": "generated code"}
    return Artefact(
        path=str(path.relative_to(run_folder)),
        kind=kinds.get(path.suffix, path.suffix.lstrip(".")),
        size_bytes=path.stat().st_size,
        sha256=file_digest(path),
    )
