"""What the report's first lines say of the software that gave the figures."""

from dataclasses import replace

import pytest

from pipeline.report.first_screen import machine
from tests.report import made_up_run as planted


@pytest.mark.parametrize("package", ["onnxruntime-gpu", "onnxruntime"])
def test_header_names_onnxruntime(package: str) -> None:
    """ONNX Runtime's version is named under either of the names that its wheel is installed by."""
    environment = replace(planted.environment(), packages={"torch": "2.11.0", package: "1.31.1"})
    assert f"{package} 1.31.1" in machine(planted.run(environment=environment)).versions.split(", ")
