"""Volumes: masks of their kind, with their affine; larger ones blended as nnU-Net does; resumed; none in silence."""

import gzip
import itertools
import json
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import tifffile
import torch
from torch import Tensor, nn

from models.build import build_model
from models.image_batches import to_batch
from pipeline.compiler.agreement import classes
from pipeline.config.request_error import RequestError
from pipeline.inputs.input_contract import InputContract
from pipeline.predict import mask_files
from pipeline.predict import masks as mask_makers
from pipeline.predict.command import loaded, takes_volumes
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
from tests.inputs.test_volume_files import nifti, read_labels, read_volume
from tests.predict.made_up_runs import AFFINE, Call, Told, save_mask, write_bundle, write_image, write_volumes_run

Run = Callable[[Tensor], Tensor]
CLOSE = 1e-5  # two largest means that fp32 may put in another order
ZSCORE, AS_IT_IS = InputContract(2, "zscore", (), (), 1.0), InputContract(2, "own", (0.0,), (1.0,), 1.0)


def a_volume(*sides: int, channels: int = 2, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(3.0, 2.0, (*sides, channels)).astype(np.float32)


def a_net(classes: int = 3, side: int = 3) -> nn.Module:
    """A convolution: of a side above 1 its answer depends on where the window's border is."""
    torch.manual_seed(0)
    return nn.Conv3d(2, classes, side, padding=side // 2).eval()


def a_predictor(
    run: Run, window: Sequence[int], batch: int = 1, contract: InputContract = ZSCORE, **fields: object
) -> Predictor:
    made = Predictor("a test's", run, (batch, contract.channels, *window), torch.device("cpu"), contract, None)
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
    run = Mock(side_effect=lambda batch: batch)
    np.save(scans / "large.npy", a_volume(6, 18, 10))
    np.save(scans / "small.npy", a_volume(4, 4, 4))
    needed = 4 * 18 * 10 * (2 * 4 + 12) + 6 * 18 * 10
    monkeypatch.setattr(mask_makers, "free_memory_bytes", lambda: needed - 1)
    found = predicted(a_predictor(run, (4, 4, 4)), scans)
    assert found.made == 1
    assert run.call_count <= 2 + MEMORIES
    assert "large.npy: 6×18×10 in 2 classes: the sums over 4×18×10 at a time" in found.failed["large"]
    monkeypatch.setattr(mask_makers, "free_memory_bytes", lambda: needed)
    assert predicted(a_predictor(run, (4, 4, 4)), scans).made == 1


def test_no_further_window_is_asked_of_a_volume_that_failed(scans: Path) -> None:
    run = Mock(side_effect=lambda batch: batch * float("nan"))
    np.save(scans / "a.npy", a_volume(4, 40, 4))
    found = predicted(a_predictor(run, (4, 4, 4), batch=2), scans)
    assert found.failed == {"a": "the network's answer holds NaN or infinite logits"}
    assert run.call_count <= 1 + MEMORIES


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


STORED = np.arange(24, dtype=np.int16).reshape(2, 3, 4)


def with_affine(values: np.ndarray, order: str = "<", slope: float = 1.0, shift: float = 0.0) -> bytes:
    content = bytearray(nifti(values, big=order == ">", slope=slope, shift=shift))
    struct.pack_into(f"{order}h", content, 254, 1)  # the affine's code: a scanner's axes
    struct.pack_into(f"{order}4f", content, 76, 1.0, 1.5, 2.5, 3.5)
    struct.pack_into(f"{order}12f", content, 280, *AFFINE)
    return bytes(content)


def labels_of(depth: int, height: int, width: int, dtype: type[np.generic] = np.uint8) -> np.ndarray:
    return (np.arange(depth * height * width).reshape(depth, height, width) % 3).astype(dtype)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
def test_a_nifti_mask_has_the_affine_of_its_volume(order: str, suffix: str, tmp_path: Path) -> None:
    """In the volume's order of bytes, with plain values whatever the volume's slope was."""
    content, labels = with_affine(STORED, order, slope=2.0, shift=-5.0), labels_of(2, 3, 4, np.uint16)
    source, mask = tmp_path / f"a{suffix}", tmp_path / f"mask{suffix}"
    source.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    save_mask(labels, mask, source, "eager", "a test", [])
    assert np.array_equal(read_labels(mask), labels)
    plain = gzip.decompress(mask.read_bytes()) if suffix.endswith("gz") else mask.read_bytes()
    assert struct.unpack_from(f"{order}12f", plain, 280) == AFFINE
    assert plain[76:92] == content[76:92], "the spacing"
    assert mask_files.is_made(mask, [], "a test", Statements(tmp_path).about(mask.name))


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz", ".npy", ".tif"])
@pytest.mark.parametrize("channels", [(), (2,)])
def test_values_are_of_the_volume_s_kind_too(suffix: str, channels: tuple[int, ...], tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(2, 3, 4, *channels)).astype(np.float32)
    source, answer = tmp_path / f"a{suffix}", tmp_path / f"answer{suffix}"
    content = with_affine(STORED, ">", slope=2.0)
    source.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    save_mask(values, answer, source, "eager", "a test", [])
    assert np.array_equal(read_volume(answer, values[0, 0, 0].size).reshape(values.shape), values)


def test_what_is_no_mask_of_ours_is_never_written_over(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", labels_of(2, 2, 2))
    tifffile.imwrite(tmp_path / "a.tif", labels_of(2, 2, 2), photometric="minisblack")
    (tmp_path / "a.nii").write_bytes(nifti(STORED))
    (tmp_path / "b.nii").write_bytes(b"no volume")
    (tmp_path / "c.nii.gz").write_bytes(b"nor this")
    (tmp_path / "d.nii").mkdir()
    for path in tmp_path.iterdir():
        with pytest.raises(RequestError, match="it is there and no mask of pipeline"):
            Statements(tmp_path).check(path.name)


def test_a_folder_of_volumes_is_predicted_and_resumed(scans: Path, tmp_path: Path, call: Call) -> None:
    run, out, generator = write_volumes_run(tmp_path), tmp_path / "masks", np.random.default_rng(1)
    np.save(scans / "same.npy", generator.normal(size=(8, 8, 8)))
    np.save(scans / "small.npy", generator.normal(size=(7, 8, 6)))
    np.save(scans / "large.npy", generator.normal(size=(8, 12, 8)))
    tifffile.imwrite(scans / "pages.tif", generator.integers(0, 99, (8, 8, 8), np.uint8), photometric="minisblack")
    (scans / "broken.nii.gz").write_bytes(gzip.compress(nifti(STORED))[:-20])
    (scans / "notes.txt").write_text("no volume")
    asked = (run, scans, "--out", out, "--stage", "eager")
    assert takes_volumes(loaded(run))
    code, said, told = call(*asked)
    assert (code, said) == (1, f"4 masks made, 1 volume without: {out}\n")
    assert "no mask of broken: " in told
    assert "left out, not read as volumes: notes.txt" in told
    net = build_model("tests.input_nets.Volumes", {}, str(tmp_path / "weights.safetensors"), 0)
    with torch.inference_mode():
        right = classes(net(to_batch(read_volume(scans / "same.npy", 1)[None], InputContract(1, "zscore", scale=1.0))))
    assert np.array_equal(read_labels(out / "same.npy"), right[0].numpy())
    assert {path.name: read_labels(path).shape for path in out.glob("[a-z]*") if path.suffix != ".json"} == {
        "same.npy": (8, 8, 8), "small.npy": (7, 8, 6), "large.npy": (8, 12, 8), "pages.tif": (8, 8, 8),
    }  # fmt: skip
    (out / "same.npy").unlink()
    assert call(*asked)[:2] == (1, f"1 mask made, 3 were there, 1 volume without: {out}\n")
    (scans / "broken.nii.gz").unlink()
    assert call(*asked, "--whole")[0] == 0
    assert read_labels(out / "large.npy").shape == (8, 12, 8)
    assert json.loads((out / "predict.json").read_text())["made_of"]["whole"]
    assert "--overlap 2: of images alone; volumes go by --step, such as 0.5" in call(*asked, "--overlap", "2")[2]


def swapped(batch: Tensor) -> Tensor:
    return torch.stack([batch[:, 1], batch[:, 0]], 1)


def test_nnunet_names_of_volumes(scans: Path, tmp_path: Path) -> None:
    """case_0000.nii.gz and case_0001.nii.gz are channels of case.nii.gz; another kind beside it is told."""
    for number in range(2):
        (scans / f"a_{number:04d}.nii.gz").write_bytes(gzip.compress(nifti(STORED * (-1) ** number)))
    (scans / "b.nii.gz").write_bytes(gzip.compress(nifti(STORED)))
    cases = Given(scans, volumes=True, nnunet=True)
    assert ([case.mask for case in cases], cases.others) == (["a.nii.gz", "b.nii.gz"], [])
    predictor = a_predictor(swapped, (2, 3, 4), contract=AS_IT_IS)
    found = Prediction(predictor, tmp_path, "made by a test", Cut()).make(cases, print)
    assert found.made == 1
    assert "no channel in its name; rename it b_0000.nii.gz" in found.failed["b"]
    assert np.array_equal(read_labels(tmp_path / "a.nii.gz"), STORED > 0)


def test_volumes_of_one_name_and_a_volume_that_changes(scans: Path, tmp_path: Path) -> None:
    (scans / "a.nii").write_bytes(nifti(STORED))
    cases = Given(scans, volumes=True)

    def cut(batch: Tensor) -> Tensor:
        (scans / "a.nii").write_bytes(b"cut")
        return torch.zeros(1, 2, *batch.shape[2:])

    predictor = a_predictor(cut, (2, 3, 4), contract=replace(AS_IT_IS, channels=1))
    found = Prediction(predictor, tmp_path, "made by a test", Cut()).make(cases, print)
    assert "not a volume that can be read" in found.failed["a"]
    np.save(scans / "a.npy", STORED)
    with pytest.raises(RequestError, match=r"a\.nii, a\.npy would share the mask a\.nii"):
        len(Given(scans, volumes=True))


def test_a_zarr_is_a_case_whose_parts_all_count(scans: Path) -> None:
    (scans / "a.zarr").mkdir()
    (chunk := scans / "a.zarr" / os.fsdecode(b"\xff")).write_text("values")
    (scans / "a.nii").mkdir()
    cases = Given(scans, volumes=True, nnunet=False)
    assert ([case.mask for case in cases], cases.others) == (["a.npy"], ["a.nii"])
    before = mask_files.described(scans / "a.zarr")
    assert mask_files.is_same(before, scans / "a.zarr")
    chunk.write_text("others")
    assert not mask_files.is_same(before, scans / "a.zarr")


def test_a_bundle_of_a_net_for_volumes(scans: Path, tmp_path: Path, call: Call, told: Told) -> None:
    np.save(scans / "a.npy", np.random.default_rng(2).normal(size=(8, 8, 8)))
    write_image(scans / "b.png", 8, 8)
    bundle, out = write_bundle(tmp_path / "bundle", write_volumes_run(tmp_path)), tmp_path / "masks"
    assert takes_volumes(loaded(bundle))
    assert "left out, not read as volumes: b.png" in told(0, bundle, scans, "--out", out)
    assert "a whole volume has no windows" in call(bundle, scans, "--out", out, "--whole", "--step", "0.5")[2]
    assert "the folder of the volumes; name another one" in call(bundle, scans, "--out", scans)[2]
    assert read_labels(out / "a.npy").shape == (8, 8, 8)
