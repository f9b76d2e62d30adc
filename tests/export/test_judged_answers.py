"""A bundle is judged as its stage was: by the run's rule over all its evaluation images, not by the golden batch."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from models.build import build_model
from pipeline.compiler.agreement import classes
from pipeline.compiler.half import Precision
from pipeline.export import exporting
from pipeline.export.bundle import BundleFails, Said
from pipeline.export.carried import golden_check
from pipeline.export.carried.golden_check import compared
from pipeline.export.contract import GoldenLimits, Judged
from pipeline.export.exporting import golden_limits
from pipeline.export.recorded_stage import RecordedStage, opened
from pipeline.export.request import Ends
from pipeline.inputs.input_contract import LabelRules
from pipeline.records import codec
from pipeline.records.goals import SEGMENTATION, AccuracyLimits, Tolerance
from pipeline.records.request import DataSpec
from pipeline.records.run_record import Execution
from pipeline.records.samples import Calibration, ImageSet
from tests.export.recorded import NET, OPTIONS, SIDE, rewritten, run_folder, stage
from tests.export.test_exporting import of_tensors
from tests.fake_machine import ACCURACY

IMAGES, LIMIT = 9, 0.005  # of the pixels: 2 of the 576 in all, and 0 of the 128 of a batch
Spoilt = Callable[[int, torch.Tensor], torch.Tensor]


def labelled_run(folder: Path, limits: AccuracyLimits | None = None, **fields: Any) -> Path:
    """A run of the tiny net on nine labelled images in batches of two, whose stage may change 0.5 % of the pixels."""
    run = run_folder(folder, [stage("eager", tolerance=Tolerance(10.0, LIMIT, "so far"), **fields)])
    rng = np.random.default_rng(0)
    for name in ("images", "masks"):
        (folder / name).mkdir()
    for number in range(IMAGES):
        Image.fromarray(rng.integers(0, 256, (SIDE, SIDE, 3), np.uint8)).save(folder / "images" / f"{number}.png")
        Image.fromarray(rng.integers(0, 2, (SIDE, SIDE), np.uint8)).save(folder / "masks" / f"{number}.png")
    places = str(folder / "images"), str(folder / "masks")
    data = DataSpec("folder", *places, SIDE, 2, 3, label_rules=LabelRules("*.png"))
    rewritten(run, data=data, accuracy=limits or AccuracyLimits())
    return run


def answering(run: Path, spoilt: Spoilt) -> Callable[..., Said]:
    """A loader that answers as the run's net in fp32 does, but for what `spoilt` makes of each batch's logits."""
    net = build_model(NET, OPTIONS, str(run / "weights.safetensors"), 1)

    def ask(_: Path, *words: str) -> Said:
        assert words[0] == "--batches"
        for path in sorted(Path(words[1]).glob("*.safetensors")):
            with torch.inference_mode():
                logits = spoilt(int(path.stem), net(golden_check.tensors(LOADER, path)["batch"]))
            path.with_suffix(".bin").write_bytes(logits.numpy().astype(np.float64).tobytes())
        return {"shape": list(logits.shape)}

    return ask


def array(content: bytes, dtype: str, shape: list[int]) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=getattr(torch, dtype)).reshape(shape)


LOADER = {"array": array}


def flipped(pixels: dict[int, int]) -> Spoilt:
    def spoil(number: int, logits: torch.Tensor) -> torch.Tensor:
        count = pixels.get(number, 0)
        changed = logits.clone().movedim(1, -1).reshape(-1, logits.shape[1])
        changed[:count] = changed[:count].flip(1)
        return changed.reshape(len(logits), SIDE, SIDE, -1).movedim(-1, 1).contiguous()

    return spoil


def opened_first(run: Path, tmp_path: Path) -> RecordedStage:
    (tmp_path / "scratch").mkdir()
    record = codec.load(run)
    return opened(run, record, record.stages[0], tmp_path / "built")


def judged(run: Path, tmp_path: Path, spoilt: Spoilt) -> Judged:
    recorded = opened_first(run, tmp_path)
    return exporting.judged(recorded, tmp_path / "scratch" / "bundle", answering(run, spoilt))


def test_one_sample_beyond_the_limit_for_all_images_is_let_pass(tmp_path: Path) -> None:
    """As in the run: 1 pixel of the first batch's 128 is 0.78 %, of all 576 it is 0.17 %, where 0.5 % are allowed."""
    found = judged(labelled_run(tmp_path / "run"), tmp_path, flipped({0: 1}))
    assert (found.images, found.flipped_share) == (IMAGES, 1 / (IMAGES * SIDE**2))
    assert found.relative_l2 is not None
    assert not list((tmp_path / "scratch").iterdir()), "nothing of the batches is left"


@pytest.mark.parametrize(
    ("limits", "pixels", "said"),
    [
        (AccuracyLimits(), {4: 3}, r"over 9 images as the run judged eager, 0\.521 % of the pixels"),
        (AccuracyLimits(min_agreement=0.999), {0: 1}, r"0\.998264 of the pixels keep .* \(accuracy\.min_agreement\)"),
    ],
    ids=["beyond the golden batch", "the run's limits of accuracy"],
)
def test_all_images_are_judged(limits: AccuracyLimits, pixels: dict[int, int], said: str, tmp_path: Path) -> None:
    with pytest.raises(BundleFails, match=said):
        judged(labelled_run(tmp_path / "run", limits), tmp_path, flipped(pixels))


def test_a_bundle_isn_t_judged_on_what_its_stage_was_calibrated_on(tmp_path: Path) -> None:
    """Its record says on how many images less it was judged: the last whole batches are left out."""
    chosen = Calibration(ImageSet(2, ["6.png", "7.png"]), None, choice_apart=True, apart=True)
    accuracy = replace(ACCURACY, images=IMAGES - 2)
    run = labelled_run(tmp_path / "run", calibration=chosen, accuracy=accuracy)
    found = judged(run, tmp_path, flipped({3: 128}))
    assert (found.images, found.flipped_share) == (IMAGES - 2, 0.0)


def test_tensors_go_to_the_bundle_with_all_inputs(tmp_path: Path) -> None:
    recorded = opened_first(of_tensors(tmp_path / "run"), tmp_path)

    def ask(_: Path, *words: str) -> Said:
        for path in sorted(Path(words[1]).glob("*.safetensors")):
            inputs = golden_check.inputs_of(golden_check.tensors(LOADER, path))
            answer = recorded.workload.model(*inputs).detach()
            path.with_suffix(".bin").write_bytes(answer.numpy().astype(np.float64).tobytes())
        return {"shape": list(answer.shape)}

    found = exporting.judged(recorded, tmp_path / "scratch" / "bundle", ask)
    assert (found.images, found.relative_l2, found.flipped_share) == (6, 0.0, None)


def test_the_golden_batch_may_be_off_as_it_was_where_it_was_exported() -> None:
    """A quarter more, and never less than the tolerance; the bundle's check asks that, not the limit for all images."""
    expected = torch.tensor([2.0, -2.0]).reshape(1, 2, 1, 1).repeat(1, 1, 10, 10)
    answer = expected.clone()
    answer[0, :, 0, :2] *= -0.01
    allowed = golden_limits(answer, expected, Tolerance(1e-3, LIMIT, ""), SEGMENTATION)
    assert allowed.flipped_share == pytest.approx(1.25 * 0.02)
    assert allowed.relative_l2 == pytest.approx(1.25 * float((answer - expected).norm() / expected.norm()))
    assert golden_limits(expected, expected, Tolerance(1e-3, LIMIT, ""), SEGMENTATION) == GoldenLimits(1e-3, LIMIT)
    for pixels, right in ((2, True), (3, False)):
        answer[0, :, 1, : pixels - 2] *= -0.01
        assert checked(answer, expected, vars(allowed))["right"] is right


def test_a_batch_with_one_image_twice_may_be_off_twice_as_far() -> None:
    """Where all that is off lies in that image; a batch that is wrong by its length is off by more."""
    expected = torch.tensor([2.0, -2.0]).reshape(1, 2, 1, 1).repeat(4, 1, 10, 10)
    answer = expected.clone()
    answer[0, :, 0, :6] *= -0.01
    allowed = golden_limits(answer, expected, Tolerance(1e-3, LIMIT, ""), SEGMENTATION)
    longer = torch.cat([expected, expected[:1]])
    for other, right in ((torch.cat([answer, answer[:1]]), True), (longer.roll(1, 1), False)):
        assert checked(answer, expected, vars(allowed), (other, longer))["right"] is right


def checked(
    answer: torch.Tensor,
    expected: torch.Tensor,
    golden: dict[str, float] | None,
    other: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> dict[str, object]:
    """What a bundle's own check says of its answer to the golden batch, and of its answer to another."""
    contract = {"tolerance": {"relative_l2": 1e-3, "flipped_share": LIMIT}, "masks_judged": True, "golden": golden}
    loader = {"CONTRACT": contract, "classes": classes, "exact": torch.Tensor.double}
    batches = {"reference": expected}
    if other is not None:
        batches |= {"other_batch": other[0], "other_reference": other[1]}
    return compared(loader, lambda *given: given[0] if given else answer, batches, answer.double())


@pytest.mark.parametrize("images_in", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp8"])
def test_a_bundle_is_compared_on_constant_images(images_in: bool, precision: Precision, tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", [stage("eager", execution=Execution(precision))])
    recorded = replace(opened_first(run, tmp_path), ends=Ends.of({"uint8_in": images_in}))
    given = exporting.given_extremes(recorded)
    constant = [name for name, batch in given.items() if batch.first.float().std() == 0]
    assert constant == (["images of 0", "images of 128", "images of 255"] if images_in else [*given][1:3])
    net = recorded.with_ends(recorded.workload.model)
    with torch.inference_mode():
        found = {name: net(*batch) for name, batch in given.items()}
    exporting.check_extremes(recorded, given, found)
    for name in constant:
        for factor, refused in ((torch.nan, True), (3.0, precision != "fp8")):
            wrong = {**found, name: factor * found[name]}
            with pytest.raises(BundleFails, match=name) if refused else nullcontext():
                exporting.check_extremes(recorded, given, wrong)
