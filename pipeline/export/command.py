"""Export the winner of a run, or another stage, as a folder that runs without this project.

    python -m pipeline.export outputs/DATE/TIME --to bundle/

Exit codes: 0 the bundle has passed its check, 1 it failed, 2 a wrong request.
"""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import get_args

from pipeline.command_line import FAILED, FILES_TOO, Parser, guarded, path_of, show, tell
from pipeline.export.bundle import BundleFails
from pipeline.export.contract import Contract, Dynamic
from pipeline.export.request import Asked, Ends, ExportError, chosen, loaded
from pipeline.records import codec
from pipeline.report.formatting import clean, elapsed


def main(arguments: list[str] | None = None) -> int:
    """Export; print the bundle's folder on stdout, notes and errors on stderr."""
    return guarded(lambda: exported(arguments), refuses=FILES_TOO)


def exported(arguments: list[str] | None) -> int:
    """Return the exit code of `main`."""
    asked = asked_by(arguments)
    try:
        contract = bundle(asked)
    except BundleFails as error:
        tell(f"error: no bundle was made: {clean(error)}")
        return FAILED
    for note in contract.notes:
        tell(f"note: {note}")
    show(f"{asked.to}\n")
    return 0


def asked_by(arguments: list[str] | None) -> Asked:
    """Parse the command line."""
    parser = Parser(prog="python -m pipeline.export", description=__doc__)
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="the folder of a run")
    add("--to", type=path_of, required=True, metavar="DIR", help="a new folder for the bundle")
    add("--stage", metavar="NAME", help="a stage of the run; the winner unless given")
    text = "let this axis of an ONNX model vary; repeat for both"
    add("--dynamic", action="append", default=[], choices=get_args(Dynamic), help=text)
    add("--uint8-in", action="store_true", help="take uint8 images, and normalise them in the graph")
    add("--classes-out", action="store_true", help="return the class of each pixel instead of logits")
    typed = parser.parse_args(arguments)
    return Asked(typed.run, typed.to, typed.stage, tuple(dict.fromkeys(typed.dynamic)), Ends.of(vars(typed)))


def bundle(asked: Asked) -> Contract:
    """Write the bundle; raises OneLineError, OSError, BundleFails."""
    run = loaded(asked.run)
    if os.path.lexists(asked.to):
        raise ExportError(f"--to {asked.to}: exists; name a new folder")
    stage = chosen(run, asked.stage)
    from pipeline.export.exporting import export  # imports torch: a wrong request is refused before

    began = time.monotonic()
    contract = export(asked, run, stage, lambda step: tell(f"[{elapsed(time.monotonic() - began)}] {clean(step)}"))
    note_service(asked.run, stage.name, contract)
    return contract


def note_service(folder: Path, name: str, contract: Contract) -> None:
    """Add to the run's record what a fresh process took to answer, which its report shows; a note if it can't be."""
    run = codec.load(folder)
    stages = [replace(stage, service=contract.service) if stage.name == name else stage for stage in run.stages]
    try:
        codec.save(replace(run, stages=stages), folder)
    except OSError as error:
        tell(f"note: {folder}: the seconds and memory of a service can't be recorded ({error.strerror or error})")
