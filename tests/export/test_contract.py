"""A bundle's contract, checked before anything is loaded, and what an export leaves: nothing, and no telemetry."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.export import carried, exporting
from pipeline.export.bundle import changed_files, write_sums
from pipeline.export.contract import ContractError, load_contract
from pipeline.export.request import as_typed
from tests.predict.made_up_runs import write_run
from tests.predict.test_predict import write_bundle

Edit = Callable[[dict[str, Any]], Any]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "bundle", write_run(tmp_path))


@pytest.mark.parametrize(
    "edit",
    [
        lambda contract: contract["measured"].update(threads=1_000_000),
        lambda contract: contract["measured"].update(threads=0),
        lambda contract: contract["measured"].update(device="tpu"),
        lambda contract: contract["input"].update(shape=[0, 3, 16, 16]),
        lambda contract: contract["input"].update(shape=[-2, 3, 16, 16]),
        lambda contract: contract["input"].update(shape=[2, 4, 16, 16]),
        lambda contract: contract["input"].update(shape=[2, 3]),
        lambda contract: contract["input"].update(shape=[2, 3, 2**40, 16]),
        lambda contract: contract["input"].update(dtype="object"),
        lambda contract: contract["input"].update(dynamic=["batch"]),
        lambda contract: contract["output"].update(shape=[5, 3, 16, 16]),
        lambda contract: contract["normalisation"].update(mean=[0.1] * 5),
        lambda contract: contract["normalisation"].update(std=[0.0]),
        lambda contract: contract.update(artefact="../net.pt2"),
        lambda contract: contract.update(artefact="/etc/passwd"),
        lambda contract: contract.update(images_in=True),
    ],
)
def test_a_contract_that_contradicts_itself_is_refused(edit: Edit, bundle: Path) -> None:
    assert load_contract(bundle)
    contract = json.loads((bundle / "contract.json").read_text())
    edit(contract)
    (bundle / "contract.json").write_text(json.dumps(contract))
    with pytest.raises(ContractError, match=r"contract\.json: no contract \("):
        load_contract(bundle)


def test_bytecode_in_a_bundle_is_added_code_and_import_leaves_none(bundle: Path) -> None:
    assert changed_files(bundle) == []
    cached = bundle / "__pycache__"
    cached.mkdir()
    (cached / "net_kernels.cpython-311.pyc").touch()
    assert changed_files(bundle) == ["__pycache__/net_kernels.cpython-311.pyc"]
    (cached / "net_kernels.cpython-311.pyc").unlink()
    (bundle / "load.py").write_text("import runpy\nrunpy.run_path('image_shape.py')\n")
    shape = Path(carried.__file__).with_name("image_shape.py")
    (bundle / "image_shape.py").write_text(shape.read_text())
    write_sums(bundle)
    subprocess.run([sys.executable, "-c", "import load"], cwd=bundle, check=True)
    assert changed_files(bundle) == []


def test_a_long_name_in_the_list_of_digests_is_cut(bundle: Path) -> None:
    with (bundle / "SHA256SUMS").open("a") as file:
        file.write(f"{'0' * 64}  {'n' * 5000}\n")
    assert len(changed_files(bundle)[-1]) < 400


def test_what_killed_exports_have_left_is_removed(tmp_path: Path) -> None:
    """Unless another export is still at it."""
    to, dead, other = tmp_path / "b[1]", tmp_path / ".b[1].abcdefgh", tmp_path / ".b[2].abcdefgh"
    for folder in (dead, other):
        folder.mkdir()
        (folder / exporting.LOCK).touch()
    with exporting.scratch_beside(to) as scratch:
        assert not dead.exists()
        with exporting.scratch_beside(to) as second:
            assert scratch.exists()
            assert second != scratch
    assert sorted(tmp_path.iterdir()) == [other]


def test_a_byte_that_is_no_text_is_one_again(tmp_path: Path) -> None:
    place = os.fsdecode(os.fsencode(tmp_path) + b"/b\xfcl")
    kept = place.encode(errors="backslashreplace").decode()
    assert as_typed(kept) == place
    assert as_typed(str(tmp_path)) == str(tmp_path)


SESSION = """
import onnx, onnxruntime
from onnx import TensorProto, helper
parts = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in 'xy']
graph = helper.make_graph([helper.make_node('Identity', ['x'], ['y'])], 'g', parts[:1], parts[1:])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=8)
onnxruntime.InferenceSession(model.SerializeToString(), providers=['CPUExecutionProvider'])
"""
STAGE = """
import sys
from dataclasses import replace
from pathlib import Path
from pipeline.worker.run_stage import run_stage
from tests.worker.jobs import EAGER, Recorder, small
folder, line = Path(sys.argv[1]), Recorder()
run_stage(small(EAGER, folder, "reference"), Recorder(0))
stage = replace(EAGER, target="pipeline.stages.onnxruntime", tolerance=replace(EAGER.tolerance, relative_l2=1e-2))
run_stage(small(stage, folder), line)
assert line.fields["status"] == "ok", line.fields["reason"]
"""


@pytest.mark.parametrize(
    "code",
    [
        *(f"import {name}{SESSION}" for name in ("pipeline", "pipeline.worker.__main__", "pipeline.export.command")),
        f"import pipeline.verify{SESSION}",
        STAGE,
    ],
    ids=["package", "worker", "export", "verify", "a stage from build to record"],
)
def test_onnx_runtime_tells_nobody(code: str, tmp_path: Path) -> None:
    home, scratch = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    scratch.mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith(("ORT_", "XDG_"))}
    root = str(Path(exporting.__file__).parents[2])
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run")], cwd=root, check=True,
        env={**env, "HOME": str(home), "TMPDIR": str(scratch), "PYTHONPATH": root},
    )  # fmt: skip
    left = [*home.rglob("*Microsoft*"), *home.rglob("*onnxruntime*"), *scratch.iterdir()]
    assert [path for path in left if not path.name.startswith("torchinductor")] == []
