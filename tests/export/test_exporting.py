"""A stage of a run, also of volumes or several inputs, becomes a folder that runs alone; what can't is one line."""

import ast
import csv
import errno
import io
import json
import os
import runpy
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from models.build import build_model
from models.checkpoint import save as save_weights
from models.unet import UNet
from pipeline.analysis.summary import summarize
from pipeline.command_line import FAILED, REFUSED
from pipeline.compiler.artifact import save
from pipeline.compiler.batch import Batch
from pipeline.compiler.fp8_build import largest
from pipeline.compiler.graph.fp8_values import layers_in_fp8, scales
from pipeline.config.request_error import RequestError
from pipeline.export import artefacts, bundle, exporting, files
from pipeline.export import command as export_command
from pipeline.export.artefacts import eager_form
from pipeline.export.bundle import Said
from pipeline.export.contract import ContractError, GoldenLimits, Judged, load_contract, predicted_contract
from pipeline.export.recorded_stage import RecordedStage
from pipeline.export.request import check_task
from pipeline.inputs.input_contract import InputContract, LabelRules
from pipeline.predict import command as predict_command
from pipeline.predict.command import parser
from pipeline.predict.sources import of_bundle
from pipeline.records import codec
from pipeline.records.goals import Task, Tolerance
from pipeline.records.request import DataSpec, ModelSpec
from pipeline.records.run_record import Execution, RunWarning
from pipeline.records.samples import Service
from pipeline.report.csv_table import csv_text
from pipeline.stages import onnxruntime
from pipeline.stages.api import Workload
from pipeline.stages.common import onnx_models
from pipeline.stages.common.ends import ends_of
from pipeline.verify import answer_lines
from pipeline.worker.bench import Bench
from tests.compiler.rewriting import lowered, rewritten_from
from tests.export.recorded import NET, OPTIONS, SIDE, artefact, rewritten, run_folder, stage, write_zeros
from tests.fake_machine import run_record, stage_record
from tests.fork_server import torch_alone
from tests.made_up_request import changed

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Said:
    """What the loader says, in place of a process; torch's own exporter is spared."""
    said: Said = {"dtype": "float32", "right": True, "same_bits": True}
    said |= {"relative_l2": 0.0, "flipped_share": 0.0, "normalisation": 0.0}
    said |= {"service": {"load_seconds": 1.5, "host_bytes": 2**30, "reserved_bytes": None, "device_bytes": None}}

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


def asked(*words: object) -> int:
    return export_command.main([str(word) for word in words])


def test_the_contract_says_what_was_measured(small: Said, tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", [stage("eager")])
    assert asked(run, "--stage", "eager", "--to", tmp_path / "out") == 0
    found, record = load_contract(tmp_path / "out"), codec.load(run)
    assert (found.input.shape, found.output.shape) == ([2, 3, SIDE, SIDE], [2, 2, SIDE, SIDE])
    assert found.normalisation == InputContract()
    assert (found.classes, found.labels) == (2, None)
    assert (found.measured.device_name, found.measured.packages["torch"]) == ("a processor", "2.11.0")
    assert found.measured.ms_per_call == pytest.approx(2.0, rel=0.02)
    assert found.weights_sha256 == record.reference.weights_sha256
    assert (found.deterministic, found.judged) == (True, Judged(8, 0.0, 0.0))
    assert found.golden_limits.flipped_share >= found.tolerance.flipped_share
    assert replace(found, golden=None).golden_limits == GoldenLimits(1e-3, 1e-2)
    assert found.rebuild.startswith("python -m pipeline.export ")
    assert bundle.changed_files(tmp_path / "out") == []
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {
        *("net.pt2", "load.py", "support.py", "golden_check.py", "image_shape.py", "golden.safetensors"),
        *("contract.json", "requirements.txt", "README.md", "SHA256SUMS"),
    }
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    served = codec.load(run).stages[0].service
    assert served == found.service == Service(1.5, 2**30, None, None)
    [row] = csv.DictReader(io.StringIO(csv_text(summarize(codec.load(run)))))
    assert (row["service_load_s"], row["service_bytes"]) == ("1.5", str(2**30))


def test_random_weights_are_told_at_export(small: Said, tmp_path: Path, capsys: Capture) -> None:
    run = run_folder(tmp_path / "run", [stage("eager")], trained=False)
    rules = LabelRules("*_mask.png", positive=255, ignore=None)
    record = rewritten(run, data=replace(codec.load(run).config.data, labels="masks", label_rules=rules))
    dropped = RunWarning("parts left out", "model.output=out leaves out the outputs aux", "none")
    codec.save(replace(record, warnings=[dropped]), run)
    assert asked(run, "--stage", "eager", "--to", tmp_path / "out") == 0
    assert "random weights" in capsys.readouterr().err
    found = load_contract(tmp_path / "out")
    assert dropped.text in found.notes
    assert f"Note: {dropped.text}." in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert (found.masks_judged, found.labels) == (False, rules)


def test_what_is_there_is_left_alone_and_other_weights_refused(small: Said, tmp_path: Path, capsys: Capture) -> None:
    run, out = run_folder(tmp_path / "run", [stage("eager")]), tmp_path / "out"
    out.mkdir()
    assert asked(run, "--stage", "eager", "--to", out) == REFUSED
    assert "exists; name a new folder" in refused(capsys)
    assert not list(out.iterdir())
    out.rmdir()
    save_weights(build_model(NET, OPTIONS, None, 2), run / "weights.safetensors", {})
    assert asked(run, "--stage", "eager", "--to", out) == REFUSED
    assert "the weights have changed since the run" in refused(capsys)
    assert not out.exists()


def refused(capsys: Capture) -> str:
    (line,) = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("[0:")]
    return line


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--stage", "egaer"], "the run has no such stage; did you mean 'eager'"),
        (["--stage", "half"], "inaccurate in this run: logits differ"),
        (["--stage", "xla"], "it leaves nothing that runs without this program; choose one of: eager"),
        (["--stage", "eager", "--dynamic", "batch"], "--stage onnxruntime takes other lengths"),
        ([], "the run names no winner; --stage takes one of: eager"),
    ],
)
def test_what_fits_no_bundle_is_told(words: list[str], line: str, small: Said, tmp_path: Path, capsys: Capture) -> None:
    wrong = replace(stage("half"), status="inaccurate", reason="logits differ by 2")
    run = run_folder(tmp_path / "run", [stage("eager", pairs=[]), wrong, stage("xla", pairs=[])])
    assert asked(run, *words, "--to", tmp_path / "out") == REFUSED
    assert line in refused(capsys)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_a_file_changed_since_is_refused(small: Said, tmp_path: Path, capsys: Capture) -> None:
    run = run_folder(tmp_path / "run", [])
    kept = artefact(run, "torchscript/model.pt")
    sly = replace(artefact(run, "model.pt"), path="../model.pt")
    for part, line in ((replace(kept, sha256="0" * 64), "changed since"), (sly, "not within the run's folder")):
        record = replace(codec.load(run), stages=[stage("torchscript", artefacts=[part])])
        codec.save(record, run)
        assert asked(run, "--stage", "torchscript", "--to", tmp_path / "out") == REFUSED
        assert line in refused(capsys)


def test_a_bundle_that_errs_is_taken_away(small: Said, tmp_path: Path, capsys: Capture) -> None:
    small |= {"right": False, "relative_l2": 0.5}
    run = run_folder(tmp_path / "run", [stage("eager")])
    assert asked(run, "--stage", "eager", "--to", tmp_path / "out") == FAILED
    assert "0.5 off (relative L2; 0.001 allowed)" in refused(capsys)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


@pytest.mark.parametrize("pattern", ["golden.safetensors", "[!g]*.safetensors"])
def test_a_disk_that_takes_no_bundle_is_named_by_its_flag(
    pattern: str, small: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    write = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if path.match(pattern):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    run = run_folder(tmp_path / "run", [stage("eager")])
    assert asked(run, "--stage", "eager", "--to", tmp_path / "out") == REFUSED
    assert refused(capsys).strip() == f"error: --to {tmp_path / 'out'}: can't be written (No space left on device)"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_a_folder_without_a_contract_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="no such file"):
        load_contract(tmp_path)
    for text, line in (('{"format": 99}', "format 99"), ('{"format": 1}', "no contract"), ("{", "no contract")):
        (tmp_path / "contract.json").write_text(text)
        with pytest.raises(ContractError, match=line):
            load_contract(tmp_path)


@pytest.mark.parametrize(
    ("source", "said"),
    [("import pipeline", "import of pipeline halted"), ("import os; os.abort()", r"^load\.py was killed \(Aborted\)$")],
)
def test_a_loader_without_an_answer_is_told(source: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "load.py").write_text(source)
    with pytest.raises(bundle.BundleFails, match=said):
        bundle.ask(tmp_path)


def test_a_net_that_takes_one_batch_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """As one of torch.export's that is for the batch that it was exported with."""

    monkeypatch.setattr(UNet, "forward", lambda _, image: image.reshape(2, 3, SIDE, SIDE)[:, :2])
    run = run_folder(tmp_path / "run", [stage("onnxruntime")])
    words = (run, "--stage", "onnxruntime", "--dynamic", "batch", "--to", tmp_path / "out")
    assert asked(*words) == REFUSED
    assert f"--dynamic batch: the network takes no 3×3×{SIDE}×{SIDE}: RuntimeError: shape '" in refused(capsys)


@pytest.mark.parametrize(("axis", "images"), [("batch", 2), ("size", 1)])
def test_a_batch_of_one_is_doubled(axis: str, images: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_folder(tmp_path / "run", [stage("onnxruntime")])
    rewritten(run, data=replace(codec.load(run).config.data, batch_size=1))
    exported: list[int] = []

    def export(_: object, __: object, batch: torch.Tensor, *___: object) -> None:
        exported.append(len(batch))
        raise ContractError("enough")

    monkeypatch.setattr(artefacts, "export", export)
    assert asked(run, "--stage", "onnxruntime", "--dynamic", axis, "--to", tmp_path / "out") == REFUSED
    assert exported == [images]


@pytest.mark.long
def test_an_onnx_bundle_runs_alone(tmp_path: Path) -> None:
    run, out = run_folder(tmp_path / "run", [stage("onnxruntime")]), tmp_path / "out"
    assert asked(run, "--stage", "onnxruntime", "--dynamic", "batch", "--dynamic", "size", "--to", out) == 0
    assert load_contract(out).input.dynamic == ["batch", "size"]
    assert load_contract(out).deterministic is True
    served = load_contract(out).service
    assert served
    assert 0 < served.load_seconds < 60
    assert 2**24 < served.host_bytes < 2**34
    assert (served.reserved_bytes, served.device_bytes) == (None, None)
    assert "torch" not in (out / "requirements.txt").read_text()
    with (out / "model.onnx").open("ab") as model:
        model.write(b"\0")
    with pytest.raises(bundle.BundleFails, match=r"model\.onnx: not the file that was exported"):
        bundle.ask(out, "--check")


class Divided(nn.Module):
    """A network that divides by a sum, which a constant image may leave at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Conv2d(3, 8, 1, bias=False), nn.Conv2d(8, 2, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        value = self.body(image).relu()
        return self.head(value / (value.sum((2, 3), keepdim=True) + 1e-8))


@pytest.mark.long
@pytest.mark.parametrize("flags", [["--dynamic", "batch"], ["--uint8-in"]])
def test_no_epsilon_is_lost(flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    run = run_folder(tmp_path / "run", [stage("onnxruntime")], trained=False)
    rewritten(run, model=ModelSpec("mine", f"{Divided.__module__}.{Divided.__qualname__}"))
    monkeypatch.setattr(exporting, "judged", lambda *_: Judged(8, 0.0, 0.0))
    words = (run, "--stage", "onnxruntime", *flags, "--to", tmp_path / "out")
    with monkeypatch.context() as dropping:
        dropping.setattr(onnx_models, "holds_tiny", lambda _: False)
        assert asked(*words) == FAILED
    assert "no bundle was made: the exported network answers NaN or infinity to " in refused(capsys)
    assert asked(*words) == 0
    assert load_contract(tmp_path / "out").finite


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "ends"),
    [({}, []), ({}, ["--uint8-in", "--classes-out"]), ({"uint8_in": True}, ["--classes-out"])],
    ids=["without ends", "with ends", "with one of the run's"],
)
def test_a_rewritten_net_carries_its_kernels(
    options: dict[str, object], ends: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its references answer where nothing of the project is, and no package but torch and Triton is imported."""
    run, out = run_folder(tmp_path / "run", [stage("fused")]), tmp_path / "out"
    net = build_model(NET, OPTIONS, str(run / "weights.safetensors"), 1)
    graph = lowered(rewritten_from(net, torch.zeros(2, 3, SIDE, SIDE)))
    given = torch.zeros(2, SIDE, SIDE, 3, dtype=torch.uint8) if options else torch.zeros(2, 3, SIDE, SIDE)
    inside = ends_of(codec.load(run).config.data.contract, bool(options), False, 4, torch.device("cpu")).whole(graph)
    saved = save(inside, given, run / "fused" / "net")
    files = [artefact(run, str(path.relative_to(run)), path.read_bytes()) for path in saved]
    measured = changed(stage("fused", artefacts=files), options=options)
    codec.save(replace(codec.load(run), stages=[measured]), run)
    monkeypatch.setattr(exporting, "ask", asked_alone)
    monkeypatch.setattr(exporting, "judged", lambda *_: Judged(8, 0.0, 0.0))
    assert asked(run, "--stage", "fused", *ends, "--to", out) == 0
    contract = load_contract(out)
    assert (contract.input.dtype, contract.output.dtype) == (("uint8", "uint8") if ends else ("float32", "float32"))
    assert len(contract.output.shape) == (3 if ends else 4)
    imported = {name for path in out.rglob("*.py") for name in imports(path.read_text())}
    foreign = {name.split(".")[0] for name in imported} - set(sys.stdlib_module_names)
    assert foreign == {"torch", "triton", "unet_kernels"}


def asked_alone(folder: Path, *words: str, cache: Path | None = None) -> Said:
    with torch_alone():
        return bundle.ask(folder, *words, cache=cache)


def imports(text: str) -> list[str]:
    nodes = list(ast.walk(ast.parse(text)))
    named = [part.name for node in nodes if isinstance(node, ast.Import) for part in node.names]
    return named + [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]


@pytest.mark.parametrize(("option", "kept"), [(["1"], ["1.weight", "1.bias"]), ("auto", []), ("none", [])])
def test_modules_that_were_kept_are_so_in_a_bundle(option: object, kept: list[str], tmp_path: Path) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1)).eval()
    work = Workload(net, [torch.rand(1, 3, 4, 4)], torch.device("cpu"), tmp_path)
    half = changed(
        stage_record("half", None), target="pipeline.stages.half", exports="exported", options={"keep_fp32": option},
        execution=Execution("fp16"),
    )  # fmt: skip
    made = eager_form(RecordedStage(tmp_path, run_record([half]), half, cast("Bench", SimpleNamespace(workload=work))))
    found = {name.removeprefix("net."): part.dtype for name, part in made.named_parameters()}
    assert [name for name, dtype in found.items() if dtype == torch.float32] == kept
    assert {dtype for name, dtype in found.items() if name not in kept} == {torch.float16}


ATTENDING = "tests.stages.nets_of_several_inputs.Attending"
CONDITIONED = "tests.input_nets.Conditioned"
VOLUMES = InputContract(1, "zscore", (), (), 1.0)


def of_tensors(folder: Path, task: str = "diffusion", **fields: Any) -> Path:
    torch.manual_seed(0)
    run = run_folder(folder, [stage("eager", **fields)], trained=False)
    path = folder / "inputs.safetensors"
    sample, states = torch.randn(4, 4, 8, 8), torch.randn(4, 5, 6)
    save_file({"sample": sample, "timestep": torch.arange(4), "encoder_hidden_states": states}, path)
    data = DataSpec("tensors", str(path), batch_size=2)
    rewritten(run, model=ModelSpec("mine", CONDITIONED), data=data, task=Task(task))  # type: ignore[arg-type]
    return run


@pytest.fixture
def answered_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The loader's first answer is given in this process; its check, which compares with it, in one of its own."""

    def answered(folder: Path, *words: str, **_: object) -> Said:
        if words[0] == "--check":
            with torch_alone():
                return bundle.ask(folder, *words)
        monkeypatch.setattr(sys, "argv", ["load.py", *words])
        with pytest.raises(SystemExit):
            runpy.run_path(str(folder / "load.py"), run_name="__main__")
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    monkeypatch.setattr(exporting, "ask", answered)


@pytest.mark.long
@pytest.mark.usefixtures("answered_here")
def test_a_bundle_of_several_inputs_answers_in_a_process_of_its_own(tmp_path: Path) -> None:
    """Its contract names each input with shape and type; nothing in it is of masks; predict refuses it in a line."""
    run, bundle = of_tensors(tmp_path / "run"), tmp_path / "bundle"
    assert export_command.main([str(run), "--stage", "eager", "--to", str(bundle)]) == 0
    found = load_contract(bundle)
    rules = [(rule.name, rule.shape, rule.dtype) for rule in (found.input, *found.others)]
    assert rules == [
        ("sample", [2, 4, 8, 8], "float32"),
        ("timestep", [2], "int64"),
        ("encoder_hidden_states", [2, 5, 6], "float32"),
    ]
    assert (found.task, found.masks_judged, found.deterministic) == ("diffusion", False, True)
    assert "answer = net(sample, timestep, encoder_hidden_states)" in (bundle / "README.md").read_text()
    assert "mask" not in " ".join(found.notes)
    lines = list(answer_lines(found, {"relative_l2": 0.0, "right": True, "same_bits": True, "finite": True}))
    assert len(lines) == 2
    assert "pixel" not in lines[0].text()
    with pytest.raises(RequestError, match=r"masks of images and volumes; this network takes sample \["):
        predicted_contract(bundle)


@pytest.mark.long
def test_a_net_of_several_inputs_in_fp8_carries_its_scales(tmp_path: Path) -> None:
    """Latents, a time step and states reach their layers in fp8 where nothing of the project is."""
    run, bundle = of_tensors(tmp_path / "run"), tmp_path / "bundle"
    names = ("sample", "timestep", "encoder_hidden_states")
    given = {"sample": torch.randn(4, 4, 16, 16), names[1]: torch.arange(4), names[2]: torch.randn(4, 5, 8)}
    save_file(given, run / "inputs.safetensors")
    record = rewritten(run, model=ModelSpec("mine", ATTENDING))
    inputs = Batch(tuple(given[name][:2] for name in names), names)
    exported = rewritten_from(build_model(ATTENDING, {}, None, 1).eval(), inputs)
    with torch.inference_mode():
        known = scales(exported, [], largest(exported, [inputs]))
    assert layers_in_fp8(exported, known)
    files = save(lowered(exported, scales=known), inputs, run / "fp8" / "net")
    kept = [artefact(run, str(path.relative_to(run)), path.read_bytes()) for path in files]
    tolerance = Tolerance(6e-2, 1e-3, "as of the stage's file")
    made = stage("fp8", artefacts=kept, tolerance=tolerance, execution=Execution("fp8"))
    codec.save(replace(record, stages=[made]), run)
    with torch_alone():
        assert export_command.main([str(run), "--stage", "fp8", "--to", str(bundle)]) == 0
    found = load_contract(bundle)
    assert (found.kind, [rule.name for rule in (found.input, *found.others)]) == ("own_kernels", list(names))
    assert 1e-3 < found.judged.relative_l2 < 6e-2


@pytest.mark.usefixtures("small")
def test_a_bundle_of_volumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images and masks have a depth; what is wrong of it says no more than was looked at."""
    monkeypatch.setitem(artefacts.MAKERS, "exported", artefacts.as_program)
    scans = tmp_path / "scans"
    scans.mkdir()
    np.save(scans / "a.npy", np.random.default_rng(0).normal(size=(8, 8, 8)))
    run = run_folder(tmp_path / "run", [stage("half", options={"dtype": "bf16"})], trained=False)
    data = DataSpec("volume", str(scans), None, 8, 1, 3, VOLUMES)
    rewritten(run, model=ModelSpec("mine", "tests.input_nets.Volumes"), data=data)
    bundle = tmp_path / "bundle"
    assert export_command.main([str(run), "--stage", "half", "--to", str(bundle)]) == 0
    found = load_contract(bundle)
    assert (found.input.shape, found.output.shape) == ([1, 1, 8, 8, 8], [1, 2, 8, 8, 8])
    assert "masks = load.masks(net, images)  # [1, 8, 8, 8, 1], channels last" in (bundle / "README.md").read_text()
    of_values = replace(found, task="regression")
    assert (of_values.is_predicted, of_values.makes_masks) == (True, False)
    assert not replace(of_values, input=replace(found.input, shape=[1, 1, 8, 8])).is_predicted, "of images"
    assert files.windows_of(of_values).endswith("volumes/ --out answers/` cuts volumes of other sizes into windows")
    load = SimpleNamespace(**runpy.run_path(str(bundle / "load.py")))
    names = {"load": load, "net": load.load(), "images": np.zeros((1, 8, 8, 8, 1), np.float32)}
    exec(files.how_to_use(of_values), names)
    assert names["answer"].shape == (1, 2, 8, 8, 8)
    planned = of_bundle(predicted_contract(bundle), parser().parse_args([str(bundle), "images", "--out", "masks"]))
    assert planned.sides == (8, 8, 8)
    assert planned.build().shape == (1, 1, 8, 8, 8)
    assert exporting.wrong({"relative_l2": 1.0}, replace(found, task="regression")) == (
        "its answers are 1 off (relative L2; 0.001 allowed)"
    )


def test_a_dynamic_axis_is_for_images_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = of_tensors(tmp_path / "run", target=onnxruntime.__name__)
    assert export_command.main([str(run), "--stage", "eager", "--to", str(tmp_path / "b"), "--dynamic", "batch"]) == 2
    assert "--dynamic batch: only for networks of images; leave it out" in capsys.readouterr().err


def test_predict_makes_masks_of_images_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = of_tensors(tmp_path / "run")
    assert predict_command.main([str(folder), str(tmp_path), "--out", str(tmp_path / "masks")]) == 2
    assert "this run's network answers with none: task=diffusion" in capsys.readouterr().err
    run = codec.load(folder)
    with pytest.raises(RequestError, match="this run's network answers with none: task=diffusion"):
        check_task(run)
    masks = replace(run, config=replace(run.config, task=Task()))
    with pytest.raises(RequestError, match=r"network takes data=tensors; python -m pipeline\.export"):
        check_task(masks)
