"""The training of a slim network by the full one, and its folder: a card, and the images on which it loses most.

It learns from the full network's logits (Hinton et al., 2015), and from labels if there are any.
"""

import argparse
import json
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save as in_bytes
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from models.training import peak_rate
from pipeline.analysis.slim_gate import Verdict, judge
from pipeline.analysis.summary import command_with
from pipeline.cli.progress import Progress
from pipeline.command_line import FAILED, REFUSED, show, unbroken
from pipeline.compiler.batch import CHANNELS_LAST
from pipeline.compiler.cuda_graphs import capturing
from pipeline.config.request_error import RequestError
from pipeline.errors import InputError, OneLineError, first_line
from pipeline.export.exporting import locked
from pipeline.inputs.datasets import Dataset
from pipeline.inputs.windows import viewable
from pipeline.measure.torch_device import keep_to_quota, open_device
from pipeline.records.disk import file_digest, write_bytes, write_json, write_text
from pipeline.records.request import ModelSpec
from pipeline.records.run_record import RunRecord
from pipeline.report.markdown import environment
from pipeline.slim.command import Width, width_of
from pipeline.slim.pictures import Batches, masks, split
from pipeline.slim.what_if import Say, width_for
from pipeline.slim.widths import SLICED, Full, full_of, parameters
from pipeline.stats.dice import LEAST_IMAGES, overlap
from pipeline.worker.answer_checks import check_classes
from pipeline.worker.reference import mask_picture

BY_LABELS = 0.5  # weight of the labels beside the full network
WARM_UP = 0.05  # share of the steps in which the rate rises
FADE = 0.5  # share of the steps by whose end tint and noise are gone: the last images are as the held-out ones
SAID_SECONDS, SAVED_SECONDS = 15.0, 60.0
LAUNCHED = 3  # steps before one is recorded, in which libraries choose algorithms and optimizers make their states
TRIED, TIMED = 20, 50  # trial steps that compile and warm up, and those whose time counts
ENDLESS = 10**9  # steps, of which the rate of the first ones is next to nothing
DECAY = 0.01
MOMENTUM, RMS = 0.95, 0.2  # of Muon: the root mean square of a step is as large as one of AdamW
ENDS = 4  # channels: filters of no more read the image or give the logits, and their matrices mean little
FILTERS_TIMES = 10.0  # Muon's rate over AdamW's: its steps are as large in all directions (Jordan et al., 2024)
RANK, PROCESSES = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))  # one for each GPU
Taking = Callable[[Tensor, Tensor | None, Tensor | None], Tensor]  # of inputs, labels, and the full network's answers
CARD, LOCK = "card.json", ".train.lock"
GAP = 4  # pixels between pictures
SHOWN = 4  # images, one below the other
SCORED = 16  # held-out images of a progress line
MAX_DICE_DROP = 0.1  # points, unless the user says otherwise


@dataclass(frozen=True)
class Recipe:
    """The settings of a training; with the same steps they give the same weights on a CPU."""

    share: str  # of the full network's widths, as typed
    steps: int  # 0: as many as fit `minutes`
    minutes: float
    batch: int  # images a step, of all GPUs together
    seed: int  # of weights and batches
    by_labels_alone: bool = False  # without the full network, to see what it is worth


def of_two(logits: Tensor) -> Tensor:
    """Return logits [batch, classes, ...] in fp32; of one channel as those of two classes."""
    logits = logits.float()
    return torch.cat([torch.zeros_like(logits), logits], 1) if logits.shape[1] == 1 else logits


def loss_of(answer: Tensor, wanted: Tensor | None, labels: Tensor | None) -> Tensor:
    """Return how far logits [batch, classes, ...] are from the full network's, and from the labels [batch, ...]."""
    answer, loss = of_two(answer), answer.new_zeros(())
    if wanted is not None:
        shares = answer.log_softmax(1), of_two(wanted).log_softmax(1)
        loss = functional.kl_div(*shares, reduction="none", log_target=True).sum(1).mean()
    if labels is None:
        return loss
    known = labels < answer.shape[1]
    right = labels.long().where(known, 0)
    by_pixel = functional.cross_entropy(answer, right, reduction="none")
    pixels = [0, *range(2, answer.ndim)]
    likely = answer.softmax(1) * known[:, None]
    ones = functional.one_hot(right, answer.shape[1]).movedim(-1, 1) * known[:, None]
    dice = (2 * (likely * ones).sum(pixels) + 1) / (likely.sum(pixels) + ones.sum(pixels) + 1)
    dice_loss = 1 - dice[1:].mean()  # of classes without the background, over all known pixels of the batch
    by_labels = (by_pixel * known).sum() / known.sum().clamp_min(1) + dice_loss
    return loss + (by_labels if wanted is None else BY_LABELS * by_labels)


class Filters:
    """Muon (Jordan et al., 2024) on the filters of layers: a matrix's step is its momentum, made about orthogonal.

    Matrices of about as many rows share a stack, whose zeros beside them stay zero: few products change them all.
    """

    def __init__(self, weights: list[Tensor]) -> None:
        self.weights = weights
        self.layers = [each.detach().movedim(1, -1) for each in weights]  # as channels_last has them in memory
        sizes = [sorted((len(layer), layer[0].numel())) for layer in self.layers]  # fewer rows than columns
        about = [rows.bit_length() for rows, _ in sizes]
        stacks = [[at for at, other in enumerate(about) if other == each] for each in sorted({*about})]
        of_stacks = [torch.tensor([sizes[at] for at in stack]) for stack in stacks]
        self.steps = [weights[0].new_zeros(len(each), *each.max(0).values) for each in of_stacks]  # at first gradients
        self.momenta = [torch.zeros_like(step) for step in self.steps]
        self.scales = [RMS * each.max(1).values.sqrt()[:, None, None].to(weights[0]) for each in of_stacks]
        self.parts = [*self.layers]  # of the steps, each in the shape of its layer
        for stack, step in zip(stacks, self.steps, strict=True):
            for at, matrix in zip(stack, step, strict=True):
                part = matrix[: sizes[at][0], : sizes[at][1]]
                layer = self.layers[at]
                self.parts[at] = (part if len(part) == len(layer) else part.T).view(layer.shape)

    def take(self, rate: float | Tensor) -> None:
        """Change the filters by their gradients; unused ones have none."""
        grads = [torch.zeros_like(each) if each.grad is None else each.grad for each in self.weights]
        with torch.no_grad():
            torch._foreach_copy_(self.parts, [grad.movedim(1, -1) for grad in grads])
            torch._foreach_lerp_(self.momenta, self.steps, 1 - MOMENTUM)
            torch._foreach_lerp_(self.steps, self.momenta, MOMENTUM)  # by Nesterov
            for step, scale in zip(self.steps, self.scales, strict=True):
                torch.mul(orthogonal(step) * scale, -rate, out=step)
            torch._foreach_mul_(self.layers, 1 - rate * DECAY)
            torch._foreach_add_(self.layers, self.parts)


def orthogonal(stack: Tensor) -> Tensor:
    """Return matrices [count, rows, columns] with singular values about 1, by five steps of Newton and Schulz."""
    part = stack.bfloat16()
    part = part / part.flatten(1).norm(dim=1).clamp_min(1e-7)[:, None, None]
    first, second, third = 3.4445, -4.775, 2.0315  # of Jordan et al.
    for _ in range(5):
        gram = part @ part.mT
        part = torch.baddbmm(part, torch.baddbmm(gram, gram, gram, beta=second, alpha=third), part, beta=first)
    return part.to(stack)


class Recorded:
    """A step that is a CUDA graph once it has run `LAUNCHED` times; the host takes longer than the GPU to launch it."""

    def __init__(self, step: Callable[..., Tensor], say: Say) -> None:
        self.step, self.say, self.launched = step, say, 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, *batch: Tensor | None) -> Tensor:
        """Take a step on a batch, and return its loss, which the next step overwrites; say so if none is recorded."""
        if self.launched == LAUNCHED:
            self.fixed = [None if part is None else part.clone() for part in batch]
            graph = torch.cuda.CUDAGraph()
            try:
                with capturing(graph, errors="thread_local"):
                    self.loss = self.step(*self.fixed)
                self.graph = graph
            except RuntimeError as error:  # which leaves torch's generator as while it is recorded
                device = torch.cuda.current_device()
                torch.cuda.default_generators[device].graphsafe_set_state(torch.Generator(torch.device("cuda", device)))
                self.say(f"note: no CUDA graph of a training step can be made ({first_line(error)}), so it is slower")
        self.launched += 1
        if not self.graph:
            return self.step(*batch)
        for fixed, part in zip(self.fixed, batch, strict=True):
            if fixed is not None and part is not None:
                fixed.copy_(part)
        self.graph.replay()
        return self.loss


class Training:
    """A slim network's training by the full one, resumed from its checkpoint where there is one."""

    def __init__(self, slim: nn.Module, full: nn.Module, batches: Batches, recipe: Recipe, checkpoint: Path) -> None:
        self.recipe, self.batches, self.checkpoint = recipe, batches, checkpoint
        self.device, self.on_gpu = batches.device, batches.device.type == "cuda"
        self.layout = CHANNELS_LAST[batches.images.ndim] if self.on_gpu else torch.contiguous_format
        self.full, self.slim = full.eval().requires_grad_(False), slim.requires_grad_()
        for net in (full, slim):
            net.to(self.device).to(memory_format=self.layout)  # type: ignore[call-overload, unused-ignore]
        self.peak = peak_rate(slim)
        inner: list[Tensor] = [part for part in slim.parameters() if part.ndim > 1 and min(part.shape[:2]) > ENDS]
        others = [part for part in slim.parameters() if all(part is not each for each in inner)]
        self.rate = torch.zeros((), device=self.device)
        self.adamw = torch.optim.AdamW(others, weight_decay=DECAY, fused=self.on_gpu, capturable=self.on_gpu)
        self.filters = Filters(inner)
        self.step, self.steps = 0, recipe.steps
        torch.backends.cudnn.benchmark = self.on_gpu
        warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\._inductor")  # of its own choices

    def _resume(self, asked: str) -> None:
        """Load the checkpoint if there is one; raise InputError if it is of another request, or broken."""
        if not self.checkpoint.exists():
            return
        try:
            kept = torch.load(self.checkpoint, map_location=self.device, weights_only=True)
            if is_same := kept["asked"] == asked:
                self.slim.load_state_dict(kept["slim"])
                self.adamw.load_state_dict(kept["adamw"])
                for momentum, state in zip(self.filters.momenta, kept["momenta"], strict=True):
                    momentum.copy_(state)
                self.step, self.steps = kept["step"], kept["steps"]
        except Exception as error:  # noqa: BLE001 - the unpickler raises any type, and so do other contents
            said = f"{self.checkpoint}: can't be read ({first_line(error)}); remove it to begin again"
            raise InputError(said) from None
        if not is_same:
            raise InputError(f"{self.checkpoint}: it is of another training; name another --out, or remove it")

    def _save(self, asked: str) -> None:
        """Write the checkpoint; an earlier one stays until this one is whole."""
        if RANK == 0:
            content = BytesIO()  # torch names no full disk
            states = {"slim": self.slim.state_dict(), "adamw": self.adamw.state_dict(), "momenta": self.filters.momenta}
            torch.save({"asked": asked, "step": self.step, "steps": self.steps, **states}, content)
            write_bytes(content.getvalue(), self.checkpoint)

    def run(self, asked: str, seconds: float, say: Say, score: Callable[[], str]) -> bool:
        """Train until the last step or the time's end, and return whether all steps of the request are done."""
        began = said = saved = time.monotonic()
        self._resume(asked)
        if self.step:
            say(f"resumed at step {self.step:,}")
        if not self.recipe.by_labels_alone:
            self.batches.ask(torch.compile(self._shares) if self.on_gpu else self._shares, self.recipe.batch, say)
        take, losses = self._taking(say), list[Tensor]()
        if not self.steps:
            self._fit_steps(take, began)
            say(f"{self.steps:,} steps of {self.recipe.batch} images fit {self.recipe.minutes:g} minutes")
        try:
            while self.step < self.steps:
                with unbroken():  # an interrupted step would be taken again
                    losses.append(self._step(take))
                now = time.monotonic()
                if now - said > SAID_SECONDS or self.step == self.steps:
                    say(f"step {self.step:,} of {self.steps:,}, loss {torch.stack(losses).mean():.4f}, {score()}")
                    losses, said = [], time.monotonic()
                if now - saved > SAVED_SECONDS:
                    self._save(asked)
                    saved = time.monotonic()
                if self._agreed(now - began >= seconds):
                    break
        finally:
            self._save(asked)
        if self.step < self.steps:
            say(f"time is up at step {self.step:,} of {self.steps:,}; the same command goes on")
        return self.step >= self.steps

    def _fit_steps(self, take: Taking, began: float) -> None:
        """Set the number of steps to what fits the recipe's minutes, by trial steps that are taken back."""
        weights = {name: part.clone() for name, part in self.slim.state_dict().items()}
        self.steps = ENDLESS
        for count in (TRIED, TIMED):
            tried = time.monotonic()
            for _ in range(count):
                last = self._step(take)
            last.item()
        each = (time.monotonic() - tried) / TIMED  # seconds of a step, in the mean
        left = 60 * self.recipe.minutes - (time.monotonic() - began)
        self.step, self.steps = 0, self._agreed(max(1, int(left / each)))
        self.slim.load_state_dict(weights)
        for part in (*self.filters.momenta, *(part for state in self.adamw.state.values() for part in state.values())):
            part.zero_()  # in place, as a recorded step writes there

    def _autocast(self) -> AbstractContextManager[None]:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.on_gpu)

    def _shares(self, inputs: Tensor) -> Tensor:
        """Return the full network's shares [batch, classes, ...] of inputs [batch, channels, ...]."""
        with torch.no_grad(), self._autocast():
            return of_two(self.full(inputs.contiguous(memory_format=self.layout))).softmax(1)

    def _taking(self, say: Say) -> Taking:
        """Return what changes the weights by a batch: a CUDA graph on one GPU; several average their gradients."""
        ids = [self.device.index] if self.on_gpu else None
        called: Any = DistributedDataParallel(self.slim, device_ids=ids) if PROCESSES > 1 else self.slim
        asks = self.batches.answers is None and not self.recipe.by_labels_alone

        def loss(inputs: Tensor, labels: Tensor | None, wanted: Tensor | None) -> Tensor:
            with self._autocast():
                if asks:
                    with torch.no_grad():
                        wanted = self.full(inputs)
                answer = called(inputs)
            return loss_of(answer, wanted, labels)

        compiled = torch.compile(loss) if self.on_gpu else loss

        def taken(inputs: Tensor, labels: Tensor | None, answers: Tensor | None) -> Tensor:
            self.slim.zero_grad()
            given = compiled(inputs.contiguous(memory_format=self.layout), labels, answers)
            given.backward()
            self.adamw.param_groups[0]["lr"] = self.rate
            self.adamw.step()
            if self.filters.weights:
                self.filters.take(FILTERS_TIMES * self.rate)
            return given.detach()

        return Recorded(taken, say) if self.on_gpu and PROCESSES == 1 else taken

    def _step(self, take: Taking) -> Tensor:
        """Train one step and return its loss; the rate soon reaches its peak, and falls evenly to 0."""
        recipe, done = self.recipe, self.step / self.steps
        self.rate.fill_(self.peak * min(1.0, (done + 1 / self.steps) / WARM_UP) * (1 - done))
        torch.manual_seed((recipe.seed + 1_000_003 * self.step) % 2**63)  # of dropout
        batch = self.batches.drawn(self.step, recipe.batch, (RANK, PROCESSES), strength=max(0.0, 1 - done / FADE))
        self.slim.train()
        loss = take(*batch).clone()
        self.step += 1
        return loss

    def _agreed(self, value: int) -> int:
        """Return a figure of this process's clock; of several processes that of the first one."""
        if PROCESSES == 1:
            return value
        first = torch.tensor(value, device=self.device, dtype=torch.int64)
        torch.distributed.broadcast(first, 0)
        return int(first)


def write(folder: Path, verdict: Verdict, card: dict[str, Any], held: Dataset, masks: Sequence[np.ndarray]) -> None:
    """Write card.json, README.md and worst.png: rows of image, labels, and `masks` of the full network and student."""
    document = {"passed": verdict.passed, "told": verdict.told, "verdict": asdict(verdict), **card}
    shown = {"verdict": verdict, "document": document, "worst": [held.sources[at] for at in verdict.worst_images]}
    write_text(environment().get_template("slim_card.md.j2").render(shown), folder / "README.md")
    rows = []
    for at in verdict.worst_images[:SHOWN]:
        drawn = [mask_picture(part[at]).convert("RGB") for part in (held.labels, *masks) if part is not None]
        parts = [np.pad(np.asarray(part), ((0, GAP), (0, GAP), (0, 0))) for part in (viewable(held.images[at]), *drawn)]
        rows.append(np.concatenate(parts, axis=1))
    Image.fromarray(np.concatenate(rows)).save(folder / "worst.png")
    write_json(document, folder / CARD)  # last, as it marks a finished student


def digest(data: Dataset) -> str:
    """Return the SHA-256 of images and labels."""
    summed = sha256(np.ascontiguousarray(data.images).data)
    summed.update(b"" if data.labels is None else np.ascontiguousarray(data.labels).data)
    return summed.hexdigest()


def train(asked: argparse.Namespace, run: RunRecord, device: str) -> int:
    """Train a student, judge it and write its folder; return the exit code."""
    keep_to_quota()
    place = open_device(device)
    if "RANK" in os.environ:  # one of several GPUs' processes
        torch.distributed.init_process_group("nccl" if device == "cuda" else "gloo")
        if device == "cuda":
            place = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(place)
    try:
        with Progress(0) as progress, student_folder(asked) as folder:
            return trained(asked, run, place, folder, progress.say if RANK == 0 else lambda _: None)
    except OneLineError:
        if RANK == 0:
            raise
        return REFUSED  # the first process says why
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def chosen_width(asked: argparse.Namespace, run: RunRecord, full: Full, folder: Path, device: str, say: Say) -> Width:
    """Return the width that is asked for, or that reaches the target, which an earlier call may have kept."""
    if isinstance(asked.width, Width):
        return asked.width
    kept = folder / f"width-{asked.target.text}.txt"
    if RANK == 0 and not kept.exists():
        write_text(width_for(asked.target, run, full, device, say).text, kept)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    return width_of(kept.read_text(encoding="utf-8"))


def placed(made: ModelSpec, weights: Path) -> ModelSpec:
    """Return what makes the student, with its weights."""
    options = {**made.options, "weights": str(weights)} if made.target == SLICED else made.options
    return replace(made, options=options, checkpoint=str(weights), checkpoint_key=None, trained=None)


@contextmanager
def student_folder(asked: argparse.Namespace) -> Iterator[Path]:
    """Make and hold the student's folder; raise RequestError if a finished student or another process is there."""
    name = (asked.target or asked.width).text.replace("/", "-").replace(",", "_")
    folder: Path = asked.out or asked.run.resolve().with_name(f"{asked.run.resolve().name}-slim-{name}")
    is_new = RANK == 0 and not folder.exists()
    if RANK == 0:
        folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / LOCK) if RANK == 0 else nullcontext(True) as is_alone:
        if not is_alone:
            raise RequestError(f"{folder}: another process trains there; wait for it, or name another --out")
        if (folder / CARD).exists():
            raise RequestError(f"{folder}: holds a finished student; name another --out")
        try:
            yield folder
        finally:
            if is_new and [*folder.iterdir()] == [folder / LOCK]:  # a refused training has begun nothing
                rmtree(folder, ignore_errors=True)


def trained(asked: argparse.Namespace, run: RunRecord, device: torch.device, folder: Path, say: Say) -> int:
    """Return the exit code of `train`."""
    config, full = run.config, full_of(run, asked.run, str(device))
    width = chosen_width(asked, run, full, folder, device.type, say)
    made, slim = full.slimmer(width)
    counts = {"full": parameters(full.net), "student": parameters(slim)}
    say(f"a student of width {width.text}, {counts['student']:,} parameters of {counts['full']:,}, in {folder}")
    learnt, held = split(config.data, asked.images, asked.labels, asked.seed, asked.drawn, asked.held_out)
    if len(held.images) < LEAST_IMAGES:
        say(f"note: {len(held.images)} held-out images are too few for the gate; give {LEAST_IMAGES} or more")
    if asked.by_labels_alone:
        if learnt.labels is None:
            raise RequestError("--by-labels-alone: the training images have no labels")
        torch.manual_seed(asked.seed)
        slim.apply(lambda layer: getattr(layer, "reset_parameters", lambda: None)())
    batches, judged = (Batches(part, config.data.contract, device, asked.seed) for part in (learnt, held))
    recipe = Recipe(width.text, asked.steps, asked.minutes, asked.batch, asked.seed, asked.by_labels_alone)
    training = Training(slim, full.net, batches, recipe, folder / "checkpoint.pt")
    classes = max(2, int(full.net(judged.inputs(slice(1))).shape[1]))
    for part in (learnt, held):  # the run's own labels may have changed since
        check_classes(part.labels, part.sources, classes)
    full_masks = masks(full.net, judged, asked.batch)
    right, against = (full_masks, "the full network's masks") if held.labels is None else (held.labels, "labels")
    curve = folder / "curve.csv"
    if not training.checkpoint.exists():
        curve.unlink(missing_ok=True)  # of a training that begins anew

    def score() -> str:
        dice = overlap(masks(slim, judged, asked.batch, SCORED), right[:SCORED], classes).mean_dice
        if RANK == 0:
            with curve.open("a", encoding="utf-8") as lines:
                lines.write(f"{training.step},{dice:.5f}\n")
        return f"Dice against {against} so far {dice:.4f}"

    digests = {"sha256": digest(held), "training_sha256": digest(learnt)}
    full_digest = run.reference and run.reference.weights_sha256
    request = json.dumps([asdict(recipe), full_digest, digests["training_sha256"]])
    if not training.run(request, asked.seconds or math.inf, say, score) or RANK != 0:
        return 0
    weights = folder / "weights.safetensors"  # of clones, as a network may hold a tensor under two names
    write_bytes(in_bytes({key: part.cpu().clone().contiguous() for key, part in slim.state_dict().items()}), weights)
    spec, found = placed(made, weights), masks(slim, judged, asked.batch)
    drops = asked.max_dice_drop, config.accuracy.max_dice_drop, MAX_DICE_DROP  # 0 is a limit
    limit = next(drop for drop in drops if drop is not None)
    before, after = (overlap(part, right, classes) for part in (full_masks, found))
    verdict = judge(before, after, held.pictures, limit, asked.seed, against)
    data = {"name": config.data.name, "trained_on": len(learnt.images), "held_out": len(held.images)}
    card = {
        "full": {"command": run.command, "weights_sha256": full_digest},
        "student": {"model": asdict(spec), "weights_sha256": file_digest(weights)},
        "parameters": counts,
        "recipe": {**asdict(recipe), "steps": training.steps},
        "data": {**data, **digests, "training_labels": learnt.labels is not None},
        "command": command_with(run, spec),
    }
    write(folder, verdict, card, held, (full_masks, found))
    training.checkpoint.unlink(missing_ok=True)
    for line in (*(f"note: {note}" for note in verdict.notes), verdict.told):
        say(line)
    show(f"{folder}\n")
    return 0 if verdict.passed else FAILED
