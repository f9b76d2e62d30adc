"""What is taken out of a run is what the run measured: records are edited by hand, and nets are worked on since."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from models.datasets import to_batch
from models.image_files import read_image
from models.unet import UNet
from pipeline.deploy import exporting, predict_command
from pipeline.measure.accuracy import classes
from pipeline.records import codec
from pipeline.worker.mask_images import save_masks
from pipeline.worker.recorded_run import recorded_net
from tests.deploy.made_up_runs import SIZE, write_image, write_run

Edit = Callable[[dict[str, Any]], object]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder with the net's mask of its first image, as the reference's worker leaves it."""
    folder = write_run(tmp_path)
    first = to_batch(read_image(tmp_path / "measured" / "0.png")[None])
    with torch.inference_mode():
        save_masks(classes(recorded_net(codec.load(folder))(first)).numpy(), folder / "reference")
    return folder


@pytest.fixture
def predict(tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Predict an image by the run's stage `half`; the exit code, and the last line on stderr."""
    images = tmp_path / "images"
    images.mkdir()
    write_image(images / "a.png", SIZE, SIZE, seed=5)

    def predicted(*words: str) -> tuple[int, str]:
        code = predict_command.main(
            [str(run), str(images), "--out", str(tmp_path / "masks"), "--stage", "half", *words]
        )
        return code, (capsys.readouterr().err.splitlines() or [""])[-1]

    return predicted


def edit(run: Path, change: Edit) -> None:
    path = run / codec.FILE
    record = json.loads(path.read_text(encoding="utf-8"))
    change(record)
    path.write_text(json.dumps(record), encoding="utf-8")


def contract(record: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = record["settings"]["data"]["contract"]
    return found


def half(record: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(stage for stage in record["stages"] if stage["name"] == "half")
    return found


def test_a_run_as_it_was_is_taken(predict: Callable[..., tuple[int, str]]) -> None:
    """The net's mask of the run's first image is what it was."""
    assert predict() == (0, "")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda record: contract(record).update(mean=[0.1, 0.2]), "data.mean of 2 figures for 3 channels"),
        (lambda record: contract(record).update(std=[0.0]), "a data.std or data.scale that is no positive number"),
        (lambda record: contract(record).update(scale=-1.0), "a data.std or data.scale that is no positive number"),
        (lambda record: contract(record).update(channels=0), "data.channels of 0"),
        (lambda record: record["settings"]["data"].update(image_size=-64), "data.image_size of -64"),
        (lambda record: half(record).update(options={"foo": 1}), "half.foo: no option of pipeline.stages.half"),
        (lambda record: half(record).update(options={"dtype": "fp8"}), "half.dtype=fp8: did you mean 'fp16'?"),
        (lambda record: contract(record).update(mean=[0.9], std=[0.05]), "of the run's first image another class"),
        (lambda record: record["settings"]["data"].update(image_size=15), "of the run's first image another class"),
        (lambda record: contract(record).update(channels=1), "data.channels=1"),
    ],
)
def test_an_edited_record_is_refused_in_one_line(
    run: Path, predict: Callable[..., tuple[int, str]], change: Edit, said: str
) -> None:
    """Where it was a traceback, or masks of another question."""
    edit(run, change)
    code, line = predict()
    assert code == 2
    assert line.startswith("error: ")
    assert said in line


def test_a_net_whose_code_has_changed_is_neither_predicted_by_nor_exported(
    run: Path,
    tmp_path: Path,
    predict: Callable[..., tuple[int, str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its weights fit as before, and no digest of a user's own code is kept."""
    forward = UNet.forward
    monkeypatch.setattr(UNet, "forward", lambda self, image: Tensor.neg(forward(self, image)))
    code, line = predict()
    assert code == 2
    assert "models.unet.UNet: it gives" in line
    assert exporting.main([str(run), "--stage", "half", "--to", str(tmp_path / "bundle")]) == 2
    assert "the net's code, its options or the images' normalisation" in capsys.readouterr().err
    assert not (tmp_path / "bundle").exists()


def test_a_batch_larger_than_the_memory_is_refused_before_it_is_taken(predict: Callable[..., tuple[int, str]]) -> None:
    """It waited for ever, and took what there was."""
    code, line = predict("--batch", "1000000000")
    assert code == 2
    assert "error: --batch 1000000000: such a batch of windows takes" in line


def test_a_run_whose_only_stage_failed_names_none_in_its_place(
    run: Path, predict: Callable[..., tuple[int, str]]
) -> None:
    """A list of nothing is no choice."""
    edit(run, lambda record: record.update(stages=[{**half(record), "status": "failed", "reason": ""}]))
    assert predict() == (2, "error: --stage half: failed in this run: no reason")
