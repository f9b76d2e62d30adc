"""Compare `predict` with the loop that a user would write: JPEG files in, PNG masks out, on one GPU.

    python -m tests.benchmarks.predict_rate RUN --stage fp8 --images 40000 --out rate.json

RUN is a finished run with this stage. Both read the same files of 512×512 pixels, of which `--distinct` differ and the
others are links to them. The loop has a DataLoader of `--workers`, torch.compile (reduce-overhead) in fp16, argmax on
the GPU, and PNG masks from eight threads, without a sync. With `--ray`, Ray Data's recipe of batch inference runs, too:
read_images, map_batches with an actor of the same network, and map for the PNG files. Rates are those between the first
masks and the last.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
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
WRITERS = 8


def photograph(seed: int) -> Image.Image:
    """Return an image whose spectrum falls as that of photographs: noise of all scales, the larger the stronger."""
    rng = np.random.default_rng(seed)
    total = np.zeros((SIDE, SIDE, 3), np.float32)
    for cells in OCTAVES:
        noise = Image.fromarray(rng.integers(0, 256, (cells, cells, 3), np.uint8)).resize(
            (SIDE, SIDE), Image.Resampling.BICUBIC
        )
        total += (np.asarray(noise, np.float32) - 127.5) / cells**0.6
    return Image.fromarray(np.clip(total * 1.7 + 127.5, 0, 255).astype(np.uint8))


def write_images(folder: Path, distinct: int, images: int) -> float:
    """Write JPEG files and links to them; return their mean size in bytes."""
    folder.mkdir()
    with ThreadPoolExecutor() as pool:
        files = [folder / f"{number:07d}.jpg" for number in range(images)]
        [*pool.map(lambda pair: photograph(pair[0]).save(pair[1], quality=QUALITY), enumerate(files[:distinct]))]
    for number, file in enumerate(files[distinct:]):
        os.link(files[number % distinct], file)
    return sum(file.stat().st_size for file in files[:distinct]) / distinct


class Files(Dataset[tuple[Tensor, int]]):
    """The files, decoded to uint8 [height, width, channels], with their numbers."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def __len__(self) -> int:
        """Return the number of files."""
        return len(self.files)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        """Return a decoded file."""
        with Image.open(self.files[number]) as image:
            return torch.from_numpy(np.array(image)), number


class Segmenter:
    """A user's own network on a GPU: torch.compile (reduce-overhead) in fp16, and argmax."""

    def __init__(self, run: RunRecord, out: Path) -> None:
        model, data = run.config.model, run.config.data
        net = build_model(model.target, model.options, model.checkpoint, run.config.seed).cuda().half()
        net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.compiled = torch.compile(net, mode="reduce-overhead")
        self.normalised = normaliser(data.contract, np.dtype(np.uint8), 4, torch.device("cuda"))
        self.out = out
        self.size = data.batch_size

    @torch.inference_mode()
    def masks(self, batch: Tensor) -> np.ndarray:
        """Return the masks [batch, height, width] of images [batch, height, width, channels], uint8."""
        values = self.normalised(batch.cuda(non_blocking=True).float()).half()
        logits = self.compiled(values.contiguous(memory_format=torch.channels_last))
        return logits.argmax(1).to(torch.uint8).cpu().numpy()

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the masks of a batch of Ray Data's, with their files."""
        names = [str(self.out / f"{Path(path).stem}.png") for path in batch["path"]]
        images = torch.from_numpy(np.array(batch["image"]))
        filled = torch.cat([images, images[:1].expand(self.size - len(images), -1, -1, -1)])  # one size, one graph
        return {"mask": self.masks(filled)[: len(images)], "path": np.array(names)}


def saved(row: dict[str, Any]) -> dict[str, Any]:
    """Write a mask of Ray Data's."""
    Image.fromarray(row["mask"]).save(row["path"], compress_level=1)
    return {"path": row["path"]}


def ray_loop(run: RunRecord, images: Path, out: Path, gpus: int) -> float:
    """Make the masks by Ray Data's recipe of batch inference; return masks a second after the first batch."""
    import ray

    out.mkdir()
    ray.init(include_dashboard=False, log_to_driver=False)
    batch = run.config.data.batch_size
    masks = ray.data.read_images(str(images), include_paths=True, mode="RGB").map_batches(
        Segmenter, fn_constructor_args=(run, out), batch_size=batch, num_gpus=1,
        compute=ray.data.ActorPoolStrategy(size=gpus),
    )  # fmt: skip
    began, made = 0.0, 0
    for row in masks.map(saved).iter_batches(batch_size=batch):
        began, made = (began, made + len(row["path"])) if began else (time.perf_counter(), 0)
    rate = made / (time.perf_counter() - began)
    ray.shutdown()
    return rate


def plain_loop(run: RunRecord, images: Path, out: Path, workers: int) -> float:
    """Make the masks by a DataLoader, torch.compile and threads; return masks a second after the first batch."""
    out.mkdir()
    segmenter = Segmenter(run, out)
    files = sorted(images.iterdir())
    loader = DataLoader(Files(files), run.config.data.batch_size, num_workers=workers, pin_memory=True, drop_last=True)
    began, made = 0.0, 0
    with ThreadPoolExecutor(WRITERS) as pool:
        writes = []
        for batch, numbers in loader:
            for mask, number in zip(segmenter.masks(batch), numbers.tolist(), strict=True):
                saved = Image.fromarray(mask).save
                writes.append(pool.submit(saved, out / f"{number:07d}.png", compress_level=1))
            began, made = (began, made + len(numbers)) if began else (time.perf_counter(), 0)
        [write.result() for write in writes]
        return made / (time.perf_counter() - began)


def predicted(run: Path, images: Path, out: Path, words: list[str]) -> dict[str, object]:
    """Make the masks by `python -m pipeline.predict`; return its rate, that of each share, and the time in all."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "pipeline.predict", str(run), str(images), "--out", str(out), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(done.stderr)
    manifests = [json.loads(path.read_text()) for path in sorted(out.glob("predict*.json"))]
    shares = [
        {name: manifest[name] for name in ("masks_per_second", "shares", "seconds_of_workers", "made")}
        for manifest in manifests
    ]
    return {"masks_per_second": sum(share["masks_per_second"] for share in shares), "by": shares, "seconds": seconds}


def main() -> None:
    """Print and write the rates."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--stage", default="fp8")
    parser.add_argument("--devices", nargs="*", default=["this"], help="each is measured: this, 0, all")
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--distinct", type=int, default=400)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--ray", type=int, default=0, help="GPUs for Ray Data's recipe, and for predict --engine ray")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    record = codec.load(asked.run)
    folder = Path(tempfile.mkdtemp())
    told: dict[str, object] = {"gpu": torch.cuda.get_device_name(), "cores": len(os.sched_getaffinity(0))}
    told["jpeg_bytes"] = write_images(folder / "images", asked.distinct, asked.images)
    for devices in asked.devices:
        words = ["--stage", asked.stage, "--devices", devices]
        told[f"predict, {devices}"] = predicted(asked.run, folder / "images", folder / f"masks-{devices}", words)
        write_json(told, asked.out)
    if asked.ray:
        words = ["--stage", asked.stage, "--engine", "ray", "--actors", str(asked.ray)]
        told[f"predict, ray, {asked.ray}"] = predicted(asked.run, folder / "images", folder / "masks-ray", words)
        told[f"Ray Data's recipe, {asked.ray}"] = ray_loop(record, folder / "images", folder / "recipe", asked.ray)
        write_json(told, asked.out)
    told["plain loop"] = plain_loop(record, folder / "images", folder / "loop", asked.workers)
    write_json(told, asked.out)
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
