"""Kernels of this project are told by their names, as the libraries' are."""

import re
from pathlib import Path

import pytest

from pipeline.profiling.profiler import classify

FOLDER = Path(__file__).resolve().parents[2] / "pipeline" / "kernels"
LAUNCH = re.compile(r"^\s+on_grid\((_?\w+), .*\)\($", re.MULTILINE)
PAST_IT = re.compile(r"^\s+_?\w+\[.*\]\($", re.MULTILINE)  # Triton's own way, which nothing notes
NO_PRODUCTS = {
    "_merged_statistics": "normalisation",
    "_norm_pass": "normalisation",
    "_upsample2x": "pointwise",
    "_excitation": "matmul",
}
SOURCES = [path.read_text(encoding="utf-8") for path in FOLDER.rglob("*.py")]
LAUNCHED = sorted({name for source in SOURCES for name in LAUNCH.findall(source)})


def test_every_kernel_is_found() -> None:
    assert {"_polyphase_gluon", "_conv3x3_gluon", "conv3x3_rows", "_transposed3x3_few", "_conv1x1"} <= set(LAUNCHED)
    assert not [line for source in SOURCES for line in PAST_IT.findall(source)]


@pytest.mark.parametrize("name", LAUNCHED)
def test_a_kernel_of_this_project_has_its_class(name: str) -> None:
    assert classify(name) == NO_PRODUCTS.get(name, "convolution")
