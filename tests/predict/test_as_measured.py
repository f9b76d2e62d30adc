"""What is taken out of a run is what the run measured: records are edited by hand, and nets are worked on since."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from models.checkpoint import digest
from models.image_batches import to_batch
from models.unet import UNet
from pipeline.export import command as export_command
from pipeline.export.recorded_stage import distance
from pipeline.inputs.image_files import read_image
from pipeline.records import codec
from pipeline.records.request import REFERENCE_FIRST
from pipeline.worker.reference import save_first, some_values
from pipeline.worker.workload import net_of_spec
from tests.predict.made_up_runs import OPTIONS, SIZE, Call, write_image, write_run

Edit = Callable[[dict[str, Any]], object]
Predict = Callable[..., tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder with some values of the answer to its first image, as the reference's worker leaves it."""
    folder = write_run(tmp_path)
    (folder / REFERENCE_FIRST).parent.mkdir()
    return with_first_values(folder)


@pytest.fixture
def predict(tmp_path: Path, run: Path, call: Call) -> Predict:
    """Predict an image by the run's stage `half`; the exit code, and the last line on stderr."""
    images = tmp_path / "images"
    write_image(images / "a.png", SIZE, SIZE, seed=5)

    def predicted(*words: str) -> tuple[int, str]:
        code, _, told = call(run, images, "--out", tmp_path / "masks", "--stage", "half", *words)
        return code, (told.splitlines() or [""])[-1]

    return predicted


def with_first_values(run: Path) -> Path:
    config = codec.load(run).config
    first = to_batch(read_image(run.parent / "measured" / "0.png")[None])
    with torch.inference_mode():
        save_first(net_of_spec(config.model, config.seed)(first)[0], run / REFERENCE_FIRST)
    return run


def edit(run: Path, change: Edit) -> None:
    path = run / codec.FILE
    record = json.loads(path.read_text(encoding="utf-8"))
    change(record)
    path.write_text(json.dumps(record), encoding="utf-8")


def contract(record: dict[str, Any]) -> dict[str, Any]:
    return record["config"]["data"]["contract"]


def half(record: dict[str, Any]) -> dict[str, Any]:
    return next(stage["spec"] for stage in record["stages"] if stage["spec"]["name"] == "half")


def test_a_stage_with_ends_makes_the_same_masks(run: Path, tmp_path: Path, predict: Predict) -> None:
    write_image(tmp_path / "images" / "b.png", 3 * SIZE + 5, SIZE - 3, seed=6)
    found = []
    for ends in ({}, {"uint8_in": True}, {"classes_out": True}, {"uint8_in": True, "classes_out": True}):
        edit(run, lambda record, ends=ends: half(record).update(target="tests.stage_with_ends", options=ends))  # type: ignore[misc]
        assert predict()[0] == 0
        out = (tmp_path / "masks").rename(tmp_path / "-".join(["masks", *ends, "."]))
        found.append([(out / name).read_bytes() for name in ("a.png", "b.png")])
    assert all(masks == found[0] for masks in found)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda record: contract(record).update(mean=[0.1, 0.2]), "data.mean: 2 figures for data.channels=3"),
        (lambda record: contract(record).update(std=[0.0]), "> 0.0 - at `$.config.data.contract.std[0]`"),
        (lambda record: contract(record).update(scale=-1.0), "> 0.0 - at `$.config.data.contract.scale`"),
        (lambda record: contract(record).update(channels=0), ">= 1 - at `$.config.data.contract.channels`"),
        (lambda record: record["config"]["data"].update(size=-64), ">= 1 - at `$.config.data.size`"),
        (lambda record: half(record).update(options={"foo": 1}), "half.foo: no option of pipeline.stages.half"),
        (lambda record: half(record).update(options={"dtype": "fp8"}), "half.dtype=fp8: did you mean 'fp16'?"),
        (lambda record: contract(record).update(channels=1), "data.channels=1"),
    ],
)
def test_an_edited_record_is_refused_in_one_line(run: Path, predict: Predict, change: Edit, said: str) -> None:
    edit(run, change)
    code, line = predict()
    assert code == 2
    assert line.startswith("error: ")
    assert said in line


@pytest.fixture
def of_one_class(tmp_path: Path, run: Path) -> Path:
    """The run of a net that finds one class everywhere, with some values of its answer to the first image."""
    stored = tmp_path / "weights.safetensors"
    parts = {name: part.clone() for name, part in load_file(stored).items()}
    parts["head.bias"][0] += 10.0
    save_file(parts, stored)
    edit(run, lambda record: record["reference"].update(weights_sha256=digest(str(stored))))
    return with_first_values(run)


@pytest.mark.parametrize(
    "change",
    [
        lambda record: contract(record).update(mean=[0.9], std=[0.05]),
        lambda record: record["config"]["data"].update(size=15),
        lambda record: record["config"]["model"].update(options={**OPTIONS, "upsampling": "bilinear"}),
        lambda record: record["config"]["model"].update(checkpoint=None),
    ],
)
def test_a_net_of_one_class_is_known_by_its_values(of_one_class: Path, predict: Predict, change: Edit) -> None:
    """Both nets' masks are the same, and another mask was predicted by the edited record."""
    edit(of_one_class, change)
    code, line = predict()
    assert code == 2
    assert line.startswith("error: ")


def test_one_class_as_it_was_is_taken(of_one_class: Path, predict: Predict, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked in fp32 as the run asked it, whatever the process rounds convolutions to; stages set that anew."""
    assert of_one_class.is_dir()
    forward, seen = UNet.forward, []

    def watched(net: UNet, image: Tensor) -> Tensor:
        seen.append(torch.backends.cudnn.allow_tf32)
        return forward(net, image)

    monkeypatch.setattr(UNet, "forward", watched)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    assert predict() == (0, "")
    assert not seen[0]


@pytest.mark.parametrize("lies_at", [0.0, 5.0])
def test_values_lie_apart_by_another_net_s_answer_and_not_by_another_device_s(lies_at: float) -> None:
    noise = torch.randn(2, 3, 64, 64)
    answer = noise + torch.tensor([lies_at, 0.0, 0.0])[:, None, None]
    kept = some_values(answer[0])
    assert kept.shape == (3, 4096 // 3)
    assert distance(kept, answer + 0.005 * noise) < 0.01
    assert distance(kept, answer + 0.02 * noise) == pytest.approx(0.02, rel=0.2)
    assert distance(kept, answer[..., :8]) == math.inf


def test_a_net_whose_code_has_changed_is_neither_predicted_by_nor_exported(
    run: Path, tmp_path: Path, predict: Predict, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    forward = UNet.forward
    monkeypatch.setattr(UNet, "forward", lambda self, image: Tensor.neg(forward(self, image)))
    code, line = predict()
    assert code == 2
    assert "models.unet.UNet: its answer to the run's first sample has changed" in line
    assert export_command.main([str(run), "--stage", "half", "--to", str(tmp_path / "bundle")]) == 2
    assert "the network's code, its options or the images' normalisation" in capsys.readouterr().err
    assert not (tmp_path / "bundle").exists()


def test_a_batch_larger_than_the_memory_is_refused_before_it_is_taken(predict: Predict) -> None:
    code, line = predict("--batch", "1000000000")
    assert code == 2
    assert "error: --batch 1000000000: such a batch of windows takes" in line


def test_a_run_whose_only_stage_failed_names_none_in_its_place(run: Path, predict: Predict) -> None:
    edit(run, lambda record: record.update(stages=[{"spec": half(record), "status": "failed", "reason": ""}]))
    assert predict() == (2, "error: --stage half: failed in this run: no reason")
