"""What a bundle is on another machine is said line by line; it is judged by the run's rule over all its images."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import pytest
import torch
from PIL import Image

from models.build import build_model
from pipeline import verify
from pipeline.command_line import REFUSED
from pipeline.compiler.agreement import classes
from pipeline.compiler.half import Precision
from pipeline.export import exporting, files
from pipeline.export.bundle import BundleFails, Said
from pipeline.export.carried import golden_check
from pipeline.export.carried.golden_check import compared
from pipeline.export.contract import FILE, Contract, GoldenLimits, Judged, Measured, TensorRule
from pipeline.export.exporting import golden_limits
from pipeline.export.recorded_stage import RecordedStage, opened
from pipeline.export.request import Ends
from pipeline.inputs.input_contract import InputContract, LabelRules
from pipeline.orchestrate.processes import Use
from pipeline.records import codec
from pipeline.records.goals import SEGMENTATION, AccuracyLimits, Tolerance
from pipeline.records.request import DataSpec
from pipeline.records.run_record import Execution
from pipeline.records.samples import Calibration, ImageSet
from tests.export.recorded import NET, OPTIONS, SIDE, rewritten, run_folder, stage
from tests.export.test_exporting import of_tensors
from tests.fake_machine import ACCURACY

Captured = pytest.CaptureFixture[str]
MEASURED = Measured(4.0, "cuda", "NVIDIA H200", "570.1", "13.0", None, {"torch": "2.11.0", "triton": "3.6.0"})
CONTRACT = Contract(
    "compile", "pipeline.stages.compile", "aot_inductor", "package.pt2",
    TensorRule("image", [1, 3, 8, 8], "float32"), TensorRule("logits", [1, 2, 8, 8], "float16"),
    InputContract(), Tolerance(1e-2, 1e-3, "fp16"), masks_judged=True, measured=MEASURED, weights_sha256="ab",
    command="python -m pipeline", rebuild="python -m pipeline.export RUN --to DIR", deterministic=True,
)  # fmt: skip
ANSWER: Said = {"relative_l2": 1e-3, "flipped_share": 1e-4, "right": True, "masks_moved": 0, "milliseconds": 4.9}


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    (tmp_path / "package.pt2").write_bytes(b"code")
    files.write_contract(CONTRACT, tmp_path)
    return tmp_path


def different(bundle: Path, machine: Measured = MEASURED, **said: Unpack[Said]) -> dict[str, str]:
    answer: Said = {**ANSWER, **said}
    lines = verify.verify(bundle, 25.0, machine, lambda *_: answer)
    return {line.what: line.text() for line in lines if not line.same}


def test_where_all_is_as_asked_every_line_is_well(bundle: Path) -> None:
    service = {"load_seconds": 1.25, "host_bytes": 2**30, "reserved_bytes": 2**29, "device_bytes": 3 * 2**29}
    answer: Said = {**ANSWER, "service": service}
    lines = verify.verify(bundle, 25.0, MEASURED, lambda *_: answer)
    asked = ["files", "device", "driver", "torch", "triton", "answers", "masks", "service", "speed"]
    said = "ok       service: first answer after 1.25 s, 1.50 GiB"
    assert lines[-2].text() == said
    assert [line.what for line in lines] == asked
    assert all(line.same for line in lines)


@pytest.mark.parametrize(
    ("machine", "said", "what", "line"),
    [
        (replace(MEASURED, device_name="NVIDIA L4"), {}, "device", "expected NVIDIA H200, found NVIDIA L4: its code"),
        (replace(MEASURED, driver="580.2"), {}, "driver", "expected 570.1, found 580.2"),
        (replace(MEASURED, packages={"torch": "2.12.1", "triton": "3.6.0"}), {}, "torch", "2.11.0, found 2.12.1"),
        (MEASURED, {"right": False, "relative_l2": 0.5}, "answers", "at most 0.01 off fp32, 0.1 % of the pixels"),
        (MEASURED, {"masks_moved": 7}, "masks", "7 pixels differ"),
        (MEASURED, {"milliseconds": 5.01}, "speed", "expected 4 ms and at most 25 % more, found 5.01 ms"),
    ],
)
def test_what_differs_is_said_of_both_sides(machine: Measured, said: Said, what: str, line: str, bundle: Path) -> None:
    found = different(bundle, machine, **said)
    assert list(found) == [what]
    assert line in found[what]


ON_CPU = replace(CONTRACT, measured=replace(MEASURED, device="cpu", device_name="a CPU", driver=None, threads=2))
SLOW: Said = {**ANSWER, "milliseconds": 36.0}


@pytest.mark.parametrize(
    ("others", "why", "last"),
    [
        (1.62, "other programs used 1.6 of 2 processors meanwhile: run it again when idle", "pipeline.verify"),
        (0.04, "a slower machine, or one that is throttled, as other programs used 0.0 of 2", "pipeline.export"),
        (None, "a slower machine, one that is throttled, or a busy one", "pipeline.export"),
    ],
)
def test_a_slow_answer_says_what_it_was_compared_with_and_who_else_worked(
    others: float | None, why: str, last: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    (tmp_path / "package.pt2").write_bytes(b"code")
    files.write_contract(ON_CPU, tmp_path)
    used = [Use(0.0, 0.0, 0.0), Use(10.0, 9.0, 10 * (others or 0.0))]
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr(verify, "here", lambda _: replace(MEASURED, device_name="a CPU", driver=None))
    monkeypatch.setattr(verify, "now", lambda _: None if others is None else used.pop(0))
    monkeypatch.setattr(verify, "ask", lambda *_: SLOW)
    assert verify.main([str(tmp_path)]) == verify.DIFFERS
    *_, speed, then = capsys.readouterr().out.splitlines()
    assert speed.startswith("differs speed: expected 4 ms and at most 25 % more, found 36 ms: the median calls of")
    assert why in speed
    assert last in then


def test_masks_need_not_be_the_same_where_they_never_were(bundle: Path) -> None:
    """A stage whose bits differ from process to process is held to its tolerance alone."""
    files.write_contract(replace(CONTRACT, deterministic=False), bundle)
    assert different(bundle, masks_moved=7) == {}


@pytest.mark.parametrize(("changed", "said"), [(True, "found package.pt2"), (False, "no kernel image")])
def test_a_bundle_without_an_answer_is_a_line(changed: bool, said: str, bundle: Path) -> None:
    """Nothing is loaded of a bundle that was changed."""
    if changed:
        (bundle / "package.pt2").write_bytes(b"other code")

    def fails(*_: object) -> Said:
        assert not changed, "loaded"
        raise BundleFails("RuntimeError: no kernel image")

    (line,) = [line for line in verify.verify(bundle, 25.0, MEASURED, fails) if not line.same]
    assert said in line.text()


def test_the_program_ends_with_what_rebuilds(bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setattr(verify, "ask", lambda *_: ANSWER)
    monkeypatch.setattr(verify, "here", lambda _: replace(MEASURED, driver=None))
    assert verify.main([str(bundle)]) == verify.DIFFERS
    assert capsys.readouterr().out.endswith("then: python -m pipeline.export RUN --to DIR\n")
    assert verify.main([str(bundle / "nowhere")]) == REFUSED
    assert FILE in capsys.readouterr().err
    (bundle / "package.pt2").write_bytes(b"other code")
    assert verify.main([str(bundle)]) == verify.DIFFERS
    assert capsys.readouterr().out.count("pipeline.export") == 0, "it is to be copied again"


@pytest.mark.parametrize("margin", ["nan", "inf", "-1", "5%"])
def test_a_margin_of_no_percentage_is_refused(bundle: Path, margin: str, capsys: Captured) -> None:
    with pytest.raises(SystemExit) as left:
        verify.main([str(bundle), f"--margin={margin}"])
    assert left.value.code == 2
    assert "error: --margin: " in capsys.readouterr().err


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
