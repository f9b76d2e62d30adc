"""A bundle's contract, checked before anything is loaded, and what an export leaves: nothing, and no telemetry."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from pipeline.export import carried, exporting
from pipeline.export.bundle import changed_files, write_sums
from pipeline.export.contract import ContractError, load_contract
from pipeline.export.request import as_typed
from tests.export.recorded import run_folder, stage
from tests.predict.made_up_runs import write_bundle, write_run

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
    with (bundle / "SHA256SUMS").open("a") as file:
        file.write(f"{'0' * 64}  {'n' * 5000}\n")
    assert len(changed_files(bundle)[-1]) < 400


def test_what_killed_exports_have_left_is_removed(tmp_path: Path) -> None:
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
sys.path.insert(0, sys.argv[2])
try: import pipeline.stages.openvino, openvino_telemetry
except ImportError: pass
"""


def test_a_stage_tells_nobody(tmp_path: Path) -> None:
    """Neither ONNX Runtime's, which runs, nor OpenVINO's, whose import is enough."""
    (tmp_path / "openvino_telemetry.py").write_text("raise SystemExit('a report')")
    alone(tmp_path, "-c", STAGE, tmp_path / "run", tmp_path)


PROGRAMS = """
import runpy, sys
for sys.argv in [words.split("\\n") for words in sys.argv[1:]]:
    try: runpy.run_module(f"pipeline.{sys.argv[0]}", run_name="__main__", alter_sys=True)
    except SystemExit as ended: assert not ended.code or (sys.argv[0], ended.code) == ("verify", 1), sys.argv
"""


@pytest.mark.fresh_process
@pytest.mark.long
def test_nothing_is_left_by_export_verify_and_predict(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", [stage("onnxruntime")])
    images, bundle = tmp_path / "images", tmp_path / "bundle"
    images.mkdir()
    Image.new("RGB", (20, 12), "white").save(images / "a.png")
    programs = ["export", run, "--stage", "onnxruntime", "--to", bundle], ["verify", bundle, "--margin", 1e9]
    predict = ["predict", bundle, images, "--out", tmp_path / "masks"]
    alone(tmp_path, "-c", PROGRAMS, *("\n".join(map(str, words)) for words in (*programs, predict)))
    assert (tmp_path / "masks" / "a.png").is_file()


@pytest.mark.fresh_process
@pytest.mark.long
def test_a_run_needs_no_home_and_no_user_and_may_lie_in_a_quoted_folder(tmp_path: Path) -> None:
    """The user's number is one that passwd does not know, where the system allows a user namespace."""
    unknown = ["unshare", "-U", "--map-user=12345", "--map-group=12345"]
    if not shutil.which(unknown[0]) or subprocess.run([*unknown, "true"], check=False, capture_output=True).returncode:
        unknown = []
    folder = tmp_path / "it's a run"
    words = ["model=unet_small", "preset=smoke", "measure=smoke", "device=cpu", "threads=1", "data.size=32"]
    root = str(Path(exporting.__file__).parents[2])
    place = str(folder).replace("'", "\\'")
    done = subprocess.run(
        [*unknown, sys.executable, "-m", "pipeline", *words, "stage=channels_last", f"hydra.run.dir='{place}'"],
        cwd=tmp_path, check=False, capture_output=True, text=True,
        env={name: text for name, text in os.environ.items() if name not in ("USER", "LOGNAME")}
        | {"HOME": "/proc/none", "PYTHONPATH": root},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(folder / "report.html")


def alone(folder: Path, *words: object) -> None:
    """Run Python with a home and a folder for temporary files of its own, in which nothing may be left."""
    home, scratch = folder / "home", folder / "tmp"
    home.mkdir(exist_ok=True)
    scratch.mkdir(exist_ok=True)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("ORT_", "XDG_"))}
    root = str(Path(exporting.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, *map(str, words)], cwd=root, check=False, capture_output=True, text=True,
        env={**env, "HOME": str(home), "TMPDIR": str(scratch), "PYTHONPATH": root},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    left = [*home.iterdir(), *scratch.iterdir()]
    assert [path for path in left if not path.name.startswith("torchinductor")] == []
