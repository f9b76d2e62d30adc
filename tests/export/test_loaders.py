"""What a bundle's loader does, with the ends of the path in the graph or not; its contract, and what exports leave."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from models.image_batches import to_batch
from pipeline.command_line import REFUSED
from pipeline.compiler import input_forms
from pipeline.export import artefacts, carried, exporting, files, recorded_stage, request
from pipeline.export.bundle import changed_files, write_sums
from pipeline.export.carried import golden_check
from pipeline.export.contract import ContractError, load_contract
from pipeline.export.request import Ends, as_typed
from pipeline.inputs.input_contract import NAMED, InputContract
from pipeline.predict.loop import Network
from pipeline.predict.masks import class_indices
from pipeline.predict.sources import Predictor
from pipeline.predict.workers import Memory
from pipeline.records import codec
from pipeline.records.request import ExportKind
from pipeline.records.run_record import Execution
from pipeline.records.samples import Calibration, ImageSet
from pipeline.stages import torchscript
from pipeline.stages.common.ends import ends_of
from tests.export.recorded import SIDE, run_folder, stage
from tests.export.test_exporting import asked, refused, small
from tests.predict.made_up_runs import write_bundle, write_run

__all__ = ["small"]  # a fixture
CPU = torch.device("cpu")


@pytest.mark.parametrize("library", ["onnx", "torch"])
def test_a_single_channel_is_cut_at_zero(library: str, tmp_path: Path) -> None:
    place = loader_in(tmp_path, f"support_{library}.py")
    draw = np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype(np.float32)
    given = [draw if library == "onnx" else torch.from_numpy(draw)]
    given.append(given[0][:, :1])
    found = [np.asarray(place["classes"](logits)) for logits in given]
    np.testing.assert_array_equal(found[0], draw.argmax(1))
    np.testing.assert_array_equal(found[1], draw[:, 0] > 0)
    assert 0 < found[1].sum() < found[1].size


@pytest.mark.parametrize(
    ("name", "instead", "optimised"),
    [("half", "", 0), ("torchscript", "", 1), ("torchscript", "the frozen program", 0)],
)
def test_a_program_of_torch_answers_as_the_net(
    name: str, instead: str, optimised: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TorchScript is optimised as in the run; where that broke it, the bundle's is left as it was frozen."""
    run = run_folder(tmp_path / "run", [stage(name, execution=Execution("fp32", instead=instead))])
    record = codec.load(run)
    recorded = recorded_stage.opened(run, record, record.stages[0], tmp_path / "scratch")
    made = artefacts.make(recorded, (), tmp_path)
    optimise = Mock(side_effect=torch.jit.optimize_for_inference)
    monkeypatch.setattr(torch.jit, "optimize_for_inference", optimise)
    load = loader_in(tmp_path, "support_torch.py", loader=made.loader)["BY_KIND"][made.kind]
    with torch.inference_mode(), torchscript.deprecations_filtered():
        found, wanted = load(tmp_path / made.path)(recorded.batch), recorded.workload.model(recorded.batch)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert optimise.call_count == optimised


def test_logits_are_written_in_the_order_of_their_axes(tmp_path: Path) -> None:
    logits = torch.arange(24.0).reshape(1, 2, 3, 4)
    exact = loader_in(tmp_path, "support_torch.py")["exact"](logits.to(memory_format=torch.channels_last))
    assert golden_check.content_of(exact) == logits.double().numpy().tobytes()


def loader_in(folder: Path, name: str, **contract: object) -> dict[str, Any]:
    fields = {"measured": {"device": "cpu"}, "loader": {}, "input": {"name": "image"}, **contract}
    (folder / "contract.json").write_text(json.dumps(fields))
    shutil.copyfile(files.CARRIED / files.SHAPE, folder / files.SHAPE)
    place: dict[str, Any] = {"__name__": "load", "__file__": str(folder / "load.py")}
    exec(compile((files.CARRIED / name).read_text(), name, "exec"), place)
    return place


@pytest.mark.parametrize(
    ("member", "content"), [("data/sample_inputs/model.pt", "a pickle"), ("a_config.json", '{"use_pickle": true}')]
)
def test_a_loader_reads_no_pickle(member: str, content: str, tmp_path: Path) -> None:
    """Neither weights nor examples of inputs, which torch.export.load would unpickle."""
    with zipfile.ZipFile(tmp_path / "net.pt2", "w") as archive:
        archive.writestr(f"net/{member}", content)
    with pytest.raises(ValueError, match="is a pickle"):
        loader_in(tmp_path, "support_torch.py")["exported"](tmp_path / "net.pt2")


@pytest.mark.parametrize("loader", ["support_onnx.py", "support_torch.py"])
def test_a_loader_refuses_images_of_another_shape(loader: str, tmp_path: Path) -> None:
    """In a line that says which it takes; axes that were exported as dynamic are free."""
    nothing: list[str] = []
    for dynamic, shape in ((nothing, [2, 4, 6, 3]), (["batch"], [5, 4, 6, 3]), (["batch", "size"], [5, 8, 8, 3])):
        rule = {"name": "image", "shape": [2, 3, 4, 6], "dynamic": dynamic}
        fitting = loader_in(tmp_path, loader, input=rule)["fitting"]
        assert list(fitting(np.zeros(shape)).shape) == shape
        for other in ([*shape[:3], 1], shape[:3]):
            with pytest.raises(ValueError, match=r"this network takes \[2, 4, 6, 3\], channels last; "):
                fitting(np.zeros(other))
    with pytest.raises(ValueError, match=r"images \[2, 4, 8, 3\], and"):
        loader_in(tmp_path, loader, input={**rule, "dynamic": ["batch"]})["fitting"](np.zeros((2, 4, 8, 3)))
    inside = loader_in(tmp_path, loader, images_in=True, input={**rule, "shape": [2, 4, 6, 3], "dynamic": []})
    assert inside["fitting"](np.zeros((2, 4, 6, 3), np.uint8)).shape == (2, 4, 6, 3)
    with pytest.raises(ValueError, match="images of float64, and this network takes uint8"):
        inside["fitting"](np.zeros((2, 4, 6, 3)))


@pytest.mark.parametrize("loader", ["support_onnx.py", "support_torch.py"])
def test_a_loader_takes_arrays_and_tensors_and_no_other_range(loader: str, tmp_path: Path) -> None:
    """Floats of 0 to 255, or counts in 32 bits, would be scaled by another range than they have: masks of nothing."""
    rule = {"name": "image", "shape": [2, 3, 4, 6], "dynamic": []}
    fitting = loader_in(tmp_path, loader, input=rule, normalisation={"scale": None})["fitting"]
    draw = np.random.default_rng(0).integers(0, 256, (2, 4, 6, 3), np.uint8)
    for given in (draw, draw[:, ::-1], np.asfortranarray(draw), torch.from_numpy(draw), draw / 255):
        np.testing.assert_array_equal(np.asarray(fitting(given)), np.asarray(given))
    for wrong, said in (
        (draw * 1.0, "images of float64 from 0 to 249; floats from 0 to 1 are taken"),
        (np.full(draw.shape, np.nan), "images of float64 from nan to nan"),
        (draw.astype(np.int32), "images of int32; uint8, uint16, or floats from 0 to 1 are taken"),
        (draw > 9, "images of bool; uint8"),
        (draw.tolist(), "images are a list; "),
    ):
        with pytest.raises(ValueError, match=said):
            fitting(wrong)
    scaled = {"normalisation": {"scale": 4095.0}, "image_type": "uint16"}
    free = loader_in(tmp_path, loader, input=rule, **scaled)["fitting"]
    for fits in (np.float32, np.uint16):
        assert free(draw.astype(fits)).shape == (2, 4, 6, 3)
    with pytest.raises(ValueError, match="images of uint8, and values of uint16 were divided by 4095; give those"):
        free(draw)
    eight = {"normalisation": {"scale": None, "normalize": "unit"}, "image_type": "uint8"}
    bits12 = draw.astype(np.uint16) * 16
    for given in (bits12, torch.from_numpy(bits12)):
        assert loader_in(tmp_path, loader, input=rule, **eight | {"image_type": "uint16"})["fitting"](given).shape
        with pytest.raises(ValueError, match="uint16 up to 3984, and the run's are uint8; scale them to 65535"):
            loader_in(tmp_path, loader, input=rule, **eight)["fitting"](given)
        assert loader_in(tmp_path, loader, input=rule, **eight)["fitting"](draw.astype(np.uint16) * 257).shape


@pytest.mark.parametrize(("kind", "library"), [("onnx", "numpy"), ("exported", "torch")])
def test_a_loader_run_by_hand_tells_in_one_line(kind: ExportKind, library: str, tmp_path: Path) -> None:
    (tmp_path / "contract.json").write_text("{}")
    files.write_loader(kind, tmp_path)
    words = [sys.executable, "-I", "-S", str(tmp_path / "load.py"), "--check"]  # without site-packages
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, f"error: ModuleNotFoundError: No module named '{library}'\n")


@pytest.mark.parametrize("normalize", ["imagenet", "zscore"])
def test_loaders_and_graphs_normalise_as_the_project_does(normalize: str, tmp_path: Path) -> None:
    mean, std = NAMED[normalize]
    rule, draw = InputContract(3, normalize, mean, std), np.random.default_rng(0)  # type: ignore[arg-type]
    inside = ends_of(rule, True, False, 4, CPU).whole(nn.Identity())
    for dtype, top in ((np.uint8, 255), (np.uint16, 65535), (np.float32, 1)):
        images = (draw.random((2, 4, 5, 3)) * top).astype(dtype)
        images[1] = images[1, 0, 0]  # a plain colour
        wanted, tensors = to_batch(images, rule), torch.from_numpy(images)
        for library, given in (("onnx", images), ("torch", tensors)):
            place = loader_in(tmp_path, f"support_{library}.py", normalisation=codec.to_json(rule))
            np.testing.assert_allclose(np.asarray(place["prepare"](given)), wanted, rtol=1e-5, atol=1e-5)
        if dtype == np.uint8:
            torch.testing.assert_close(inside(tensors), wanted, rtol=1e-5, atol=1e-5)
    elsewhere = torch.zeros(2, 4, 5, 3, dtype=torch.uint8, device="meta")
    assert ends_of(rule, True, False, 4, elsewhere.device).whole(nn.Identity())(elsewhere).shape == (2, 3, 4, 5)
    place = loader_in(tmp_path, "support_torch.py", normalisation=codec.to_json(rule), measured={"device": "meta"})
    assert place["prepare"](elsewhere).shape == (2, 3, 4, 5)


def test_a_session_that_reads_the_same_memory_takes_no_other_type(tmp_path: Path) -> None:
    """ONNX Runtime would take the bits of a float64 for those of a float32."""
    rule = {"name": "image", "shape": [2, 3], "dtype": "float32"}
    replayed = loader_in(tmp_path, "support_onnx.py", input=rule)["replayed"]
    bound: dict[str, Any] = {}
    binding = SimpleNamespace(bind_ortvalue_input=bound.__setitem__, bind_ortvalue_output=bound.__setitem__)
    given = SimpleNamespace(name="image", shape=[2, 3], type="tensor(float)")
    answer = SimpleNamespace(name="logits", shape=[2, 3], type="tensor(float)")
    session = SimpleNamespace(get_inputs=lambda: [given], get_outputs=lambda: [answer], io_binding=lambda: binding)
    session.run_with_iobinding = lambda _: bound["logits"].update_inplace(bound["image"].numpy())
    run = replayed(session)
    np.testing.assert_array_equal(run(np.ones((2, 3), np.float32)), np.ones((2, 3)))
    for other, said in ((np.ones((2, 3)), r"\[2, 3\] float64"), (np.ones((3, 2), np.float32), r"\[3, 2\] float32")):
        with pytest.raises(ValueError, match=rf"a batch of {said}; this network takes \[2, 3\] float32"):
            run(other)


def test_a_package_takes_what_it_was_built_for_alone(tmp_path: Path) -> None:
    """It would read other memory, for an image in the place of two; the shapes and types are the contract's."""
    step = {"name": "step", "shape": [2], "dtype": "int64"}
    rule = {"name": "image", "shape": [2, 3, 4, 5], "dtype": "float32"}
    place = loader_in(tmp_path, "support_torch.py", input=rule, others=[step])
    (tmp_path / "aot_loading.py").write_text("load_package = lambda path: lambda image, step: image + step.sum()")
    shutil.copyfile(input_forms.__file__, tmp_path / files.FORMS)
    run = place["packaged"](tmp_path / "package.pt2")
    assert run(torch.zeros(2, 3, 4, 5), torch.ones(2, dtype=torch.int64)).max() == 2
    with pytest.raises(ValueError, match=r"input 0 is \[1, 3, 4, 5\] float32 on cpu, and .* for \[2, 3, 4, 5\] "):
        run(torch.zeros(1, 3, 4, 5), torch.ones(2, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"input 1 is \[2\] float32 on cpu, and this network .* for \[2\] int64"):
        run(torch.zeros(2, 3, 4, 5), torch.ones(2))


def test_classes_are_those_of_the_judge() -> None:
    """Of several channels the largest, of one what lies above 0; a net without ends is itself."""
    logits = torch.randn(2, 3, 4, 5)
    for given in (logits, logits[:, :1]):
        found = ends_of(InputContract(), False, True, 4, CPU).whole(nn.Identity())(given)
        assert found.dtype == torch.uint8
        np.testing.assert_array_equal(found, class_indices(given, axes=4))
        np.testing.assert_array_equal(class_indices(found, axes=4), class_indices(given, axes=4))
    net = nn.Identity()
    assert ends_of(InputContract(), False, False, 4, CPU).whole(net) is net


@pytest.mark.parametrize("name", ["eager", "torchscript"])
def test_an_artefact_takes_images_and_gives_classes(name: str, tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", [stage(name)])
    record = codec.load(run)
    opened = recorded_stage.opened(run, record, record.stages[0], tmp_path / "scratch")
    recorded = replace(opened, ends=Ends.UINT8_IN | Ends.CLASSES_OUT)
    golden, made = exporting.references(recorded, ()), artefacts.make(recorded, (), tmp_path)
    load = loader_in(tmp_path, "support_torch.py", images_in=True)["BY_KIND"][made.kind]
    with torch.inference_mode():
        found = load(tmp_path / made.path)(golden["batch"])
    assert golden["batch"].dtype == torch.uint8
    np.testing.assert_array_equal(found, class_indices(golden["reference"], axes=4))
    there = exporting.contract_of(recorded, made, request.Asked(run, tmp_path), None, golden["reference"])
    assert (there.input.dtype, there.input.shape) == ("uint8", [2, SIDE, SIDE, 3])
    assert there.batch_shape == (2, 3, SIDE, SIDE)
    assert (there.output.dtype, there.output.shape) == ("uint8", [2, SIDE, SIDE])
    assert "the normalisation and the choice of classes are inside the graph" in there.notes[-1]


@pytest.mark.parametrize(
    ("words", "name", "line"),
    [
        (["--classes-out", "--dynamic", "batch"], "onnxruntime", "--dynamic: not together with --classes-out"),
        (["--uint8-in"], "onnxruntime_int8", "--uint8-in: onnxruntime_int8 keeps its model as it is; choose --stage"),
        (["--classes-out"], "eager", "random weights"),  # nothing could check them
    ],
)
def test_ends_that_cannot_be_moved_are_refused(
    words: list[str], name: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen_on = Calibration(ImageSet(2, []), None, choice_apart=True, apart=True)
    calibration = chosen_on if name == "onnxruntime_int8" else None
    run = run_folder(tmp_path / "run", [stage(name, calibration=calibration)], trained=name != "eager")
    assert asked(run, "--stage", name, *words, "--to", tmp_path / "out") == REFUSED
    assert line in refused(capsys)


def test_the_command_that_makes_it_again_names_the_ends(small: dict[str, Any], tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", [stage("eager")])
    assert asked(run, "--stage", "eager", "--uint8-in", "--to", tmp_path / "out") == 0
    found = load_contract(tmp_path / "out")
    assert "--uint8-in --to" in found.rebuild
    assert (found.images_in, found.classes_out) == (True, False)


def test_no_mask_is_made_of_classes_without_numbers() -> None:
    classes = torch.zeros(2, 4, 5, dtype=torch.uint8)
    classes[1, 2, 3] = 255
    predictor = Predictor("fused", lambda _: classes, (2, 3, 4, 5), CPU, InputContract(), None, gives="classes")
    memory = Memory(os.memfd_create("a test's"))
    started = Network(predictor).start(torch.zeros(2, 3, 4, 5), 2, "classes", memory, 0)
    answers, finite = (memory.array(*place) for place in started.places)
    np.testing.assert_array_equal(answers, classes)
    assert finite.tolist() == [[1], [0]]


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
        file.write(f"{'0' * 64}  {'n' * 5000}\n{'0' * 64}  gone.bin\n")
    assert len(changed_files(bundle)[0]) < 400
    assert changed_files(bundle)[1:] == ["gone.bin (missing)"]


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
