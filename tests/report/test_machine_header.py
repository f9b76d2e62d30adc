"""What the report's first lines say of the software that gave the figures."""

from dataclasses import replace

import pytest

from pipeline.report.first_screen import inputs_at, machine
from tests.report import made_up_run as planted


@pytest.mark.parametrize("package", ["onnxruntime-gpu", "onnxruntime"])
def test_header_names_onnxruntime(package: str) -> None:
    """ONNX Runtime's version is named under either of the names that its wheel is installed by."""
    environment = replace(planted.environment(), packages={"torch": "2.11.0", package: "1.31.1"})
    assert f"{package} 1.31.1" in machine(planted.run(environment=environment)).versions.split(", ")


@pytest.mark.parametrize(
    ("name", "size", "depth", "said"),
    [
        ("stain", 512, None, "images at 512×512"),
        ("folder", None, None, "images at their own size"),
        ("volume", 128, None, "volumes at 128×128×128"),
        ("volume", 128, 64, "volumes at 64×128×128"),
        ("tensors", None, None, "tensors at their own size"),
    ],
)
def test_what_a_net_is_given_is_told_by_its_kind(name: str, size: int | None, depth: int | None, said: str) -> None:
    """In the first line of a run, and in its report."""
    assert inputs_at(name, size, depth) == said
