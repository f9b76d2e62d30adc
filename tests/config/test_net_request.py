"""What a request and the header of a file show of a net is said before torch is imported, in one line."""

import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.load import check_net
from pipeline.config.request_error import RequestError
from pipeline.errors import CheckpointError
from pipeline.records.request import DataSpec, ModelSpec

IMAGES = DataSpec("samples", None, None, size=64, batch_size=2, batches=3)
FLOATS = {"dtype": "F32", "shape": [2, 1, 1, 1], "data_offsets": [0, 8]}
TORN: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "its header is cut off, or it has none"),
    "no header": (struct.pack("<Q", 0) + b"{}", "its header is cut off, or it has none"),
    "longer than the file": (struct.pack("<Q", 10**9) + b"{}", "its header is cut off, or it has none"),
    "no JSON": (struct.pack("<Q", 2) + b"{]", "no file of weights that can be read"),
    "a list": (struct.pack("<Q", 2) + b"[]", "its header is no mapping"),
    "no tensors": (struct.pack("<Q", 2) + b"{}", "no tensors in it; save model.state_dict()"),
}


def net(path: Path | None = None, **options: Any) -> ModelSpec:
    return ModelSpec("a net", "models.unet.UNet", options, str(path) if path else None)


def weights(path: Path, tensors: dict[str, Any], data: bytes = bytes(8)) -> Path:
    header = json.dumps(tensors).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
    return path


@pytest.mark.parametrize("kind", TORN)
def test_a_torn_header_is_told(kind: str, tmp_path: Path) -> None:
    content, said = TORN[kind]
    (path := tmp_path / "net.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        check_net(net(path), IMAGES)
    assert said in str(caught.value)


def test_weights_that_a_net_cannot_compute_with_are_told(tmp_path: Path) -> None:
    """Whole numbers in a convolution, fewer bytes than the header speaks of, another format, no file; a counter is."""
    path = tmp_path / "net.safetensors"
    counter = {"dtype": "I64", "shape": [], "data_offsets": [0, 8]}
    check_net(net(weights(path, {"a.weight": FLOATS, "a.num_batches_tracked": counter})), IMAGES)
    with pytest.raises(CheckpointError, match=r"a\.weight is I64, and a convolution computes with floats"):
        check_net(net(weights(path, {"a.weight": {**FLOATS, "dtype": "I64"}})), IMAGES)
    with pytest.raises(CheckpointError, match="its header speaks of 8 bytes of weights, and 7 are there"):
        check_net(net(weights(path, {"a.weight": FLOATS}, bytes(7))), IMAGES)
    (other := tmp_path / "net.onnx").touch()
    with pytest.raises(CheckpointError, match=r"\.onnx: weights are read from \.safetensors"):
        check_net(net(other), IMAGES)
    with pytest.raises(CheckpointError, match="no such file"):
        check_net(net(tmp_path / "gone.pt"), IMAGES)


def test_channels_go_together() -> None:
    """Of a net of ours, whose option is known; another's may mean what it likes."""
    check_net(net(in_channels=3), IMAGES)
    with pytest.raises(RequestError, match=r"model\.options\.in_channels=4: the images have data\.channels=3"):
        check_net(net(in_channels=4), IMAGES)
    check_net(ModelSpec("yours", "yours.Net", {"in_channels": 4}, None), IMAGES)


def test_it_is_said_without_torch() -> None:
    code = "import sys, pipeline.config.load; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
