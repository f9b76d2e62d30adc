"""Fixtures for every test here."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pipeline.export import artefacts, bundle, exporting
from pipeline.export.bundle import Said
from pipeline.export.contract import GoldenLimits, Judged, load_contract
from tests.export.recorded import write_zeros
from tests.process_state import own_switches


@pytest.fixture(autouse=True)
def process_state() -> Iterator[None]:
    """A stage or an export owns the switches of its process: put those back."""
    threads = torch.get_num_threads()
    with own_switches():
        yield
    torch.set_num_threads(threads)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Said:
    """What the loader says, in place of a process; torch's own exporter is spared."""
    said: Said = {"dtype": "float32", "right": True, "same_bits": True}
    said |= {"relative_l2": 0.0, "flipped_share": 0.0, "normalisation": 0.0}

    def answer(folder: Path, *words: str, **_: object) -> Said:
        assert not bundle.changed_files(folder)
        shape = load_contract(folder).output.shape
        if words[0] == "--batches":
            write_zeros(words[1], shape)
        return {**said, "shape": shape}

    monkeypatch.setattr(exporting, "ask", answer)
    monkeypatch.setattr(exporting, "judged", lambda *_: Judged(8, 0.0, 0.0))
    monkeypatch.setattr(exporting, "check_extremes", lambda *_: None)
    monkeypatch.setattr(exporting, "golden_limits", lambda *_: GoldenLimits(1e-3, 1e-2))
    monkeypatch.setitem(artefacts.MAKERS, "exported", lambda _, folder: written_program(folder))
    return said


def written_program(folder: Path) -> artefacts.Made:
    (folder / "net.pt2").write_bytes(b"a program")
    return artefacts.Made("exported", "net.pt2")
