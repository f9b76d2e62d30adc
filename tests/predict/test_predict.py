"""Masks of a folder of images by a run's stage: its own bits, at any size, resumed, and no image without a word."""

import json
import os
from hashlib import sha256
from itertools import chain, repeat
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image

from pipeline.compiler.agreement import classes
from pipeline.export.bundle import write_sums
from pipeline.export.contract import ContractError, load_contract
from pipeline.inputs.input_contract import InputContract
from pipeline.predict import mask_files, masks, sources
from pipeline.predict.command import main
from pipeline.predict.given import Given
from pipeline.predict.loop import Prediction
from pipeline.predict.mask_files import Statements
from pipeline.predict.shards import LOCK
from pipeline.predict.sources import Predictor
from pipeline.predict.windows import Cut
from tests.predict.made_up_runs import SIZE, Call, Told, save_mask, weights, write_bundle, write_image, write_run


@pytest.fixture
def images(images: Path) -> Path:
    write_image(images / "small.jpg", 7, 9, seed=12)
    write_image(images / "grey.bmp", SIZE, SIZE, 1, seed=13)
    whole = write_image(images / "broken.png", SIZE, SIZE, seed=14).read_bytes()
    (images / "broken.png").write_bytes(whole[: len(whole) // 2])
    (images / "notes.txt").write_text("no image")
    return images


def mask_of(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        assert image.mode == "L"
        return np.array(image)


def test_masks_are_made_resumed_and_made_again(run: Path, images: Path, tmp_path: Path, call: Call) -> None:
    out = tmp_path / "masks"
    asked = (run, images, "--out", out, "--stage", "eager")
    code, said, told = call(*asked)
    assert (code, said) == (1, f"4 masks made, 1 image without: {out}\n")
    assert "no mask of broken: " in told
    assert "left out, not read as images: notes.txt" in told
    sizes = {path.name: mask_of(path).shape for path in out.glob("*.png")}
    assert sizes == {"same.png": (16, 16), "large.png": (41, 29), "small.png": (7, 9), "grey.png": (16, 16)}
    assert 0 < mask_of(out / "same.png").max() < 3
    kept = json.loads((out / "predict.json").read_text())
    assert kept["finished"]
    assert list(kept["failed"]) == ["broken"]

    np.save(images / "who\nle.npy", np.full((4, 4, 3), 254.0, np.float32))
    assert "who le.npy: values from 254 to 254; set data.scale" in call(*asked)[2]
    (images / "who\nle.npy").unlink()
    (out / "same.png").unlink()
    before = (out / "large.png").stat().st_mtime_ns
    write_image(images / "broken.png", SIZE, SIZE, seed=15)
    write_image(images / "small.jpg", 8, 8, seed=16)
    assert call(*asked)[:2] == (0, f"3 masks made, 2 were there: {out}\n")
    assert (out / "large.png").stat().st_mtime_ns == before
    assert mask_of(out / "small.png").shape == (8, 8)
    assert [path.name for path in (out / ".masks").iterdir()] == ["0-of-1.jsonl"]

    words = ("--whole", "--batch", "1")  # by the winner
    assert call(*asked[:4], *words)[:2] == (0, f"5 masks made: {out}\n"), "another stage's masks"
    made_of = json.loads((out / "predict.json").read_text())["made_of"]
    assert (made_of["stage"], made_of["batch"], made_of["whole"]) == ("half", 1, True)
    assert mask_of(out / "large.png").shape == (41, 29)


def test_nnunet_folders(run: Path, tmp_path: Path, call: Call) -> None:
    folder, out = tmp_path / "imagesTs", tmp_path / "labels"
    for number in range(3):
        write_image(folder / f"a_{number:04d}.png", SIZE, SIZE, 1, seed=number)
    write_image(folder / "b_0001.png", SIZE, SIZE, 1)
    write_image(folder / "c.png", SIZE, SIZE)
    write_image(folder / "d_0000.png", SIZE, SIZE)
    said = call(run, folder, "--out", out / "each")[2]
    assert "note: a_0000.png is named as the first of 3 channels; --nnunet joins them\n" in said
    code, _, said = call(run, folder, "--out", out, "--stage", "eager", "--nnunet")
    assert code == 1
    assert sorted(path.name for path in out.glob("*.png")) == ["a.png", "d.png"]
    assert "channels b_0001.png; one file of each from _0000 on is wanted" in said
    assert "no channel in its name; rename it c_0000.png" in said


def test_what_is_refused_says_why(run: Path, images: Path, tmp_path: Path, call: Call) -> None:
    out = tmp_path / "masks"

    def refused(*words: str, source: Path = images, to: Path = out) -> str:
        code, _, said = call(run, source, "--out", to, *words)
        assert code == 2
        return said.splitlines()[-1]

    assert "the run has no such stage; did you mean 'half'?" in refused("--stage", "hlaf")
    assert "failed in this run: no such GPU" in refused("--stage", "fp8")
    assert "the folder of the images; name another one" in refused(to=images)
    assert "has masks of its own; name another folder" in refused(to=run / "half")
    assert "expected an integer ≥ 1" in refused("--batch", "0")
    assert "--step 0.5: of volumes alone; images go by --overlap" in refused("--step", "0.5")
    for step in ("0", "-1", "1.5", "nan"):
        assert f"--step {float(step)}: expected a number above 0, at most 1" in refused("--step", step)
    for words in (("--step", "0.5"), ("--overlap", "2")):
        assert f"{' '.join(words)}: a whole image has no windows; leave it or --whole out" in refused("--whole", *words)
    assert "less than the 16 pixels of a window's side" in refused("--overlap", "16", "--stage", "eager")
    assert "no such folder of images" in refused(source=tmp_path / "nowhere")
    assert "name the folder of a run or a bundle" in call(out, images, "--out", images / "masks")[2]
    assert "no CUDA device is visible here" in refused("--device", "cuda") or torch.cuda.is_available()
    (tmp_path / "truth").mkdir()
    write_image(tmp_path / "truth" / "same.png", SIZE, SIZE)
    assert "no mask of pipeline.predict" in refused(to=tmp_path / "truth")
    weights(tmp_path, seed=1)
    assert "the weights have changed since the run" in refused()


def test_masks_of_many_classes_have_16_bits(tmp_path: Path) -> None:
    logits = torch.zeros(1, 300, 2, 2)
    logits[0, 299] = 1.0
    found = masks.class_indices(logits, axes=4)[0]
    save_mask(found, tmp_path / "mask.png", tmp_path, "eager", "a test", [])
    with Image.open(tmp_path / "mask.png") as image:
        assert (np.array(image) == 299).all()
    assert mask_files.is_made(tmp_path / "mask.png", [], "a test", Statements(tmp_path).about("mask.png"))


@pytest.mark.parametrize("channels", [1, 2, 5])
def test_equal_logits_give_the_class_that_is_judged(channels: int) -> None:
    logits = torch.randint(-1, 2, (2, channels, 9, 7)).float()
    assert np.array_equal(masks.class_indices(logits, axes=4), classes(logits).numpy())


@pytest.mark.parametrize(("scale", "largest"), [(200.0, 2**16 - 1), (None, 4080)])
def test_a_scale_is_for_one_type_of_image(scale: float | None, largest: int, tmp_path: Path, call: Call) -> None:
    """data.scale=4095 of 12-bit images makes 8-bit ones all but black; so does 65535 those of 12 bits."""
    run, folder = write_run(tmp_path, InputContract(scale=scale)), tmp_path / "images"
    folder.mkdir()
    np.save(folder / "deep.npy", np.full((SIZE, SIZE, 3), largest, np.uint16))
    for source in (run, write_bundle(tmp_path / "bundle", run)):
        code, _, said = call(source, folder, "--out", tmp_path / "masks", "--stage", "eager")
        assert code == 1
        assert f"uint16 up to {largest}, and the run's images are uint8; give uint8 that are scaled as" in said


def test_an_answer_that_is_no_number_makes_no_mask(tmp_path: Path) -> None:
    folder, out = tmp_path / "images", tmp_path / "masks"
    said: list[str] = []
    for part in (folder, out):
        part.mkdir()
    for name in ("a", "b"):
        write_image(folder / f"{name}.png", 4, 4)
    save_mask(np.zeros((4, 4), np.uint8), out / "b.png", out, "another stage", "another", [])
    logits = torch.tensor([0.0, float("nan")]).reshape(2, 1, 1, 1).expand(2, 2, 4, 4)
    predictor = Predictor("a test's", lambda _: logits, (2, 3, 4, 4), torch.device("cpu"), InputContract(), None)
    cases = Given(folder, volumes=False, statements=Statements(out))
    seconds = chain([0.0, 6.0], repeat(7.0))
    found = Prediction(predictor, out, "made by a test", Cut()).make(cases, said.append, lambda: next(seconds))
    assert (found.made, found.failed) == (1, {"b": "the network's answer holds NaN or infinite logits"})
    assert sorted(path.name for path in out.iterdir()) == [mask_files.SIDECARS, "a.png"]
    assert said == ["0 of 2 images, 0 masks a second"]


def test_no_loader_runs_but_the_exported_one(run: Path, images: Path, tmp_path: Path, call: Call, told: Told) -> None:
    """Nor beside code that was added, or where the list of digests is a pipe, which would be waited for."""
    bundle, mark = write_bundle(tmp_path / "bundle", run), tmp_path / "ran"
    asked = (bundle, images, "--out", tmp_path / "masks")
    (bundle / "torch.py").touch()
    assert f"{bundle}: torch.py: not as exported, and nothing is loaded" in call(*asked)[2]
    (bundle / "torch.py").unlink()
    (bundle / "load.py").write_text(f"open({str(mark)!r}, 'w')")
    assert f"{bundle}: load.py: not as exported" in call(*asked)[2]
    assert not mark.exists()
    (bundle / "SHA256SUMS").unlink()
    os.mkfifo(bundle / "SHA256SUMS")
    assert "SHA256SUMS: no list of digests" in told(2, *asked)
    (bundle / "contract.json").unlink()
    os.mkfifo(bundle / "contract.json")
    with pytest.raises(ContractError, match="no regular file"):
        load_contract(bundle)


def test_a_bundle_predicts_by_its_own_loader(run: Path, images: Path, tmp_path: Path, call: Call, told: Told) -> None:
    (images / "broken.png").unlink()
    bundle, by_run, by_bundle = write_bundle(tmp_path / "bundle", run), tmp_path / "by_run", tmp_path / "by_bundle"
    assert call(run, images, "--out", by_run, "--stage", "eager")[0] == 0
    asked = (bundle, images, "--out", by_bundle)
    assert call(*asked)[0] == 0
    for mask in by_run.glob("*.png"):
        assert (mask_of(mask) == mask_of(by_bundle / mask.name)).all()
    with pytest.MonkeyPatch.context() as patched:  # a newer program, which may read images in another way
        patched.setattr(sources, "code_digest", lambda: "newer")
        assert call(*asked)[1] == f"4 masks made: {by_bundle}\n"
    contract = (classes := write_bundle(tmp_path / "classes", run)) / "contract.json"
    contract.write_text(json.dumps(json.loads(contract.read_text()) | {"classes_out": True}))
    write_sums(classes)
    assert "--probabilities: eager gives classes, no logits" in call(classes, *asked[1:], "--probabilities")[2]
    (bundle / "spoilt").touch()
    (by_bundle / "same.png").unlink()
    refusals = {
        ("--stage", "half"): "the bundle holds eager alone",
        ("--device", "cuda"): "exported for cpu; leave it out, or export a run made there",
        ("--batch", "5"): "exported for 2; predict from the run, or export --stage onnxruntime",
        (): "it can't be loaded here: ValueError: net: not the file that was exported",
    }
    for words, reason in refusals.items():
        assert reason in told(2, *asked, *words)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("lambda batch: batch[:, :, :8]", "eager answers 2×3×8×16 to images of 2×16×16; one size is wanted"),
        ("lambda batch: batch[:1]", "eager answers 1×3×16×16 to images of 2×16×16"),
        ("1 / 0", "it can't be loaded here: ZeroDivisionError: division by zero"),
    ],
)
def test_a_maskless_loader_is_told(answer: str, said: str, run: Path, images: Path, tmp_path: Path, told: Told) -> None:
    bundle = write_bundle(tmp_path / "bundle", run)
    (bundle / "load.py").write_text(f"load = lambda: {answer}")
    write_sums(bundle)
    assert said in told(2, bundle, images, "--out", tmp_path / "masks")


def test_a_kill_amid_a_write_is_safe(run: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in images.glob("[!l]*"):
        path.unlink()
    out = tmp_path / "masks"
    asked = [str(run), str(images), "--out", str(out), "--stage"]
    for stage in ("eager", "half"):
        with monkeypatch.context() as patch:
            patch.setattr(mask_files, "sync_files", Mock(side_effect=KeyboardInterrupt))
            assert main([*asked, stage]) == 130
        assert (out / "large.png").exists() == (stage == "half")
        before = (out / "large.png").read_bytes() if stage == "half" else b""
        assert main([*asked, stage]) == 0
        sidecar = Statements(out).about("large.png")[-1]
        assert (sidecar.stage, sidecar.inputs[0].name, sidecar.schema) == (stage, "large.png", 1)
        assert sidecar.mask_sha256 == sha256((out / "large.png").read_bytes()).hexdigest()
        assert (out / "large.png").read_bytes() != before


def test_what_its_sidecar_does_not_match_is_made_again(asked: list[str], tmp_path: Path, call: Call) -> None:
    out = tmp_path / "masks"
    assert call(*asked)[0] == 0
    Image.fromarray(np.zeros((41, 29), np.uint8)).save(out / "large.png")
    os.utime(tmp_path / "images" / "small.jpg", (1, 1))
    assert call(*asked)[:2] == (0, f"1 mask made, 3 were there: {out}\n")
    assert [path.name for path in out.glob("*") if path.suffix not in (".png", ".json")] == [".masks", ".predict.lock"]


@pytest.fixture
def asked(run: Path, images: Path, tmp_path: Path) -> list[str]:
    (images / "broken.png").unlink()
    return [str(run), str(images), "--out", str(tmp_path / "masks")]


def test_no_folder_is_left_of_a_request_that_is_refused(asked: list[str], tmp_path: Path) -> None:
    assert main([*asked, "--stage", "hlaf"]) == 2
    assert not (tmp_path / "masks").exists()
    (tmp_path / "masks").mkdir()
    assert main([*asked, "--stage", "hlaf"]) == 2
    assert [path.name for path in (tmp_path / "masks").iterdir()] == [LOCK]


@pytest.mark.parametrize(
    ("place", "said"),
    [("a.txt", "File exists"), ("a.txt/masks", "Not a dir"), ("/proc/masks", "No such"), ("link", "a link to nothing")],
)
def test_an_impossible_folder_is_named(asked: list[str], tmp_path: Path, place: str, said: str, told: Told) -> None:
    (tmp_path / "a.txt").touch()
    (tmp_path / "link").symlink_to("gone")
    out = tmp_path / place
    assert f"error: --out {out}: no masks can be written there: {said}" in told(2, *asked[:-1], out, "--stage", "eager")
