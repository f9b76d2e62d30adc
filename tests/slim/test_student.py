"""The program: a student of unet_small under the gate, its folder, and requests that are refused at once."""

import json
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import DEFAULT, Mock, patch

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from models.build import build_model
from models.checkpoint import digest
from models.checkpoint import save as save_weights
from pipeline.export.exporting import locked
from pipeline.inputs.datasets import Dataset
from pipeline.records.goals import AccuracyLimits, Task
from pipeline.records.request import DataSpec, ModelSpec
from pipeline.report.slim_pages import FormRow
from pipeline.slim.command import main, target_of
from pipeline.slim.pictures import chosen, split
from pipeline.slim.student import loss_of
from pipeline.slim.what_if import PLAN, reaches
from pipeline.stats.intervals import Ratio
from tests.process_state import process_switches
from tests.slim import nets

Capture = pytest.CaptureFixture[str]
__all__ = ["process_switches"]  # a fixture
MEASURED = [
    FormRow(f"width {share}", "fp8", size, seconds, Ratio(faster, faster, faster, 6), size)
    for share, seconds, faster, size in (
        ("3/4", 6.7e-4, 1.5, 800_000_000), ("1/2", 4.5e-4, 2.2, 600_000_000), ("1/4", 2.5e-4, 4.0, 400_000_000),
    )
]  # fmt: skip
UNET = ModelSpec("unet_small", "models.unet.UNet", {"base": 16}, "models/weights/unet_small.safetensors")
STAIN = DataSpec("stain", None, None, 32, batch_size=2, batches=1)
WAITS = "cpu_sample", "warmup_min", "warmup_limit", "warmup_window"
SHORT: dict[str, Any] = {f"{wait}_seconds": 0.01 for wait in WAITS}


@pytest.fixture(autouse=True)
def few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train on 24 of the 192 images, as the full network answers each in eight views."""

    def few(*given: Any) -> tuple[Dataset, Dataset]:
        learnt, held = split(*given)
        return chosen(learnt, np.arange(len(learnt.images)) < 24), held

    monkeypatch.setattr("pipeline.slim.student.split", few)


def run_of(folder: Path, model: ModelSpec = UNET, data: DataSpec = STAIN, **fields: Any) -> Path:
    return nets.run_of(folder, model, data, **fields)


def ended() -> object:
    """End the program as Ctrl-C does, and let the mock go on."""
    signal.raise_signal(signal.SIGINT)
    return DEFAULT


def words(run: Path, out: Path, *more: str) -> list[str]:
    return ["train", str(run), "--width", "1/2", "--out", str(out), "--batch", "4", *more]


def test_half_of_unet_small_passes_the_gate(tmp_path: Path, capsys: Capture) -> None:
    """A few steps are enough for a loose limit; the student is a network like any other."""
    run, out = run_of(tmp_path / "run"), tmp_path / "out"
    assert main(words(run, out, "--steps", "30", "--max-dice-drop", "30")) == 0
    told = capsys.readouterr()
    assert told.out == f"{out}\n"
    assert "passed: Dice 0." in told.err
    card = json.loads((out / "card.json").read_text())
    assert (card["passed"], card["verdict"]["images"]) == (True, 64)
    assert card["parameters"] == {"full": 1942594, "student": 486562}
    assert card["full"]["weights_sha256"] == digest(str(UNET.checkpoint))
    assert (card["data"]["held_out"], card["data"]["trained_on"]) == (64, 24)
    assert "model=custom model.target=models.unet.UNet" in card["command"]
    assert card["command"] in (out / "README.md").read_text()
    assert (out / "curve.csv").read_text().splitlines()[-1].startswith("30,0.")
    with Image.open(out / "worst.png") as picture:
        assert picture.size == (4 * 36, 4 * 36)
    student = card["student"]["model"]
    net = build_model(student["target"], student["options"], student["checkpoint"], 0)
    assert net(torch.zeros(1, 3, 32, 32)).shape == (1, 2, 32, 32)
    left = {".train.lock", "README.md", "card.json", "curve.csv", "weights.safetensors", "worst.png"}
    assert {path.name for path in out.iterdir()} == left


@pytest.mark.usefixtures("at_a_terminal")
def test_training_resumes_and_gives_the_same_weights(tmp_path: Path, capsys: Capture) -> None:
    """Three calls of one step each, the first ended by Ctrl-C amid its step, and one call of three steps."""
    run, steps = run_of(tmp_path / "run"), ("--steps", "3")
    with patch("pipeline.slim.student.loss_of", Mock(wraps=loss_of, side_effect=lambda *_: ended())):
        assert main(words(run, tmp_path / "calls", *steps)) == 130
    for call in range(2):
        assert main(words(run, tmp_path / "calls", *steps, "--seconds", "1e-6")) == call
    told, said = capsys.readouterr().err, "time is up at step 2 of 3; the same command goes on"
    assert all(words in told for words in (said, "resumed at step 2"))
    main(words(run, tmp_path / "once", *steps))
    calls, once = (load_file(tmp_path / name / "weights.safetensors") for name in ("calls", "once"))
    assert all(torch.equal(part, once[name]) for name, part in calls.items())


def test_as_many_steps_as_fit_the_minutes_run(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trial steps leave no trace, and a later call keeps the number; each look at the clock takes a second."""
    monkeypatch.setattr("pipeline.slim.student.time", SimpleNamespace(monotonic=partial(next, count())))
    monkeypatch.setattr("pipeline.slim.student.TRIED", 1)
    monkeypatch.setattr("pipeline.slim.student.TIMED", 1)
    run, out = run_of(tmp_path / "run"), tmp_path / "out"
    assert main(words(run, out, "--minutes", "0.13", "--seconds", "1")) == 0
    assert "3 steps of 4 images fit 0.13 minutes" in capsys.readouterr().err
    monkeypatch.setattr("pipeline.slim.student.TIMED", 2)
    main(words(run, out, "--minutes", "0.13"))
    assert json.loads((out / "card.json").read_text())["recipe"]["steps"] == 3
    main(words(run, tmp_path / "same", "--steps", "3"))
    fitted, given = (load_file(place / "weights.safetensors") for place in (out, tmp_path / "same"))
    assert all(torch.equal(part, given[name]) for name, part in fitted.items())


def test_a_student_that_loses_too_much_fails(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """With exit code 1, and the card says why; answers beyond memory are asked for at each step."""
    monkeypatch.setattr("pipeline.slim.pictures.MOST_ANSWERS", 0)
    run, out = run_of(tmp_path / "run", accuracy=AccuracyLimits(max_dice_drop=0.0)), tmp_path / "out"
    assert main(words(run, out, "--steps", "1")) == 1
    told = capsys.readouterr().err
    assert all(words in told for words in ("each step asks it anew", ", 0 allowed", "not passed: its Dice may lose"))
    assert not json.loads((out / "card.json").read_text())["passed"]


def test_a_checkpoint_of_another_training_is_refused(tmp_path: Path, capsys: Capture) -> None:
    run, out = run_of(tmp_path / "run"), tmp_path / "out"
    main(words(run, out, "--steps", "3", "--seconds", "1e-6"))
    assert main(words(run, out, "--steps", "4")) == 2
    assert "it is of another training; name another --out" in capsys.readouterr().err
    kept = torch.load(checkpoint := out / "checkpoint.pt")
    for broken in (None, torch.zeros(2), {"step": 1}, kept | {"slim": {}}):
        checkpoint.write_bytes(b"cut off") if broken is None else torch.save(broken, checkpoint)
        assert main(words(run, out, "--steps", "3")) == 2
        assert "checkpoint.pt: can't be read" in capsys.readouterr().err


def test_a_folder_has_one_training(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lies beside the run, also if that is the current folder."""
    monkeypatch.chdir(run_of(tmp_path / "run"))
    (out := tmp_path / "run-slim-1-2").mkdir()
    with locked(out / ".train.lock"):
        assert main(["train", ".", "--width", "1/2"]) == 2
    assert f"error: {out}: another process trains there; wait for it" in capsys.readouterr().err


def test_what_if_compares_forms_side_by_side(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 16 channels a quarter and an eighth are no narrower than a half: 8 are the fewest."""
    monkeypatch.setattr("pipeline.slim.what_if.BLOCKS", 1)
    monkeypatch.setattr("pipeline.slim.what_if.PLAN", replace(PLAN, **SHORT))
    run = run_of(tmp_path / "run")
    assert main(["what-if", str(run)]) == 0
    lead, _, *table, page = capsys.readouterr().out.splitlines()
    assert "the quotient of two rows may differ" in lead
    widths = ("1/2", "2x2,1", "2x2,1,1,1,1/2,1/4", "2x2,1/2", "2x2,3/4", "1/8,1/4", "3/4")
    forms = ["the full network", *(f"width {words}" for words in widths), "one level fewer"]
    assert [line.split("|")[1].strip() for line in table[2:]] == forms
    assert "486,562" in table[3]
    assert "width 1/2" in Path(page).read_text()
    assert main(["what-if", str(run), "--out", f"{run}/results.json/page"]) == 2
    assert "/results.json/page: can't be written (" in capsys.readouterr().err
    assert main(["what-if", str(run), "--seconds", "1e-6"]) == 0
    assert "no time was left for 8 measurements" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "share"), [("1.5x", "3/4"), ("2x", "1/2"), ("0.6ms", "1/2"), ("300us", "1/4"), ("700MB", "1/2")]
)
def test_the_widest_student_that_reaches_the_target_is_chosen(target: str, share: str) -> None:
    reached = [row for row in MEASURED if reaches(row, target_of(target))]
    assert max(reached, key=lambda row: row.parameters or 0).form == f"width {share}"


def test_a_target_no_width_reaches_is_refused(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the gain of each width; an earlier call's width for another target is not taken."""
    rows = [replace(row, memory_bytes=None) for row in MEASURED]
    monkeypatch.setattr("pipeline.slim.what_if.rows_of", lambda *_: rows)
    asked_for = ["train", str(run_of(tmp_path / "run")), "--out", str(tmp_path / "out"), "--steps", "3"]
    assert main([*asked_for, "--target", "2x", "--batch", "4", "--seconds", "1e-6"]) == 0
    assert main([*asked_for, "--target", "8x"]) == main([*asked_for, "--target", "1MB"]) == 2
    said = "--target 8x: no width reaches it (width 3/4: 1.50 ×, 0.670 ms, width 1/2: 2.20 ×, 0.450 ms, "
    told = capsys.readouterr().err
    assert all(words in told for words in (said, "note: --target 1MB is of the weights in fp32"))


def turned(folder: Path) -> ModelSpec:
    """A network that no slice follows, with a file of weights."""
    target = "tests.slim.nets.Turned"
    save_weights(build_model(target, {}, None, 0), folder / "turned.safetensors", {})
    return ModelSpec("custom", target, {}, str(folder / "turned.safetensors"))


REFUSED: dict[str, tuple[Callable[[Path], dict[str, Any]], str]] = {
    "no slices": (lambda folder: {"model": turned(folder)}, "slim: no channels of Turned can be sliced; it holds "),
    "random weights": (
        lambda _: {"model": replace(UNET, checkpoint=None)},
        "there is nothing to distil; give model.ch",
    ),
    "regression": (lambda _: {"task": Task("regression")}, "task=regression has no masks"),
    "tensors": (lambda _: {"data": DataSpec("tensors", "x.safetensors")}, "not data=tensors"),
    "a file": (lambda _: {"model": replace(UNET, checkpoint=None, file="net.pt2")}, "model.file=net.pt2: an exported"),
}


@pytest.mark.parametrize("held", [False, True])
def test_labels_of_classes_that_the_network_lacks_are_refused(held: bool, tmp_path: Path, capsys: Capture) -> None:
    for folder in ("images", "labels", "more"):
        (tmp_path / folder).mkdir()
        Image.fromarray(np.full((32, 32, 3), 7, np.uint8)).save(tmp_path / folder / "a.png")  # grey, so also labels
    images, labels, others = (str(tmp_path / folder) for folder in ("images", "labels", "more"))
    data = DataSpec("folder", images, labels, 32, batch_size=1, batches=1) if held else STAIN
    more = ("--images", others) if held else ("--images", images, "--labels", labels)
    assert main(words(run_of(tmp_path / "run", data=data), tmp_path / "out", *more)) == 2
    assert "has labels 7, and the network has classes 0 to 1" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--drawn", "--held-out"])
def test_images_are_drawn_of_generated_data_alone(flag: str, tmp_path: Path, capsys: Capture) -> None:
    assert main(words(run_of(tmp_path / "run"), tmp_path / "out", flag, "9")) == 2
    assert f"{flag} 9: no images are drawn unless data=generated; leave it out" in capsys.readouterr().err


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_slim_form(name: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any image is read for training."""
    fields, said = REFUSED[name]
    given = fields(tmp_path)
    if given.get("model", UNET).file:
        monkeypatch.setattr("tests.slim.nets.digest", lambda _: "a digest")
    run = run_of(tmp_path / "run", **given)
    monkeypatch.setattr("pipeline.slim.student.split", None)
    assert main(words(run, tmp_path / "out")) == 2
    line = capsys.readouterr().err
    assert line.startswith("error: ")
    assert line.count("\n") == 1
    assert said in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["train", "RUN"], "one of the arguments --target --width is required"),
        (["train", "RUN", "--target", "fast"], "fast: expected such as 4x, 2ms or 500MB"),
        (["train", "RUN", "--width", "2"], "2: expected a share of the channels, such as 1/2"),
        (["train", "RUN", "--width", "1/2", "--steps", "0"], "--steps: 0: expected an integer ≥ 1"),
        (
            ["train", "RUN", "--width", "1/2", "--max-dice-drop", "nan"],
            "--max-dice-drop: nan: expected a number above 0",
        ),
        (["train", "RUN", "--width", "1/2", "--minutes", "inf"], "--minutes: inf: expected a number above 0"),
        (["train", "RUN", "--width", "1/2", "--labels", "."], "--labels .: give their --images, too"),
        (["train", "RUN", "--width", "1/2", "--images", "nowhere"], "--images: nowhere: no such folder"),
        (["train", "RUN", "--width", "1/2", "--out", ""], "--out: expected a path"),
        (["what-if", "nowhere"], "nowhere"),
        (["tran", "RUN"], "tran: no such action; did you mean 'train'?"),
    ],
)
def test_a_wrong_word_is_refused_in_one_line(typed: list[str], said: str, capsys: Capture) -> None:
    try:
        code = main(typed)
    except SystemExit as ended:
        code = int(ended.code or 0)
    assert code == 2
    assert said in capsys.readouterr().err


class Started:
    """A process that has ended, or goes on until it is told to end."""

    every: ClassVar[list["Started"]] = []
    codes: ClassVar[dict[str, int | None]] = {}

    def __init__(self, words: list[str], env: dict[str, str]) -> None:
        self.words, self.env, self.ended = words, env, False
        self.every.append(self)

    def poll(self) -> int | None:
        return self.codes[self.env["RANK"]]

    def terminate(self) -> None:
        self.ended = True


@pytest.mark.parametrize(("codes", "code"), [((0, 0), 0), ((1, 0), 1), ((None, -9), 9)])
def test_each_gpu_has_a_process_and_one_that_fails_ends_all(
    codes: tuple[int | None, int], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.slim.command.Popen", Started)
    monkeypatch.setattr(Started, "every", [])
    monkeypatch.setattr(Started, "codes", dict(zip("01", codes, strict=True)))
    typed = words(run_of(tmp_path / "run"), tmp_path / "out", "--gpus", "2")
    assert main(typed) == code
    assert [(each.env["RANK"], each.env["WORLD_SIZE"]) for each in Started.every] == [("0", "2"), ("1", "2")]
    assert Started.every[0].env["MASTER_PORT"] == Started.every[1].env["MASTER_PORT"]
    assert all(each.words[1:] == ["-m", "pipeline.slim", *typed] and each.ended for each in Started.every)
