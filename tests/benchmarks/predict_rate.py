"""Compare `predict` with the loops that a user would write: images in, PNG masks out, on one GPU or several.

    python -m tests.benchmarks.predict_rate RUN BUNDLE … --images 72000 --pngs 20000 --loops plain ray --out rate.json

Each RUN, of which `--stage` is taken, and each BUNDLE makes the masks of JPEG files, and of `--pngs` PNG files, of
512×512 pixels. `--distinct` of the files differ, and the others are links to them. Rates are those between the first
masks and the last; the time to the first mask, the network's own rate and the memory of all processes stand beside
them. The loops have the network of the first run, in torch.compile (reduce-overhead) in fp16, and end after
`--loop-seconds`. "plain" has a DataLoader of `--workers`, argmax on the GPU, and PNG masks from eight threads, without
a sync. "ray" is Ray Data's recipe of batch inference: read_images, map_batches with an actor a GPU, and map.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from models.build import build_model
from models.image_batches import normaliser
from pipeline.records import codec
from pipeline.records.disk import write_json
from pipeline.records.run_record import RunRecord

SIDE, QUALITY = 512, 90
OCTAVES = (4, 8, 16, 32, 64, 128, 256, 512)  # cells along a side
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # of the loops


def photograph(seed: int) -> Image.Image:
    """Return an image whose spectrum falls as that of photographs: noise of all scales, the larger the stronger."""
    rng = np.random.default_rng(seed)
    total = np.zeros((SIDE, SIDE, 3), np.float32)
    for cells in OCTAVES:
        noise = Image.fromarray(rng.integers(0, 256, (cells, cells, 3), np.uint8))
        smooth = noise.resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        total += (np.asarray(smooth, np.float32) - 127.5) / cells**0.6
    return Image.fromarray(np.clip(total * 1.7 + 127.5, 0, 255).astype(np.uint8))


def write_image(file: Path) -> int:
    photograph(int(file.stem)).save(file, quality=QUALITY)
    return file.stat().st_size


def write_images(folder: Path, suffix: str, distinct: int, images: int) -> float:
    """Write files and links to them, unless the folder is there; return their mean size in bytes."""
    files = [folder / f"{number:07d}{suffix}" for number in range(images)]
    if not folder.exists():
        folder.mkdir(parents=True)
        with ProcessPoolExecutor() as pool:
            [*pool.map(write_image, files[:distinct], chunksize=4)]
        for number, file in enumerate(files[distinct:]):
            os.link(files[number % distinct], file)
    return sum(file.stat().st_size for file in files[:distinct]) / len(files[:distinct])


class Files(Dataset[tuple[Tensor, int]]):
    """The files, decoded to uint8 [height, width, channels], with their numbers."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        with Image.open(self.files[number]) as image:
            return torch.from_numpy(np.array(image)), number


class Segmenter:
    """A user's own network: torch.compile (reduce-overhead) in fp16, and argmax."""

    def __init__(self, run: RunRecord, out: Path) -> None:
        model, data = run.config.model, run.config.data
        net = build_model(model.target, model.options, model.checkpoint, run.config.seed).to(DEVICE).half()
        net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.compiled = torch.compile(net, mode="reduce-overhead")
        self.normalised = normaliser(data.contract, np.dtype(np.uint8), 4, DEVICE)
        self.out = out
        self.size = data.batch_size

    @torch.inference_mode()
    def masks(self, batch: Tensor) -> np.ndarray:
        """Return the masks [batch, height, width] of images [batch, height, width, channels], uint8."""
        values = self.normalised(batch.to(DEVICE, non_blocking=True).float()).half()
        logits = self.compiled(values.contiguous(memory_format=torch.channels_last))
        return logits.argmax(1).to(torch.uint8).cpu().numpy()

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        names = [str(self.out / f"{Path(path).stem}.png") for path in batch["path"]]
        images = torch.from_numpy(np.array(batch["image"]))
        filled = torch.cat([images, images[:1].expand(self.size - len(images), -1, -1, -1)])  # one size, one graph
        return {"mask": self.masks(filled)[: len(images)], "path": np.array(names)}


def saved(row: dict[str, Any]) -> dict[str, Any]:
    Image.fromarray(row["mask"]).save(row["path"], compress_level=1)
    return {"path": row["path"]}


class Pace:
    """Counts masks after the first batch, until the time is over."""

    def __init__(self, seconds: float) -> None:
        self.longest = seconds
        self.began = 0.0
        self.made = 0

    def goes_on(self, number: int) -> bool:
        """Count a batch; return whether there is time for more."""
        now = time.perf_counter()
        self.began, self.made = (self.began, self.made + number) if self.began else (now, 0)
        return now - self.began < self.longest

    @property
    def per_second(self) -> float:
        """Masks a second until now."""
        return self.made / (time.perf_counter() - self.began)


def ray_loop(run: RunRecord, images: Path, out: Path, asked: argparse.Namespace) -> dict[str, object]:
    """Make the masks by Ray Data's recipe of batch inference; return the rate after the first batch."""
    import ray

    ray.init(include_dashboard=False, log_to_driver=False)
    batch, pace, gpus = run.config.data.batch_size, Pace(asked.loop_seconds), torch.cuda.device_count()
    masks = ray.data.read_images(str(images), include_paths=True, mode="RGB").map_batches(
        Segmenter, fn_constructor_args=(run, out), batch_size=batch, num_gpus=min(1, gpus),
        compute=ray.data.ActorPoolStrategy(size=max(1, gpus)),
    )  # fmt: skip
    for row in masks.map(saved).iter_batches(batch_size=batch):
        if not pace.goes_on(len(row["path"])):
            break
    rate = pace.per_second
    ray.shutdown()
    return {"masks_per_second": rate}


def plain_loop(run: RunRecord, images: Path, out: Path, asked: argparse.Namespace) -> dict[str, object]:
    """Make the masks by a DataLoader, torch.compile and threads; return the rate after the first batch."""
    segmenter, pace = Segmenter(run, out), Pace(asked.loop_seconds)
    batch, workers = run.config.data.batch_size, asked.workers
    loader = DataLoader(Files(sorted(images.iterdir())), batch, num_workers=workers, pin_memory=True, drop_last=True)
    with ThreadPoolExecutor(8) as pool:
        writes = []
        for read, numbers in loader:
            for mask, number in zip(segmenter.masks(read), numbers.tolist(), strict=True):
                writes.append(pool.submit(Image.fromarray(mask).save, out / f"{number:07d}.png", compress_level=1))
            if not pace.goes_on(len(numbers)):
                break
        [write.result() for write in writes]
        return {"masks_per_second": pace.per_second}


LOOPS = {"plain": plain_loop, "ray": ray_loop}


def memory_mib(process: int) -> float:
    """Return the memory of a process and its children, each page shared among those that hold it."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    own = next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
    return own + sum(memory_mib(int(child)) for child in children)


def predicted(source: Path, images: Path, out: Path, words: list[str]) -> dict[str, object]:
    """Make the masks by `python -m pipeline.predict`; return the rate, and the profile of each process."""
    began, largest = time.perf_counter(), 0.0
    process = subprocess.Popen([sys.executable, "-m", "pipeline.predict", source, images, "--out", out, *words])
    while process.poll() is None:
        with suppress(OSError, StopIteration):  # a process ends meanwhile
            largest = max(largest, memory_mib(process.pid))
        time.sleep(1)
    if process.returncode:
        raise RuntimeError(f"predict {' '.join(words)}: code {process.returncode}")
    manifests = [json.loads(path.read_text()) for path in sorted(out.glob("predict*.json"))]
    profiles = [manifest["profile"] for manifest in manifests if manifest["made"]]
    return {
        "masks_per_second": sum(profile["masks_per_second"] or 0.0 for profile in profiles),
        "network_per_second": sum(profile["network_per_second"] or 0.0 for profile in profiles),
        "first_mask_seconds": max(sum(profile["seconds_before_the_first_mask"].values()) for profile in profiles),
        "mib_above_loaded": largest - sum(manifest["memory_mib"]["network_loaded"] for manifest in manifests),
        "seconds": time.perf_counter() - began,
        "profiles": profiles,
    }


class Rows:
    def __init__(self, asked: argparse.Namespace) -> None:
        self.out: Path = asked.out
        self.work: Path = asked.work or Path(tempfile.mkdtemp())
        gpu = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "none"
        self.told: dict[str, object] = {"gpu": gpu, "cores": len(os.sched_getaffinity(0))}

    def add(self, name: str, measured: Callable[[Path], dict[str, object]]) -> None:
        """Measure a row with a new folder for masks; what goes wrong in one costs no other."""
        (masks := Path(tempfile.mkdtemp(dir=self.work)) / "masks").mkdir()
        try:
            row = measured(masks)
        except Exception as error:  # noqa: BLE001
            row = {"error": f"{type(error).__name__}: {error}"}
        shutil.rmtree(masks.parent)
        self.told[name] = row
        write_json(self.told, self.out)
        figures = ", ".join(f"{key} {value:,.4g}" for key, value in row.items() if isinstance(value, float))
        sys.stdout.write(f"{name}: {figures or row}\n")
        sys.stdout.flush()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sources", type=Path, nargs="+", help="runs and bundles; loops take the first run's network")
    parser.add_argument("--stage", default="fp8", help="of runs")
    parser.add_argument("--devices", nargs="*", default=["this"], help="each is measured: this, 0, all, ray")
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--pngs", type=int, default=0)
    parser.add_argument("--distinct", type=int, default=400)
    parser.add_argument("--workers", type=int, default=14, help="of the plain loop")
    parser.add_argument("--loops", nargs="*", default=[], choices=LOOPS)
    parser.add_argument("--loop-seconds", type=float, default=20.0)
    parser.add_argument("--work", type=Path, help="a folder for images, which are kept there, and masks")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def main() -> None:
    asked = parsed()
    rows = Rows(asked)
    kinds = {"jpg": (asked.distinct, asked.images), "png": (asked.distinct // 4, asked.pngs)}
    kinds = {kind: numbers for kind, numbers in kinds.items() if numbers[1]}
    for kind, numbers in kinds.items():
        rows.told[f"bytes of a {kind}"] = write_images(rows.work / kind, f".{kind}", *numbers)
    runs = [source for source in asked.sources if (source / "results.json").exists()]
    for source, devices, kind in product(asked.sources, asked.devices, kinds):
        words = ["--stage", asked.stage] if source in runs else []
        words += ["--engine", "ray"] if devices == "ray" else ["--devices", devices]
        rows.add(f"{source.name}, {kind}, {devices}", lambda out: predicted(source, rows.work / kind, out, words))  # noqa: B023
    for loop in asked.loops:
        rows.add(f"{loop} loop", lambda out: LOOPS[loop](codec.load(runs[0]), rows.work / "jpg", out, asked))  # noqa: B023


if __name__ == "__main__":
    main()
