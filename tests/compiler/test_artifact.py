"""A rewritten net can be saved, and runs in a process that has never seen its class."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pipeline.compiler.artifact import ArtefactError, load, save
from pipeline.compiler.calibrate import largest, mixed
from pipeline.compiler.lowering import Program
from pipeline.compiler.passes import rewrite
from pipeline.compiler.quantize import Precision
from pipeline.kernels.conv3x3 import conv3x3_triton
from tests.compiler.nets import CPU, Instance, Residual, classic, image, lively, traced

ELSEWHERE = """
import sys
from pathlib import Path
import torch
from safetensors.torch import load_file, save_file
from pipeline.compiler.artifact import load
folder = Path(sys.argv[1])
with torch.no_grad():
    logits = load(folder, torch.device("cpu"))(load_file(folder / "batch")["batch"])
assert not [name for name in sys.modules if name.split(".")[0] in ("models", "tests")]
save_file({"logits": logits.contiguous()}, folder / "logits")
"""


BATCH = image(1, 3, 32, 48)
ODD = image(1, 3, 33, 46)


def program_of(net: nn.Module, batch: Tensor = ODD, fp8_values: bool = False) -> Program:
    graph = traced(net, batch)
    rewrite(graph)
    exact = Program(graph, Precision("fp32"), CPU)
    if not fp8_values:
        return exact
    with torch.no_grad():
        return Program(graph, mixed(graph, largest(exact, [batch]), [], "fp32"), CPU)


@pytest.mark.parametrize(
    ("net", "batch", "fp8_values"),
    [
        (classic(), ODD, False),
        (classic(), ODD, True),
        (lively(Residual()), BATCH, False),
        (lively(Instance()), ODD, False),
    ],
    ids=["classic", "classic in fp8", "residual", "instance norm"],
)
def test_a_fresh_process_gives_the_same_answer(net: nn.Module, batch: Tensor, fp8_values: bool, tmp_path: Path) -> None:
    program = program_of(net, batch, fp8_values)
    assert {path.name for path in save(program, tmp_path)} == {"graph.json", "weights.safetensors"}
    save_file({"batch": batch}, tmp_path / "batch")
    subprocess.run([sys.executable, "-c", ELSEWHERE, str(tmp_path)], check=True, timeout=120)
    logits = load_file(tmp_path / "logits")["logits"]
    with torch.no_grad():
        torch.testing.assert_close(logits, program(batch), rtol=1e-3, atol=1e-3)


def test_tiles_survive(tmp_path: Path) -> None:
    program = program_of(classic())
    tile = conv3x3_triton.Tile(8, 16, 64, 32, swap=False)
    program.choices = {"encoder.0.3": tile, "encoder.1.0": "library"}
    save(program, tmp_path)
    assert load(tmp_path, CPU).choices == {"encoder.0.3": tile, "encoder.1.0": "library"}


def test_a_folder_that_is_no_net_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="no rewritten net"):
        load(tmp_path, CPU)
    save(program_of(classic()), tmp_path)
    document = json.loads((tmp_path / "graph.json").read_text())
    for other in (1, 99):
        (tmp_path / "graph.json").write_text(json.dumps({**document, "format": other}))
        with pytest.raises(ArtefactError, match=f"format {other}, this version reads 2"):
            load(tmp_path, CPU)


def test_a_tile_or_backend_of_another_version_is_refused(tmp_path: Path) -> None:
    program = program_of(classic())
    program.choices = {"encoder.1.0": "library"}
    save(program, tmp_path)
    text = (tmp_path / "graph.json").read_text()
    for choice in ('"magic"', '{"tile": "conv9x9", "fields": {}}'):
        (tmp_path / "graph.json").write_text(text.replace('"library"', choice))
        with pytest.raises(ArtefactError, match="no tile or backend of this version"):
            load(tmp_path, CPU)


def test_a_graph_that_names_a_foreign_operation_is_refused(tmp_path: Path) -> None:
    save(program_of(classic()), tmp_path)
    text = (tmp_path / "graph.json").read_text()
    (tmp_path / "graph.json").write_text(text.replace("aten.pad.default", "os.system.now"))
    with pytest.raises(ArtefactError, match="no operation of ATen"):
        load(tmp_path, CPU)


def test_torn_weights_are_refused_in_one_line(tmp_path: Path) -> None:
    save(program_of(classic()), tmp_path)
    whole = (tmp_path / "weights.safetensors").read_bytes()
    (tmp_path / "weights.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ArtefactError, match="no rewritten net"):
        load(tmp_path, CPU)


def test_changed_weights_are_refused(tmp_path: Path) -> None:
    save(program_of(classic()), tmp_path)
    content = bytearray((tmp_path / "weights.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "weights.safetensors").write_bytes(bytes(content))
    with pytest.raises(ArtefactError, match="isn't the one that graph"):
        load(tmp_path, CPU)
