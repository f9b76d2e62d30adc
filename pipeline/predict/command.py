"""Make the masks of a folder of images or volumes with a run or a bundle; run it again to resume.

    python -m pipeline.predict outputs/DATE/TIME images/ --out masks/

Exit codes: 0 all masks are there, 1 an image has none, 2 a wrong request, 130 interrupted.
"""

import argparse
import signal
import sys
import traceback
from collections.abc import Sequence
from concurrent.futures import wait
from contextlib import closing
from os.path import realpath
from pathlib import Path
from typing import get_args

from pipeline.command_line import FAILED, FILES_TOO, Parser, guarded, path_of, show, tell
from pipeline.config.data_request import VOLUME
from pipeline.config.request_error import RequestError
from pipeline.export.contract import Contract, is_bundle, predicted_contract
from pipeline.export.request import check_task
from pipeline.export.request import loaded as load_run
from pipeline.inputs.folders import FIRST
from pipeline.predict.given import Given
from pipeline.predict.mask_files import FILES, OF_ALL, Form, Format
from pipeline.predict.nvjpeg import begun
from pipeline.predict.report import TIMER, Outcome
from pipeline.predict.shards import THIS, WHOLE, on_devices, shard_of
from pipeline.predict.windows import STEP
from pipeline.predict.workers import Workers, beside_a_gpu
from pipeline.records.data_words import IMAGES, VOLUMES
from pipeline.records.disk import json_text
from pipeline.records.run_record import RunRecord
from pipeline.report.formatting import clean, visible

ENGINES, PARQUET = ("plain", "ray"), "parquet"
MOST_COMPRESSION = 9  # zlib's


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    asked = Parser(prog="python -m pipeline.predict", description=__doc__)
    add = asked.add_argument
    add("run", type=Path, help="the folder of a run, such as outputs/DATE/TIME, or a bundle")
    add("images", type=place, help="a folder of images or volumes, a file, a list.txt, or a 'pattern/**/*.jpg'")
    add("--out", type=place, required=True, help="the folder for the masks; finished masks there are kept")
    add("--stage", help="a stage of the run; the winner unless given")
    add("--device", help="auto, cuda or cpu; the run's unless given")
    add("--devices", default=THIS, help="all, or GPUs such as 0,2: one process and a share of the images for each")
    add("--shard", help="I/N: process only share I of N, counted from 0; all shares may have one --out")
    add("--workers", type=int, help="processes that read and write beside a GPU (default one per core)")
    add("--engine", choices=ENGINES, default=ENGINES[0], help="ray: on several machines, from and to URLs, too")
    add("--actors", type=int, help="of Ray: processes with a network (default one per GPU, on CPUs one per machine)")
    add(
        "--format", choices=get_args(Format), default=FILES.format,
        help="files: PNG, or as the GeoTIFF or volume is; npy; zarr: zipped; parquet: a few files, by Ray",
    )  # fmt: skip
    add("--compression", type=int, help="level of PNG, TIFF of images and zarr, 0 to 9 (default 1)")
    add("--probabilities", action="store_true", help="write the probabilities of classes, not masks")
    add("--batch", type=int, help="windows per call; the run's batch unless given")
    add("--overlap", type=int, help="images: least overlap of windows, pixels (default a quarter of the shorter side)")
    add("--step", type=float, help=f"volumes: largest distance of windows, as a share of their side (default {STEP})")
    add("--whole", action="store_true", help="answer each image in one call; the stage must take any size")
    add("--colors", action="store_true", help="images: show classes in colours; values stay indices")
    add("--overlay", action="store_true", help="images: also write each image under the colours of its classes")
    add("--profile", action="store_true", help="print the time of each part and the bottleneck as JSON")
    add("--nnunet", action="store_true", help="read case_0000.png, case_0001.png … as the channels of case.png")
    return asked


def place(text: str) -> Path | str:
    """Return a path, or a URL as it is; file:///images is a path."""
    return path_of(text.removeprefix("file://")) if "://" not in text.removeprefix("file://") else text


def main(arguments: list[str] | None = None) -> int:
    """Make the masks; return 0, 1 if an image has none, or 2 after one line if the request is wrong."""
    words = sys.argv[1:] if arguments is None else arguments
    return guarded(lambda: interrupted_once(parser().parse_args(words), words), refuses=FILES_TOO)


def interrupted_once(asked: argparse.Namespace, words: Sequence[str]) -> int:
    """Return the exit code of `main`; after a Ctrl-C another one doesn't reach what removes temporary files."""
    try:
        return predicted(asked, words)
    except KeyboardInterrupt as error:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        traceback.clear_frames(error.__traceback__)
        signal.signal(signal.SIGINT, before)
        raise
    except OSError as error:
        error.filename = error.filename or str(asked.out)  # of a full disk none is named
        raise


def predicted(asked: argparse.Namespace, words: Sequence[str]) -> int:
    """Return the exit code of `main`."""
    check(asked)
    if asked.devices != THIS:
        outcome = on_devices(asked.devices, words, asked.out)
    elif asked.engine == ENGINES[0]:
        outcome = predict_folder(asked)
    else:
        try:
            from pipeline.predict.ray_engine import predict_by_ray
        except ModuleNotFoundError as error:
            raise RequestError(f"--engine ray: {error}; python -m pip install 'unet-ladder[ray]'") from None
        outcome = predict_by_ray(asked)
    for name, reason in outcome.failed.items() if asked.devices == THIS else ():  # those of shares are told
        tell(f"no {outcome.product} of {visible(name)}: {clean(reason)}")
    if rate := outcome.rate.told():
        tell(rate)
    summary = f"{outcome.summary()}: {visible(asked.out)}"
    if asked.profile:
        tell(summary)
        summary = json_text(outcome.profiles, indent=1)
    show(f"{summary}\n")
    return FAILED if outcome.failed else 0


def predict_folder(asked: argparse.Namespace) -> Outcome:
    """Make the masks that are missing."""
    source = loaded(asked.run)
    check_kind(asked, takes_volumes(source))
    TIMER.turn("list files")
    cases = given(asked, source)
    if len(cases) and cases.others:
        more = cases.number_of_others - len(cases.others)
        named = ", ".join(map(visible, cases.others)) + (f" and {more} more" if more else "")
        tell(f"left out, not read as {cases.words.samples}: {named}")
    channels = (source.normalisation if isinstance(source, Contract) else source.config.data.contract).channels
    if len(cases) and not asked.nnunet and channels > 1:
        first = next(iter(cases)).files[0]
        there = [first.with_name(first.name.replace(FIRST, f"_{at:04}")).exists() for at in range(channels + 1)]
        if FIRST in first.name and there == [True] * channels + [False]:
            tell(f"note: {visible(first.name)} is named as the first of {channels} channels; --nnunet joins them")
    TIMER.turn("import torch, check files")
    with closing(Workers(in_threads=False)) as workers:
        number = beside_a_gpu(asked.workers, len(cases)) if is_for_gpu(asked, source) else 0
        beside = begun() if number and not cases.volumes else ()
        for _ in range(number):
            workers.start()  # beside the imports of this process
        from pipeline.predict.folder import predict_cases  # imports torch: a wrong word is refused before

        wait(beside)  # no thread may allocate of the GPU while another captures the network's graph
        outcome = predict_cases(cases, source, asked, workers)
    if not Path(cases.root).exists():
        raise RequestError(f"{cases.root}: gone since the start; {outcome.summary()}, and finished masks are kept")
    return outcome


def is_for_gpu(asked: argparse.Namespace, source: RunRecord | Contract) -> bool:
    """Return whether a GPU was asked for, or is recorded."""
    recorded = source.measured if isinstance(source, Contract) else source.environment
    known = recorded.device if recorded else None
    return (known if asked.device in (None, "auto") else asked.device) == "cuda"


def given(asked: argparse.Namespace, source: RunRecord | Contract) -> Given:
    """Return the cases of the command line; labels that lay in the folder of the run's images are none."""
    left_out, rules = [asked.out], None
    data = None if isinstance(source, Contract) else source.config.data
    if data and data.labels:
        left_out.append(data.labels)
        rules = data.label_rules if data.path and realpath(data.labels) == realpath(data.path) else None
    shard, form = shard_of(asked.shard), Form(asked.format, asked.probabilities)
    return Given(asked.images, takes_volumes(source), asked.nnunet, rules, left_out, shard, form)


def loaded(folder: Path) -> RunRecord | Contract:
    """Load the record of a run, or the contract of a bundle."""
    if is_bundle(folder):
        return predicted_contract(folder)
    record = load_run(folder, "a run or a bundle")
    check_task(record)
    return record


def takes_volumes(source: RunRecord | Contract) -> bool:
    """Return whether a run's network, or a bundle's, takes volumes."""
    return source.takes_volumes if isinstance(source, Contract) else source.config.data.name == VOLUME


def refuse(*rules: tuple[object, str]) -> None:
    """Raise the text of the first rule that holds."""
    for holds, problem in rules:
        if holds:
            raise RequestError(problem)


def check(asked: argparse.Namespace) -> None:
    """Check what needs no run."""
    is_plain, images, out = asked.engine == ENGINES[0], asked.images, asked.out
    level, form, scores = asked.compression, asked.format, asked.probabilities
    in_run = not isinstance(out, str) and Path(realpath(out)).is_relative_to(realpath(asked.run))
    refuse(
        (is_plain and isinstance(images, str), f"{images}: a URL, which --engine ray takes"),
        (is_plain and isinstance(out, str), f"--out {out}: a URL, which --engine ray takes"),
        (is_plain and asked.actors, "--actors: of --engine ray alone"),
        (is_plain and form == PARQUET, "--format parquet: of --engine ray alone"),
        (in_run, f"--out {out}: lies in {asked.run}, which has masks of its own; name another folder"),
    )
    numbers = ("batch", asked.batch, 1), ("workers", asked.workers, 1), ("actors", asked.actors, 1)
    for word, value, least in (*numbers, ("overlap", asked.overlap, 0)):
        refuse((value is not None and value < least, f"--{word} {value}: expected an integer ≥ {least}"))
    is_share, levels, step = shard_of(asked.shard) != WHOLE, range(MOST_COMPRESSION + 1), asked.step
    refuse(
        (is_share and asked.devices != THIS, f"--shard {asked.shard}: leave it out beside --devices {asked.devices}"),
        (step is not None and not 0 < step <= 1, f"--step {step}: expected a number above 0, at most 1"),
        (level not in (None, *levels), f"--compression {level}: expected an integer from 0 to {MOST_COMPRESSION}"),
    )
    for words, both in (
        (f"--compression {level} --format npy", level is not None and form == "npy"),
        (f"--colors --format {form}", asked.colors and form in OF_ALL),
        (f"--overlay --format {form}", asked.overlay and form != FILES.format),
        ("--probabilities --colors", scores and asked.colors),
        ("--probabilities --overlay", scores and asked.overlay),
    ):
        refuse((both, f"{words}: they exclude each other; leave one out"))


def check_kind(asked: argparse.Namespace, volumes: bool) -> None:
    """Check the options of windows, which differ between images and volumes, and the folder of the masks."""
    out, level, overlap, step = asked.out, asked.compression, asked.overlap, asked.step
    words = VOLUMES if volumes else IMAGES
    no_windows = f"a whole {words.sample} has no windows; leave it or --whole out"
    refuse(
        (realpath(out) == realpath(asked.images), f"--out {out}: the folder of the {words.samples}; name another one"),
        (asked.whole and overlap is not None, f"--overlap {overlap}: {no_windows}"),
        (asked.whole and step is not None, f"--step {step}: {no_windows}"),
        (volumes and asked.colors, "--colors: of images alone; leave it out"),
        (volumes and asked.overlay, "--overlay: of images alone; leave it out"),
        (volumes and level is not None and asked.format != "zarr",
         f"--compression {level}: of images or --format zarr; leave it out"),
        (volumes and overlap is not None,
         f"--overlap {overlap}: of images alone; volumes go by --step, such as {STEP}"),
        (not volumes and step is not None, f"--step {step}: of volumes alone; images go by --overlap, in pixels"),
    )  # fmt: skip
