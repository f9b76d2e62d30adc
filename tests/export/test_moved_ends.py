"""The ends of the path to a mask, inside the graph: the same pixels in, the same classes out."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from models.image_batches import to_batch
from pipeline.command_line import REFUSED
from pipeline.export import artefacts, exporting, recorded_stage, request
from pipeline.export.contract import load_contract
from pipeline.export.recorded_stage import classes, with_ends
from pipeline.export.request import Ends
from pipeline.inputs.input_contract import NAMED, InputContract
from pipeline.predict.loop import batch_of
from pipeline.predict.masks import class_indices
from pipeline.predict.sources import Predictor
from pipeline.records import codec
from pipeline.records.samples import Calibration, ImageSet
from tests.export.recorded import SIDE, run_folder, stage
from tests.export.test_exporting import asked, refused, small
from tests.export.test_loaders import loader_in

__all__ = ["small"]  # a fixture
IMAGES = np.random.default_rng(0).integers(0, 256, (2, 4, 5, 3), np.uint8)
IMAGES[1] = IMAGES[1, 0, 0]  # a plain colour
CPU = torch.device("cpu")


@pytest.mark.parametrize("normalize", ["imagenet", "zscore"])
def test_images_are_normalised_inside_as_outside(normalize: str) -> None:
    mean, std = NAMED[normalize]
    rule = InputContract(3, normalize, mean, std)  # type: ignore[arg-type]
    net = with_ends(nn.Identity(), rule, Ends(images_in=True), CPU)
    torch.testing.assert_close(net(torch.from_numpy(IMAGES)), to_batch(IMAGES, rule), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("normalize", ["imagenet", "zscore"])
def test_images_are_normalised_on_their_device(normalize: str, tmp_path: Path) -> None:
    """Inside the graph and by a loader, with a device that refuses what lies on another one."""
    mean, std = NAMED[normalize]
    rule = InputContract(3, normalize, mean, std)  # type: ignore[arg-type]
    elsewhere = torch.from_numpy(IMAGES).to("meta")
    net = with_ends(nn.Identity(), rule, Ends(images_in=True), elsewhere.device)
    assert net(elsewhere).shape == (2, 3, 4, 5)
    place = loader_in(tmp_path, "support_torch.py", normalisation=codec.to_json(rule), measured={"device": "meta"})
    assert place["prepare"](elsewhere).shape == (2, 3, 4, 5)


def test_classes_are_those_of_the_judge() -> None:
    """Of several channels the largest, of one what lies above 0; a net without ends is itself."""
    logits = torch.randn(2, 3, 4, 5)
    for given in (logits, logits[:, :1]):
        found = with_ends(nn.Identity(), InputContract(), Ends(classes_out=True), CPU)(given)
        assert found.dtype == torch.uint8
        np.testing.assert_array_equal(found, class_indices(given, axes=4))
        np.testing.assert_array_equal(class_indices(found, axes=4), class_indices(given, axes=4))
    assert classes(torch.randn(1, 300, 2, 2)).dtype == torch.int32
    net = nn.Identity()
    assert with_ends(net, InputContract(), Ends(), CPU) is net


@pytest.mark.parametrize("name", ["eager", "torchscript"])
def test_an_artefact_takes_images_and_gives_classes(name: str, tmp_path: Path) -> None:
    """From its file; they are the net's own, and the contract says what goes in and out."""
    run = run_folder(tmp_path / "run", [stage(name)])
    record = codec.load(run)
    opened = recorded_stage.opened(run, record, record.stages[0], tmp_path / "scratch")
    recorded = replace(opened, ends=Ends(images_in=True, classes_out=True))
    golden, made = exporting.references(recorded, ()), artefacts.make(recorded, (), tmp_path)
    load = loader_in(tmp_path, "support_torch.py", images_in=True)["BY_KIND"][made.kind]
    with torch.inference_mode():
        found = load(tmp_path / made.path)(golden["batch"])
    assert golden["batch"].dtype == torch.uint8
    np.testing.assert_array_equal(found, class_indices(golden["reference"], axes=4))
    there = exporting.contract_of(recorded, made, request.Asked(run, tmp_path), None, golden["reference"])
    assert (there.input.dtype, there.input.shape, there.batch_shape) == (
        "uint8",
        [2, SIDE, SIDE, 3],
        (2, 3, SIDE, SIDE),
    )
    assert (there.output.dtype, there.output.shape) == ("uint8", [2, SIDE, SIDE])
    assert "the normalisation and the choice of classes are inside the graph" in there.notes[-1]


@pytest.mark.parametrize(
    ("words", "name", "line"),
    [
        (["--classes-out", "--dynamic", "batch"], "onnxruntime", "--dynamic: not together with --classes-out"),
        (["--uint8-in"], "onnxruntime_int8", "--uint8-in: onnxruntime_int8 keeps its model as it is; choose --stage"),
    ],
)
def test_ends_that_cannot_be_moved_are_refused(
    words: list[str], name: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen_on = Calibration(ImageSet(2, []), None, choice_apart=True, apart=True)
    calibration = chosen_on if name == "onnxruntime_int8" else None
    run = run_folder(tmp_path / "run", [stage(name, calibration=calibration)])
    assert asked(run, "--stage", name, *words, "--to", tmp_path / "out") == REFUSED
    assert line in refused(capsys)


def test_classes_of_random_weights_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_folder(tmp_path / "run", [stage("eager")], trained=False)
    assert asked(run, "--stage", "eager", "--classes-out", "--to", tmp_path / "out") == REFUSED
    assert "random weights" in refused(capsys)


def test_the_command_that_makes_it_again_names_the_ends(small: dict[str, Any], tmp_path: Path) -> None:
    """As they were typed."""
    run = run_folder(tmp_path / "run", [stage("eager")])
    assert asked(run, "--stage", "eager", "--uint8-in", "--to", tmp_path / "out") == 0
    found = load_contract(tmp_path / "out")
    assert "--uint8-in --to" in found.rebuild
    assert (found.images_in, found.classes_out) == (True, False)


def test_a_prediction_gives_such_a_bundle_the_images_themselves() -> None:
    predictor = Predictor(
        "eager", nn.Identity(), (3, 3, 4, 5), torch.device("cpu"), InputContract(), None, images_in=True
    )
    found = batch_of([(image, predictor.contract) for image in IMAGES], predictor)
    assert found.dtype == torch.uint8
    np.testing.assert_array_equal(found, [*IMAGES, IMAGES[0]])


def test_without_a_winner_the_stages_that_can_be_taken_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_folder(tmp_path / "run", [stage("eager", pairs=[]), stage("half", pairs=[]), stage("tvm", pairs=[])])
    assert asked(run, "--to", tmp_path / "out") == REFUSED
    assert "the run names no winner; --stage takes one of: eager, half" in refused(capsys)
