"""Bundles of nets that take several tensors or volumes, or answer with values; and what predict says to them."""

import json
import runpy
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from models.build import build_model
from pipeline.compiler.artifact import save
from pipeline.compiler.batch import Batch
from pipeline.compiler.fp8_build import largest
from pipeline.compiler.graph.exported_net import export
from pipeline.compiler.graph.fp8_values import layers_in_fp8, scales
from pipeline.config.request_error import RequestError
from pipeline.export import artefacts, bundle, exporting, files
from pipeline.export import command as export_command
from pipeline.export.bundle import Said
from pipeline.export.contract import load_contract, predicted_contract
from pipeline.export.request import check_task
from pipeline.inputs.input_contract import InputContract
from pipeline.predict import command as predict_command
from pipeline.predict.command import parser
from pipeline.predict.sources import of_bundle
from pipeline.records import codec
from pipeline.records.goals import Task, Tolerance
from pipeline.records.request import DataSpec, ModelSpec
from pipeline.records.run_record import Execution
from pipeline.stages import onnxruntime
from pipeline.verify import answer_lines
from tests.compiler.rewriting import lowered, rewrite_all
from tests.export.recorded import artefact, rewritten, run_folder, stage
from tests.export.test_exporting import small
from tests.fork_server import torch_alone

__all__ = ["small"]  # a fixture
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
    exported = export(build_model(ATTENDING, {}, None, 1).eval(), inputs, torch.float32)
    rewrite_all(exported)
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
    line = files.how_to_use(of_values)
    assert 'net(load.SUPPORT["prepare"](images))' in line
    assert "SUPPORT =" in (bundle / "load.py").read_text()
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
