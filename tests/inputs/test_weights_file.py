"""The header of a file of weights is checked before torch is imported, in one line."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import CheckpointError
from pipeline.inputs.weights_file import check

FLOATS = {"dtype": "F32", "shape": [2, 1, 1, 1], "data_offsets": [0, 8]}
TORN: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "an empty file"),
    "no header": (struct.pack("<Q", 0) + b"{}", "or cut off (Error while deserializing header"),
    "longer than the file": (struct.pack("<Q", 10**9) + b"{}", "or cut off (Error while deserializing header"),
    "no JSON": (struct.pack("<Q", 2) + b"{]", "no file of weights that can be read"),
    "a list": (struct.pack("<Q", 2) + b"[]", "no file of weights that can be read"),
    "no tensors": (struct.pack("<Q", 2) + b"{}", "no tensors in it; save model.state_dict()"),
}


def weights(path: Path, tensors: dict[str, Any], data: bytes = bytes(8)) -> str:
    header = json.dumps(tensors).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
    return str(path)


@pytest.mark.parametrize("kind", TORN)
def test_a_torn_header_is_told(kind: str, tmp_path: Path) -> None:
    content, said = TORN[kind]
    (path := tmp_path / "net.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        check(str(path))
    assert said in str(caught.value)


def test_weights_that_a_network_cannot_compute_with_are_told(tmp_path: Path) -> None:
    """Integers in a convolution, fewer bytes than the header lists; a counter may be an integer."""
    path = tmp_path / "net.safetensors"
    counter = {"dtype": "I64", "shape": [], "data_offsets": [8, 16]}
    check(weights(path, {"a.weight": FLOATS, "a.num_batches_tracked": counter}, bytes(16)))
    with pytest.raises(CheckpointError, match=r"a\.weight is I32, and a convolution computes with floats"):
        check(weights(path, {"a.weight": {**FLOATS, "dtype": "I32"}}))
    with pytest.raises(CheckpointError, match=r"or cut off .*incomplete metadata, file not fully covered"):
        check(weights(path, {"a.weight": FLOATS}, bytes(7)))
