"""Volumes larger than the net's window: blended as nnU-Net does, resumed, within memory, and none without a word."""

import gzip
import itertools
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from models.image_batches import to_batch
from pipeline.config.request_error import RequestError
from pipeline.inputs.input_contract import InputContract
from pipeline.predict import masks as mask_makers
from pipeline.predict.given import Given
from pipeline.predict.loop import Prediction
from pipeline.predict.mask_files import Statements
from pipeline.predict.masks import by_whole
from pipeline.predict.report import Outcome
from pipeline.predict.sources import Predictor
from pipeline.predict.windows import Cut
from pipeline.predict.workers import MEMORIES
from pipeline.records.goals import Task
from tests.export.recorded import rewritten
from tests.inputs.test_volume_files import read_labels, read_volume
from tests.predict.made_up_runs import AFFINE, Call, write_volumes_run
from tests.predict.test_predict_volumes import with_affine

Run = Callable[[Tensor], Tensor]
CLOSE = 1e-5  # two largest means that fp32 may put in another order
ZSCORE = InputContract(2, "zscore", (), (), 1.0)


def a_volume(*sides: int, channels: int = 2, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(3.0, 2.0, (*sides, channels)).astype(np.float32)


def a_net(classes: int = 3, side: int = 3) -> nn.Module:
    """A convolution: of a side above 1 its answer depends on where the window's border is."""
    torch.manual_seed(0)
    return nn.Conv3d(2, classes, side, padding=side // 2).eval()


def a_predictor(run: Run, window: Sequence[int], batch: int = 1, **fields: object) -> Predictor:
    made = Predictor("a test's", run, (batch, 2, *window), torch.device("cpu"), ZSCORE, None)
    return replace(made, **fields)  # type: ignore[arg-type]


def predicted(predictor: Predictor, scans: Path, cut: Cut | None = None) -> Outcome:
    folder = scans.parent / "masks"
    folder.mkdir(exist_ok=True)
    cases = Given(scans, volumes=True, statements=Statements(folder))
    return Prediction(predictor, folder, "made by a test", cut or Cut()).make(cases, print)


def mask_of(predictor: Predictor, volume: np.ndarray, scans: Path, cut: Cut | None = None) -> np.ndarray:
    np.save(scans / "a.npy", volume)
    outcome = predicted(predictor, scans, cut)
    assert not outcome.failed
    found: np.ndarray = read_labels(scans.parent / "masks" / "a.npy")
    (scans.parent / "masks" / "a.npy").unlink()
    return found


def starts_of(length: int, size: int, step: float) -> list[int]:
    """As nnU-Net's paper has them: as many as lie a step apart at most, evenly over what is left of the side."""
    if length <= size:
        return [0]
    count = int(np.ceil((length - size) / (step * size))) + 1
    return [int(np.round((length - size) / (count - 1) * number)) for number in range(count)]


def means_of(net: nn.Module, volume: np.ndarray, window: Sequence[int], step: float) -> np.ndarray:
    """The weighted means [classes, depth, height, width], fp64, window by window and voxel by voxel, with a divisor."""
    axes = (0, 1, 2)
    whole = (volume - volume.mean(axes, dtype=np.float64)) / volume.std(axes, dtype=np.float64)
    sides = volume.shape[:3]
    lacking = [(0, max(0, w - n)) for n, w in zip(sides, window, strict=True)]
    padded = np.pad(whole, [*lacking, (0, 0)], mode="symmetric")
    weight = np.ones(tuple(window))
    for place in itertools.product(*map(range, window)):
        for at, side in zip(place, window, strict=True):
            weight[place] *= np.exp(-((at - side // 2) ** 2) / (2 * (side / 8) ** 2))
    sums, weights = np.zeros((3, *padded.shape[:3])), np.zeros(padded.shape[:3])
    for corner in itertools.product(*(starts_of(n, w, step) for n, w in zip(sides, window, strict=True))):
        here = tuple(slice(at, at + side) for at, side in zip(corner, window, strict=True))
        with torch.inference_mode():
            answer = net(torch.from_numpy(padded[here].transpose(3, 0, 1, 2)[None]).float())[0].double().numpy()
        sums[(slice(None), *here)] += answer * weight
        weights[here] += weight
    return (sums / weights)[(slice(None), *map(slice, sides))]


@pytest.mark.parametrize(
    ("sides", "window", "step", "batch"),
    [
        ((10, 13, 9), (6, 6, 6), 0.5, 1),
        ((6, 6, 7), (6, 6, 6), 0.5, 4),  # larger in one axis alone; a batch that is never full
        ((4, 13, 6), (6, 6, 6), 0.5, 3),  # thinner than the window in another
        ((9, 12, 17), (3, 5, 8), 0.4, 2),
        ((10, 13, 17), (6, 6, 8), 0.93, 3),
        ((5, 16, 8), (1, 8, 8), 0.5, 2),  # windows of one plane
        ((12, 12, 13), (6, 6, 6), 1.0, 5),
    ],
)
def test_blended_masks_are_those_of_the_formula(
    sides: tuple[int, ...], window: tuple[int, ...], step: float, batch: int, scans: Path
) -> None:
    net, volume = a_net(), a_volume(*sides)
    found = mask_of(a_predictor(net, window, batch), volume, scans, Cut(step=step))
    means = means_of(net, volume, window, step)
    second, first = np.sort(means, 0)[-2:]
    sure = first - second > CLOSE
    assert sure.mean() > 0.99
    assert (found == means.argmax(0))[sure].all()
    assert set(np.unique(found)) == {0, 1, 2}
    predicted(a_predictor(net, window, batch, gives="values"), scans, Cut(step=step))
    values = np.load(scans.parent / "masks" / "a.npy")
    np.testing.assert_allclose(values, np.moveaxis(means, 0, -1), atol=1e-5)


@pytest.mark.parametrize("classes", [1, 3, 300])
def test_a_net_without_surroundings_answers_as_whole(classes: int, scans: Path) -> None:
    predictor, volume = a_predictor(a_net(classes, side=1), (8, 8, 8)), a_volume(8, 16, 24)
    by_windows = mask_of(predictor, volume, scans)
    assert (by_windows == mask_of(predictor, volume, scans, Cut(whole=True))).all()
    assert len(np.unique(by_windows)) > 1


def test_a_volume_of_one_window_has_the_net_s_own_bits(scans: Path) -> None:
    def run(batch: Tensor) -> Tensor:
        one = torch.ones_like(batch[:, :1])
        return torch.cat([one, one + torch.finfo(torch.float32).eps], 1)

    assert (mask_of(a_predictor(run, (6, 6, 6)), a_volume(6, 6, 6), scans) == 1).all()


def test_windows_are_normalised_by_the_whole_volume(scans: Path) -> None:
    """As nnU-Net does; where one window takes all of it, the run's rule and this one are the same."""
    volume = a_volume(4, 12, 4)
    volume[:, 6:] += 50
    volume[..., 1] = 7.0  # a channel of one value becomes 0, and not NaN
    seen: list[Tensor] = []

    def run(batch: Tensor) -> Tensor:
        seen.append(batch[0].clone())
        return batch

    mask_of(a_predictor(run, (4, 4, 4)), volume, scans)
    whole = to_batch(volume[None], ZSCORE)[0]
    for window, start in zip(seen, starts_of(12, 4, 0.5), strict=True):
        assert torch.allclose(window, whole[:, :, start : start + 4], atol=1e-6)
    scaled = replace(ZSCORE, scale=4.0)
    assert torch.allclose(to_batch(volume[None], by_whole(volume, scaled)), to_batch(volume[None], scaled), atol=1e-6)
    fixed = InputContract(2, "ct", (1.0,), (2.0,), 1.0, (0.0,), (5.0,))
    assert by_whole(volume, fixed) is fixed


def test_volumes_share_batches(scans: Path) -> None:
    net, volumes = a_net(), {name: a_volume(6, 9, 6, seed=seed) * (seed + 1) for seed, name in enumerate("abc")}
    for name, volume in volumes.items():
        np.save(scans / f"{name}.npy", volume)
    assert predicted(a_predictor(net, (6, 6, 6), batch=4), scans).made == 3
    for name, volume in volumes.items():
        wanted = means_of(net, volume, (6, 6, 6), 0.5).argmax(0)
        assert (read_labels(scans.parent / "masks" / f"{name}.npy") == wanted).mean() > 0.99


def test_sums_that_do_not_fit_are_refused(scans: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After one answer, which says how many classes there are, and before they are taken; other volumes are made."""
    calls: list[int] = []

    def run(batch: Tensor) -> Tensor:
        calls.append(1)
        return batch

    np.save(scans / "large.npy", a_volume(6, 18, 10))
    np.save(scans / "small.npy", a_volume(4, 4, 4))
    needed = 4 * 18 * 10 * (2 * 4 + 12) + 6 * 18 * 10
    monkeypatch.setattr(mask_makers, "free_memory_bytes", lambda: needed - 1)
    found = predicted(a_predictor(run, (4, 4, 4)), scans)
    assert found.made == 1
    assert len(calls) <= 2 + MEMORIES
    assert "large.npy: 6×18×10 in 2 classes: the sums over 4×18×10 at a time" in found.failed["large"]
    monkeypatch.setattr(mask_makers, "free_memory_bytes", lambda: needed)
    assert predicted(a_predictor(run, (4, 4, 4)), scans).made == 1


def test_no_further_window_is_asked_of_a_volume_that_failed(scans: Path) -> None:
    calls: list[int] = []

    def run(batch: Tensor) -> Tensor:
        calls.append(1)
        return batch * float("nan")

    np.save(scans / "a.npy", a_volume(4, 40, 4))
    found = predicted(a_predictor(run, (4, 4, 4), batch=2), scans)
    assert found.failed == {"a": "the network's answer holds NaN or infinite logits"}
    assert len(calls) <= 1 + MEMORIES


def test_classes_are_taken_from_the_nearest_window(scans: Path) -> None:
    numbers = itertools.count()

    def run(batch: Tensor) -> Tensor:
        return torch.full((1, *batch.shape[2:]), next(numbers), dtype=torch.uint8)

    found = mask_of(a_predictor(run, (4, 4, 4), gives="classes"), a_volume(4, 4, 8), scans)
    assert found[0, 0].tolist() == [0, 0, 0, 1, 1, 2, 2, 2]
    assert (found == found[0, 0]).all()


@pytest.mark.parametrize("sides", [(6, 6, 6), (5, 6, 4)])
def test_values_of_one_window_are_normalised_as_in_the_run(sides: tuple[int, ...], scans: Path) -> None:
    volume = a_volume(*sides)
    np.save(scans / "a.npy", volume)
    outcome = predicted(a_predictor(a_net(), (6, 6, 6), batch=2, gives="values"), scans)
    assert (outcome.product, outcome.made) == ("answer", 1)
    padded = np.pad(volume, [*((0, 6 - side) for side in sides), (0, 0)], mode="symmetric")
    with torch.inference_mode():
        wanted = a_net()(to_batch(padded[None], ZSCORE))[0].numpy()[(slice(None), *map(slice, sides))]
    found = np.load(scans.parent / "masks" / "a.npy")
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, np.moveaxis(wanted, 0, -1), atol=1e-5)


def test_values_of_another_size_are_refused(scans: Path) -> None:
    """Super-resolution: nothing says where they would lie."""
    np.save(scans / "a.npy", a_volume(4, 8, 4))
    twice = a_predictor(lambda batch: batch.repeat(1, 1, 1, 2, 2), (4, 4, 4), gives="values")
    with pytest.raises(RequestError, match="a test's answers 1×2×4×8×8 to volumes of 1×4×4×4; one size is wanted"):
        predicted(twice, scans)
    assert "answers 1×2×4×16×8 to volumes of 1×4×8×4" in predicted(twice, scans, Cut(whole=True)).failed["a"]


def test_the_answers_of_a_regression_are_written(scans: Path, tmp_path: Path, call: Call) -> None:
    run, out = write_volumes_run(tmp_path), tmp_path / "answers"
    rewritten(run, task=Task("regression"))
    (scans / "a.nii.gz").write_bytes(gzip.compress(with_affine(a_volume(6, 20, 9)[..., 0])))
    (scans / "b.nii.gz").write_bytes(b"nothing")
    asked = (run, scans, "--out", out, "--stage", "eager")
    code, said, told = call(*asked)
    assert (code, said) == (1, f"1 answer made, 1 volume without: {out}\n")
    assert "no answer of b: " in told
    values = read_volume(out / "a.nii.gz", 2)
    assert (values.shape, values.dtype) == ((6, 20, 9, 2), np.float32)
    assert struct.unpack_from("<12f", gzip.decompress((out / "a.nii.gz").read_bytes()), 280) == AFFINE
    assert "0 answers made, 1 were there" in call(*asked)[1]
